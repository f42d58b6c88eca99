"""ISIC 2018 task 3 (HAM10000), dermoscopy with seven diagnoses: the official training download → single-label sites
that each identify some of the classes only (FedLSM, Deng et al., MICCAI 2023).

Download: ``ISIC2018_Task3_Training_Input/ISIC_0000000.jpg``,
``ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv`` (image and one column per class, one of
them 1.0) and ``ISIC2018_Task3_Training_LesionGroupings.csv`` (of its columns, image and lesion_id are read), which may
also lie in the folder of the former. References: Tschandl et al., Scientific Data 5:180161, 2018; Codella et al.,
arXiv:1902.03368, 2019.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.data.card import write_card
from fedmend.data.tables import write_table
from fedmend.datasets import command_line
from fedmend.datasets.imperfections import identified_classes
from fedmend.datasets.isic2019 import read_tables
from fedmend.datasets.site_folders import site_folders
from fedmend.errors import FedMendError
from fedmend.labels import NOT_ANNOTATED, SINGLELABEL

CLASSES = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
SOURCE = "ISIC 2018 challenge, task 3, training set (HAM10000)"
FOLDER = "ISIC2018_Task3_Training_Input"
TABLE = "ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv"
LESIONS = "ISIC2018_Task3_Training_LesionGroupings.csv"
# What the paper's released code draws with its seed, 523: the identified classes of site-1, site-2, ...
RELEASED = (
    ("BKL", "VASC", "NV"),
    ("NV", "DF", "BCC"),
    ("MEL", "DF", "BCC"),
    ("AKIEC", "BCC", "DF"),
    ("BCC", "BKL", "AKIEC"),
)


def prepare(
    source: Path,
    out: Path,
    *,
    sites: int = 5,
    classes_per_site: int = 3,
    assignment: str = "random",
    split: str = "lesion",
    test_share: float = 0.2,
    val_share: float = 0.1,
    train_per_site: int | None = None,
    seed: int = 523,
    source_name: str = SOURCE,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the pictures stay where they are.

    Lesions (or pictures) are split at random, then each split is dealt evenly to the sites. In ``train.csv`` and
    ``val.csv`` a picture has its label where the site identifies its class and a blank where it does not; ``test.csv``
    has all labels, ``truth/train.csv`` those of ``train.csv``. The result depends on the download and the arguments
    alone, not on the order of rows. The defaults are the paper's 7:1:2, five sites and three classes each (Sec. 3.1).

    Args:
        source: folder of the download.
        out: folder for the site folders; made when missing.
        sites: number of sites S.
        classes_per_site: classes that each site identifies, 2..7.
        assignment: ``random``, see :func:`fedmend.datasets.imperfections.identified_classes`, or ``released``, the
            classes of the paper's code for five sites with three classes each.
        split: ``lesion`` keeps the pictures of a lesion in one split of one site; ``image`` splits picture by picture,
            as the paper's code does, so that lesions are on both sides.
        test_share: share of the lesions (or pictures) in the test split, in (0, 1).
        val_share: share of the lesions (or pictures) in the validation split, in [0, 1); 0 writes none.
        train_per_site: ``train.csv`` holds at most this many pictures, ``val.csv`` shrinks in proportion; None: all.
        seed: of split, partition and random assignment, 0 or more.
        source_name: what the cards name as source; synthetic data says so here.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, site folders in ``out`` already, a download that is incomplete or contradicts
            itself, too few lesions, or a site whose training part has labels of fewer than 2 classes.
    """
    arguments = {k: v for k, v in locals().items() if k not in ("source", "out", "source_name", "progress")}
    source, out, say = Path(source), Path(out), progress or (lambda line: None)
    _check_arguments(out, arguments)
    identified = _assign(assignment, sites, classes_per_site, seed)
    ids, labels, lesions = read_tables(*_locate(source), CLASSES)
    say(f"{len(ids)} pictures of {len(set(lesions))} lesions")
    units = np.unique(lesions if split == "lesion" else ids, return_inverse=True)[1]
    parts = _parts(units, sites, test_share, val_share, train_per_site, split, seed)
    known = [np.where(own[labels], labels, NOT_ANNOTATED) for own in identified]
    _check_labels(known, identified, parts)
    provenance = {"source": source_name, "arguments": arguments}
    _write(source / FOLDER, out, ids, lesions, labels, known, identified, parts, provenance)
    say(f"{sites} site folders written")


def _check_arguments(out: Path, arguments: Mapping) -> None:
    def limit(name: str, good: Callable, expected: str) -> None:
        if not good(arguments[name]):
            raise FedMendError(f"isic2018, argument {name}: expected {expected}, got {arguments[name]!r}")

    limit("assignment", lambda v: v in ("random", "released"), "'random' or 'released'")
    if arguments["assignment"] == "released":
        limit("sites", lambda v: v == len(RELEASED), f"{len(RELEASED)} with the released assignment")
        limit("classes_per_site", lambda v: v == len(RELEASED[0]), f"{len(RELEASED[0])} with the released assignment")
    limit("classes_per_site", lambda v: 2 <= v <= len(CLASSES), f"2..{len(CLASSES)}")
    limit("split", lambda v: v in ("lesion", "image"), "'lesion' or 'image'")
    limit("test_share", lambda v: 0 < v < 1, "a number between 0 and 1")
    rest = 1 - arguments["test_share"]
    limit("val_share", lambda v: 0 <= v < rest, "0 or a number that leaves a share for training")
    limit("train_per_site", lambda v: v is None or v >= 2, "None or at least 2")
    limit("seed", lambda v: v >= 0, "at least 0")
    if out.exists() and (not out.is_dir() or any(out.glob("site-*"))):
        raise FedMendError(
            "isic2018, argument out: expected a folder without site folders, got one that has them or a file"
        )


def _assign(assignment: str, sites: int, per_site: int, seed: int) -> np.ndarray:
    """Which site identifies which class, (S, C) bool."""
    if assignment == "released":
        return np.array([[c in own for c in CLASSES] for own in RELEASED])
    return identified_classes(sites, len(CLASSES), per_site, seed=seed)


def _check_labels(known: list[np.ndarray], identified: np.ndarray, parts: list[dict[str, np.ndarray]]) -> None:
    for s, part in enumerate(parts):
        names = [CLASSES[c] for c in np.flatnonzero(identified[s])]
        found = set(known[s][part["train"]].tolist()) - {NOT_ANNOTATED}
        if len(found) < 2:  # a site refuses to train on such a column
            raise FedMendError(
                f"site-{s + 1}: train.csv, column label: expected at least 2 of its classes {names}, got {len(found)}"
            )


def _locate(source: Path) -> tuple[Path, Path, Path]:
    """Folder of pictures, table of classes and table of lesions."""
    table = source / TABLE
    lesions = next((f for f in (source / LESIONS, table.parent / LESIONS) if f.is_file()), None)
    for name, found in ((FOLDER, (source / FOLDER).is_dir()), (TABLE, table.is_file()), (LESIONS, lesions)):
        if not found:
            raise FedMendError(f"isic2018, argument source: expected {name} in it, not found")
    return source / FOLDER, table, lesions


def _parts(
    units: np.ndarray,
    sites: int,
    test_share: float,
    val_share: float,
    train_per_site: int | None,
    split: str,
    seed: int,
) -> list[dict[str, np.ndarray]]:
    """For each site: split name → sorted indices of pictures; ``units`` (N,) are their lesions."""
    count = len(np.unique(units))
    test, val = round(test_share * count), round(val_share * count)
    sizes = {"train": count - test - val, "val": val, "test": test}
    caps = {"train": train_per_site}
    if train_per_site is not None:
        caps["val"] = max(1, round(train_per_site * val_share / (1 - test_share - val_share)))
    place = np.random.default_rng((seed, 2)).permutation(count)[units]
    by_unit = np.argsort(place, kind="stable")  # pictures, unit after unit in shuffled order
    place, first = place[by_unit], 0
    parts: list[dict[str, np.ndarray]] = [{} for _ in range(sites)]
    for name, size in sizes.items():
        if name == "val" and not val_share:
            continue
        if size < sites:
            raise FedMendError(
                f"isic2018: expected at least {sites} {split}s in the {name} split, one for each site, got {size}"
            )
        inside = (place >= first) & (place < first + size)
        for s, part in enumerate(parts):
            own = by_unit[inside & ((place - first) % sites == s)]
            part[name] = np.sort(own[: caps.get(name)])
        first += size
    return parts


def _write(
    pictures: Path,
    out: Path,
    ids: list[str],
    lesions: list[str],
    labels: np.ndarray,
    known: list[np.ndarray],
    identified: np.ndarray,
    parts: list[dict[str, np.ndarray]],
    provenance: Mapping,
) -> None:
    with site_folders(out, len(parts), pictures) as (folders, image_root):
        for s, (folder, part) in enumerate(zip(folders, parts, strict=True)):
            tables = {f"{name}.csv": (index, labels if name == "test" else known[s]) for name, index in part.items()}
            tables["truth/train.csv"] = (part["train"], labels)
            for file, (index, shown) in tables.items():
                images, keys = [f"{ids[i]}.jpg" for i in index], [lesions[i] for i in index]
                write_table(folder / file, images, shown[index], CLASSES, patients=keys)
            own = {
                "identified": [CLASSES[c] for c in np.flatnonzero(identified[s])],
                "sizes": {name: len(index) for name, index in part.items()},
                "labelled": int((known[s][part["train"]] != NOT_ANNOTATED).sum()),
            }
            write_card(
                folder,
                task=SINGLELABEL,
                classes=CLASSES,
                splits={name: f"{name}.csv" for name in part},
                truth={"train": "truth/train.csv"},
                image_root=image_root,
                modality="dermoscopy",
                color=True,
                provenance={**provenance, "site": own},
            )


def _add_arguments(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "folder with ISIC2018_Task3_Training_Input/ and the ground truth")
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--classes-per-site", type=int, default=3)
    parser.add_argument("--assignment", choices=["random", "released"], default="random")
    parser.add_argument(
        "--split",
        choices=["lesion", "image"],
        default="lesion",
        help="image is the released split, which leaks lesions",
    )
    parser.add_argument("--train-per-site", type=int, default=None)
    parser.add_argument("--seed", type=int, default=523)


def _run(args: Namespace) -> None:
    given = command_line.given(args, "sites", "classes_per_site", "assignment", "split", "train_per_site", "seed")
    prepare(args.source, args.out, **given, progress=print)


COMMANDS = (
    Command(
        name="isic2018",
        help="ISIC 2018 task 3 (HAM10000), diagnoses missing per site",
        add_arguments=_add_arguments,
        run=_run,
    ),
)
