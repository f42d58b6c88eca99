"""RSNA 2019 intracranial hemorrhage: the official download → site folders with missing classes (FedMLP), or with noisy
labels of the slices that show exactly one subtype (FedNoRo).

With missing classes, some of the sites may be noisy, too. The result depends on the download and the arguments alone,
not on row order, folder order or processes.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.data.card import IMAGE, STUDY
from fedmend.datasets import command_line
from fedmend.datasets.imperfections import annotated_classes
from fedmend.datasets.noisy_sites import NoiseProtocol, write_noisy_sites
from fedmend.datasets.rsna_ich_download import CLASSES, FOLDER, WHERE, Slices, read_headers, read_slices, take_lists
from fedmend.datasets.rsna_ich_parts import (
    OF_STUDIES,
    SliceProtocol,
    check_split,
    labels_of_studies,
    parts_of_sites,
    select_slices,
    sites_of_units,
)
from fedmend.datasets.samples import Samples, Say, Share, hold_out, of_known, sizes
from fedmend.datasets.site_folders import check_out, write_sites
from fedmend.datasets.swapped_labels import SwapNoise, missing_and_noisy
from fedmend.errors import FedMendError

STUDY_UID, PLACE = "StudyInstanceUID", "ImagePositionPatient"  # of which the last number is the height
SOURCE = "RSNA 2019 Intracranial Hemorrhage Detection, stage 2 train"


def prepare(
    source: Path,
    out: Path,
    protocol: SliceProtocol,
    *,
    stratified: bool = True,
    source_name: str = SOURCE,
    processes: int | None = None,
    progress: Say | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the images stay where they are.

    Args:
        source: folder that holds ``stage_2_train.csv`` and ``stage_2_train/``.
        out: folder for the site folders; made when missing.
        protocol: which slices are used, and how they get to the sites.
        stratified: the validation split is drawn class by class, see :func:`fedmend.datasets.samples.class_by_class`.
        source_name: what the cards name as source; synthetic data says so here.
        processes: processes that read DICOM headers; ``None``: one per core.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: site folders in ``out`` already, a download that is incomplete or contradicts itself, too few
            patients or stations, or a training part with only 0 or only 1 of a class that its site annotates.
    """
    source, out, say = Path(source), Path(out), progress or (lambda line: None)
    check_out(out, WHERE)
    sites, seed = protocol.sites, protocol.seed
    annotated = annotated_classes(sites, len(CLASSES), protocol.annotated_per_site, rule=protocol.rule, seed=seed)
    slices, headers, test, counts = _used(source, protocol, processes, say)
    by_patient, by_station = protocol.split == "patient", protocol.partition == "station"
    patients = headers.get("PatientID", np.array([], dtype=str))
    units = np.unique(patients, return_inverse=True)[1] if by_patient else np.arange(len(slices.ids))
    site_of, stations = sites_of_units(units, headers["StationName"] if by_station else None, sites, seed)
    positives = [of_known(slices.labels, known) for known in annotated] if stratified else []
    parts = parts_of_sites(units, site_of, test, protocol, positives)
    own = [np.concatenate([index for name, index in part.items() if name != "test"]) for part in parts]
    shown, rates = missing_and_noisy(slices.labels, own, annotated, noise=protocol.noise, seed=seed)
    shares = []
    for part, known, names, rate in zip(parts, annotated, stations, rates, strict=True):
        about = {"sizes": sizes(part), "stations": names, "noise_rate": rate}
        shares.append(Share(parts=part, known=known, about=about))
    provenance = {"source": source_name, "arguments": protocol.in_card(), "counts": counts}
    samples = _samples(source, slices, slices.labels, protocol.window, patients)
    if protocol.of_studies:
        studies = np.char.add("s", np.unique(headers[STUDY_UID], return_inverse=True)[1].astype(str))
        samples = replace(samples, studies=studies, sample=STUDY if protocol.labels_of == STUDY else IMAGE)
    write_sites(out, samples, shares, provenance, shown=shown)
    say(f"{sites} site folders written")


def _used(
    source: Path, protocol: SliceProtocol, processes: int | None, say: Say
) -> tuple[Slices, dict[str, np.ndarray], np.ndarray | None, dict[str, int]]:
    """The slices that are used, what their headers say, the test slices of a published split, and counts."""
    slices, counts = read_slices(source)
    say(f"{counts['label_rows']} label rows, {len(slices.ids)} slices with a file{_left_out(counts)}")
    test = None
    if protocol.lists:
        slices, test = take_lists(slices, *protocol.lists)
    else:
        healthy = None if protocol.of_studies else protocol.healthy_share
        slices = slices.take(select_slices(slices.labels, healthy, protocol.seed))
    lesion = int(slices.labels.any(axis=1).sum())
    counts |= {"lesion_slices": lesion, "healthy_slices": len(slices.ids) - lesion}
    say(f"{lesion} lesion slices and {len(slices.ids) - lesion} healthy ones are used")
    needed = {"PatientID": protocol.split == "patient", "StationName": protocol.partition == "station"}
    if protocol.of_studies:
        needed |= dict.fromkeys((STUDY_UID, PLACE), True)
    if not any(needed.values()):
        return slices, {}, test, counts
    headers = read_headers(source, slices, needed, processes=processes, say=say)
    if protocol.of_studies:
        order = np.lexsort((headers[PLACE].astype(float), headers[STUDY_UID]))
        slices, headers = slices.take(order), {name: values[order] for name, values in headers.items()}
        slices = replace(slices, labels=labels_of_studies(slices.labels, headers[STUDY_UID]))
    return slices, headers, test, counts


def _left_out(counts: Mapping[str, int]) -> str:
    lacking = counts.get("slices_without_file")
    return f"; left out: {lacking} without a file" if lacking else ""


def _samples(source: Path, slices: Slices, labels: np.ndarray, window: str, patients: np.ndarray) -> Samples:
    return Samples(
        images=[f"{i}.dcm" for i in slices.ids],
        labels=labels,
        classes=CLASSES,
        image_root=source / FOLDER,
        modality="CT",
        window=window,
        patients=patients,
    )


def prepare_single_label(
    source: Path,
    out: Path,
    *,
    protocol: NoiseProtocol,
    split: str = "patient",
    test_share: float = 0.3,
    window: str = "brain",
    seed: int = 1037,
    lists: tuple[Path, Path] | None = None,
    source_name: str = SOURCE,
    soft_labels: Path | None = None,
    processes: int | None = None,
    progress: Say | None = None,
) -> None:
    """The slices with exactly one subtype (67,969 in the papers' copy of the data) → sites of which some are noisy.

    Args:
        source: see :func:`prepare`.
        out: see :func:`prepare`.
        source_name: see :func:`prepare`.
        processes: see :func:`prepare`.
        protocol: partition and noise, see :mod:`fedmend.datasets.noisy_sites`.
        split: ``patient`` keeps a patient's slices on one side of the test split; ``slice`` is the paper's 70/30 split,
            which leaks patients.
        test_share: share of the patients (or slices) in the test split, in (0, 1).
        window: HU window in the card: a name of ``fedmend.data.card.WINDOWS`` or ``file``.
        seed: of the test split.
        lists: tables of a published split, see :class:`SliceProtocol`; the paper's give its partition.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, a download that is incomplete or contradicts itself, or a partition that leaves
            a site without samples.
    """
    check_split(split, lists)
    source, say = Path(source), progress or (lambda line: None)
    (slices, counts), test = read_slices(source), None
    slices = slices.take(np.flatnonzero(slices.labels.sum(axis=1) == 1))
    if lists:
        slices, test = take_lists(slices, *lists)
    say(f"{len(slices.ids)} slices with exactly one subtype{_left_out(counts)}")
    patients, needed = np.array([], dtype=str), {"PatientID": True, "StationName": False}
    if split == "patient":
        patients = read_headers(source, slices, needed, processes=processes, say=say)["PatientID"]
    if test is None:
        test = hold_out(patients if len(patients) else slices.ids, test_share, seed=seed)
    samples = _samples(source, slices, slices.labels.argmax(axis=1), window, patients)
    write_noisy_sites(out, samples, test, protocol, source_name, soft_labels, progress)


RSNA_FOLDER = "folder with stage_2_train.csv and stage_2_train/"
WINDOW_HELP = "brain, subdural, bone or file"


def _split_arguments(parser: ArgumentParser) -> None:
    words = "slice is the paper's split, which leaks patients"
    parser.add_argument("--split", choices=["patient", "slice"], default="patient", help=words)
    words = "CSV with a column id: the training slices of a published split"
    parser.add_argument("--train-list", type=Path, help=words)
    parser.add_argument("--test-list", type=Path, help="the same of the test slices; both need --split slice")


def _lists(args: Namespace) -> tuple[Path, Path] | None:
    if (args.train_list is None) != (args.test_list is None):
        raise FedMendError(f"{WHERE}, arguments --train-list and --test-list: expected both or none, got one of them")
    return args.train_list and (args.train_list, args.test_list)


def _add_arguments(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, RSNA_FOLDER)
    command_line.missing_class_arguments(parser)
    _split_arguments(parser)
    words = "station keeps each scanner at one site"
    parser.add_argument("--partition", choices=["iid", "station"], default="iid", help=words)
    helps = {"test_share": "", "val_share": "", "train_per_site": "cap of each site's training slices (paper: 5000)"}
    command_line.options(parser, SliceProtocol, **helps)
    words = "share of slices without hemorrhage, or 'all' (default 0.475)"
    parser.add_argument("--healthy-share", type=command_line.share_or_all, default=0.475, help=words)
    command_line.options(parser, SliceProtocol, window=WINDOW_HELP)
    words = "what has a label: a slice; a study, with all that its slices show; or that label copied to its slices"
    parser.add_argument("--labels-of", choices=["slice", *OF_STUDIES], default="slice", help=words)


def _run(args: Namespace) -> None:
    others = {"noise": command_line.made(SwapNoise, args), "lists": _lists(args)}
    prepare(args.source, args.out, command_line.made(SliceProtocol, args, **others), progress=say)
    say(f"{args.sites} site folders are in {args.out}")


def _add_arguments_single(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, RSNA_FOLDER)
    command_line.noise_arguments(parser)
    _split_arguments(parser)
    command_line.options(parser, SliceProtocol, test_share="", window=WINDOW_HELP)
    parser.add_argument("--seed", type=int, default=1037, help="of the test split")
    command_line.soft_labels_argument(parser)


def _run_single(args: Namespace) -> None:
    given = command_line.given(args, "split", "test_share", "window", "seed", "soft_labels") | {"lists": _lists(args)}
    protocol = command_line.made(NoiseProtocol, args)
    prepare_single_label(args.source, args.out, protocol=protocol, **given, progress=say)


COMMANDS = (
    Command("rsna-ich", "RSNA 2019 intracranial hemorrhage, classes missing per site", _add_arguments, _run),
    Command(
        "rsna-ich-single", "its slices with exactly one subtype, some sites noisy", _add_arguments_single, _run_single
    ),
)
