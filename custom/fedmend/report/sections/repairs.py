"""What the report of a run shows of pseudo-labels, whatever method set them."""

from collections.abc import Collection, Mapping, Sequence
from html import escape

from fedmend.basics.page import Figure, Section, number, section, table
from fedmend.basics.words import in_order, natural
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import STACK, Line, Panel, grid_figure
from fedmend.report.kinds import shown_as
from fedmend.report.parts import Part


def _precision(record: Mapping, kind: str) -> float | None:
    correct = record.get(f"correct_{kind}")
    return correct / record[kind] if correct is not None and record[kind] else None


def pseudo_labels(run: RunFiles) -> Section:
    """Pseudo-labels per site, class and round, and how many of them are right."""
    kinds = shown_as(run).pseudo_labels
    if not (run.repairs and kinds):
        return Section()
    blocks: list[str | Figure] = []
    for i, site in enumerate(in_order({r["site"] for r in run.repairs})):
        records = [r for r in run.repairs if r["site"] == site]
        annotated = run.info["sites"].get(site, {}).get("annotated", ())
        blocks += [f"<h3>{escape(site)}</h3>\n", _count_figure(f"counts-{i}", site, records, run, annotated, kinds)]
    known = [r for r in run.repairs if r.get("correct_positive") is not None and r.get("correct_negative") is not None]
    if known:
        blocks += ["<h3>Precision</h3>\n", _precision_figure(known, run, kinds)]
    return section("pseudo-labels", "Pseudo-labels", *blocks, _latest_table(run))


def _judged(record: Mapping) -> tuple[object, object]:
    """How many repairs people have judged, and the share of right ones."""
    if "accepted" not in record:
        return None, None
    count = record["accepted"] + record["rejected"]
    return count, record["accepted"] / count if count else None


def _latest_table(run: RunFiles) -> str:
    """Counts after the last round of each site."""
    classes, kinds = run.info["classes"], shown_as(run).pseudo_labels
    latest = {(r["site"], classes.index(r["class"])): r for r in run.repairs}
    rows, sums = [], dict.fromkeys(("positive", "negative", "untagged"), 0)
    shared = any("accepted" in r for r in latest.values())  # the sites that tell it
    for site, column in sorted(latest, key=lambda key: (natural(key[0]), key[1])):
        r = latest[site, column]
        cells = [x for kind in kinds for x in (r[kind], r.get(f"correct_{kind}"), _precision(r, kind))]
        rows.append([f"{r['site']}, {r['class']}", *cells, r["untagged"], *(_judged(r) if shared else ())])
        sums = {kind: sums[kind] + r[kind] for kind in sums}
    head = ["Site, class", *(x for words in kinds.values() for x in (words.column, "of these right", "precision"))]
    untagged = "" if shown_as(run).one_label else sums["untagged"]  # every class would count the same images
    head = [*head, "no label yet", *(("judged by people", "of these right") if shared else ())]
    total = ["Sum", *(x for kind in kinds for x in (sums[kind], "", "")), untagged, *(("", "") if shared else ())]
    note = "n/a: the truth is not known at this site, or there is no pseudo-label of this kind."
    counts = table("Pseudo-labels after the last round of each site", head, rows, total)
    return f'{counts}<p class="fine">{note}</p>'


def pseudo_label_lines(run: RunFiles) -> list[str]:
    """The same for the plain text: sums over the sites."""
    lines, latest = [], {(r["site"], r["class"]): r for r in run.repairs}.values()
    for kind, words in shown_as(run).pseudo_labels.items() if latest else ():
        known = [r for r in latest if r.get(f"correct_{kind}") is not None]
        pooled = {kind: sum(r[kind] for r in known), f"correct_{kind}": sum(r[f"correct_{kind}"] for r in known)}
        count, value = sum(r[kind] for r in latest), number(_precision(pooled, kind))
        lines.append(f"{words.line}: {count}, precision {value}")
    return lines


def _count_figure(
    key: str, site: str, repairs: Sequence[Mapping], run: RunFiles, annotated: Sequence[str], kinds: Collection[str]
) -> Figure:
    """One panel per class with the pseudo-labels of one site over rounds, stacked; ``kinds`` below the class's name."""
    names = [name for name, _ in STACK]
    panels, story = [], []
    for name in run.info["classes"]:
        records = [r for r in repairs if r["class"] == name]
        if not records:
            panels.append(Panel(name, note="annotated here" if name in annotated else "none"))
            continue
        last = records[-1]
        rounds = [r["round"] for r in records]
        # A count holds from its round until the next one that is known.
        stack = ([*rounds, rounds[-1] + 1], [[r[kind] for r in records] for kind in names])
        panels.append(Panel(name, stack=stack, subtitle=", ".join(f"{last[kind]:,} {kind[:3]}" for kind in kinds)))
        story.append(f"{name} {last['positive']} positive, {last['negative']} negative, {last['untagged']} untagged")
    return grid_figure(
        key,
        panels,
        alt=f"Pseudo-labels of {site} over rounds, at the end: {'; '.join(story)}.",
        ylim=(0, max(1, *(sum(r[kind] for kind in names) for r in repairs))),
        legend=shown_as(run).repair_words,
        **run.frame,
    )


def _precision_figure(repairs: Sequence[Mapping], run: RunFiles, kinds: Collection[str]) -> Figure:
    """One panel per class with the precision of its pseudo-labels over rounds, pooled and per site."""
    panels, story = [], []
    for name in run.info["classes"]:
        records = [r for r in repairs if r["class"] == name]
        if not records:
            continue
        sites = in_order({r["site"] for r in records})
        lines = []
        for kind in kinds:
            alone = [_pooled_precision([r for r in records if r["site"] == site], kind, "site ") for site in sites]
            pooled = _pooled_precision(records, kind)
            lines += [pooled, *(alone if len(sites) > 1 else [])]
            if pooled.values[-1] is not None:
                story.append(f"{name} {kind} {pooled.values[-1]:.2f}")
        panels.append(Panel(name, lines))
    return grid_figure(
        "pseudo-label-precision",
        panels,
        alt=f"Precision of pseudo-labels over rounds, at the end: {'; '.join(story)}.",
        ylim=(0.0, 1.05),
        legend={kind: f"{kind} pseudo-labels, all sites" for kind in kinds} | {"site positive": "one site"},
        **run.frame,
    )


def _pooled_precision(records: Sequence[Mapping], kind: str, prefix: str = "") -> Line:
    """Correct over all pseudo-labels of a kind; a site that is silent in a round counts as it last was."""
    rounds, values, latest = sorted({r["round"] for r in records}), [], {}
    for round_num in rounds:
        latest.update({r["site"]: r for r in records if r["round"] == round_num})
        total = sum(r[kind] for r in latest.values())
        values.append(sum(r[f"correct_{kind}"] for r in latest.values()) / total if total else None)
    return Line(rounds, values, f"{prefix}{kind}")


PART = Part(place=10, sections=(pseudo_labels,), lines=pseudo_label_lines)
