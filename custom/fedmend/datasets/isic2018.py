"""ISIC 2018 task 3 (HAM10000), dermoscopy with seven diagnoses: the official training download → single-label sites
that each identify some of the classes only (FedLSM, Deng et al., MICCAI 2023).

Download: ``ISIC2018_Task3_Training_Input/ISIC_0000000.jpg``,
``ISIC2018_Task3_Training_GroundTruth/ISIC2018_Task3_Training_GroundTruth.csv`` (image and one column per class, one of
them 1.0) and ``ISIC2018_Task3_Training_LesionGroupings.csv`` (of its columns, image and lesion_id are read), which may
also lie in the folder of the former. References: Tschandl et al., Scientific Data 5:180161, 2018; Codella et al.,
arXiv:1902.03368, 2019.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.datasets import command_line
from fedmend.datasets.checks import SHARES, Limits, check_fields, need, need_part, one_of
from fedmend.datasets.imperfections import identified_classes
from fedmend.datasets.isic2019 import read_tables
from fedmend.datasets.samples import (
    Samples,
    Say,
    Share,
    class_by_class,
    of_known,
    parts_of,
    released_classes,
    shown_labels,
    sizes,
)
from fedmend.datasets.site_folders import check_out, write_sites
from fedmend.labels import NOT_ANNOTATED

WHERE = "isic2018"
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


@dataclass(frozen=True, kw_only=True)
class DiagnosisProtocol:
    """How pictures get to sites; the defaults are the paper's 7:1:2, five sites and three classes each (Sec. 3.1).

    Attributes:
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

    Raises:
        FedMendError: a value out of its range.
    """

    sites: int = 5
    classes_per_site: int = 3
    assignment: str = "random"
    split: str = "lesion"
    test_share: float = 0.2
    val_share: float = 0.1
    train_per_site: int | None = None
    seed: int = 523

    def __post_init__(self) -> None:
        rest = 1 - self.test_share
        check_fields(WHERE, self, {"assignment": one_of("random", "released")})
        if self.assignment == "released":
            for name, count in (("sites", len(RELEASED)), ("classes_per_site", len(RELEASED[0]))):
                value, words = getattr(self, name), f"{count} with the released assignment"
                need(value == count, f"{WHERE}, argument {name}", words, value)
        limits: Limits = {
            "classes_per_site": (lambda v: 2 <= v <= len(CLASSES), f"2..{len(CLASSES)}"),
            "split": one_of("lesion", "image"),
            **SHARES,
            "val_share": (lambda v: 0 <= v < rest, "0 or a number that leaves a share for training"),
            "train_per_site": (lambda v: v is None or v >= 2, "None or at least 2"),
            "seed": (lambda v: v >= 0, "at least 0"),
        }
        check_fields(WHERE, self, limits)


def prepare(
    source: Path,
    out: Path,
    protocol: DiagnosisProtocol,
    *,
    stratified: bool = True,
    source_name: str = SOURCE,
    progress: Say | None = None,
) -> None:
    """Turns the official download into ``out/site-1`` .. ``out/site-S``; the pictures stay where they are.

    Lesions (or pictures) are split at random, then each split is dealt evenly to the sites. The result depends on the
    download and the arguments alone, not on the order of rows.

    Args:
        source: folder of the download.
        out: folder for the site folders; made when missing.
        protocol: how pictures get to sites.
        stratified: the validation split is drawn class by class, see :func:`fedmend.datasets.samples.class_by_class`.
        source_name: what the cards name as source; synthetic data says so here.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: site folders in ``out`` already, a download that is incomplete or contradicts itself, too few
            lesions, or a site whose training part has labels of fewer than 2 classes.
    """
    source, out, say = Path(source), Path(out), progress or (lambda line: None)
    check_out(out, WHERE)
    if protocol.assignment == "released":
        identified = released_classes(RELEASED, CLASSES)
    else:
        identified = identified_classes(protocol.sites, len(CLASSES), protocol.classes_per_site, seed=protocol.seed)
    table = source / TABLE
    groups = [file for file in (source / LESIONS, table.parent / LESIONS) if file.is_file()]
    for name, there in ((FOLDER, (source / FOLDER).is_dir()), (TABLE, table.is_file()), (LESIONS, groups)):
        need_part(there, WHERE, name)
    ids, labels, lesions = read_tables(source / FOLDER, table, groups[0], CLASSES)
    say(f"{len(ids)} pictures of {len(set(lesions))} lesions")
    units = np.unique(lesions if protocol.split == "lesion" else ids, return_inverse=True)[1]
    samples = Samples(
        images=[f"{i}.jpg" for i in ids],
        labels=labels,
        classes=CLASSES,
        image_root=source / FOLDER,
        modality="dermoscopy",
        color=True,
        patients=lesions,
    )
    shares = []
    positives = [of_known(labels, known) for known in identified] if stratified else []
    for part, known in zip(_parts(units, protocol, positives), identified, strict=True):
        about = {
            "identified": [CLASSES[c] for c in np.flatnonzero(known)],
            "sizes": sizes(part),
            "labelled": int((shown_labels(labels[part["train"]], known) != NOT_ANNOTATED).sum()),
        }
        shares.append(Share(parts=part, known=known, about=about))
    write_sites(out, samples, shares, {"source": source_name, "arguments": asdict(protocol)})
    say(f"{protocol.sites} site folders written")


def _parts(
    units: np.ndarray, protocol: DiagnosisProtocol, positives: Sequence[np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """For each site: split name → sorted indices of pictures; ``units`` (N,) are their lesions, ``positives`` for each
    site the pictures with each class that it identifies, or nothing."""
    count, sites = len(np.unique(units)), protocol.sites
    test, val = round(protocol.test_share * count), round(protocol.val_share * count)
    order = np.argsort(np.random.default_rng((protocol.seed, 2)).permutation(count))  # unit after unit
    train = count - test - val
    drawn = {"train": order[:train], "val": order[train : train + val], "test": order[train + val :]}
    if not protocol.val_share:
        del drawn["val"]
    for name, own in drawn.items():
        where = f"at least {sites} {protocol.split}s in the {name} split, one for each site"
        need(len(own) >= sites, WHERE, where, len(own))
    val_share, most = protocol.val_share, protocol.train_per_site
    rest = 1 - protocol.test_share - val_share
    deals = [{name: own[s::sites] for name, own in drawn.items()} for s in range(sites)]
    if positives:
        pairs = zip(deals, positives, strict=True)
        deals = [class_by_class(deal, units, own, seed=protocol.seed) for deal, own in pairs]
    return [parts_of(units, own, train_per_site=most, val_share=val_share, rest=rest) for own in deals]


def _add_arguments(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "folder with ISIC2018_Task3_Training_Input/ and the ground truth")
    command_line.options(parser, DiagnosisProtocol, sites="", classes_per_site="")
    parser.add_argument("--assignment", choices=["random", "released"], default="random")
    words = "image is the released split, which leaks lesions"
    parser.add_argument("--split", choices=["lesion", "image"], default="lesion", help=words)
    command_line.options(parser, DiagnosisProtocol, train_per_site="", seed="")


def _run(args: Namespace) -> None:
    prepare(args.source, args.out, command_line.made(DiagnosisProtocol, args), progress=say)


COMMANDS = (Command("isic2018", "ISIC 2018 task 3 (HAM10000), diagnoses missing per site", _add_arguments, _run),)
