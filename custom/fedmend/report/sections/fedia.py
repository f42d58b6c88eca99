"""What the report of a run shows of FedIA: how complete each site's annotation is, and what was added to it."""

from collections.abc import Mapping, Sequence
from html import escape

from fedmend.basics.page import Figure, Markup, Section, number, section, table, td
from fedmend.basics.words import in_order
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import Line, Panel, grid_figure, share_figure
from fedmend.report.kinds import shown_as
from fedmend.report.parts import Part

EVENTS = ("triggered", "corrected", "spared")
COUNTED = ("positive", "correct_positive", "missing", "negative", "correct_negative")  # of repaired pixels
OWN = {
    **dict.fromkeys(("completeness", "iou_line", "iou", "completeness_weights"), Mapping),
    **dict.fromkeys(EVENTS, list),
}
WORDS = {
    "Annotation completeness": "The share of the lesions in its images that a site has marked. Nobody knows it "
    "outside experiments. The estimate compares the marked lesions with those that the global model finds after the "
    "warm-up, counted slice by slice; only the two counts leave a site. Compare sites by it rather than read it as "
    "a percentage: it can exceed 1.",
    "IoU": "Intersection over union of what the model marks and the site's own mask, from the training loss: 0 is "
    "none, 1 is the same.",
    "Expected line": "The straight line through a site's IoU during the warm-up, carried on. A site whose IoU falls "
    "behind it has probably begun to learn unmarked lesions as healthy tissue, which triggers the correction. A bad "
    "round can do so too.",
    "Correction": "Pixels that a site adds to its masks, once, where the global model is sure of a lesion. Nothing "
    "that an expert has marked is ever removed, and the expert's own file stays as it is.",
    "Completeness-aware aggregation": "The average of the sites' models, in which a site counts the more the more "
    "complete its annotation and the smaller its loss. Without it, each site counts by its number of slices.",
}


def _true(run: RunFiles) -> dict[str, float]:
    """Site → marked lesions / all lesions, where a converter knows them."""
    lesions = {site: known["lesions"] for site, known in run.info["sites"].items() if "lesions" in known}
    return {site: marked / total for site, (marked, total) in lesions.items() if total}


def _ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Site → place from the most complete one, 1; equal values share the better place."""
    return {site: 1 + sum(other > value for other in values.values()) for site, value in values.items()}


def completeness(run: RunFiles) -> Section:
    """Estimated completeness of each site with the counts behind it, beside the true one where it is known."""
    found = run.last_decided("completeness", OWN)
    if found is None:
        return Section()
    round_num, sites = found
    estimate = {site: value["estimate"] for site, value in sites.items()}
    true = {site: value for site, value in _true(run).items() if site in estimate}
    ranks, true_ranks = _ranks({site: estimate[site] for site in true} if true else estimate), _ranks(true)
    rows = []
    for site in sorted(in_order(estimate), key=estimate.__getitem__):
        row = [site, sites[site]["annotated"], sites[site]["predicted"], estimate[site], ranks.get(site)]
        rows.append(row + ([true.get(site), _beside(ranks.get(site), true_ranks.get(site))] if true else []))
    lowest, blind = min(estimate.values()), [site for site in in_order(estimate) if not sites[site]["predicted"]]
    least = in_order(site for site, value in estimate.items() if value == lowest)
    words = (
        f"After round {round_num}, every site counted the lesions that it has marked and those that the global model"
        " finds in the same slices."
    )
    if blind:
        words += f" At {', '.join(blind)} the model finds no lesion, so there is no estimate: 0 stands for it."
    elif lowest >= 1:
        words += " At no site does the model find more than are marked."
    elif len(least) == 1:
        words += f" By the estimate, {least[0]} has left the largest share of its lesions unmarked."
    else:
        words += f" By the estimate, {' and '.join(least)} have left equal shares of their lesions unmarked, none more."
    if true and len(blind) < len(estimate):
        same = sum(ranks[site] == true_ranks[site] for site in true)
        words += f" {same} of {len(true)} sites are at their true place."
    caption = (
        "Lesions: connected regions of single slices, so that a lesion counts on each slice that it crosses; estimate:"
        " marked / found; place: 1 is the most complete site"
    )
    if true:
        caption += "; truth: lesions of whole volumes, as under “What each site annotates”"
    head = ["Site", "marked lesions", "lesions found", "estimate", "place"]
    head += ["true completeness", "true place"] if true else []
    body = f"<p>{escape(words)}</p>\n{table(caption, head, rows)}"
    return section("completeness", "How complete each site's annotation is", body)


def _beside(rank: int | None, true: int | None) -> Markup:
    """The true place; one that the estimate missed stands out."""
    return td("n/a", "na n") if true is None else td(true) if rank == true else td(f"{true} ≠", "bad n")


def iou(run: RunFiles) -> Section:
    """Learning curve of each site against the line of its warm-up, with the rounds of trigger and correction."""
    curves = run.decided("iou", OWN)
    if not curves:
        return Section()
    _, lines = run.last_decided("iou_line", OWN) or (0, {})
    events = _events(run)
    figure = _iou_figure(curves, lines, events, run.frame)
    words = (
        "How well the model of a site reproduces the site's own masks while it learns. Dashed: the line that its"
        " warm-up lets expect. A curve that falls behind its line is taken for the sign that the model has begun to"
        " learn unmarked lesions as healthy tissue; the site then corrects its masks in the next round."
    )
    if not (events["triggered"] or events["corrected"]):
        words += " No site has done so."
    return section("iou", "Learning curves of the sites", f"<p>{escape(words)}</p>\n", figure)


def _events(run: RunFiles) -> dict[str, dict[str, int]]:
    """triggered, corrected, spared → site → round; the last one, should a resumed run have repeated it."""
    return {
        what: {site: round_num for round_num, sites in run.decided(what, OWN).items() for site in sites}
        for what in EVENTS
    }


def _iou_figure(
    curves: Mapping[int, Mapping[str, float]],
    lines: Mapping[str, tuple[float, float]],
    events: Mapping[str, Mapping[str, int]],
    frame: Mapping,
) -> Figure:
    """One panel per site with its IoU over rounds.

    Args:
        curves: round, from 1 → site → IoU, in the order of rounds; at least one.
        lines: site → value in round 1 and slope per round of the expected line, where there is one.
        events: of :func:`_events`.
        frame: of the run.
    """
    rounds, all_rounds = list(curves), range(1, frame["last_round"] + 1)
    highest = max(value for row in curves.values() for value in row.values())
    panels, story, drawn = [], [], ["main"]
    for site in in_order({site for row in curves.values() for site in row}):
        values = [row.get(site) for row in curves.values()]
        shown = [Line(rounds, values)]
        if site in lines:
            start, slope = lines[site]
            expected = [min(max(start + slope * (r - 1), 0.0), 1.0) for r in all_rounds]
            shown.append(Line(all_rounds, expected, "line"))
            drawn.append("line")
        subtitle = []
        for what in EVENTS:
            round_num = events[what].get(site)
            if round_num is None:
                continue
            subtitle.append(f"{what} {round_num}")
            if what != "spared" and site in curves.get(round_num, ()):
                shown.append(Line([round_num], [curves[round_num][site]], what))
                drawn.append(what)
        panels.append(Panel(site, shown, subtitle=", ".join(subtitle) or "not triggered"))
        known = [value for value in values if value is not None]
        story.append(f"{site} from {known[0]:.2f} to {known[-1]:.2f} ({panels[-1].subtitle})")
    words = {"main": "IoU", "line": "expected line", "triggered": "triggered", "corrected": "corrected"}
    return grid_figure(
        "iou-curves",
        panels,
        alt=f"IoU of the sites over rounds {rounds[0]} to {rounds[-1]}: {'; '.join(story)}.",
        # A steep line leaves the panel rather than flattens the curves; models may find nothing at all.
        ylim=(0.0, min(1.0, 1.5 * highest) or 1.0),
        legend={style: word for style, word in words.items() if style in drawn},
        **frame,
    )


def completeness_weights(run: RunFiles) -> Section:
    """Share of each site in the average of the models while it depends on completeness."""
    weights = run.decided("completeness_weights", OWN)
    if not weights:
        return Section()
    found = run.last_decided("completeness", OWN)
    known = {site: f"completeness {value['estimate']:.2f}" for site, value in found[1].items()} if found else {}
    figure = share_figure(run, weights, known, legend={"main": "share, %"})
    first, last = min(weights), max(weights)
    words = (
        f"What each site counts in the average of the models, in per cent of all sites, in rounds {first} to {last};"
        " dotted: by its slices alone, as in all other rounds."
    )
    return section("completeness-weights", "Completeness-aware aggregation", f"<p>{escape(words)}</p>\n", figure)


def _added(run: RunFiles) -> dict[str, Mapping]:
    """Site → its latest counts of added pixels, of all structures together; empty where repairs are no masks."""
    if shown_as(run).pseudo_labels:
        return {}
    of: dict[str, list[Mapping]] = {}
    for record in {(r["site"], r["class"]): r for r in run.repairs}.values():
        of.setdefault(record["site"], []).append(record)
    return {site: {name: _sum([r.get(name) for r in records]) for name in COUNTED} for site, records in of.items()}


def _sum(counts: Sequence[int | None]) -> int | None:
    return sum(c for c in counts if c is not None) if None not in counts else None


def _removed(added: Mapping[str, Mapping]) -> str:
    """A sentence about pixels that became background."""
    count = sum(r["negative"] or 0 for r in added.values())
    if not count:
        return "Nothing was ever unmarked."
    known = [r for r in added.values() if r.get("correct_negative") is not None]
    right = _share(sum(r["correct_negative"] for r in known), sum(r["negative"] for r in known))
    return f"Unmarked: {count:,} pixels" + (f", {100 * right:.0f} % of them rightly." if right is not None else ".")


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def corrections(run: RunFiles) -> Section:
    """What was added to the masks of each site, and how much of it is right."""
    events, added = _events(run), _added(run)
    if not (added or any(events.values())):
        return Section()
    rows, rest, known = [], [], []
    first: dict[str, int] = {}
    for record in run.repairs:
        if record["positive"] or record["negative"]:
            first.setdefault(record["site"], record["round"])
    for site in in_order(run.info["sites"]):
        trigger, corrected, spared = (events[what].get(site) for what in EVENTS)
        if trigger is None and corrected is None and site not in added:
            state = "never" if spared is None else f"spared in {spared}"
            rest.append([site, td(state, "no n"), *(td("–", "no n") for _ in range(6))])
            continue
        counts = added.get(site, {"positive": 0})
        if counts.get("missing") is not None:
            known.append(counts)
        total, right, missing = (counts.get(name) for name in COUNTED[:3])
        shares = _share(right, total), _share(right, missing)
        corrected = first.get(site) if corrected is None else corrected  # not all methods decide on it
        done = td("waits", "no n") if corrected is None else corrected
        rows.append([site, trigger, done, total, right, missing, *shares])
    sums = [sum(c[name] for c in known) if known else None for name in ("positive", "correct_positive", "missing")]
    total = [sum(c["positive"] for c in added.values()), *sums[1:], _share(sums[1], sums[0]), _share(sums[1], sums[2])]
    what, these = ("structure", "right") if len(run.info["classes"]) > 1 else ("lesion", "lesion")
    caption = (
        f"Pixels of training slices that became {what}; unmarked {what}: what the site's own masks lack; precision:"
        f" share of the added pixels that are {these}; recall: share of the unmarked {what} that was found"
    )
    head = ["Site", "triggered in round", "corrected in round", "pixels added", f"of these {these}", f"unmarked {what}"]
    body = table(caption, [*head, "precision", "recall"], [*rows, *rest], ["Corrected sites", "", "", *total])
    note = (
        f"n/a: the complete masks are not known at this site, or there is nothing to divide by. {_removed(added)}"
        " Pictures of the corrected slices never leave a site; where it wants them, they are in gallery.html beside its"
        " ledger."
    )
    return section("corrections", "Corrections of the masks", f'{body}<p class="fine">{note}</p>')


def completeness_lines(run: RunFiles) -> list[str]:
    """The same for the plain text."""
    lines, found, true = [], run.last_decided("completeness", OWN), _true(run)
    if found is not None:
        each = [
            f"{site} {found[1][site]['estimate']:.2f}" + (f" ({true[site]:.2f})" if site in true else "")
            for site in in_order(found[1])
        ]
        lines.append(f"Completeness, estimated{' (true)' if true else ''}: {', '.join(each)}")
    if corrected := _events(run)["corrected"]:
        each = [f"{site} in round {corrected[site]}" for site in in_order(corrected)]
        lines.append(f"Corrected: {', '.join(each)}")
    if added := _added(run):
        known = [r for r in added.values() if r["missing"] is not None]
        right, of, missing = (sum(r[name] for r in known) for name in ("correct_positive", "positive", "missing"))
        shares = f"precision {number(_share(right, of))}, recall {number(_share(right, missing))}"
        lines.append(f"Pixels added: {sum(r['positive'] for r in added.values()):,}, {shares}")
    return lines


PART = Part(
    place=50,
    sections=(completeness, iou, completeness_weights, corrections),
    lines=completeness_lines,
    own=OWN,
    words={"completeness": WORDS},
)
