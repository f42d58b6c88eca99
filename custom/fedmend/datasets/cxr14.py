"""ChestX-ray14, frontal chest films with fourteen findings: the official NIH download → site folders with missing
classes.

The shuffled patients (or films) are dealt to the sites. The result depends on the download and the arguments alone, not
on the order of rows or files.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.datasets import command_line
from fedmend.datasets.checks import SHARES, Limits, check_fields, need, one_of
from fedmend.datasets.cxr14_download import CLASSES, find_files, find_table, read_films, read_lists
from fedmend.datasets.imperfections import annotated_classes, identified_classes
from fedmend.datasets.samples import (
    Samples,
    Say,
    Share,
    class_by_class,
    hold_out,
    of_known,
    parts_of,
    released_classes,
    sizes,
)
from fedmend.datasets.site_folders import check_out, write_sites

WHERE = "cxr14"
SOURCE = "NIH ChestX-ray14"
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


@dataclass(frozen=True, kw_only=True)
class FilmProtocol:
    """How films get to sites that miss classes; the defaults are FedLSM's experiment.

    Attributes:
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

    Raises:
        FedMendError: a value out of its range.
    """

    sites: int = 8
    classes_per_site: int = 3
    assignment: str = "dealt"
    view: str | None = None
    top: int | None = None
    classes: Sequence[str] | None = None
    split: str = "official"
    test_share: float = 0.3
    val_share: float = 0.125
    train_per_site: int | None = None
    seed: int = 1037

    def __post_init__(self) -> None:
        names, own = f"names out of {list(CLASSES)}", self.classes or ()
        limits: Limits = {
            "view": (lambda v: v in (None, "PA", "AP"), "None, 'PA' or 'AP'"),
            "top": (lambda v: v is None or 1 <= v <= len(CLASSES), f"None or 1 to {len(CLASSES)}"),
            "classes": (lambda _: {*own} <= {*CLASSES} and len({*own}) == len(own), names),
            "split": one_of("official", "patient", "image"),
            **SHARES,
            "assignment": one_of("dealt", "released", "one_each", "random"),
        }
        check_fields(WHERE, self, limits)
        if self.classes:
            words = "another rule than 'released' where classes are named"
            limits = {"top": (lambda v: v is None, "None where classes are named")}
            check_fields(WHERE, self, {**limits, "assignment": (lambda v: v != "released", words)})


# The papers' experiments, patient by patient where the papers split film by film.
PROTOCOLS: Mapping[str, FilmProtocol] = {
    "fedlsm": FilmProtocol(),
    "fedmlp": FilmProtocol(
        classes_per_site=1, assignment="one_each", view="PA", top=8, split="patient", test_share=0.3, val_share=0.1
    ),
}


def prepare(
    source: Path,
    out: Path,
    protocol: FilmProtocol,
    *,
    stratified: bool = True,
    source_name: str = SOURCE,
    progress: Say | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the films stay where they are.

    Args:
        source: folder of the download.
        out: folder for the site folders; made when missing.
        protocol: which films and classes are used, and how films get to sites.
        stratified: the validation split is drawn class by class, see :func:`fedmend.datasets.samples.class_by_class`.
        source_name: what the cards name as source; synthetic data says so here.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: site folders in ``out`` already, a download that is incomplete or contradicts itself, too few
            patients, or a training part with only 0 or only 1 of a class that its site identifies.
    """
    source, out, say = Path(source), Path(out), progress or (lambda line: None)
    check_out(out, WHERE)
    identified, split = _assign(protocol), protocol.split
    table = find_table(source)
    films = read_films(source, table)
    test = read_lists(source, films, table) if split == "official" else None
    say(f"{len(films.images)} films of {len(np.unique(films.patients))} patients")
    if protocol.view is not None:
        used = np.flatnonzero(films.views == protocol.view)
        films, test = films.take(used), None if test is None else test[used]
        say(f"{len(used)} of them are {protocol.view}")
    paths = find_files(source, films, table)
    units = np.unique(films.images if split == "image" else films.patients, return_inverse=True)[1]
    if test is None:
        test = hold_out(units, protocol.test_share, seed=protocol.seed)
    _check_units(units, test, protocol)
    most = np.sort(np.argsort(-films.labels.sum(axis=0, dtype=np.int64), kind="stable")[: protocol.top]).tolist()
    shown = [CLASSES.index(c) for c in protocol.classes] if protocol.classes else most
    samples = Samples(
        images=paths,
        labels=films.labels[:, shown],
        classes=[CLASSES[c] for c in shown],
        image_root=source,
        modality="DX",
        patients=films.patients,
    )
    positives = [of_known(samples.labels, known) for known in identified] if stratified else []
    shares = [
        Share(parts=part, known=known, about={"sizes": sizes(part)})
        for part, known in zip(_deal(units, test, protocol, positives), identified, strict=True)
    ]
    counts = {"films": len(films.images), "patients": len(np.unique(films.patients)), "test": int(test.sum())}
    write_sites(out, samples, shares, {"source": source_name, "arguments": asdict(protocol), "counts": counts})
    say(f"{protocol.sites} site folders written")


def _assign(protocol: FilmProtocol) -> np.ndarray:
    """Which site identifies which class, (S, C) bool."""
    sites, per_site, rule = protocol.sites, protocol.classes_per_site, protocol.assignment
    count = len(protocol.classes or ()) or protocol.top or len(CLASSES)
    if rule == "dealt":
        return identified_classes(sites, count, per_site, seed=protocol.seed)
    if rule != "released":
        return annotated_classes(sites, count, per_site, rule=rule, seed=protocol.seed)
    expected = "8 sites with 3 of 14 classes for 'released'"
    fits = (sites, per_site, count) == (len(RELEASED), 3, len(CLASSES))
    need(fits, f"{WHERE}, argument assignment", expected, f"{sites} with {per_site} of {count}")
    return released_classes(RELEASED, CLASSES)


def _check_units(units: np.ndarray, test: np.ndarray, protocol: FilmProtocol) -> None:
    least = protocol.sites * (1 + (protocol.val_share > 0)), protocol.sites
    found = len(np.unique(units[~test])), len(np.unique(units[test]))
    kind = "films" if protocol.split == "image" else "patients"
    words = f"at least {least[0]} {kind} for training and {least[1]} for the test"
    need(found[0] >= least[0] and found[1] >= least[1], WHERE, words, f"{found[0]} and {found[1]}")


def _deal(
    units: np.ndarray, test: np.ndarray, protocol: FilmProtocol, positives: Sequence[np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """For each site: split name → sorted indices of its films; every unit lies in one split of one site.

    ``positives``: for each site the films with each class that it identifies, or nothing.
    """
    rng, val_share = np.random.default_rng((protocol.seed, 3)), protocol.val_share
    training, testing = (rng.permutation(np.unique(units[side])) for side in (~test, test))
    parts = []
    for s in range(protocol.sites):
        own = training[s :: protocol.sites]
        num_val = min(max(1, round(val_share * len(own))), len(own) - 1) if val_share else 0
        drawn = {"train": own[num_val:], "val": own[:num_val], "test": testing[s :: protocol.sites]}
        drawn = {name: share for name, share in drawn.items() if len(share)}
        if positives:
            drawn = class_by_class(drawn, units, positives[s], seed=protocol.seed)
        most = protocol.train_per_site
        parts.append(parts_of(units, drawn, train_per_site=most, val_share=val_share, rest=1 - val_share))
    return parts


def _add_arguments(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "folder with Data_Entry_2017.csv, the two lists and the films")
    words = "fedlsm: 14 findings, 3 at each of 8 sites; fedmlp: PA films, 8 findings, 1 at each of 8 sites"
    parser.add_argument("--protocol", choices=["fedlsm", "fedmlp"], default="fedlsm", help=words)
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
    names = [f.name for f in fields(FilmProtocol) if f.name != "classes"]
    given = {k: v for k, v in command_line.given(args, *names).items() if v is not None}
    if given.get("view") == "all":
        given["view"] = None
    if args.classes:
        given = {"top": None, **given, "classes": args.classes.split(",")}
    prepare(args.source, args.out, replace(PROTOCOLS[args.protocol], **given), progress=say)


COMMANDS = (Command("cxr14", "NIH ChestX-ray14, findings missing per site", _add_arguments, _run),)
