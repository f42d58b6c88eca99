"""Predictions as DICOM: a segmentation (SEG) of each series, or a structured report (SR, TID 1500) of each study.

Patient, study and place are the source's; what the source does not say stays empty. UIDs follow from the package and
the source, so that a second call writes the same objects, and sending them again adds none.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedmend
from fedmend.basics.files import make_folder, write_atomically
from fedmend.data.dicom_files import no_warnings, open_dicom
from fedmend.data.dicom_groups import GROUPS
from fedmend.data.dicom_series import Slice, slices_of
from fedmend.data.dicom_writing import with_all_fields
from fedmend.data.identity import loose
from fedmend.errors import FedMendError, not_installed
from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.package.inputs import Item
from fedmend.package.masks import mask_name
from fedmend.package.opened import OpenedPackage
from fedmend.package.rows import IMAGES, STUDIES, read_rows

LOG = logging.getLogger("fedmend.package")
WHERE = "DICOM results"
SERIES_NUMBER = 901  # behind those of the scanner
LONGEST = 64  # characters of DICOM's LO
SCHEME = "99FEDMEND"
NOT_CLINICAL = "not for clinical use"


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        files: DICOM files.
        without: studies or volumes of other formats, which have no study to belong to, or of two patients, or that
            could not be used.
    """

    files: list[Path]
    without: int


def write_results(package: OpenedPackage, root: Path, items: Sequence[Item], results: Path, out: Path) -> Written:
    """Writes one object per series that has a mask, or per study.

    Args:
        package: the model.
        root: folder that names start from.
        items: what was asked about.
        results: folder with the finished tables and masks.
        out: folder for the objects; those of an earlier call are written again.

    Raises:
        FedMendError: highdicom is missing.
    """
    try:
        import highdicom  # noqa: F401
    except ImportError:
        raise FedMendError(f"{WHERE}: {not_installed('highdicom', 'review')}") from None
    make_folder(out)
    write = _segmentations if package.kind == SEGMENTATION else _reports
    with no_warnings():  # nor those of highdicom
        return write(package, root, items, results, out)


def _about(package: OpenedPackage) -> dict[str, Any]:
    """What SEG and SR say of who made them."""
    use = str(package.info.get("intended_use") or NOT_CLINICAL)
    return {
        "manufacturer": "FedMend",
        "manufacturer_model_name": package.name[:LONGEST],
        "software_versions": (fedmend.__version__, package.digest[:16]),
        "device_serial_number": package.digest[:16],
        "series_description": f"{package.name[: LONGEST - len(use) - 2]}, {use}"[:LONGEST],
        "series_number": SERIES_NUMBER,
        "instance_number": 1,
    }


def _texts(package: OpenedPackage) -> list[str]:
    """All words of the package that may stand in an object."""
    return [package.name, *package.classes, str(package.info.get("intended_use") or "")]


def _uid(*words: object) -> Any:
    from pydicom.uid import generate_uid

    return generate_uid(entropy_srcs=[str(word) for word in words])


def _written(made: Iterable[Callable[[], Path]], count: int) -> Written:
    """What comes of ``count`` studies or series, of which each that could have an object ``made`` it when it is called.
    One whose header lacks a part has none, and stops none of the others."""
    files, refused = [], []
    for make in made:
        try:
            files.append(make())
        except (AttributeError, KeyError, ValueError, TypeError) as e:  # of highdicom, for headers that lack a part
            refused.append(f"{WHERE}: expected images that an object can belong to, got some without: {e}")
    if refused:
        LOG.warning("%d of %d have no object: %s", len(refused), count, refused[0])
    return Written(files, count - len(files))


def _save(dataset: Any, out: Path) -> Path:
    with write_atomically(out) as temporary:
        dataset.save_as(temporary)
    return out


# ---- masks -----------------------------------------------------------------------------------------------------------
def _segmentations(package: OpenedPackage, root: Path, items: Sequence[Item], results: Path, out: Path) -> Written:
    import nibabel

    def made() -> Iterator[Callable[[], Path]]:
        for row, item in zip(read_rows(results / IMAGES), items, strict=True):
            if not item.files or row["problem"]:
                continue
            slices = slices_of([root / file for file in item.files], WHERE)
            image: Any = nibabel.load(results / mask_name(item))
            mask = np.asarray(image.dataobj, dtype=np.uint8).transpose(2, 1, 0)  # (slice, row, column)
            yield partial(_segmentation, package, slices, mask, out)

    return _written(made(), len(items))


def _segmentation(package: OpenedPackage, slices: Sequence[Slice], mask: np.ndarray, out: Path) -> Path:
    import highdicom
    from pydicom.sr.codedict import codes

    texts = _texts(package)
    datasets = list({id(s.dataset): with_all_fields(s.dataset, *texts) for s in slices}.values())
    if int(datasets[0].get("NumberOfFrames") or 1) > 1:  # highdicom wants the frames as the file has them
        mask = mask[np.argsort([s.frame for s in slices])]
    _share_geometry(datasets[0])
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name=package.name[:LONGEST], family=codes.DCM.ArtificialIntelligence, version=package.digest[:16]
    )
    one = len(package.classes) == 1
    own = [highdicom.sr.CodedConcept(f"CLASS-{n}", SCHEME, c[:LONGEST]) for n, c in enumerate(package.classes, 1)]
    segments = [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=name[:LONGEST],
            segmented_property_category=(
                codes.SCT.MorphologicallyAbnormalStructure if one else codes.SCT.AnatomicalStructure
            ),
            segmented_property_type=codes.SCT.Lesion if one else own[number - 1],
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        for number, name in enumerate(package.classes, 1)
    ]
    series = str(datasets[0].get("SeriesInstanceUID"))
    made = highdicom.seg.Segmentation(
        source_images=datasets,
        pixel_array=mask,
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=segments,
        series_instance_uid=_uid(package.digest, series, "series"),
        sop_instance_uid=(uid := _uid(package.digest, series, datasets[0].SOPInstanceUID)),
        omit_empty_frames=bool(mask.any()),
        **_about(package),
    )
    return _save(made, out / f"SEG-{uid}.dcm")


def _share_geometry(image: Any) -> None:
    """Puts what places all frames of an enhanced file alike into its shared group, where highdicom looks for it; some
    scanners write it frame by frame."""
    from pydicom import Dataset

    own, shared = ((image.get(name) or [Dataset()])[0] for name in GROUPS)
    for name in ("PixelMeasuresSequence", "PlaneOrientationSequence"):
        if own.get(name):
            shared[name] = own[name]
    if len(shared):
        image.SharedFunctionalGroupsSequence = [shared]


# ---- labels ----------------------------------------------------------------------------------------------------------
def _reports(package: OpenedPackage, root: Path, items: Sequence[Item], results: Path, out: Path) -> Written:
    images = {row["image"]: row for row in read_rows(results / IMAGES)}
    studies = read_rows(results / STUDIES)
    members: dict[str, list[Item]] = {}
    for item in items:
        members.setdefault(item.study, []).append(item)

    def made() -> Iterator[Callable[[], Path]]:
        for study in studies:
            usable = [item for item in members[study["study"]] if not images[item.name]["problem"]]
            names = dict.fromkeys(name.partition("#")[0] for item in usable for name in item.images)
            headers = {name: _header(root / name, _texts(package)) for name in names}
            whose = {
                (str(h.StudyInstanceUID), loose(str(h.PatientID or ""))) for h in headers.values() if h is not None
            }
            one = len(whose) == 1 and not any(item.shared for item in usable)
            if usable and None not in headers.values() and one:  # never a report of two patients
                yield partial(_report, package, study, usable, images, headers, out)

    return _written(made(), len(studies))


def _header(file: Path, texts: Sequence[str]) -> Any:
    """Of an image that a report can name; None for another format, or a file without the fields for it."""
    try:
        header = open_dicom(file, stop_before_pixels=True)
    except Exception:  # pydicom raises many types
        return None
    named = all(header.get(n) for n in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID"))
    return with_all_fields(header, *texts) if named else None


def _report(
    package: OpenedPackage,
    study: Mapping[str, str],
    items: Sequence[Item],
    images: Mapping[str, Mapping[str, str]],
    headers: Mapping[str, Any],
    out: Path,
) -> Path:
    from highdicom import sr
    from pydicom.sr.codedict import codes

    groups = [
        _finding(package, number, study, _behind(package, name, items, images), headers)
        for number, name in enumerate(package.classes)
    ]
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=_uid(package.digest), name=package.name[:LONGEST], manufacturer_name="FedMend", model_name=package.name
    )
    observer = sr.ObserverContext(observer_type=codes.DCM.Device, observer_identifying_attributes=device)
    content = sr.MeasurementReport(
        observation_context=sr.ObservationContext(observer_device_context=observer),
        procedure_reported=codes.SCT.ImagingProcedure,
        imaging_measurements=groups,
        title=codes.DCM.ImagingMeasurementReport,
    )
    words = f"Made by a model and read by nobody: {package.info.get('intended_use') or NOT_CLINICAL}."
    phantom = " Trained on synthetic images." if package.phantom else ""
    comment = sr.TextContentItem(codes.DCM.Comment, words + phantom, sr.RelationshipTypeValues.CONTAINS)
    content[0].ContentSequence.append(comment)
    evidence = list(headers.values())
    uid = str(evidence[0].StudyInstanceUID)
    made = sr.ComprehensiveSR(
        evidence=evidence,
        content=content[0],
        series_instance_uid=_uid(package.digest, uid, "series"),
        sop_instance_uid=(own := _uid(package.digest, uid, *sorted(h.SOPInstanceUID for h in evidence))),
        is_complete=True,
        is_final=False,
        is_verified=False,
        **_about(package),
    )
    return _save(made, out / f"SR-{own}.dcm")


def _behind(
    package: OpenedPackage, name: str, items: Sequence[Item], images: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """The images that a study's probability is of: the one with the highest, or of single labels, and where the model
    saw the study as a whole, all."""
    if package.kind != MULTILABEL:
        return [image for item in items for image in item.images]
    return [*max(items, key=lambda item: float(images[item.name][f"{name}_probability"])).images]


def _finding(
    package: OpenedPackage, number: int, study: Mapping[str, str], names: Sequence[str], headers: Mapping[str, Any]
) -> Any:
    """Presence and probability of one class, and the images and frames that they are of."""
    from highdicom import sr
    from pydicom.sr.codedict import codes

    label = package.classes[number]
    decided = study[f"{label}_decision"] == "1" if package.kind == MULTILABEL else study["decision"] == label
    present = sr.CodedConcept("52101004", "SCT", "Present") if decided else sr.CodedConcept("2667000", "SCT", "Absent")
    frames: dict[str, list[int]] = {}
    for name in names:
        file, _, frame = name.partition("#")
        frames.setdefault(file, []).extend([int(frame) + 1] if frame else [])
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=_uid(package.digest, headers[next(iter(frames))].StudyInstanceUID, number), identifier=label[:LONGEST]
        ),
        finding_type=sr.CodedConcept(f"CLASS-{number + 1}", SCHEME, label[:LONGEST]),
        algorithm_id=sr.AlgorithmIdentification(package.name[:LONGEST], package.digest[:16]),
        qualitative_evaluations=[sr.QualitativeEvaluation(sr.CodedConcept("705057003", "SCT", "Presence"), present)],
        measurements=[
            sr.Measurement(
                name=sr.CodedConcept("PROBABILITY", SCHEME, "Probability of the finding"),
                value=float(study[f"{label}_probability"]),
                unit=codes.UCUM.NoUnits,
            )
        ],
        source_images=[
            sr.SourceImageForMeasurementGroup(headers[f].SOPClassUID, headers[f].SOPInstanceUID, numbers or None)
            for f, numbers in frames.items()
        ],
    )
