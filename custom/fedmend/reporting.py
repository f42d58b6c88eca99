"""The report of one run: a folder of JSON files → one self-contained HTML page and a short plain text.

A section is a function ``(run) -> str`` listed in ``SECTIONS``; it returns "" when the run has nothing for it. Only
sums over samples are read and shown.
"""

import os
import re
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

from fedmend.figures import count_figure, degree_figure, metric_figure, precision_figure
from fedmend.page import CSS, GLOSSARY, PHANTOM_CSS, Markup, compact, duration, number, section, table, td
from fedmend.run_folder import INPUTS, Run, load_run

REPORT_NAME = "report.html"
METRICS = (("auc", "auc", "AUC"), ("map", "ap", "mAP"), ("bacc", "bacc", "BACC"))  # macro key, per-class key, word
PHANTOM_SENTENCE = (
    "Every image and label of this run is synthetic. The numbers show that the software works; "
    "they say nothing about patients, hospitals or the quality of the method."
)


def _precision(record: Mapping, kind: str) -> float | None:
    correct = record.get(f"correct_{kind}")
    return correct / record[kind] if correct is not None and record[kind] else None


def _frame(run: Run) -> dict:
    """What all figures of a run share."""
    return {"last_round": run.info["num_rounds"], "warmup": run.warmup, "phantom": run.info["phantom"]}


def _left_out(run: Run) -> dict[str, str]:
    """Class → why the last evaluation has no AUC for it."""
    if not run.evaluations:
        return {}
    last = run.evaluations[-1]
    reasons = {}
    for i, (name, value) in enumerate(zip(run.info["classes"], last["per_class"].get("auc", ()), strict=False)):
        if value is None:
            empty = [kind for kind in ("positive", "negative") if last.get(f"{kind}s", [None] * (i + 1))[i] == 0]
            found = f"no {empty[0]} sample" if empty else "only one label value"
            reasons[name] = f"{found} in the {run.split} split"
    return reasons


def _milestones(run: Run) -> list[tuple[str, int | None, Mapping]]:
    """(name, round, macro metrics) of the final, best, warmed-up and initial model, as far as there are numbers."""
    last = run.evaluations[-1] if run.evaluations else {"round": run.info["num_rounds"], "macro": {}}
    final = run.results.get("final", {}).get(run.split)
    reached = run.info["num_rounds"] if final else last["round"]
    name = "Final model" if reached >= run.info["num_rounds"] else "Latest model"
    best = run.results.get("best", {}).get(run.split) or (run.evaluation(run.best_round) or {}).get("macro")
    found = [(name, reached, final or last["macro"]), ("Best model", run.best_round, best)]
    for name, round_num in (("End of warm-up", run.warmup), ("Before training", 0)):
        if (round_num or name == "Before training") and run.evaluation(round_num):
            found.append((name, round_num, run.evaluation(round_num)["macro"]))
    return [item for item in found if item[2]]


def _facts(run: Run) -> list[str]:
    total = run.info["num_rounds"]
    seen = max((m["round"] for records in run.metrics.values() for m in records), default=0)
    state = f"finished, {total} rounds" if run.results else f"not finished, {seen} of {total} rounds evaluated"
    facts = [f"{len(run.info['sites'])} sites", f"{len(run.info['classes'])} classes", state]
    facts += [f"{run.warmup} of them warm-up"] if run.warmup else []
    return facts + ([f"took {duration(run.results['seconds'])}"] if "seconds" in run.results else [])


def _has_own_section(decision: Mapping) -> bool:
    return decision["what"] in ("learning_degree", "refused") and isinstance(decision.get("value"), Mapping)


def headline(run: Run) -> str:
    """Title, PHANTOM badge, what ran, settings."""
    info = run.info
    facts = [f"Method {info['method']}", *_facts(run)]
    facts += [f"{name} {info[name]}" for name in ("seed", "started") if name in info]
    badge = '<span class="badge">PHANTOM</span>' if info["phantom"] else ""
    below = f'<p class="phantom"><strong>PHANTOM data.</strong> {escape(PHANTOM_SENTENCE)}</p>' if badge else ""
    settings = [(k, compact(v)) for k, v in info.get("settings", {}).items()]
    if settings:
        below += f"<details><summary>Settings ({len(settings)})</summary>"
        below += table("As given in the job", ["Setting", "Value"], settings) + "</details>"
    line = escape(" · ".join(facts))
    return f"<header><h1>{escape(info['run_name'])}{badge}</h1><p class='sub'>{line}</p>{below}</header>\n"


def key_numbers(run: Run) -> str:
    """Macro metrics of the final and the best model."""
    milestones = _milestones(run)
    if not milestones:
        return section("numbers", "Key numbers", "<p>No model has been evaluated yet.</p>")
    cards = ""
    for key, _, word in METRICS:
        values = [(f"{name}, round {r}", macro.get(key)) for name, r, macro in milestones]
        if any(v is not None for _, v in values):
            rest = "".join(f"<tr><td>{escape(name)}</td>{td(v)}</tr>" for name, v in values[1:])
            name, value = escape(values[0][0]), number(values[0][1])
            cards += f'<div class="card"><span>{word} macro · {name}</span><b>{value}</b><table>{rest}</table></div>'
    left_out, total = _left_out(run), len(run.info["classes"])
    note = f"Means over {total - len(left_out)} of {total} classes, {run.split} split."
    note += "".join(f" {name} is left out: {reason}." for name, reason in left_out.items())
    chosen = [d for d in run.decisions if d["what"] == "best_model" and isinstance(d.get("value"), Mapping)]
    if chosen:
        note += f" Best model chosen after round {run.best_round} ({compact(chosen[-1]['value'])})."
    return section("numbers", "Key numbers", f'<div class="cards">{cards}</div><p class="fine">{escape(note)}</p>')


def sites(run: Run) -> str:
    """Sites × classes: who annotates what, with counts."""
    classes, rows = run.info["classes"], []
    for name, site in sorted(run.info["sites"].items()):
        cells = []
        for c in classes:
            positives = site.get("positives", {}).get(c)
            if c not in site.get("annotated", ()):
                cells.append(td("–", "no"))
            else:
                cells.append(td("✓" if positives is None else f"✓ {positives:,} pos.", "yes"))
        rows.append([name, *cells, *(site.get(split) for split in ("train", "val", "test"))])
    if not rows:
        return ""
    count = [sum(c in site.get("annotated", ()) for site in run.info["sites"].values()) for c in classes]
    totals = [td(f"{n} of {len(rows)}" if n else "⚠ none", "yes" if n else "bad") for n in count]
    sums = [sum(site.get(split) or 0 for site in run.info["sites"].values()) for split in ("train", "val", "test")]
    flag = ""
    if run.nowhere:
        flag = f"No site annotates: {', '.join(run.nowhere)}. The model cannot learn what nobody has labelled."
        flag = f'<p class="flag"><strong>⚠ Check this.</strong> {escape(flag)}</p>'
    caption = "✓ annotated (positive training samples, where known); – not annotated (unknown, not absent)"
    head = ["Site", *classes, "train", "val", "test"]
    body = table(caption, head, rows, ["Sites that annotate", *totals, *sums])
    return section("sites", "What each site annotates", flag + body)


def curves(run: Run) -> str:
    """Metrics over rounds, macro and per class."""
    figures = ""
    for metric in METRICS:
        if any(m["macro"].get(metric[0]) is not None for m in run.evaluations):
            svg = metric_figure(run.evaluations, run.info["classes"], metric, best=run.best_round, **_frame(run))
            figures += f"<h3>{metric[2]}</h3>\n<figure>{svg}</figure>\n"
    if not figures:
        return ""
    return section("curves", f"Progress over rounds ({run.split} split)", figures)


def per_class(run: Run) -> str:
    """Metrics of the last and the best model for each class."""
    if not run.evaluations:
        return ""
    last, best = run.evaluations[-1], run.evaluation(run.best_round)
    groups = [("final" if last["round"] >= run.info["num_rounds"] else "latest", last)]
    groups += [("best", best)] if best and best is not last else []
    shown = [(m, word, record) for word, record in groups for m in METRICS if m[1] in record["per_class"]]
    kinds = [kind for kind in ("positive", "negative") if f"{kind}s" in last]
    head = ["Class", *kinds] + [f"{m[1].upper()} {word}" for m, word, _ in shown]
    rows = []
    for i, name in enumerate(run.info["classes"]):
        rows.append(
            [name, *(last[f"{kind}s"][i] for kind in kinds), *(record["per_class"][m[1]][i] for m, _, record in shown)]
        )
    macro = ["macro", *("" for _ in kinds), *(record["macro"].get(m[0]) for m, _, record in shown)]
    rounds = " and ".join(f"round {record['round']} ({word})" for word, record in groups)
    caption = f"Samples of the {run.split} split, and metrics after {rounds}"
    notes = "; ".join(f"{name}: {reason}" for name, reason in _left_out(run).items())
    note = f'<p class="fine">n/a, left out of the means. {escape(notes)}.</p>' if notes else ""
    return section("classes", "Results per class", table(caption, head, rows, macro) + note)


def pseudo_labels(run: Run) -> str:
    """Pseudo-labels per site, class and round, and how many of them are right."""
    if not run.repairs:
        return ""
    classes, body = run.info["classes"], ""
    for i, site in enumerate(sorted({r["site"] for r in run.repairs})):
        records = [r for r in run.repairs if r["site"] == site]
        annotated = run.info["sites"].get(site, {}).get("annotated", ())
        svg = count_figure(f"counts-{i}", site, records, classes, annotated, **_frame(run))
        body += f"<h3>{escape(site)}</h3>\n<figure>{svg}</figure>\n"
    known = [r for r in run.repairs if r.get("correct_positive") is not None and r.get("correct_negative") is not None]
    if known:
        shown = [c for c in classes if any(r["class"] == c for r in known)]
        body += f"<h3>Precision</h3>\n<figure>{precision_figure(known, shown, **_frame(run))}</figure>\n"
    kinds = ("positive", "negative")
    latest = {(r["site"], classes.index(r["class"])): r for r in run.repairs}
    rows, sums = [], dict.fromkeys(("positive", "negative", "untagged"), 0)
    for _, r in sorted(latest.items(), key=lambda item: item[0]):
        cells = [x for kind in kinds for x in (r[kind], r.get(f"correct_{kind}"), _precision(r, kind))]
        rows.append([f"{r['site']}, {r['class']}", *cells, r["untagged"]])
        sums = {kind: sums[kind] + r[kind] for kind in sums}
    head = ["Site, class", *(x for kind in kinds for x in (kind, "of these right", "precision")), "no label yet"]
    total = ["Sum", sums["positive"], "", "", sums["negative"], "", "", sums["untagged"]]
    note = "n/a: the truth is not known at this site, or there is no pseudo-label of this kind."
    body += table("Pseudo-labels after the last round of each site", head, rows, total) + f'<p class="fine">{note}</p>'
    return section("pseudo-labels", "Pseudo-labels", body)


def learning_degree(run: Run) -> str:
    """Learning degree of each class over rounds."""
    found = {d["round"]: d["value"] for d in run.decisions if d["what"] == "learning_degree" and _has_own_section(d)}
    if not found:
        return ""
    svg = degree_figure(sorted(found.items()), run.info["classes"], **_frame(run))
    return section("learning-degree", "Learning degree", f"<figure>{svg}</figure>\n")


def refused(run: Run) -> str:
    """Results of sites that the server did not use."""
    found = [d for d in run.decisions if d["what"] == "refused" and _has_own_section(d)]
    rows = [[d["value"].get("site"), d.get("round", "–"), compact(d["value"].get("reason"))] for d in found]
    if not rows:
        return ""
    return section("refused", "Refused results", table("Not part of the model", ["Site", "Round", "Reason"], rows))


def decisions(run: Run) -> str:
    """Every other decision of the server."""
    rows = [
        [d["what"].replace("_", " "), d.get("round", "–"), td(compact(d.get("value")), "wrap")]
        for d in run.decisions
        if not _has_own_section(d)
    ]
    body = table("Of the server, in the order of time", ["What", "Round", "Value"], rows)
    if len(rows) > 20:
        body = f"<details><summary>{len(rows)} decisions</summary>{body}</details>"
    return section("decisions", "Decisions", body) if rows else ""


def files(run: Run) -> str:
    """Where the models and the data behind this page are."""
    here = ", ".join(name for name in INPUTS if (run.folder / name).exists())
    places = {**run.results.get("files", {}), "data of this page, beside it": here}
    rows = [[name, Markup(f"<td><code>{escape(str(path))}</code></td>")] for name, path in places.items()]
    return section("files", "Where the files are", table("On the server", ["What", "Where"], rows))


def glossary(run: Run) -> str:
    """The words of this page, for a clinician."""
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>\n" for word, meaning in GLOSSARY.items())
    return section("glossary", "Words", f"<dl>{words}</dl>")


SECTIONS: tuple[Callable[[Run], str], ...] = (
    key_numbers,
    sites,
    curves,
    per_class,
    pseudo_labels,
    learning_degree,
    refused,
    decisions,
    files,
    glossary,
)


def write_report(run_dir: Path) -> Path:
    """Writes ``report.html`` into the run folder, whole or not at all. The same input gives the same bytes.

    Args:
        run_dir: as in :func:`load_run`.

    Returns:
        the path of the page.

    Raises:
        FedMendError: as in :func:`load_run`.
    """
    run = load_run(run_dir)
    body = "".join(show(run) for show in SECTIONS)
    links = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', body)
    nav = " ".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in links)
    title = escape(f"{'PHANTOM ' if run.info['phantom'] else ''}{run.info['run_name']} ({run.info['method']})")
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{CSS}{PHANTOM_CSS if run.info['phantom'] else ''}</style></head>\n"
        f"<body>\n{headline(run)}<nav>{nav}</nav>\n<main>\n{body}</main>\n"
        f"<footer class='fine'>{title} · FedMend report · sums over samples only, no patient data</footer>\n"
        "</body></html>\n"
    )
    path = run.folder / REPORT_NAME
    temporary = path.with_suffix(".html.tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)
    return path


def summary_text(run_dir: Path) -> str:
    """What ran and what came out, in about fifteen lines of plain text.

    Args:
        run_dir: as in :func:`load_run`.

    Raises:
        FedMendError: as in :func:`load_run`.
    """
    run = load_run(run_dir)
    info, left_out = run.info, _left_out(run)
    lines = [f"{info['run_name']}: {info['method']}, {', '.join(_facts(run))}"]
    if info["phantom"]:
        lines.append(f"PHANTOM: {PHANTOM_SENTENCE}")
    milestones = _milestones(run)
    lines.append(f"{run.split + ' split, macro':<26}" + "".join(f"{word:>8}" for _, _, word in METRICS))
    for name, round_num, macro in milestones:
        values = "".join(f"{number(macro.get(key)):>8}" for key, _, _ in METRICS)
        lines.append(f"  {f'{name}, round {round_num}':<24}{values}")
    if not milestones:
        lines[-1] = "No model has been evaluated yet."
    lines += [f"  left out: {name} ({reason})" for name, reason in left_out.items()]
    lines += [f"Annotated by no site: {', '.join(run.nowhere)}"] if run.nowhere else []
    latest = {(r["site"], r["class"]): r for r in run.repairs}.values()
    for kind in ("positive", "negative") if latest else ():
        known = [r for r in latest if r.get(f"correct_{kind}") is not None]
        pooled = {kind: sum(r[kind] for r in known), f"correct_{kind}": sum(r[f"correct_{kind}"] for r in known)}
        count, value = sum(r[kind] for r in latest), number(_precision(pooled, kind))
        lines.append(f"Pseudo-labels, {kind}: {count}, precision {value}")
    count = sum(d["what"] == "refused" for d in run.decisions)
    lines += [f"Refused results: {count}"] if count else []
    lines += [f"{name}: {path}" for name, path in run.results.get("files", {}).items()]
    return "\n".join([*lines, f"report: {run.folder / REPORT_NAME}"]) + "\n"
