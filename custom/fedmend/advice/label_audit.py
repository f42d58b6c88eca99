"""Who annotates what: label counts of a site, small ones held back; :mod:`fedmend.report.audit` shows them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmend.basics.checked import FLAG, REFUSES, TEXT, checked, one_of, taking, that
from fedmend.basics.json_files import read_json
from fedmend.data.card import CARD_NAME, SiteCard, check_classes, load_card
from fedmend.errors import FedMendError
from fedmend.labels import KIND_NAMES

COUNTS = "annotated", "positive", "missing"
HELD_BACK = -1
AUDIT_FILE = "audit.json"
LARGEST = 2**31  # no site has as many samples
SAMPLES = that(lambda value: type(value) is int and 0 <= value < LARGEST, "a whole number")


@dataclass(frozen=True, kw_only=True)
class SiteLabels:
    """What one site says.

    Attributes:
        samples: training samples; 0 at a site that could not be counted.
        counts: (3, C) int64 in the order of ``COUNTS``; ``HELD_BACK`` where the site does not tell.
        phantom: the data are synthetic.
        problem: why the site could not be counted, or empty.
        kind: kind of labels, as in :attr:`fedmend.data.card.SiteCard.kind`; empty where the site does not say.
        lesions: left in the masks, and all that there were, where a site folder was made with fewer and its card says
            so; the audit job does not send it.
    """

    samples: int = taking(SAMPLES)
    counts: np.ndarray
    phantom: bool = taking(FLAG, default=False)
    problem: str = taking(TEXT, default="")
    kind: str = taking(one_of(("", *KIND_NAMES)), default="")
    lesions: tuple[int, int] | None = None


def count_labels(card: SiteCard, classes: Sequence[str], *, min_count: int) -> SiteLabels:
    """Counts the training labels of a site, and holds small counts back.

    Args:
        card: the site's card.
        classes: C class names, those of the card in any order.
        min_count: fewest samples that a number may describe.

    Raises:
        FedMendError: labels that cannot be read, or fewer than ``min_count`` samples.
    """
    from fedmend.kinds import kind_of

    kind = kind_of(card.kind)
    counts = kind.label_counts(card, classes)
    samples = int(counts[COUNTS.index("annotated"), 0] + counts[COUNTS.index("missing"), 0])
    if samples < max(min_count, 1):
        raise FedMendError(
            f"{card.site}: {card.splits['train']}: expected at least min_count training {kind.sample}, got fewer"
        )
    told = hold_back(counts, min_count=min_count, one_label=kind.one_label)
    lesions = kind.census_extras(card).get("lesions")
    kept = None if lesions is None else (int(lesions[0]), int(lesions[1]))
    return SiteLabels(samples=samples, counts=told, phantom=card.phantom, kind=card.kind, lesions=kept)


def count_folders(folder: Path, *, min_count: int) -> tuple[dict[str, SiteLabels], tuple[str, ...]]:
    """Counts site folders that lie on this machine, each as its site would.

    Args:
        folder: the folder that holds them.
        min_count: fewest samples that a number may describe.

    Returns:
        Site → its counts or why it was not counted, and the classes of the first card that can be read.

    Raises:
        FedMendError: no site folder in it, or no card that can be read.
    """
    found = sorted(file.parent for file in folder.glob(f"*/{CARD_NAME}"))
    if not found:
        raise FedMendError(f"data: expected a folder of site folders, found no {CARD_NAME} one level below {folder}")
    sites: dict[str, SiteLabels] = {}
    classes: tuple[str, ...] = ()
    first = ""  # the site that has them
    for site in found:
        try:
            card = load_card(site, site.name)
            classes, first = classes or card.classes, first or site.name
            check_classes(card, classes, first)
            sites[site.name] = count_labels(card, classes, min_count=min_count)
        except FedMendError as e:
            sites[site.name] = SiteLabels(samples=0, counts=np.zeros((len(COUNTS), 0), dtype=np.int64), problem=str(e))
    if not classes:
        raise FedMendError(next(iter(sites.values())).problem)
    return sites, classes


def hold_back(counts: np.ndarray, *, min_count: int, one_label: bool) -> np.ndarray:
    """Takes out every count below ``min_count``, and those that it could be computed from.

    A count of zero is passed on, because it describes no patient. Annotated and missing samples add up to all samples,
    so these two are told or held back together. Annotated samples minus the positive ones are the negative ones; where
    these are too few, the positive ones are held back. They are too where the annotated ones are held back and nearly
    all samples are positive: as the negative ones are none or at least ``min_count``, one number of missing ones could
    be left. With one label per sample, see :func:`_hidden_of_one_label`.

    Args:
        counts: (3, C) in the order of ``COUNTS``.
        min_count: fewest samples that a number may describe.
        one_label: each sample has one class, see :class:`fedmend.kinds.base.Kind`.

    Returns:
        (3, C) int64 with ``HELD_BACK`` in place of numbers that stay at the site.
    """
    annotated, positive, missing = counts

    def few(number: np.ndarray) -> np.ndarray:
        return (number > 0) & (number < min_count)

    unknown = few(annotated) | few(missing)
    hidden = few(positive) | few(annotated - positive) | unknown & (positive > annotated + missing - 2 * min_count)
    if one_label and (hidden | unknown).any():
        hidden = _hidden_of_one_label(counts, hidden, unknown, min_count)
    return np.where(np.stack([unknown, hidden, unknown]), HELD_BACK, counts).astype(np.int64)


def _hidden_of_one_label(counts: np.ndarray, hidden: np.ndarray, unknown: np.ndarray, min_count: int) -> np.ndarray:
    """(C,) bool: positive samples that are held back where these of one class, or the annotated ones, are.

    Those of all classes add up to the annotated ones, so the smallest of the others are held back too: of equal ones
    all, or their order would tell. Where the annotated ones are held back, all are: the missing ones could follow. At a
    site that then tells of no sample, a zero would tell too much: of three classes of three samples each has one.

    Args:
        counts: (3, C) in the order of ``COUNTS``.
        hidden: (C,) bool, positive samples that are held back in any case.
        unknown: (C,) bool, whether the annotated ones are.
        min_count: fewest samples that a number may describe.
    """
    annotated, positive, missing = counts
    others = ~hidden & (positive > 0)
    if others.any():
        hidden = hidden | others & (unknown | (positive == positive[others].min()))
    nothing = not (~hidden & (positive > 0)).any()
    return hidden | nothing & (~unknown | (annotated + missing < 2 * min_count))


def audit_text(sites: Mapping[str, SiteLabels], classes: Sequence[str]) -> str:
    """Content of ``AUDIT_FILE``: classes and sites in their order; null where a site holds a number back.

    Args:
        sites: site → what it says.
        classes: C class names.
    """
    said = {}
    for name, site in sites.items():
        told = [[None if n == HELD_BACK else n for n in row] for row in site.counts.tolist()]
        about = {field: getattr(site, field) for field in ("problem", "kind", "phantom", "samples")}
        said[name] = about | dict(zip(COUNTS, told, strict=True))
    return json.dumps({"classes": list(classes), "sites": said}, indent=2) + "\n"


def read_audit(file: Path) -> tuple[dict[str, SiteLabels], tuple[str, ...]]:
    """What :func:`audit_text` made: sites and classes.

    Raises:
        FedMendError: no such file, or another one.
    """
    try:
        raw = read_json(file)
        classes = tuple(raw["classes"])
        sites = {name: _site(said, len(classes)) for name, said in raw["sites"].items()}
        known = all(isinstance(name, str) and name for name in classes) and len({*classes}) == len(classes) > 0
    except OSError:
        raise FedMendError(f"{file.name}: expected in the folder of a label audit, not found") from None
    except (FedMendError, *REFUSES):
        known = False
    if not known:
        raise FedMendError(f"{file.name}: expected what a label audit writes, got another file")
    return sites, classes


def _site(said: Mapping, num_classes: int) -> SiteLabels:
    counts = [[HELD_BACK if n is None else SAMPLES.read(n) for n in said[dataset]] for dataset in COUNTS]
    if any(len(row) != num_classes for row in counts):
        raise ValueError
    return checked(SiteLabels, said, AUDIT_FILE, others=True, counts=np.array(counts, dtype=np.int64))
