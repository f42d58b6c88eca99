"""What the report of a run shows of pseudo-labels, whatever method set them, and of FedMLP's learning degrees."""

from collections.abc import Mapping, Sequence
from html import escape

from fedmend.figures import STACK, Line, Panel, grid_figure
from fedmend.page import number, section, table
from fedmend.run_folder import Run


def _kinds(run: Run) -> tuple[str, ...]:
    """What is counted: where an image has one class, "not this class" follows from the class that it was given."""
    return ("positive",) if run.single_label else ("positive", "negative")


def _precision(record: Mapping, kind: str) -> float | None:
    correct = record.get(f"correct_{kind}")
    return correct / record[kind] if correct is not None and record[kind] else None


def pseudo_labels(run: Run) -> str:
    """Pseudo-labels per site, class and round, and how many of them are right."""
    if not run.repairs or run.segmentation:  # repairs of masks are no labels
        return ""
    classes, kinds, body = run.info["classes"], _kinds(run), ""
    for i, site in enumerate(sorted({r["site"] for r in run.repairs})):
        records = [r for r in run.repairs if r["site"] == site]
        annotated = run.info["sites"].get(site, {}).get("annotated", ())
        svg = count_figure(f"counts-{i}", site, records, classes, annotated, kinds=kinds, **run.frame)
        body += f"<h3>{escape(site)}</h3>\n<figure>{svg}</figure>\n"
    known = [r for r in run.repairs if r.get("correct_positive") is not None and r.get("correct_negative") is not None]
    if known:
        shown = [c for c in classes if any(r["class"] == c for r in known)]
        body += f"<h3>Precision</h3>\n<figure>{precision_figure(known, shown, kinds=kinds, **run.frame)}</figure>\n"
    latest = {(r["site"], classes.index(r["class"])): r for r in run.repairs}
    rows, sums = [], dict.fromkeys(("positive", "negative", "untagged"), 0)
    for _, r in sorted(latest.items(), key=lambda item: item[0]):
        cells = [x for kind in kinds for x in (r[kind], r.get(f"correct_{kind}"), _precision(r, kind))]
        rows.append([f"{r['site']}, {r['class']}", *cells, r["untagged"]])
        sums = {kind: sums[kind] + r[kind] for kind in sums}
    words = {"positive": "pseudo-labels"} if run.single_label else {}
    head = ["Site, class", *(x for kind in kinds for x in (words.get(kind, kind), "of these right", "precision"))]
    # An image without a label of one class is without a label of the others too: no sum over classes.
    untagged = "" if run.single_label else sums["untagged"]
    head, total = [*head, "no label yet"], ["Sum", *(x for kind in kinds for x in (sums[kind], "", "")), untagged]
    note = "n/a: the truth is not known at this site, or there is no pseudo-label of this kind."
    body += table("Pseudo-labels after the last round of each site", head, rows, total) + f'<p class="fine">{note}</p>'
    return section("pseudo-labels", "Pseudo-labels", body)


def pseudo_label_lines(run: Run) -> list[str]:
    """The same for the plain text: sums over the sites."""
    lines, latest = [], {(r["site"], r["class"]): r for r in run.repairs}.values()
    for kind in _kinds(run) if latest and not run.segmentation else ():
        known = [r for r in latest if r.get(f"correct_{kind}") is not None]
        pooled = {kind: sum(r[kind] for r in known), f"correct_{kind}": sum(r[f"correct_{kind}"] for r in known)}
        count, value = sum(r[kind] for r in latest), number(_precision(pooled, kind))
        word = "Pseudo-labels" if run.single_label else f"Pseudo-labels, {kind}"
        lines.append(f"{word}: {count}, precision {value}")
    return lines


def learning_degree(run: Run) -> str:
    """Learning degree of each class over rounds."""
    found = run.decided("learning_degree")
    if not found:
        return ""
    svg = degree_figure(list(found.items()), run.info["classes"], **run.frame)
    return section("learning-degree", "Learning degree", f"<figure>{svg}</figure>\n")


def count_figure(
    key: str,
    site: str,
    repairs: Sequence[Mapping],
    classes: Sequence[str],
    annotated: Sequence[str],
    *,
    kinds: Sequence[str],
    **frame,
) -> str:
    """One panel per class with the pseudo-labels of one site over rounds, stacked.

    Args:
        key: unique in the page.
        site: the site's name.
        repairs: records of ``repairs.jsonl`` of this site, in the order of rounds; at least one.
        classes: all class names.
        annotated: the classes that the site annotates.
        kinds: ``positive`` and, in multi-label data, ``negative``.
        frame: ``last_round``, ``warmup`` and ``phantom`` of :func:`grid_figure`.
    """
    names = [name for name, _ in STACK]
    panels, story = [], []
    for name in classes:
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
    words = ("pseudo-label positive", "pseudo-label negative")
    words = words if "negative" in kinds else ("pseudo-label of the class", "pseudo-label of another class")
    return grid_figure(
        key,
        panels,
        alt=f"Pseudo-labels of {site} over rounds, at the end: {'; '.join(story)}.",
        ylim=(0, max(1, *(sum(r[kind] for kind in names) for r in repairs))),
        legend={"positive": words[0], "negative": words[1], "untagged": "no label yet"},
        xlabel="round",
        **frame,
    )


def precision_figure(repairs: Sequence[Mapping], classes: Sequence[str], *, kinds: Sequence[str], **frame) -> str:
    """One panel per class with the precision of its pseudo-labels over rounds, pooled and per site.

    Args:
        repairs: records of ``repairs.jsonl`` with known truth, in the order of rounds; at least one.
        classes: the classes to show.
        kinds: as in :func:`count_figure`.
        frame: ``last_round``, ``warmup`` and ``phantom`` of :func:`grid_figure`.
    """
    panels, story = [], []
    for name in classes:
        records = [r for r in repairs if r["class"] == name]
        sites = sorted({r["site"] for r in records})
        lines = []
        for kind in kinds:
            alone = [_pooled_precision([r for r in records if r["site"] == site], kind, "site ") for site in sites]
            pooled = _pooled_precision(records, kind)
            lines += [pooled, *(alone if len(sites) > 1 else [])]
            if pooled.values[-1] is not None:
                story.append(f"{name} {kind} {pooled.values[-1]:.2f}")
        panels.append(Panel(name, lines))
    return grid_figure(
        "precision-curves",
        panels,
        alt=f"Precision of pseudo-labels over rounds, at the end: {'; '.join(story)}.",
        ylim=(0.0, 1.05),
        legend={kind: f"{kind} pseudo-labels, all sites" for kind in kinds} | {"site positive": "one site"},
        xlabel="round",
        **frame,
    )


def _pooled_precision(records: Sequence[Mapping], kind: str, prefix: str = "") -> Line:
    """Correct over all pseudo-labels of a kind; a site that is silent in a round counts as it last was."""
    rounds, values, latest = sorted({r["round"] for r in records}), [], {}
    for round_num in rounds:
        latest.update({r["site"]: r for r in records if r["round"] == round_num})
        total = sum(r[kind] for r in latest.values())
        values.append(sum(r[f"correct_{kind}"] for r in latest.values()) / total if total else None)
    return Line(rounds, values, f"{prefix}{kind}")


def degree_figure(degrees: Sequence[tuple[int, Mapping[str, float]]], classes: Sequence[str], **frame) -> str:
    """One panel per class with its learning degree over rounds.

    Args:
        degrees: (round, class → degree in [0, 1]) in the order of rounds; at least one.
        classes: the classes to show.
        frame: ``last_round``, ``warmup`` and ``phantom`` of :func:`grid_figure`.
    """
    rounds = [r for r, _ in degrees]
    lines = {name: Line(rounds, [value.get(name) for _, value in degrees]) for name in classes}
    story = [f"{name} {line.values[-1]:.2f}" for name, line in lines.items() if line.values[-1] is not None]
    return grid_figure(
        "learning-degree-curves",
        [Panel(name, [line]) for name, line in lines.items()],
        alt=f"Learning degree over rounds, at the end: {'; '.join(story)}.",
        ylim=(0.0, 1.05),
        legend={"main": "learning degree"},
        xlabel="round",
        **frame,
    )
