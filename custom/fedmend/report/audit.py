"""The page of a label audit: classes × sites, with what each site says, and what to run on such labels."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from fedmend.advice import NO_JOB, PARTS, RUN, Facts, advise, next_command
from fedmend.advice.label_audit import COUNTS, HELD_BACK, SiteLabels
from fedmend.basics.page import Markup, heat, phantom_note, section, table, td, whole_page

HIDDEN = "?"  # how a number that was held back reads
NOTE = (
    f"{HIDDEN}: the site does not tell this number, because it or one that follows from it is below the site's own "
    "minimum count; a sum without it is marked ≥. The darker a cell, the larger the share of the site's samples that "
    "is annotated. A sample is an image or, where lesions are marked, a volume; whether all lesions of a volume are "
    "marked is not known here. Only training splits are counted."
)
FOOTER = "FedMend label audit · counts only, no patient data"


def audit_page(sites: Mapping[str, SiteLabels], classes: Sequence[str]) -> str:
    """The table of classes and sites, and the advice that follows from it.

    Args:
        sites: site → what it says, in the order of the columns.
        classes: C class names, in the order of the rows.

    Returns:
        an HTML page that asks for nothing outside itself.
    """
    counted = {name: site for name, site in sites.items() if not site.problem}
    phantom = [name for name, site in counted.items() if site.phantom]
    mixed = len(phantom) < len(counted)
    problems = "".join(
        f'<p class="flag"><strong>{escape(name)} was not counted.</strong>'
        f" {escape(site.problem.removeprefix(f'{name}: '))}</p>\n"
        for name, site in sites.items()
        if site.problem
    )
    below = f"<p class='sub'>{len(counted)} of {len(sites)} sites counted</p>"
    if phantom:
        which = f" at {', '.join(phantom)}" if mixed else ""
        below += phantom_note(f"Every label counted{which} is synthetic; no patient was examined.")
    heads = [f"{name} (PHANTOM)" if mixed and name in phantom else name for name in counted]
    body = f"{problems}{_counts(counted, heads, classes)}<p class='fine'>{NOTE}</p>\n"
    body += _advice(Facts(sites, classes))
    return whole_page("Label audit", below, body, FOOTER, phantom=bool(phantom))


def _counts(counted: Mapping[str, SiteLabels], heads: Sequence[str], classes: Sequence[str]) -> Markup:
    rows = []
    for c, name in enumerate(classes):
        numbers = {site: labels.counts[:, c] for site, labels in counted.items()}
        having = sum(bool(n[1] > 0) for n in numbers.values())
        untold = any(n[1] == HELD_BACK for n in numbers.values())  # it may be none
        found = td(f"{'≥ ' * untold}{having} of {len(counted)}") if having or untold else td("no site", "bad")
        total = _sum(np.array([*numbers.values()]).reshape(-1, len(COUNTS)))
        rows.append([name, *(_cell(n, counted[site].samples) for site, n in numbers.items()), total, found])
    samples = [site.samples for site in counted.values()]
    return table(
        "Training labels: positive of annotated samples, and below them samples without a label of the class",
        ["class", *heads, "all sites", "sites with positives"],
        rows if counted else [],  # without a counted site there is nothing to say about any class
        ["training samples", *(f"{n:,}" for n in [*samples, sum(samples)]), ""],
    )


def _advice(facts: Facts) -> str:
    findings, body = advise(facts), ""
    for part in PARTS:
        found = [f for f in findings if f.rule.part == part]
        if found or part == RUN:
            body += f"<h3>{part}</h3>\n" + ("" if found else f"<p>{NO_JOB}</p>\n")
        for finding in found:
            evidence = f"<br><span class='fine'>Evidence: {escape(finding.evidence)}</span>" if finding.evidence else ""
            body += f"<p>{escape(finding.text)}{evidence}</p>\n"
    if command := next_command(findings, facts):
        body += f"<h3>Next</h3>\n<p><code>{escape(command)}</code></p>\n"
    return section("advice", "Advice", body)


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
    hidden = (counts == HELD_BACK).any(0)
    words = [f"{'≥ ' * bool(held)}{total:,}" for total, held in zip(sums, hidden, strict=True)]
    return heat(f"{words[1]} of {words[0]}", None, below=f"{words[2]} missing")
