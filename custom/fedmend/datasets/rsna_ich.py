"""RSNA 2019 intracranial hemorrhage: the official download → site folders with missing classes (FedMLP), or with noisy
labels of the slices that show exactly one subtype (FedNoRo).

With missing classes, each site gets ``train.csv`` and ``val.csv`` with the columns of its annotated classes, its share
of the test split in ``test.csv`` with all classes, and ``truth/train.csv`` with the complete labels of ``train.csv``.
Some of these sites may be noisy, too.
The result depends on the download and the arguments alone, not on row order, folder order or processes.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.data.card import WINDOWS, write_card
from fedmend.data.tables import write_table
from fedmend.datasets import command_line
from fedmend.datasets.imperfections import annotated_classes
from fedmend.datasets.noisy_sites import LabelledImages, NoiseProtocol, hold_out, write_noisy_sites
from fedmend.datasets.rsna_ich_download import CLASSES, FOLDER, Slices, read_headers, read_slices, take_lists
from fedmend.datasets.rsna_ich_parts import parts_of_sites, select_slices, sites_of_units
from fedmend.datasets.site_folders import site_folders
from fedmend.datasets.swapped_labels import NO_NOISE, SwapNoise, missing_and_noisy
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL

SOURCE = "RSNA 2019 Intracranial Hemorrhage Detection, stage 2 train"
ARGUMENTS = ("sites", "annotated_per_site", "rule", "split", "partition", "test_share", "val_share", "train_per_site")
ARGUMENTS += ("healthy_share", "window", "seed")  # what the cards show of what prepare is given


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
    noise: SwapNoise = NO_NOISE,
    seed: int = 1037,
    lists: tuple[Path, Path] | None = None,
    source_name: str = SOURCE,
    processes: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the images stay where they are.

    Args:
        source: folder that holds ``stage_2_train.csv`` and ``stage_2_train/``.
        out: folder for the site folders; made when missing.
        sites: number of sites S.
        annotated_per_site: classes that each site annotates, 1..5.
        rule: ``one_each`` or ``random``, see :func:`fedmend.datasets.imperfections.annotated_classes`.
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
        window: HU window in the card: a name of ``fedmend.data.card.WINDOWS`` or ``file`` (the file's own; the paper).
        noise: which sites are noisy besides.
        seed: 0 or more.
        lists: tables of a published split, training and test, see
            :func:`fedmend.datasets.rsna_ich_download.take_lists`. Exactly these slices are used, in this order:
            ``healthy_share`` and ``test_share`` count nothing. It needs ``split="slice"``.
        source_name: what the cards name as source; synthetic data says so here.
        processes: processes that read DICOM headers; ``None``: one per core.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, site folders in ``out`` already, a download that is incomplete or contradicts
            itself, too few patients or stations, or a training part with only 0 or only 1 of a class that
            its site annotates.
    """
    arguments = {k: v for k, v in locals().items() if k in ARGUMENTS}
    _check_arguments(Path(out), arguments)
    _check_split(split, lists)
    _convert(Path(source), Path(out), arguments, noise, lists, source_name, processes, progress or (lambda line: None))


def _convert(
    source: Path,
    out: Path,
    arguments: Mapping,
    noise: SwapNoise,
    lists: tuple[Path, Path] | None,
    source_name: str,
    processes: int | None,
    say: Callable[[str], object],
) -> None:
    """:func:`prepare` with the arguments that the cards show as one mapping."""
    sites, seed = arguments["sites"], arguments["seed"]
    annotated = annotated_classes(
        sites, len(CLASSES), arguments["annotated_per_site"], rule=arguments["rule"], seed=seed
    )
    slices, counts = read_slices(source)
    say(f"{counts['label_rows']} label rows, {len(slices.ids)} slices with a file")
    test, used = None, {**arguments, "noise": asdict(noise)}
    if lists:
        slices, test = take_lists(slices, *lists)
        used = {k: v for k, v in used.items() if k not in ("test_share", "healthy_share")}
        used["lists"] = [Path(file).name for file in lists]
    else:
        slices = slices.take(select_slices(slices.labels, arguments["healthy_share"], seed))
    lesion = int(slices.labels.any(axis=1).sum())
    counts |= {"lesion_slices": lesion, "healthy_slices": len(slices.ids) - lesion}
    say(f"{lesion} lesion slices and {len(slices.ids) - lesion} healthy ones are used")
    by_patient, by_station = arguments["split"] == "patient", arguments["partition"] == "station"
    headers = {}
    if by_patient or by_station:
        needed = {"PatientID": by_patient, "StationName": by_station}
        headers = read_headers(source, slices, needed, processes=processes, say=say)
    patients, scanners = headers.get("PatientID"), headers.get("StationName")
    units = np.unique(patients, return_inverse=True)[1] if by_patient else np.arange(len(slices.ids))
    site_of, stations = sites_of_units(units, scanners if by_station else None, sites, seed)
    parts = parts_of_sites(units, site_of, test, arguments)
    own = [np.concatenate([index for name, index in part.items() if name != "test"]) for part in parts]
    shown, rates = missing_and_noisy(slices.labels, own, annotated, noise=noise, seed=seed)
    _check_labels(parts, shown, annotated)
    provenance = {"source": source_name, "arguments": used, "counts": counts}
    of_sites = [{"stations": names, "noise_rate": rate} for names, rate in zip(stations, rates, strict=True)]
    _write(source, out, slices, shown, patients, parts, annotated, of_sites, provenance)
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
    _check_split(split, lists)
    source, say = Path(source), progress or (lambda line: None)
    slices, test = _one_subtype(source, lists, say)
    patients, needed = (), {"PatientID": True, "StationName": False}
    if split == "patient":
        patients = read_headers(source, slices, needed, processes=processes, say=say)["PatientID"].tolist()
    test = hold_out(patients or slices.ids, test_share, seed=seed) if test is None else test
    write_noisy_sites(
        out,
        LabelledImages(
            images=[f"{i}.dcm" for i in slices.ids],
            labels=slices.labels.argmax(axis=1),
            classes=CLASSES,
            image_root=source / FOLDER,
            test=test,
            modality="CT",
            window=window,
            patients=patients,
        ),
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


def _check_split(split: str, lists: tuple[Path, Path] | None) -> None:
    if split not in ("patient", "slice"):
        raise FedMendError(f"rsna-ich, argument split: expected 'patient' or 'slice', got {split!r}")
    if lists and split != "slice":
        raise FedMendError(
            f"rsna-ich, argument split: expected 'slice' with the lists of a published split, got {split!r}"
        )


def _check_arguments(out: Path, arguments: Mapping) -> None:
    def limit(name: str, good: Callable, expected: str) -> None:
        if not good(arguments[name]):
            raise FedMendError(f"rsna-ich, argument {name}: expected {expected}, got {arguments[name]!r}")

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
    slices: Slices,
    shown: np.ndarray,
    patients: np.ndarray | None,
    parts: list[dict[str, np.ndarray]],
    annotated: np.ndarray,
    of_sites: list[dict],
    provenance: Mapping,
) -> None:
    columns, everything = np.array(CLASSES), np.ones(len(CLASSES), dtype=bool)
    with site_folders(out, len(parts), source / FOLDER) as (folders, image_root):
        for s, (folder, part) in enumerate(zip(folders, parts, strict=True)):
            tables = {f"{name}.csv": (index, shown, annotated[s]) for name, index in part.items() if name != "test"}
            tables |= {
                "test.csv": (part["test"], slices.labels, everything),
                "truth/train.csv": (part["train"], slices.labels, everything),
            }
            for file, (index, labels, known) in tables.items():
                keys = () if patients is None else patients[index].tolist()
                names = [f"{i}.dcm" for i in slices.ids[index]]
                write_table(folder / file, names, labels[index][:, known], columns[known].tolist(), patients=keys)
            own = {"sizes": {name: len(index) for name, index in part.items()}, **of_sites[s]}
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
        raise FedMendError("rsna-ich, arguments --train-list and --test-list: expected both or none, got one of them")
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
    given = command_line.given(args, *ARGUMENTS) | {"noise": command_line.swap_noise_of(args), "lists": _lists(args)}
    prepare(args.source, args.out, **given, progress=print)
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
    protocol = command_line.protocol_of(args)
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
