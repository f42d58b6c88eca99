"""ChestX-ray14, frontal chest films with fourteen findings: the official NIH download → site folders with missing
classes.

The shuffled patients (or films) are dealt to the sites. Each site gets ``train.csv`` and ``val.csv`` with the columns
of its own classes, its share of the test split in ``test.csv`` with all classes, and ``truth/train.csv`` with the
complete labels of ``train.csv``. The result depends on the download and the arguments alone, not on the order of rows
or files.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.data.card import write_card
from fedmend.data.tables import write_table
from fedmend.datasets import command_line
from fedmend.datasets.cxr14_download import CLASSES, find_files, find_table, read_films, read_lists
from fedmend.datasets.imperfections import annotated_classes, identified_classes
from fedmend.datasets.noisy_sites import hold_out
from fedmend.datasets.site_folders import site_folders
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL

SOURCE = "NIH ChestX-ray14"
ARGUMENTS = ("sites", "classes_per_site", "assignment", "view", "top", "classes", "split", "test_share", "val_share")
ARGUMENTS += ("train_per_site", "seed")  # what the cards show of what prepare is given
# What FedLSM's released code draws for its partition seed 524; it drew Atelectasis twice for site-5.
RELEASED = (
    ("Pneumothorax", "Emphysema", "Pneumonia"),
    ("Fibrosis", "Hernia", "Atelectasis"),
    ("Pneumonia", "Effusion", "Nodule"),
    ("Nodule", "Mass", "Consolidation"),
    ("Pleural_Thickening", "Atelectasis"),
    ("Consolidation", "Edema", "Mass"),
    ("Infiltration", "Hernia", "Atelectasis"),
    ("Cardiomegaly", "Pneumothorax", "Emphysema"),
)
# Arguments of prepare for the papers' experiments, patient by patient where the papers split film by film.
PROTOCOLS: Mapping[str, Mapping] = {
    "fedlsm": {
        "sites": 8,
        "classes_per_site": 3,
        "assignment": "dealt",
        "view": None,
        "top": None,
        "split": "official",
        "val_share": 0.125,
    },
    "fedmlp": {
        "sites": 8,
        "classes_per_site": 1,
        "assignment": "one_each",
        "view": "PA",
        "top": 8,
        "split": "patient",
        "test_share": 0.3,
        "val_share": 0.1,
    },
}


def prepare(
    source: Path,
    out: Path,
    *,
    sites: int = 8,
    classes_per_site: int = 3,
    assignment: str = "dealt",
    view: str | None = None,
    top: int | None = None,
    classes: Sequence[str] | None = None,
    split: str = "official",
    test_share: float = 0.3,
    val_share: float = 0.125,
    train_per_site: int | None = None,
    seed: int = 1037,
    source_name: str = SOURCE,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the films stay where they are.

    The defaults are FedLSM's experiment; ``PROTOCOLS`` has the arguments of FedMLP's too.

    Args:
        source: folder of the download.
        out: folder for the site folders; made when missing.
        sites: number of sites S.
        classes_per_site: classes that each site identifies, 1..C.
        assignment: ``dealt``: FedLSM's draw, see ``imperfections.identified_classes``; ``released``: what its released
            code drew for 8 sites and 3 of 14 classes; ``one_each`` or ``random``: see
            ``imperfections.annotated_classes``.
        view: films in this view only, ``PA`` or ``AP``; ``None``: all. FedMLP has ``PA``.
        top: only this many classes, those with the most positives in that view, in official order (FedMLP: 8).
        classes: only these, in this order, instead of ``top``.
        split: ``official`` takes the official test list and keeps a patient in one of training and validation and in
            one site; ``patient`` draws the patients of the test split; ``image`` splits and deals film by film, as the
            papers' released codes do in training and validation, so that patients are on several sides.
        test_share: share of the patients (or films) in the test split, in (0, 1); not used by ``official``.
        val_share: share of a site's other patients (or films) that goes to ``val.csv``, in [0, 1); 0 writes none.
            FedLSM's 7:1:2 is 1/8; FedMLP has no validation split.
        train_per_site: ``train.csv`` holds at most this many films, ``val.csv`` shrinks in proportion; ``None``: all.
        seed: 0 or more.
        source_name: what the cards name as source; synthetic data says so here.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument, site folders in ``out`` already, a download that is incomplete or contradicts
            itself, too few patients, or a training part with only 0 or only 1 of a class that its site identifies.
    """
    arguments = {k: v for k, v in locals().items() if k in ARGUMENTS}
    _check_arguments(Path(out), arguments)
    _convert(Path(source), Path(out), arguments, source_name, progress or (lambda line: None))


def _convert(source: Path, out: Path, arguments: Mapping, source_name: str, say: Callable[[str], object]) -> None:
    """:func:`prepare` with the arguments that the cards show as one mapping."""
    sites, seed, split, view = (arguments[k] for k in ("sites", "seed", "split", "view"))
    classes, val_share = arguments["classes"], arguments["val_share"]
    count = len(classes or ()) or arguments["top"] or len(CLASSES)
    identified = _assign(arguments["assignment"], sites, count, arguments["classes_per_site"], seed)
    table = find_table(source)
    films = read_films(source, table)
    test = read_lists(source, films, table) if split == "official" else None
    say(f"{len(films.images)} films of {len(np.unique(films.patients))} patients")
    if view is not None:
        used = np.flatnonzero(films.views == view)
        films, test = films.take(used), None if test is None else test[used]
        say(f"{len(used)} of them are {view}")
    paths = find_files(source, films, table)
    units = np.unique(films.images if split == "image" else films.patients, return_inverse=True)[1]
    if test is None:
        test = hold_out(units, arguments["test_share"], seed=seed)
    _check_units(units, test, sites * (1 + (val_share > 0)), sites, "films" if split == "image" else "patients")
    if classes:
        shown = [CLASSES.index(c) for c in classes]
    else:
        positives = films.labels.sum(axis=0, dtype=np.int64)
        shown = np.sort(np.argsort(-positives, kind="stable")[: arguments["top"]]).tolist()
    labels, classes = films.labels[:, shown], [CLASSES[c] for c in shown]
    parts = _deal(units, test, sites, val_share, arguments["train_per_site"], seed)
    _check_labels(parts, labels, classes, identified)
    counts = {"films": len(films.images), "patients": len(np.unique(films.patients)), "test": int(test.sum())}
    provenance = {"source": source_name, "arguments": dict(arguments), "counts": counts}
    _write(source, out, paths, films.patients, labels, classes, parts, identified, provenance)
    say(f"{sites} site folders written")


def _check_labels(
    parts: list[dict[str, np.ndarray]], labels: np.ndarray, classes: list[str], identified: np.ndarray
) -> None:
    for s, c in np.argwhere(identified):
        values = np.unique(labels[parts[s]["train"], c])
        if len(values) < 2:  # a site refuses to train on such a column
            raise FedMendError(
                f"site-{s + 1}: train.csv, column {classes[c]}: expected both 0 and 1, got only {values[0]}"
            )


def _check_arguments(out: Path, arguments: Mapping) -> None:
    def limit(name: str, good: Callable, expected: str) -> None:
        if not good(arguments[name]):
            raise FedMendError(f"cxr14, argument {name}: expected {expected}, got {arguments[name]!r}")

    limit("view", lambda v: v in (None, "PA", "AP"), "None, 'PA' or 'AP'")
    limit("top", lambda v: v is None or 1 <= v <= len(CLASSES), f"None or 1 to {len(CLASSES)}")
    limit("classes", lambda v: not v or (set(v) <= {*CLASSES} and len({*v}) == len(v)), f"names out of {list(CLASSES)}")
    if arguments["classes"]:
        limit("top", lambda v: v is None, "None where classes are named")
        limit("assignment", lambda v: v != "released", "another rule than 'released' where classes are named")
    limit("split", lambda v: v in ("official", "patient", "image"), "'official', 'patient' or 'image'")
    limit("test_share", lambda v: 0 < v < 1, "a number between 0 and 1")
    limit("val_share", lambda v: 0 <= v < 1, "0 or a number below 1")
    limit("train_per_site", lambda v: v is None or v >= 1, "None or at least 1")
    rules = ("dealt", "released", "one_each", "random")
    limit("assignment", lambda v: v in rules, f"one of {list(rules)}")
    if out.exists() and (not out.is_dir() or any(out.glob("site-*"))):
        raise FedMendError(
            "cxr14, argument out: expected a folder without site folders, got one that has them or a file"
        )


def _assign(assignment: str, sites: int, num_classes: int, per_site: int, seed: int) -> np.ndarray:
    """Which site identifies which class, (S, C) bool."""
    if assignment == "dealt":
        return identified_classes(sites, num_classes, per_site, seed=seed)
    if assignment != "released":
        return annotated_classes(sites, num_classes, per_site, rule=assignment, seed=seed)
    if (sites, per_site, num_classes) != (len(RELEASED), 3, len(CLASSES)):
        raise FedMendError(
            f"cxr14, argument assignment: expected 8 sites with 3 of 14 classes for 'released', got {sites} with"
            f" {per_site} of {num_classes}"
        )
    return np.array([[c in own for c in CLASSES] for own in RELEASED])


def _check_units(units: np.ndarray, test: np.ndarray, least_train: int, least_test: int, kind: str) -> None:
    num_train, num_test = len(np.unique(units[~test])), len(np.unique(units[test]))
    if num_train < least_train or num_test < least_test:
        raise FedMendError(
            f"cxr14: expected at least {least_train} {kind} for training and {least_test} for the test, got {num_train}"
            f" and {num_test}"
        )


def _deal(
    units: np.ndarray, test: np.ndarray, sites: int, val_share: float, train_per_site: int | None, seed: int
) -> list[dict[str, np.ndarray]]:
    """For each site: split name → sorted indices of its films; every unit lies in one split of one site."""
    rng = np.random.default_rng((seed, 3))
    training, testing = (rng.permutation(np.unique(units[side])) for side in (~test, test))
    caps = {"train": train_per_site}
    if train_per_site is not None:
        caps["val"] = max(1, round(train_per_site * val_share / (1 - val_share)))
    parts = []
    for s in range(sites):
        own = training[s::sites]
        num_val = min(max(1, round(val_share * len(own))), len(own) - 1) if val_share else 0
        shares = {"train": own[num_val:], "val": own[:num_val], "test": testing[s::sites]}
        part = {}
        for name, share in shares.items():
            if len(share):
                rank = np.full(units.max() + 1, -1)
                rank[share] = np.arange(len(share))
                films = np.flatnonzero(rank[units] >= 0)
                films = films[np.argsort(rank[units[films]], kind="stable")]
                part[name] = np.sort(films[: caps.get(name)])
        parts.append(part)
    return parts


def _write(
    source: Path,
    out: Path,
    paths: list[str],
    patients: np.ndarray,
    labels: np.ndarray,
    classes: list[str],
    parts: list[dict[str, np.ndarray]],
    identified: np.ndarray,
    provenance: Mapping,
) -> None:
    everything = np.ones(len(classes), dtype=bool)
    with site_folders(out, len(parts), source) as (folders, image_root):
        for folder, part, shown in zip(folders, parts, identified, strict=True):
            tables = {f"{name}.csv": (i, everything if name == "test" else shown) for name, i in part.items()}
            tables["truth/train.csv"] = (part["train"], everything)
            for file, (index, own) in tables.items():
                columns = [name for name, has in zip(classes, own, strict=True) if has]
                names, keys = [paths[i] for i in index], patients[index].tolist()
                write_table(folder / file, names, labels[index][:, own], columns, patients=keys)
            write_card(
                folder,
                task=MULTILABEL,
                classes=classes,
                splits={name: f"{name}.csv" for name in part},
                truth={"train": "truth/train.csv"},
                image_root=image_root,
                modality="DX",
                provenance={**provenance, "site": {"sizes": {name: len(index) for name, index in part.items()}}},
            )


def _add_arguments(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "folder with Data_Entry_2017.csv, the two lists and the films")
    parser.add_argument(
        "--protocol",
        choices=["fedlsm", "fedmlp"],
        default="fedlsm",
        help="fedlsm: 14 findings, 3 at each of 8 sites; fedmlp: PA films, 8 findings, 1 at each of 8 sites",
    )
    parser.add_argument("--sites", type=int)
    parser.add_argument("--classes-per-site", type=int)
    parser.add_argument("--assignment", choices=["dealt", "released", "one_each", "random"])
    parser.add_argument("--view", choices=["all", "PA", "AP"])
    parser.add_argument("--top", type=int, help="only the findings with the most positives")
    parser.add_argument("--classes", default="", help="only these findings, comma-separated, instead of --top")
    parser.add_argument("--split", choices=["official", "patient", "image"], help="image leaks patients")
    parser.add_argument("--test-share", type=float)
    parser.add_argument("--val-share", type=float)
    parser.add_argument("--train-per-site", type=int)
    parser.add_argument("--seed", type=int)


def _run(args: Namespace) -> None:
    names = [name for name in ARGUMENTS if name != "classes"]
    given = {k: v for k, v in command_line.given(args, *names).items() if v is not None}
    if given.get("view") == "all":
        given["view"] = None
    if args.classes:
        given = {"top": None, **given, "classes": args.classes.split(",")}
    prepare(args.source, args.out, **{**PROTOCOLS[args.protocol], **given}, progress=print)


COMMANDS = (
    Command(name="cxr14", help="NIH ChestX-ray14, findings missing per site", add_arguments=_add_arguments, run=_run),
)
