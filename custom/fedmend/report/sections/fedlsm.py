"""What the report of a run shows of FedLSM: uncertainty of the samples, and what each site knows about the classes."""

from collections.abc import Mapping, Sequence
from html import escape

from fedmend.basics.page import Figure, Section, heat, section, table, td
from fedmend.basics.words import in_order
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import Line, Panel, grid_figure
from fedmend.report.parts import Part

OWN = {"uncertainty": Mapping, "class_knowledge": Mapping}
WORDS = {
    "Uncertainty": "How evenly the model's answers are spread: the entropy of its probabilities on the scale from 0 "
    "(sure) to 1 (it cannot tell). With several findings per image it is the mean over the findings that the site "
    "does not label.",
    "Confident pool, uncertain pool": "The images of a site that the model is most and least sure of; chosen anew "
    "in every round. Images of the uncertain pool are used in mixed pairs only.",
    "Mixed pair (MixUp)": "An image of the uncertain pool blended with one of the confident pool, and their labels "
    "in the same proportion, so that the model also learns from images it is unsure of.",
    "Class knowledge q": "How many samples of a class a site has to learn from: those with a label where it "
    "identifies the class, those with a positive pseudo-label elsewhere.",
    "AWPA (adaptive weighted proxy aggregation)": "The average of the sites' models, in which the part that decides "
    "on a class counts by the class knowledge q of each site, and all other parts by its samples.",
}


def uncertainty(run: RunFiles) -> Section:
    """Histograms of the uncertainty of each site's samples, with the pools that FedLSM makes of them."""
    histograms: dict[str, dict[int, Sequence[int]]] = {}
    for round_num, value in run.decided("uncertainty", OWN).items():
        for site, counts in value.items():
            histograms.setdefault(site, {})[round_num] = counts
    if not histograms:
        return Section()
    pools = {site: pool_sizes(run, site, by_round) for site, by_round in histograms.items()}
    figure = _uncertainty_figure(histograms, pools, run.frame | {"warmup": 0})
    words = (
        "How unsure the model that a site receives is of each sample there: 0 is sure, 1 is undecided. Filled: the last"
        " round of the site; outline: its first, cut off where it is higher than the figure."
    )
    if any(pools.values()):
        words += " The limits of the pools are exact to one bar."
    return section("uncertainty", "Uncertainty of the samples", f"<p>{escape(words)}</p>\n", figure)


def pool_sizes(run: RunFiles, site: str, histograms: Mapping[int, Sequence[int]]) -> tuple[int, int] | None:
    """Samples in D_h and D_l of a site by the job's ``high`` and ``low``, which are counts or, below 1, shares.

    These and the histogram tell where the pools end, to one bin: the exact limit would be the value of one image.

    Args:
        run: the run.
        site: the site's name.
        histograms: round → counts of its samples.

    Returns:
        (n_h, n_l), or None where the job has no such settings or the histograms hold fewer samples.
    """
    given = [run.info.get("settings", {}).get(name) for name in ("high", "low")]
    samples = run.info["sites"].get(site, {}).get("train")
    if samples is None or not all(isinstance(value, int | float) for value in given):
        return None
    high, low = (max(1, round(value * samples)) if value < 1 else round(value) for value in given)
    return (high, low) if high + low <= min(map(sum, histograms.values())) else None


def _first(counts: Sequence[int], number: int) -> list[int]:
    """How many of the first ``number`` samples are in each bin."""
    found = []
    for count in counts:
        found.append(min(count, number))
        number -= found[-1]
    return found


def _uncertainty_figure(
    histograms: Mapping[str, Mapping[int, Sequence[int]]], pools: Mapping[str, tuple[int, int] | None], frame: Mapping
) -> Figure:
    """One panel per site with the histogram of its last round, split into pools, and the outline of its first.

    Args:
        histograms: site → round → counts in equal bins from 0 to 1; rounds in their order, at least one, with samples.
        pools: site → (n_h, n_l), None where they are not known.
        frame: of the run.
    """
    panels, story, highest, outlined = [], [], 0.0, False
    latest = max(max(by_round) for by_round in histograms.values())
    for site in in_order(histograms):
        by_round = histograms[site]
        rounds = list(by_round)
        first, last = by_round[rounds[0]], by_round[rounds[-1]]
        edges = [i / len(last) for i in range(len(last) + 1)]
        high, low = pools[site] or (0, 0)
        uncertain, confident = _first(last[::-1], high)[::-1], _first(last, low)
        rest = [n - a - b for n, a, b in zip(last, uncertain, confident, strict=True)]
        layers = [[100 * n / sum(last) for n in layer] for layer in (uncertain, confident, rest)]
        highest = max(highest, *(100 * n / sum(last) for n in last))
        subtitle, lines = [f"round {rounds[-1]}"] if rounds[-1] < latest else [], []
        if pools[site]:
            upper = edges[max(i for i, n in enumerate(confident) if n) + 1]
            lower = edges[min(i for i, n in enumerate(uncertain) if n)]
            subtitle.append(f"≤ {upper:.2f} | ≥ {lower:.2f}")
            story.append(f"{site} confident up to {upper:.2f}, uncertain from {lower:.2f}")
        if len(rounds) > 1:
            outlined = True
            shares = [100 * n / sum(first) for n in first]
            steps = [0.0, *(share for share in shares for _ in "ab"), 0.0]
            lines = [Line([edge for edge in edges for _ in "ab"], steps, "outline")]
        panels.append(Panel(site, lines, stack=(edges, layers), subtitle=", ".join(subtitle)))
    legend = {"untagged": "share of the samples, %"}
    if any(pools.values()):
        legend = {"negative": "confident pool (≤)", "positive": "uncertain pool (≥)", "untagged": "other samples, %"}
    if outlined:
        legend["outline"] = "first round"
    return grid_figure(
        "uncertainty-histograms",
        panels,
        alt=f"Histograms of uncertainty, share of the samples of each site{': ' if story else ''}{'; '.join(story)}.",
        ylim=(0.0, highest * 1.1),
        xlim=(0.0, 1.12),  # room for the last number
        legend=legend,
        xlabel="uncertainty",
        **frame,
    )


def class_knowledge(run: RunFiles) -> Section:
    """Sites × classes with q of Eq. (7), Deng et al., MICCAI 2023, of the last round, and of the others to unfold."""
    found = run.decided("class_knowledge", OWN)
    if not found:
        return Section()
    words = (
        "What each site tells the server about each class, q: for a class that it identifies (✓), its positive labels;"
        " for any other, its samples that got a positive pseudo-label in the round."
    )
    if run.info.get("settings", {}).get("aggregation", "awpa") == "awpa":
        words += " The part of the models that decides on a class is averaged by the share of each site in it (AWPA)."
    *earlier, last = found.items()
    body = f"<p>{escape(words)}</p>\n{_knowledge_table(run, *last)}"
    if earlier:
        tables = "".join(_knowledge_table(run, *item) for item in earlier)
        body += f"<details><summary>Rounds before ({len(earlier)})</summary>{tables}</details>"
    return section("class-knowledge", "What each site knows", body)


def _knowledge_table(run: RunFiles, round_num: int, knowledge: Mapping[str, Sequence[float]]) -> str:
    classes, sites = run.info["classes"], run.info["sites"]
    total = [sum(column) for column in zip(*knowledge.values(), strict=True)]
    rows = []
    for site in in_order({*sites, *knowledge}):
        if site not in knowledge:
            rows.append([site, *(td("–", "no") for _ in classes)])
            continue
        positives, cells = sites.get(site, {}).get("positives", {}), []
        for name, q, sum_q in zip(classes, knowledge[site], total, strict=True):
            tick = "✓ " if positives.get(name) else ""
            cells.append(heat(f"{tick}{q:,.0f}", q / sum_q if sum_q else 0.0))
        rows.append([site, *cells])
    caption = f"q in round {round_num}; shading: share of the class; –: no result"
    return table(caption, ["Site", *classes], rows, ["All sites", *(td(f"{q:,.0f}") for q in total)])


PART = Part(place=30, sections=(uncertainty, class_knowledge), own=OWN, words={"class_knowledge": WORDS})
