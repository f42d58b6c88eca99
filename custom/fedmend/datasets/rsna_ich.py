"""RSNA 2019 intracranial hemorrhage: the official download → site folders with missing classes (FedMLP), or with noisy
labels of the slices that show exactly one subtype (FedNoRo).

With missing classes, some of the sites may be noisy, too. The result depends on the download and the arguments alone,
not on row order, folder order or processes.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.imperfections import annotated_classes
from fedmend.datasets.noisy_sites import NoiseProtocol, write_noisy_sites
from fedmend.datasets.rsna_ich_download import CLASSES, FOLDER, Slices, read_headers, read_slices, take_lists
from fedmend.datasets.rsna_ich_parts import (
    WHERE,
    SliceProtocol,
    check_split,
    parts_of_sites,
    select_slices,
    sites_of_units,
)
from fedmend.datasets.samples import Samples, Share, hold_out, sizes
from fedmend.datasets.site_folders import check_out, write_sites
from fedmend.datasets.swapped_labels import SwapNoise, missing_and_noisy
from fedmend.errors import FedMendError

SOURCE = "RSNA 2019 Intracranial Hemorrhage Detection, stage 2 train"


def prepare(
    source: Path,
    out: Path,
    protocol: SliceProtocol,
    *,
    source_name: str = SOURCE,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the images stay where they are.

    Args:
        source: folder that holds ``stage_2_train.csv`` and ``stage_2_train/``.
        out: folder for the site folders; made when missing.
        protocol: which slices are used, and how they get to the sites.
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
    slices, counts = read_slices(source)
    say(f"{counts['label_rows']} label rows, {len(slices.ids)} slices with a file")
    test = None
    if protocol.lists:
        slices, test = take_lists(slices, *protocol.lists)
    else:
        slices = slices.take(select_slices(slices.labels, protocol.healthy_share, seed))
    lesion = int(slices.labels.any(axis=1).sum())
    counts |= {"lesion_slices": lesion, "healthy_slices": len(slices.ids) - lesion}
    say(f"{lesion} lesion slices and {len(slices.ids) - lesion} healthy ones are used")
    by_patient, by_station = protocol.split == "patient", protocol.partition == "station"
    headers = {}
    if by_patient or by_station:
        needed = {"PatientID": by_patient, "StationName": by_station}
        headers = read_headers(source, slices, needed, processes=processes, say=say)
    patients = headers.get("PatientID", ())
    units = np.unique(patients, return_inverse=True)[1] if by_patient else np.arange(len(slices.ids))
    site_of, stations = sites_of_units(units, headers["StationName"] if by_station else None, sites, seed)
    parts = parts_of_sites(units, site_of, test, protocol)
    own = [np.concatenate([index for name, index in part.items() if name != "test"]) for part in parts]
    shown, rates = missing_and_noisy(slices.labels, own, annotated, noise=protocol.noise, seed=seed)
    shares = []
    for part, known, names, rate in zip(parts, annotated, stations, rates, strict=True):
        about = {"sizes": sizes(part), "stations": names, "noise_rate": rate}
        shares.append(Share(parts=part, known=known, about=about))
    provenance = {"source": source_name, "arguments": protocol.in_card(), "counts": counts}
    samples = _samples(source, slices, slices.labels, protocol.window, patients)
    write_sites(out, samples, shares, provenance, shown=shown)
    say(f"{sites} site folders written")


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
    progress: Callable[[str], None] | None = None,
) -> None:
    """The slices with exactly one subtype (67,969 in the papers' copy of the data) → sites of which some are noisy.

    Args:
        source: folder that holds ``stage_2_train.csv`` and ``stage_2_train/``.
        out: folder for the site folders; made when missing.
        protocol: partition and noise, see :mod:`fedmend.datasets.noisy_sites`.
        split: ``patient`` keeps a patient's slices on one side of the test split; ``slice`` is the paper's 70/30 split,
            which leaks patients.
        test_share: share of the patients (or slices) in the test split, in (0, 1).
        window: HU window in the card: a name of ``fedmend.data.card.WINDOWS`` or ``file``.
        seed: of the test split.
        lists: tables of a published split, see :func:`prepare`; the paper's give its partition.
        source_name: what the cards name as source; synthetic data says so here.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
        processes: processes that read DICOM headers; ``None``: one per core.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, a download that is incomplete or contradicts itself, or a partition that leaves
            a site without samples.
    """
    check_split(split, lists)
    source, say = Path(source), progress or (lambda line: None)
    slices, test = _one_subtype(source, lists, say)
    patients, needed = (), {"PatientID": True, "StationName": False}
    if split == "patient":
        patients = read_headers(source, slices, needed, processes=processes, say=say)["PatientID"].tolist()
    test = hold_out(patients or slices.ids, test_share, seed=seed) if test is None else test
    write_noisy_sites(
        out,
        _samples(source, slices, slices.labels.argmax(axis=1), window, patients),
        test,
        protocol=protocol,
        source_name=source_name,
        soft_labels=soft_labels,
        progress=progress,
    )


def _one_subtype(
    source: Path, lists: tuple[Path, Path] | None, say: Callable[[str], object]
) -> tuple[Slices, np.ndarray | None]:
    """The slices with exactly one subtype, and (N,) bool, True in the test split of a published split."""
    slices, test = read_slices(source)[0], None
    slices = slices.take(np.flatnonzero(slices.labels.sum(axis=1) == 1))
    if lists:
        slices, test = take_lists(slices, *lists)
    say(f"{len(slices.ids)} slices with exactly one subtype")
    return slices, test


RSNA_FOLDER = "folder with stage_2_train.csv and stage_2_train/"


def _split_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--split",
        choices=["patient", "slice"],
        default="patient",
        help="slice is the paper's split, which leaks patients",
    )


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--train-list", type=Path, help="CSV with a column id: the training slices of a published split"
    )
    parser.add_argument("--test-list", type=Path, help="the same of the test slices; both need --split slice")


def _lists(args: Namespace) -> tuple[Path, Path] | None:
    if (args.train_list is None) != (args.test_list is None):
        raise FedMendError(f"{WHERE}, arguments --train-list and --test-list: expected both or none, got one of them")
    return args.train_list and (args.train_list, args.test_list)


def _window_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--window", default="brain", help="brain, subdural, bone or file")


def _add_arguments(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, RSNA_FOLDER)
    command_line.missing_class_arguments(parser)
    _split_argument(parser)
    _list_arguments(parser)
    parser.add_argument(
        "--partition", choices=["iid", "station"], default="iid", help="station keeps each scanner at one site"
    )
    parser.add_argument("--test-share", type=float, default=0.3)
    parser.add_argument("--val-share", type=float, default=0.1)
    parser.add_argument(
        "--train-per-site", type=int, default=None, help="cap of each site's training slices (paper: 5000)"
    )
    parser.add_argument(
        "--healthy-share",
        type=command_line.share_or_all,
        default=0.475,
        help="share of slices without hemorrhage, or 'all' (default 0.475)",
    )
    _window_argument(parser)


def _run(args: Namespace) -> None:
    noise = command_line.made(SwapNoise, args)
    prepare(
        args.source, args.out, command_line.made(SliceProtocol, args, noise=noise, lists=_lists(args)), progress=print
    )
    print(f"{args.sites} site folders are in {args.out}")


def _add_arguments_single(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, RSNA_FOLDER)
    command_line.noise_arguments(parser)
    _split_argument(parser)
    _list_arguments(parser)
    parser.add_argument("--test-share", type=float, default=0.3)
    _window_argument(parser)
    parser.add_argument("--seed", type=int, default=1037, help="of the test split")
    command_line.soft_labels_argument(parser)


def _run_single(args: Namespace) -> None:
    given = command_line.given(args, "split", "test_share", "window", "seed", "soft_labels") | {"lists": _lists(args)}
    protocol = command_line.made(NoiseProtocol, args)
    prepare_single_label(args.source, args.out, protocol=protocol, **given, progress=print)


COMMANDS = (
    Command(
        name="rsna-ich",
        help="RSNA 2019 intracranial hemorrhage, classes missing per site",
        add_arguments=_add_arguments,
        run=_run,
    ),
    Command(
        name="rsna-ich-single",
        help="its slices with exactly one subtype, some sites noisy",
        add_arguments=_add_arguments_single,
        run=_run_single,
    ),
)
