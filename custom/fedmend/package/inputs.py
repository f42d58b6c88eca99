"""What a model is asked about: the images or volumes in a folder or a table, and the study that each is of."""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.data.csv_files import read_csv
from fedmend.data.dicom_copies import copies_in
from fedmend.data.dicom_files import OTHER_FORMATS, frames_of, no_warnings, open_dicom
from fedmend.data.dicom_kinds import FIELDS, IMAGE, kind_of, shows_images, word_of
from fedmend.data.dicom_series import PLACE, TURN, height_of, number_of
from fedmend.data.identity import as_on_disk, canonical, is_missing, loose, one_path
from fedmend.data.readers import NIFTI_SUFFIXES, PICTURE_SUFFIXES, open_nifti
from fedmend.data.store import file_stamp
from fedmend.errors import FedMendError
from fedmend.package.rows import STATE

if TYPE_CHECKING:
    from pydicom import Dataset

FILMS = {"CR", "DX", "RG", "RF", "XA"}  # a model of one of these takes the others
UID = re.compile(r"[0-9.]{1,64}")
SERIES = "SeriesInstanceUID"
INSTANCE = "SOPInstanceUID"
HEADER = (*FIELDS, "NumberOfFrames", "StudyInstanceUID", SERIES, INSTANCE, "InstanceNumber", "PatientID", PLACE, TURN)
RESOURCE_FORK = b"\0\5\x16\7"  # how a file begins that a Mac leaves beside another one, under its name with "._"


@dataclass(frozen=True)
class Item:
    """One image, or where masks are asked for one volume; of a model of studies one study.

    Attributes:
        name: path below the folder, with ``#number`` behind a volume's slice or a frame; of a DICOM series its UID, or
            ``series-`` and a hash of what is none; of a study what it is called.
        study: what its study is called: StudyInstanceUID, the volume, the folder of a picture or the table's word.
        kind: what it shows, see :func:`fedmend.data.dicom_kinds.kind_of`.
        files: paths of a DICOM series below the folder, or of the slices of a study in their order; empty: the one of
            the name.
        series: UID of the series of a DICOM image.
        height: of a DICOM image along the normal of its slice in mm; NaN where it is unknown.
        number: InstanceNumber of a DICOM image; 0 where it is unknown.
        uid: SOPInstanceUID of a DICOM image or of the file of frames; blank where it is unknown.
        patient: PatientID of a DICOM image in one form for all spellings; blank where it is unknown.
        shared: several patients have the UID of its study.
    """

    name: str
    study: str
    kind: str = IMAGE
    files: tuple[str, ...] = ()
    series: str = ""
    height: float = math.nan
    number: int = 0
    uid: str = ""
    patient: str = ""
    shared: bool = False

    @property
    def images(self) -> tuple[str, ...]:
        """Names of all that it is made of."""
        return self.files or (self.name,)


def find_items(source: Path, *, modality: str, volumes: bool) -> tuple[Path, list[Item], int]:
    """The images of a folder of any depth, of one file, or of a CSV with the column ``image`` and, if wanted,
    ``study``.

    Args:
        source: folder or file.
        modality: DICOM's word for what the model was trained on; "": unknown, anything is taken.
        volumes: whole NIfTI volumes and DICOM series are asked for instead of images.

    Returns:
        The folder that names start from, the items in the order of their names, and the number of scouts, captured
        screens, pages of doses, images of another quantity and copies of an image in a folder, which are left out.

    Raises:
        FedMendError: nothing there, a table without images, or images of another modality.
    """
    left_out = 0
    if source.suffix.lower() == ".csv" and source.is_file():
        root, items = source.parent, _apart(_of_table(source, modality, volumes))
    elif source.is_dir():
        root = source
        found = [item for file in _files(source) for item in _items(file, root, modality, volumes)]
        # A scout or a page of doses would count in the highest probability of its study. What was asked for by name is
        # asked about, and so is an archive that has nothing else.
        items = [item for item in found if item.kind == IMAGE] or found
        copies, _ = copies_in([(_identity(item), item.images[0]) for item in items], root)
        items = [item for number, item in enumerate(items) if number not in copies]
        left_out = len(found) - len(items)
        items = _series(items) if volumes else _apart(items)
    elif source.is_file():
        root, items = source.parent, list(_items(source, source.parent, modality, volumes))
    else:
        raise FedMendError(f"predict: expected a folder, an image or a CSV, {source} is not there")
    if not items:
        what = "NIfTI volumes or DICOM series" if volumes else "DICOM files, pictures or NIfTI volumes"
        other = f" but {shown}" if (shown := other_formats(source)) else ""
        raise FedMendError(f"predict: expected {what} in {source}, found none{other}")
    return root, items, left_out


def other_formats(source: Path) -> str:
    """How many files of a folder are images of formats that nobody reads here, with their endings; "" for none."""
    found = [e for file in _files(source) if (e := file.suffix.lower()) in OTHER_FORMATS] if source.is_dir() else []
    files = "1 file" if len(found) == 1 else f"{len(found)} files"
    return f"{files} in {', '.join(sorted(set(found)))}" if found else ""


def _identity(item: Item) -> str:
    """What copies of an image have in common, with all that places it; blank if its UID is unknown."""
    return item.uid and " ".join(map(str, (item.uid, item.study, item.series, item.kind, item.height, item.number)))


def digest_of(root: Path, items: Sequence[Item]) -> str:
    """SHA-256 over names, sizes and times of all files, which changes when any of them does."""
    files = dict.fromkeys(name.partition("#")[0] for item in items for name in item.images)
    about = [[(name, *file_stamp(root / name)[1:]) for name in files], [(i.name, i.study) for i in items]]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def by_study(items: Sequence[Item]) -> list[Item]:
    """The studies of some images, each where its first image stood; its images in the order that
    :mod:`fedmend.datasets.own_dicom_files` gives them in the tables of a site."""
    studies: dict[str, list[Item]] = {}
    for item in items:
        studies.setdefault(item.study, []).append(item)
    return [
        Item(name, name, files=tuple(i.name for series in _by_series(own) for i in series), shared=own[0].shared)
        for name, own in studies.items()
    ]


def _apart(items: Sequence[Item]) -> list[Item]:
    """Images whose study's UID several patients have, as where somebody has given all studies one, in a study for each
    patient; a blank is nobody."""
    patients: dict[str, dict[str, int]] = {}
    for item in items:
        if item.uid and item.patient:
            own = patients.setdefault(item.study, {})
            own.setdefault(item.patient, len(own) + 1)
    found = []
    for item in items:
        several = patients.get(item.study, {}) if item.uid else {}
        if len(several) > 1:
            item = replace(item, study=f"{item.study} patient {several.get(item.patient, 'unknown')}", shared=True)
        found.append(item)
    return found


def _by_series(items: Sequence[Item]) -> Iterator[list[Item]]:
    """The series of a study, each by the places of its images if all have one, else by their numbers."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.series, []).append(item)
    for _, own in sorted(found.items()):
        placed = all(math.isfinite(item.height) for item in own)
        yield sorted(own, key=lambda item: (item.height if placed else 0.0, item.number))  # used at once


def _of_table(file: Path, modality: str, volumes: bool) -> list[Item]:
    header, rows = read_csv(file, file.name)
    named = {name: [column for column in header if loose(column or "") == name] for name in ("image", "study")}
    if not named["image"]:
        raise FedMendError(f"{file.name}, header: expected a column 'image', got {len(header)} other columns")
    for name, columns in named.items():
        if len(columns) > 1:
            raise FedMendError(f"{file.name}, header: expected one column {name!r}, got {len(columns)}")
    found = []
    for number, row in rows:
        image, study = ((row[columns[0]] or "").strip() if columns else "" for columns in named.values())
        image, study = image and as_on_disk(file.parent, one_path(image)), "" if is_missing(study) else canonical(study)
        if not image:
            raise FedMendError(f"{file.name} row {number}, column image: expected a path, got a blank")
        name = image.partition("#")[0]
        known: list[Item] = []
        if not name.lower().endswith((*PICTURE_SUFFIXES, *NIFTI_SUFFIXES)) and (file.parent / name).is_file():
            known = list(_dicom_items(file.parent / name, name, modality))
        # A word for its study says enough; a UID may be several patients'.
        own = known[0] if known and not study else Item(image, study or name)
        files = (image,) if known and volumes else ()
        found.append(Item(image, own.study, files=files, uid=own.uid, patient=own.patient))
    return found


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if STATE in names:  # masks and maps that an earlier call has written
            folders.clear()
            continue
        folders.sort()
        files = (Path(place, name) for name in sorted(names))
        yield from (file for file in files if not (file.name.startswith("._") and _is_resource_fork(file)))


def _is_resource_fork(file: Path) -> bool:
    with contextlib.suppress(OSError), open(file, "rb") as stream:
        return stream.read(len(RESOURCE_FORK)) == RESOURCE_FORK
    return False


def _items(file: Path, root: Path, modality: str, volumes: bool) -> Iterator[Item]:
    """The items of one file; none of a file of another kind. A damaged one is an item, which gets its reason when it is
    read."""
    name, lower = file.relative_to(root).as_posix(), file.name.lower()
    if not name.isprintable() or "#" in name:
        raise FedMendError("predict: expected file names without # and signs that cannot be printed, got another")
    if lower.endswith(NIFTI_SUFFIXES):
        depth = 1 if volumes else _depth(file)
        yield from (Item(name if volumes or depth == 1 else f"{name}#{n}", name) for n in range(depth))
    elif volumes and lower.endswith(PICTURE_SUFFIXES):
        return
    elif lower.endswith(PICTURE_SUFFIXES):
        folder = Path(name).parent.as_posix()
        yield Item(name, name if folder == "." else folder)
    elif file.name.upper() != "DICOMDIR":
        yield from _dicom_items(file, name, modality, volumes=volumes)


def _series(items: Sequence[Item]) -> list[Item]:
    """The files of a series together, where its first one stood."""
    together: dict[str, list[Item]] = {}
    for item in items:
        together.setdefault(item.name, []).append(item)
    return [replace(same[0], files=tuple(f for item in same for f in item.files)) for same in together.values()]


def _depth(file: Path) -> int:
    """How many axial slices a volume has, along whichever axis of its file."""
    import nibabel

    try:
        image = open_nifti(file)
        axes = nibabel.io_orientation(image.affine)[:, 0].tolist()
        return int(image.shape[axes.index(2)]) if len(image.shape) > 2 else 1
    except Exception:  # nibabel raises many types for a damaged file
        return 1


def _dicom_items(file: Path, name: str, modality: str, *, volumes: bool = False) -> Iterator[Item]:
    from pydicom.errors import InvalidDicomError

    try:
        with no_warnings():
            header = open_dicom(file, stop_before_pixels=True, specific_tags=list(HEADER))
            uid, patient = word_of(header, INSTANCE), loose(word_of(header, "PatientID"))
            found, study = word_of(header, "Modality"), word_of(header, "StudyInstanceUID")
            study = study if study and study.isprintable() else name  # it gets into tables
            if not shows_images(header):
                return
            frames = frames_of(header, file)
            kinds = [kind_of(header, n)[0] for n in range(frames)]
    except Exception as e:  # pydicom raises many types
        if not isinstance(e, InvalidDicomError) or file.suffix.lower() in (".dcm", ".dicom"):
            yield Item(name, name, files=(name,))
        return
    if IMAGE in kinds and modality and found and found != modality and not {found, modality} <= FILMS:
        words = f"expected images of modality {modality}, as the model was trained on"
        raise FedMendError(f"predict: {words}, got {found} in {name}")
    if volumes:
        series = word_of(header, SERIES) if frames == 1 else ""
        if series and not UID.fullmatch(series):  # it names files, and a header may say e.g. ../other.nii.gz
            series = f"series-{hashlib.sha256(series.encode(errors='replace')).hexdigest()[:16]}"
        kind, (height, number) = IMAGE if IMAGE in kinds else kinds[0], _place_of(header, 0)
        own = word_of(header, SERIES)
        yield Item(series or name, study, kind, (name,), series=own, height=height, number=number, uid=uid)
        return
    names, series = [name] if frames == 1 else [f"{name}#{n}" for n in range(frames)], word_of(header, SERIES)
    for frame, (one, kind) in enumerate(zip(names, kinds, strict=True)):
        height, number = _place_of(header, frame)
        yield Item(one, study, kind, series=series, height=height, number=number, uid=uid, patient=patient)


def _place_of(header: "Dataset", frame: int) -> tuple[float, int]:
    """Height and InstanceNumber of an image; NaN and 0 where the header does not say them in numbers."""
    height, number = math.nan, 0
    with contextlib.suppress(Exception):  # pydicom raises many types for a field that is not what it has to be
        height = height_of(header, frame)
    with contextlib.suppress(Exception):
        number = int(number_of(header.get("InstanceNumber") or 0, 0))
    return height, number
