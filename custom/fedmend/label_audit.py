"""Who annotates what: label counts of a site, small ones held back, and the page that shows all sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from fedmend.data.manifest import NOT_ANNOTATED, SEGMENTATION, SiteCard, check_classes, load_table
from fedmend.data.volumes import SECTIONS, load_datalist, read_pair
from fedmend.page import CSS, HEAT_CSS, PHANTOM_CSS, Markup, heat, table, td

KINDS = ANNOTATED, POSITIVE, MISSING = "annotated", "positive", "missing"
HELD_BACK = -1
HIDDEN = "?"  # how a number that was held back reads


@dataclass(frozen=True)
class SiteLabels:
    """What one site says.

    Attributes:
        samples: training samples; 0 at a site that could not be counted.
        counts: (3, C) int64 in the order of ``KINDS``; ``HELD_BACK`` where the site does not tell.
        phantom: the data are synthetic.
        problem: why the site could not be counted, or empty.
    """

    samples: int
    counts: np.ndarray
    phantom: bool = False
    problem: str = ""


def count_labels(card: SiteCard, classes: Sequence[str]) -> np.ndarray:
    """Counts the labels of the training split; no image is opened.

    Where lesions are marked, a sample is a volume: all of them are annotated, and positive are those with any lesion in the
    mask. What a mask leaves out, no file says.

    Args:
        card: the site's card.
        classes: the job's C classes.

    Returns:
        (3, C) int64 in the order of ``KINDS``: annotated samples, positive ones, samples without a label.

    Raises:
        FedMendError: other classes than the job's, or a table, datalist or mask that cannot be read.
    """
    check_classes(card, classes)
    file = card.splits["train"]
    if card.task == SEGMENTATION:
        items = load_datalist(card, file, "train")
        where = f"{card.site}: {file}, {SECTIONS['train']} item"
        marked = [  # the label stands in for the image, which need not be opened
            read_pair(replace(item, image=item.label), f"{where} {number}", card.foreground)[1].any()
            for number, item in enumerate(items, 1)
        ]
        return np.array([[len(items)], [sum(marked)], [0]], dtype=np.int64)
    labels = load_table(card, file, classes).labels
    return np.array([(labels != NOT_ANNOTATED).sum(0), (labels == 1).sum(0), (labels == NOT_ANNOTATED).sum(0)])


def hold_back(counts: np.ndarray, *, min_count: int, one_label: bool) -> np.ndarray:
    """Takes out every count below ``min_count``, and those that it could be computed from. Zero is told: it is nobody.

    Annotated and missing samples add up to all samples, so these two are told or held back together. Annotated samples less
    the positive ones are the negative ones; too few of these hold the positive ones back. With one label per sample, the
    positive samples of all classes add up to the annotated ones, so a number that is held back takes the smallest other with it.

    Args:
        counts: (3, C) as from :func:`count_labels`.
        min_count: fewest samples that a number may describe.
        one_label: each sample has one class.

    Returns:
        (3, C) int64 with ``HELD_BACK`` in place of numbers that stay at the site.
    """
    annotated, positive, missing = counts

    def few(number: np.ndarray) -> np.ndarray:
        return (number > 0) & (number < min_count)

    unknown = few(annotated) | few(missing)
    hidden = few(positive) | few(annotated - positive)
    others = np.flatnonzero(~hidden & (positive > 0))
    if one_label and len(others) and (hidden | unknown).any():
        hidden[others[positive[others].argmin()]] = True
    return np.where(np.stack([unknown, hidden, unknown]), HELD_BACK, counts).astype(np.int64)


def audit_page(sites: Mapping[str, SiteLabels], classes: Sequence[str]) -> str:
    """The table of classes and sites.

    Args:
        sites: site → what it says, in the order of the columns.
        classes: C class names, in the order of the rows.

    Returns:
        an HTML page that asks for nothing outside itself.
    """
    counted = {name: site for name, site in sites.items() if not site.problem}
    phantom = [name for name, site in counted.items() if site.phantom]
    mixed = len(phantom) < len(counted)
    heads = [f"{name} (PHANTOM)" if mixed and name in phantom else name for name in counted]
    rows = []
    for c, name in enumerate(classes):
        numbers = {site: labels.counts[:, c] for site, labels in counted.items()}
        having = sum(bool(n[0] and n[1]) for n in numbers.values())
        found = td(f"{having} of {len(counted)}") if having else td("no site", "bad")
        total = _sum(np.array([*numbers.values()]).reshape(-1, len(KINDS)))
        rows.append([name, *(_cell(n, counted[site].samples) for site, n in numbers.items()), total, found])
    samples = [site.samples for site in counted.values()]
    body = table(
        "Training labels: positive of annotated samples, and below them samples without a label of the class",
        ["class", *heads, "all sites", "sites with positives"],
        rows if counted else [],  # nobody knows what nobody has counted
        ["training samples", *(f"{n:,}" for n in [*samples, sum(samples)]), ""],
    )
    problems = "".join(
        f'<p class="flag"><strong>{escape(name)} was not counted.</strong> {escape(site.problem.removeprefix(f"{name}: "))}</p>\n'
        for name, site in sites.items()
        if site.problem
    )
    badge = below = ""
    if phantom:
        badge = '<span class="badge">PHANTOM</span>'
        which = f" at {', '.join(phantom)}" if mixed else ""
        below = (
            '<p class="phantom"><strong>PHANTOM data.</strong> '
            f"Every label counted{escape(which)} is synthetic; no patient was examined.</p>"
        )
    title = f"{'PHANTOM ' if phantom else ''}Label audit"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{CSS}{HEAT_CSS}{PHANTOM_CSS if phantom else ''}</style></head>\n"
        f"<body><header><h1>Label audit{badge}</h1><p class='sub'>{len(counted)} of {len(sites)} sites counted</p>{below}"
        f"</header>\n<main>\n{problems}{body}"
        f"<p class='fine'>{HIDDEN}: the site does not tell this number, because it or one that follows from it is below the "
        "site's own minimum count; a sum without it is marked ≥. The darker a cell, the larger the share of the site's samples "
        "that is annotated. A sample is an image or, where lesions are marked, a volume; whether all lesions of a volume are "
        "marked is not known here. Only training splits are counted.</p>\n"
        "</main>\n<footer class='fine'>FedMend label audit · counts only, no patient data</footer></body></html>\n"
    )


def _word(number: int) -> str:
    return HIDDEN if number == HELD_BACK else f"{number:,}"


def _cell(counts: np.ndarray, samples: int) -> Markup:
    annotated, positive, missing = counts.tolist()
    if not annotated:
        return heat("not annotated", 0.0, below=f"{_word(missing)} missing", style="no")
    share = annotated / samples if annotated != HELD_BACK and samples else None
    return heat(f"{_word(positive)} of {_word(annotated)}", share, below=f"{_word(missing)} missing")


def _sum(counts: np.ndarray) -> Markup:
    """Sums over sites of (S, 3) counts."""
    sums = np.where(counts == HELD_BACK, 0, counts).sum(0)
    words = [
        f"{'≥ ' * bool(hidden)}{total:,}" for total, hidden in zip(sums, (counts == HELD_BACK).any(0), strict=True)
    ]
    return heat(f"{words[1]} of {words[0]}", None, below=f"{words[2]} missing")
