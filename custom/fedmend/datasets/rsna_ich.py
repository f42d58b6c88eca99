"""RSNA 2019 intracranial haemorrhage: the official download → site folders with missing classes (FedMLP), or with noisy
labels of the slices that show exactly one subtype (FedNoRo).

Download: ``stage_2_train.csv`` (rows ``ID_63eb1e259_epidural,0``) and the slices ``stage_2_train/ID_63eb1e259.dcm``.
Reference: Flanders et al., Radiology: Artificial Intelligence 2(3):e190211, 2020.
"""

import csv
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from fedmend.data.manifest import MULTILABEL, WINDOWS, write_card, write_table
from fedmend.datasets.noisy_sites import NoiseProtocol, hold_out, write_noisy_sites
from fedmend.datasets.site_folders import site_folders
from fedmend.errors import FedMendError
from fedmend.imperfections import annotated_classes

CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
SOURCE = "RSNA 2019 Intracranial Hemorrhage Detection, stage 2 train"
TABLE, FOLDER = "stage_2_train.csv", "stage_2_train"
CORRUPT = frozenset({"ID_6431af929"})  # its pixel data is cut short in the official download
SPLITS = ("train", "val", "test")

_CHUNK = 256  # headers per message to a process; a pool pays off above a few of them
# Two bits per label, "said to be 0" and "said to be 1": one integer per slice holds all its rows, and a contradiction
# shows as both bits set. "any" is the union of the five, checked for contradictions and not used further.
_FLAGS = {f"{kind}{v}": 1 << (2 * c + v) for c, kind in enumerate((*CLASSES, "any")) for v in (0, 1)}
_LOW_BITS = sum(1 << (2 * c) for c in range(len(CLASSES)))


@dataclass(frozen=True)
class _Slices:
    """N slices: ``ids`` (N,) str, ``rows`` (N,) first row in the table, ``labels`` (N, 5) int8."""

    ids: np.ndarray
    rows: np.ndarray
    labels: np.ndarray

    def take(self, index: np.ndarray) -> "_Slices":
        return _Slices(self.ids[index], self.rows[index], self.labels[index])


def prepare(
    source: Path,
    out: Path,
    *,
    sites: int = 5,
    annotated_per_site: int = 1,
    rule: str = "one_each",
    split: str = "patient",
    partition: str = "iid",
    test_share: float = 0.3,
    val_share: float = 0.1,
    train_per_site: int | None = None,
    healthy_share: float | None = 0.475,
    window: str = "brain",
    seed: int = 1037,
    source_name: str = SOURCE,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the images stay where they are.

    Each site gets ``train.csv`` and ``val.csv`` with the columns of its annotated classes, its share of the test
    split in ``test.csv`` with all classes, and ``truth/train.csv`` with the complete labels of ``train.csv``.
    The result depends on the download and the arguments alone, not on row order, folder order or processes.

    Args:
        source: folder that holds ``stage_2_train.csv`` and ``stage_2_train/``.
        out: folder for the site folders; made when missing.
        sites: number of sites S.
        annotated_per_site: classes that each site annotates, 1..5.
        rule: ``one_each`` or ``random``, see :func:`fedmend.imperfections.annotated_classes`.
        split: ``patient`` keeps a patient's slices in one split and one site; ``slice`` splits slice by slice, as the
            paper's released code does, so that patients are on both sides.
        partition: ``iid`` deals the shuffled patients (or slices) to the sites; ``station`` keeps the slices of a CT
            scanner (DICOM StationName) together and deals the sorted stations to the sites. A patient with
            several stations goes with the one of the first slice.
        test_share: share of each site's patients (or slices) held out for the test split, in (0, 1).
        val_share: share of what remains that goes to ``val.csv``, in [0, 1); 0 writes none.
        train_per_site: ``train.csv`` holds at most this many slices, ``val.csv`` shrinks in proportion; ``None``: all.
            The paper has 5,000.
        healthy_share: share in [0, 1) of healthy slices among those used; all lesion slices are used. ``None`` uses all
            healthy ones, as does a share that needs more than there are. The paper has 87,948 of 185,051.
        window: HU window in the card: a name of ``manifest.WINDOWS`` or ``file`` (the file's own; the paper).
        seed: 0 or more.
        source_name: what the cards name as source; synthetic data says so here.
        processes: processes that read DICOM headers; ``None``: one per core.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, site folders in ``out`` already, a download that is incomplete or contradicts
            itself, too few patients or stations, or a training part with only 0 or only 1 of a class that
            its site annotates.
    """
    arguments = {
        k: v for k, v in locals().items() if k not in ("source", "out", "source_name", "processes", "progress")
    }
    source, out, say = Path(source), Path(out), progress or (lambda line: None)
    _check_arguments(out, arguments)
    annotated = annotated_classes(sites, len(CLASSES), annotated_per_site, rule=rule, seed=seed)
    slices, counts = _read_slices(source)
    say(f"{counts['label_rows']} label rows, {len(slices.ids)} slices with a file")
    slices = slices.take(_select(slices.labels, healthy_share, seed))
    lesion = int(slices.labels.any(axis=1).sum())
    counts |= {"lesion_slices": lesion, "healthy_slices": len(slices.ids) - lesion}
    say(f"{lesion} lesion slices and {len(slices.ids) - lesion} healthy ones are used")
    needed = {"PatientID": split == "patient", "StationName": partition == "station"}
    headers = _read_headers(source, slices, needed, processes, say) if any(needed.values()) else {}
    patients, scanners = headers.get("PatientID"), headers.get("StationName")
    units = np.unique(patients, return_inverse=True)[1] if split == "patient" else np.arange(len(slices.ids))
    site_of, stations = _sites_of_units(units, scanners if partition == "station" else None, sites, seed)
    parts = _parts(units, site_of, sites, test_share, val_share, train_per_site, split, seed)
    _check_labels(parts, slices.labels, annotated)
    provenance = {"source": source_name, "arguments": arguments, "counts": counts}
    _write(source, out, slices, patients, parts, annotated, stations, provenance)
    say(f"{sites} site folders written")


def prepare_single_label(
    source: Path,
    out: Path,
    *,
    protocol: NoiseProtocol,
    split: str = "patient",
    test_share: float = 0.3,
    window: str = "brain",
    seed: int = 1037,
    source_name: str = SOURCE,
    soft_labels: Path | None = None,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """The slices with exactly one subtype (67,969 in the papers' copy of the data) → sites of which some are noisy.

    Args:
        source: folder that holds ``stage_2_train.csv`` and ``stage_2_train/``.
        out: folder for the site folders; made when missing.
        protocol: partition and noise, see :mod:`fedmend.datasets.noisy_sites`.
        split: ``patient`` keeps a patient's slices on one side of the test split; ``slice`` is the paper's 70/30 split, which
            leaks patients.
        test_share: share of the patients (or slices) in the test split, in (0, 1).
        window: HU window in the card: a name of ``manifest.WINDOWS`` or ``file``.
        seed: of the test split.
        source_name: what the cards name as source; synthetic data says so here.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
        processes: processes that read DICOM headers; ``None``: one per core.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, a download that is incomplete or contradicts itself, or a partition that leaves a site
            without samples.
    """
    if split not in ("patient", "slice"):
        raise FedMendError(f"rsna-ich, argument split: expected 'patient' or 'slice', got {split!r}")
    source, say = Path(source), progress or (lambda line: None)
    slices, _ = _read_slices(source)
    slices = slices.take(np.flatnonzero(slices.labels.sum(axis=1) == 1))
    say(f"{len(slices.ids)} slices with exactly one subtype")
    patients = ()
    if split == "patient":
        needed = {"PatientID": True, "StationName": False}
        patients = _read_headers(source, slices, needed, processes, say)["PatientID"].tolist()
    write_noisy_sites(
        out,
        images=[f"{i}.dcm" for i in slices.ids],
        labels=slices.labels.argmax(axis=1),
        classes=CLASSES,
        image_root=source / FOLDER,
        test=hold_out(patients or slices.ids, test_share, seed=seed),
        protocol=protocol,
        modality="CT",
        window=window,
        patients=patients,
        source_name=source_name,
        soft_labels=soft_labels,
        progress=progress,
    )


def _check_arguments(out: Path, arguments: Mapping) -> None:
    def limit(name: str, good: Callable, expected: str) -> None:
        if not good(arguments[name]):
            raise FedMendError(f"rsna-ich, argument {name}: expected {expected}, got {arguments[name]!r}")

    limit("split", lambda v: v in ("patient", "slice"), "'patient' or 'slice'")
    limit("partition", lambda v: v in ("iid", "station"), "'iid' or 'station'")
    limit("test_share", lambda v: 0 < v < 1, "a number between 0 and 1")
    limit("val_share", lambda v: 0 <= v < 1, "0 or a number below 1")
    limit("train_per_site", lambda v: v is None or v >= 1, "None or at least 1")
    limit("healthy_share", lambda v: v is None or 0 <= v < 1, "None, 0 or a number below 1")
    limit("window", lambda v: v == "file" or v in WINDOWS, f"'file' or one of {sorted(WINDOWS)}")
    if out.exists() and (not out.is_dir() or any(out.glob("site-*"))):
        raise FedMendError(
            "rsna-ich, argument out: expected a folder without site folders, got one that has them or a file"
        )


def _read_slices(source: Path) -> tuple[_Slices, dict[str, int]]:
    """The slices that have both labels and a file, sorted by id, and the counts of what was left out."""
    if not (source / TABLE).is_file() or not (source / FOLDER).is_dir():
        raise FedMendError(f"rsna-ich, argument source: expected {TABLE} and {FOLDER}/ in it, not found")
    files = {entry.name[:-4] for entry in os.scandir(source / FOLDER) if entry.name.endswith(".dcm")}
    with open(source / TABLE, newline="", encoding="utf-8-sig") as stream:
        seen, rows, counts = _parse(stream)
    words = np.fromiter(seen.values(), dtype=np.int64, count=len(seen))
    incomplete = ((words | words >> 1) & _LOW_BITS) != _LOW_BITS
    if incomplete.any():
        row = rows[int(np.argmax(incomplete))]
        raise FedMendError(
            f"{TABLE} row {row}: expected rows for all of {list(CLASSES)} of this slice, some are missing"
        )
    labels = (words[:, None] >> (2 * np.arange(len(CLASSES)) + 1) & 1).astype(np.int8)
    ids = np.array(list(seen), dtype=str)
    slices = _Slices(ids, np.array(rows, dtype=np.int64), labels)
    with_file = np.fromiter((i in files and i not in CORRUPT for i in seen), dtype=bool, count=len(seen))
    if not with_file.any():
        raise FedMendError(f"{TABLE}: expected slices that lie as .dcm files in {FOLDER}/, found none")
    counts |= {
        "corrupt_slices": len(CORRUPT & seen.keys()),
        "slices_without_file": len(seen.keys() - files - CORRUPT),
        "files_without_labels": len(files - seen.keys() - CORRUPT),
    }
    index = np.flatnonzero(with_file)
    return slices.take(index[np.argsort(ids[index])]), counts


def _parse(stream: TextIO) -> tuple[dict[str, int], list[int], dict[str, int]]:
    """Slice id → flags of its rows; first row of each slice, in the same order; counts of rows."""
    reader = csv.reader(stream)
    if next(reader, None) != ["ID", "Label"]:
        raise FedMendError(f"{TABLE} row 1: expected the header ID,Label, got another one")
    seen: dict[str, int] = {}
    rows, duplicates = [], 0
    for fields in reader:
        slice_id, _, kind = fields[0].rpartition("_") if len(fields) == 2 else ("", "", "")
        flag = _FLAGS.get(kind + fields[1]) if slice_id else None
        if flag is None:
            raise FedMendError(f"{TABLE} row {reader.line_num}: expected ID_<slice>_<class>,<0 or 1>, got another form")
        word = seen.get(slice_id)
        if word is None:
            rows.append(reader.line_num)
            word = 0
        elif word & flag:
            duplicates += 1
        seen[slice_id] = word = word | flag
        if word & (flag << 1 if fields[1] == "0" else flag >> 1):
            raise FedMendError(
                f"{TABLE} row {reader.line_num}: expected the label that an earlier row gives, got the other"
            )
    return seen, rows, {"label_rows": reader.line_num - 1, "duplicate_rows": duplicates}


def _select(labels: np.ndarray, healthy_share: float | None, seed: int) -> np.ndarray:
    """Sorted indices of all lesion slices and of the healthy ones that were drawn."""
    lesion = labels.any(axis=1)
    healthy = np.flatnonzero(~lesion)
    if healthy_share is not None:
        wanted = round(lesion.sum() * healthy_share / (1 - healthy_share))
        healthy = np.random.default_rng((seed, 2)).permutation(healthy)[:wanted]
    return np.sort(np.concatenate([np.flatnonzero(lesion), healthy]))


def _header(path: str) -> tuple[str, str] | None:
    """(PatientID, StationName) of one file, ``None`` when it cannot be read."""
    import pydicom

    try:
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["PatientID", "StationName"])
    except (pydicom.errors.InvalidDicomError, OSError, EOFError, ValueError):
        return None
    return str(header.get("PatientID") or "").strip(), str(header.get("StationName") or "").strip()


def _map_headers(paths: list[str], processes: int | None) -> Iterator[tuple[str, str] | None]:
    workers = min(processes or os.cpu_count() or 1, len(paths) // _CHUNK)
    if workers <= 1:
        yield from map(_header, paths)
        return
    # spawn: the caller may run threads (torch), which a forked process does not survive reliably.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_header, paths, chunksize=_CHUNK)


def _read_headers(
    source: Path, slices: _Slices, needed: Mapping[str, bool], processes: int | None, say: Callable
) -> dict[str, np.ndarray]:
    """DICOM field → (N,) values; a field that is needed is never blank."""
    paths = [os.path.join(source, FOLDER, f"{i}.dcm") for i in slices.ids]
    values = []
    for header in _map_headers(paths, processes):
        where = f"{TABLE} row {slices.rows[len(values)]}"
        if header is None:
            raise FedMendError(f"{where}: expected a readable DICOM file for this slice, got another one")
        for (field, wanted), value in zip(needed.items(), header, strict=True):
            if wanted and not value:
                raise FedMendError(f"{where}: expected the DICOM field {field}, got none; the arguments need it")
        values.append(header)
        if len(values) % 10_000 == 0 or len(values) == len(paths):
            say(f"{len(values)} of {len(paths)} DICOM headers read")
    return dict(zip(needed, np.array(values, dtype=str).T, strict=True))


def _shuffle(num_units: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, 3)).permutation(num_units)


def _sites_of_units(
    units: np.ndarray, stations: np.ndarray | None, sites: int, seed: int
) -> tuple[np.ndarray, list[list[str]]]:
    """Site index of each unit (a patient or a slice), and the station names of each site."""
    num_units = units.max() + 1
    if stations is None:
        site_of = np.empty(num_units, dtype=np.int64)
        site_of[_shuffle(num_units, seed)] = np.arange(num_units) % sites
        return site_of, [[] for _ in range(sites)]
    first_slice = np.unique(units, return_index=True)[1]
    names, station_of = np.unique(stations[first_slice], return_inverse=True)
    if len(names) < sites:
        raise FedMendError(f"rsna-ich, partition 'station': expected at least {sites} stations, got {len(names)}")
    return station_of % sites, [names[s::sites].tolist() for s in range(sites)]


def _parts(
    units: np.ndarray,
    site_of: np.ndarray,
    sites: int,
    test_share: float,
    val_share: float,
    train_per_site: int | None,
    split: str,
    seed: int,
) -> list[dict[str, np.ndarray]]:
    """For each site: split name → sorted slice indices."""
    order = _shuffle(len(site_of), seed)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    by_unit = np.argsort(position[units], kind="stable")  # slice indices, unit after unit in shuffled order
    split_of = np.full(len(site_of), SPLITS.index("train"))
    for site in range(sites):
        own = order[site_of[order] == site]
        num_test = max(1, round(test_share * len(own)))
        num_val = max(1, round(val_share * (len(own) - num_test))) if val_share else 0
        if len(own) <= num_test + num_val:
            raise FedMendError(
                f"site-{site + 1}: expected at least {num_test + num_val + 1} {split}s to split, got {len(own)}"
            )
        split_of[own[:num_test]] = SPLITS.index("test")
        split_of[own[num_test : num_test + num_val]] = SPLITS.index("val")
    caps = {"train": train_per_site, "val": None}
    if train_per_site is not None:
        caps["val"] = max(1, round(train_per_site * val_share / (1 - val_share)))
    key = site_of[units[by_unit]] * len(SPLITS) + split_of[units[by_unit]]
    return [
        {
            name: np.sort(by_unit[key == site * len(SPLITS) + k][: caps.get(name)])
            for k, name in enumerate(SPLITS)
            if name != "val" or val_share
        }
        for site in range(sites)
    ]


def _check_labels(parts: list[dict[str, np.ndarray]], labels: np.ndarray, annotated: np.ndarray) -> None:
    for s, c in np.argwhere(annotated):
        values = np.unique(labels[parts[s]["train"], c])
        if len(values) < 2:  # a site refuses to train on such a column
            raise FedMendError(
                f"site-{s + 1}: train.csv, column {CLASSES[c]}: expected both 0 and 1, got only {values[0]}"
            )


def _write(
    source: Path,
    out: Path,
    slices: _Slices,
    patients: np.ndarray | None,
    parts: list[dict[str, np.ndarray]],
    annotated: np.ndarray,
    stations: list[list[str]],
    provenance: Mapping,
) -> None:
    columns, everything = np.array(CLASSES), np.ones(len(CLASSES), dtype=bool)
    with site_folders(out, len(parts), source / FOLDER) as (folders, image_root):
        for s, (folder, part) in enumerate(zip(folders, parts, strict=True)):
            tables = {
                f"{name}.csv": (index, everything if name == "test" else annotated[s]) for name, index in part.items()
            }
            tables["truth/train.csv"] = (part["train"], everything)
            for file, (index, shown) in tables.items():
                keys = () if patients is None else patients[index].tolist()
                names = [f"{i}.dcm" for i in slices.ids[index]]
                write_table(
                    folder / file, names, slices.labels[index][:, shown], columns[shown].tolist(), patients=keys
                )
            own = {"sizes": {name: len(index) for name, index in part.items()}, "stations": stations[s]}
            write_card(
                folder,
                task=MULTILABEL,
                classes=CLASSES,
                splits={name: f"{name}.csv" for name in part},
                truth={"train": "truth/train.csv"},
                image_root=image_root,
                modality="CT",
                window=provenance["arguments"]["window"],
                provenance={**provenance, "site": own},
            )
