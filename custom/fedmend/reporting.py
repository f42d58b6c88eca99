"""The report of one run: a folder of JSON files → one self-contained HTML page and a short plain text.

A section is a function ``(run) -> str`` listed in ``SECTIONS``; it returns "" when the run has nothing for it. Only
sums over samples are read and shown.
"""

import re
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from statistics import fmean

from fedmend.figures import Metric, metric_figure, metrics_figure
from fedmend.files import write_text
from fedmend.page import (
    COMPLETENESS_GLOSSARY,
    CSS,
    GLOSSARY,
    HEAT_CSS,
    LABEL_SET_GLOSSARY,
    NOISY_CLIENT_GLOSSARY,
    PHANTOM_CSS,
    SEGMENTATION_GLOSSARY,
    SINGLE_LABEL_GLOSSARY,
    Markup,
    compact,
    duration,
    heat,
    number,
    section,
    table,
    td,
)
from fedmend.reporting_fedia import completeness, completeness_lines, completeness_weights, corrections, iou
from fedmend.reporting_fedlsm import class_knowledge, uncertainty
from fedmend.reporting_fedmlp import learning_degree, pseudo_label_lines, pseudo_labels
from fedmend.reporting_fednoro import noisy_site_lines, noisy_sites, second_stage
from fedmend.run_folder import INPUTS, LAST_ROUNDS, Run, has_own_section, load_run
from fedmend.tables import TABLES, comparison

REPORT_NAME = "report.html"
MULTI_LABEL_METRICS = (
    Metric("auc", "auc", "AUC", "AUC", "AUC"),
    Metric("map", "ap", "mAP", "AP", "mAP"),
    Metric("bacc", "bacc", "BACC", "BACC", "BACC"),
)
SINGLE_LABEL_METRICS = (
    Metric("bacc", "recall", "BACC", "Recall", "BACC (macro), recall (classes)"),
    Metric("f1", "f1", "macro F1", "F1", "F1"),
    Metric("auc", "auc", "macro AUC", "AUC", "AUC"),
    Metric("precision", "precision", "macro precision", "Precision", "Precision"),
    Metric("accuracy", "", "accuracy", "", "Accuracy"),
)
SEGMENTATION_METRICS = (
    Metric("dice", "dice", "Dice", "Dice", "Dice (slices)"),
    Metric("volume_dice", "volume_dice", "volume Dice", "Volume Dice", "Volume Dice"),
    Metric("precision", "precision", "precision", "Precision", "Precision"),
    Metric("recall", "recall", "recall", "Recall", "Recall"),
)
PHANTOM_SENTENCE = (
    "Every image and label of this run is synthetic. The numbers show that the software works; "
    "they say nothing about patients, hospitals or the quality of the method."
)


def _metrics(run: Run) -> tuple[Metric, ...]:
    if run.segmentation:
        return SEGMENTATION_METRICS
    return SINGLE_LABEL_METRICS if run.single_label else MULTI_LABEL_METRICS


def _left_out(run: Run) -> dict[str, str]:
    """Class → why the last evaluation has no AUC, or no recall, for it."""
    if not run.evaluations:
        return {}
    last, key = run.evaluations[-1], _metrics(run)[0].per_class
    reasons = {}
    for i, (name, value) in enumerate(zip(run.info["classes"], last["per_class"].get(key, ()), strict=False)):
        if value is None and run.segmentation:
            reasons[name] = f"no slice with it in the {run.split} split"
        elif value is None and run.single_label:
            reasons[name] = f"no sample in the {run.split} split"
        elif value is None:
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


def _shown_models(run: Run) -> list[tuple[str, Mapping]]:
    """(word, evaluation) of the last model and, if it is another one, of the best."""
    last, best = run.evaluations[-1], run.evaluation(run.best_round)
    shown = [("final" if last["round"] >= run.info["num_rounds"] else "latest", last)]
    return shown + ([("best", best)] if best and best is not last else [])


def _last_and_best(run: Run) -> list[tuple[str, float]]:
    """Mean of the last ten evaluated rounds, and highest value over all rounds: of BACC (Table 1, Wu et al., IJCAI 2023),
    or of Dice per slice and per volume (Xiang et al., MICCAI 2024, report the former)."""
    count, found = (2 if run.segmentation else 1 if run.single_label else 0), []
    for metric in _metrics(run)[:count]:
        known = run.measured(metric.macro)
        if known:
            last = known[-LAST_ROUNDS:]
            best_round, best = max(known, key=lambda item: item[1])
            span = f"rounds {last[0][0]} to {last[-1][0]}" if len(last) > 1 else f"round {last[0][0]}"
            found.append((f"Last, mean {metric.word} of {span}", fmean(value for _, value in last)))
            found.append((f"Best, highest {metric.word}, round {best_round}", best))
    return found


def _card(values: list[tuple[str, float | None]]) -> str:
    """The first value large, the others below it."""
    rest = "".join(f"<tr><td>{escape(name)}</td>{td(v)}</tr>" for name, v in values[1:])
    name, value = escape(values[0][0]), number(values[0][1])
    return f'<div class="card"><span>{name}</span><b>{value}</b><table>{rest}</table></div>'


def _facts(run: Run) -> list[str]:
    total = run.info["num_rounds"]
    seen = max((m["round"] for records in run.metrics.values() for m in records), default=0)
    state = f"finished, {total} rounds" if run.results else f"not finished, {seen} of {total} rounds evaluated"
    what = "segmentation" if run.segmentation else f"{len(run.info['classes'])} classes"
    facts = [f"{len(run.info['sites'])} sites", what, state]
    facts += [f"{run.warmup} of them warm-up"] if run.warmup else []
    return facts + ([f"took {duration(run.results['seconds'])}"] if "seconds" in run.results else [])


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
    for metric in _metrics(run):
        values = [(f"{name}, round {r}", macro.get(metric.macro)) for name, r, macro in milestones]
        if any(v is not None for _, v in values):
            title = metric.word if run.single_label or run.segmentation else f"{metric.word} macro"
            cards += _card([(f"{title} · {values[0][0]}", values[0][1]), *values[1:]])
    summary = _last_and_best(run)
    cards += "".join(_card(summary[i : i + 2]) for i in range(0, len(summary), 2))
    left_out, total = _left_out(run), len(run.info["classes"])
    note = f"Means over {total - len(left_out)} of {total} classes, {run.split} split."
    if run.segmentation and run.evaluations:
        note = f"Dice: mean over {run.evaluations[-1]['positives'][0]:,} slices with a lesion, {run.split} split."
    note += "".join(f" {name} is left out: {reason}." for name, reason in left_out.items())
    chosen = [d for d in run.decisions if d["what"] == "best_model" and isinstance(d.get("value"), Mapping)]
    if chosen:
        note += f" Best model chosen after round {run.best_round} ({compact(chosen[-1]['value'])})."
    return section("numbers", "Key numbers", f'<div class="cards">{cards}</div><p class="fine">{escape(note)}</p>')


def sites(run: Run) -> str:
    """Sites × classes: who annotates what, with counts."""
    if run.segmentation:
        return _lesion_counts(run)
    if run.single_label:
        return _label_counts(run)
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


def _label_counts(run: Run) -> str:
    """Sites × classes: training labels, where every site may have all classes."""
    classes, known = run.info["classes"], run.info["sites"]
    splits = [split for split in ("train", "val", "test") if any(site.get(split) for site in known.values())]
    counts = {name: [site.get("positives", {}).get(c) for c in classes] for name, site in sorted(known.items())}
    blank = {name: (known[name].get("train") or 0) - sum(n or 0 for n in row) for name, row in counts.items()}
    blank = blank if any(n > 0 for n in blank.values()) else {}
    rows = []
    for name, row in counts.items():
        total = sum(n or 0 for n in row)
        cells = [td(n) if n is None else heat(f"{n:,}", n / total if total else None) for n in row]
        cells += [blank[name]] if blank else []
        rows.append([name, *cells, *(known[name].get(split) for split in splits)])
    sums = [sum(n or 0 for n in column) for column in zip(*counts.values(), strict=True)]
    totals = [td(f"{n:,}" if n else "⚠ none", "" if n else "bad") for n in sums]
    totals += [sum(blank.values())] if blank else []
    totals += [sum(site.get(split) or 0 for site in known.values()) for split in splits]
    caption = "Training samples by the labels at the site, which may be wrong; shading: share of the site's labels"
    body = table(caption, ["Site", *classes, *(["no label"] if blank else []), *splits], rows, ["All sites", *totals])
    return section("sites", "What each site has", body)


def _lesion_counts(run: Run) -> str:
    """Sites × slices and, where they are known, lesions that the masks were left with."""
    known, rows = run.info["sites"], []
    splits = [split for split in ("val", "test") if any(site.get(split) for site in known.values())]
    for name, site in sorted(known.items()):
        kept, total = site.get("lesions", (None, None))
        share = [td("n/a", "na n") if not total else heat(f"{kept / total:.0%}", kept / total)]
        slices = [sum(site["positives"].values()) if "positives" in site else None]
        rows.append([name, site.get("train"), *slices, *(site.get(s) for s in splits), kept, total, *share])
    if not rows:
        return ""
    totals = [sum(row[i] or 0 for row in rows) for i in range(1, len(splits) + 3)]
    caption = "Slices at each site, and lesions that its masks mark"
    head = ["Site", "training slices", "of these with a marked lesion", *(f"{split} slices" for split in splits)]
    if any("lesions" in site for site in known.values()):
        caption += "; completeness: marked lesions / all lesions of the training volumes, known in experiments only"
        head += ["marked lesions", "all lesions", "completeness"]
        sums = [sum(row[i] or 0 for row in rows if row[-2]) for i in (-3, -2)]
        totals += [*sums, td(f"{sums[0] / sums[1]:.0%}" if sums[1] else "n/a", "n")]
    else:
        rows = [row[:-3] for row in rows]
    return section("sites", "What each site annotates", table(caption, head, rows, ["All sites", *totals]))


def curves(run: Run) -> str:
    """Metrics over rounds, macro and per class."""
    figures = ""
    if run.segmentation and run.evaluations:
        svg = metrics_figure(run.evaluations, SEGMENTATION_METRICS, best=run.best_round, **run.frame)
        return section("curves", f"Progress over rounds ({run.split} split)", f"<figure>{svg}</figure>\n")
    for metric in _metrics(run):
        if any(m["macro"].get(metric.macro) is not None for m in run.evaluations):
            svg = metric_figure(run.evaluations, run.info["classes"], metric, best=run.best_round, **run.frame)
            figures += f"<h3>{metric.curve}</h3>\n<figure>{svg}</figure>\n"
    if not figures:
        return ""
    return section("curves", f"Progress over rounds ({run.split} split)", figures)


def per_class(run: Run) -> str:
    """Metrics of the last and the best model for each class."""
    if not run.evaluations or run.segmentation:  # of one class the key numbers say all
        return ""
    last, groups = run.evaluations[-1], _shown_models(run)
    shown = [(m, word, record) for word, record in groups for m in _metrics(run) if m.per_class in record["per_class"]]
    kinds = [kind for kind in ("positive", "negative") if f"{kind}s" in last]
    counted = ["samples"] if run.single_label else kinds
    head = ["Class", *counted] + [f"{m.column} {word}" for m, word, _ in shown]
    rows = []
    for i, name in enumerate(run.info["classes"]):
        rows.append(
            [name, *(last[f"{kind}s"][i] for kind in kinds)]
            + [record["per_class"][m.per_class][i] for m, _, record in shown]
        )
    macro = ["macro", *("" for _ in kinds), *(record["macro"].get(m.macro) for m, _, record in shown)]
    rounds = " and ".join(f"round {record['round']} ({word})" for word, record in groups)
    caption = f"Samples of the {run.split} split, and metrics after {rounds}"
    notes = "; ".join(f"{name}: {reason}" for name, reason in _left_out(run).items())
    note = f'<p class="fine">n/a, left out of the means. {escape(notes)}.</p>' if notes else ""
    return section("classes", "Results per class", table(caption, head, rows, macro) + note)


def confusion(run: Run) -> str:
    """Confusion matrices of the last and the best model."""
    if not run.single_label:
        return ""
    classes, body = run.info["classes"], ""
    for word, record in _shown_models(run):
        counts = record["confusion"]
        rows = []
        for i, (name, row) in enumerate(zip(classes, counts, strict=True)):
            total = sum(row)
            cells = []
            for j, n in enumerate(row):
                share = n / total if total else None
                below = "" if share is None else f"{share:.0%}"
                cells.append(heat(f"{n:,}", share, below=below, style="hit" if i == j else ""))
            rows.append([name, *cells, total])
        sums = [heat(f"{sum(column):,}", None) for column in zip(*counts, strict=True)]
        title = f"{word.capitalize()} model, round {record['round']}"
        caption = (
            f"{word.capitalize()} model on the {run.split} split; row: true class; column: predicted class; "
            "% and shading: share of the row"
        )
        head = ["True ↓ predicted\u00a0→", *classes, "samples"]
        body += f"<h3>{title}</h3>\n{table(caption, head, rows, ['All', *sums, sum(map(sum, counts))])}"
    return section("confusion", "Confusion matrix", body)


def refused(run: Run) -> str:
    """Results of sites that the server did not use."""
    found = [d for d in run.decisions if d["what"] == "refused" and has_own_section(d)]
    rows = [[d["value"].get("site"), d.get("round", "–"), compact(d["value"].get("reason"))] for d in found]
    if not rows:
        return ""
    return section("refused", "Refused results", table("Not part of the model", ["Site", "Round", "Reason"], rows))


def decisions(run: Run) -> str:
    """Every other decision of the server."""
    rows = [
        [d["what"].replace("_", " "), d.get("round", "–"), td(compact(d.get("value")), "wrap")]
        for d in run.decisions
        if not has_own_section(d)
    ]
    body = table("Of the server, in the order of time", ["What", "Round", "Value"], rows)
    if len(rows) > 20:
        body = f"<details><summary>{len(rows)} decisions</summary>{body}</details>"
    return section("decisions", "Decisions", body) if rows else ""


def files(run: Run) -> str:
    """Where the models and the data behind this page are."""
    here = ", ".join(name for name in INPUTS if (run.folder / name).exists())
    places = {**run.results.get("files", {}), "data of this page, beside it": here}
    if tables := ", ".join(name for name in TABLES if (run.folder / name).exists()):
        places["tables of the final model, beside it"] = tables
    rows = [[name, Markup(f"<td><code>{escape(str(path))}</code></td>")] for name, path in places.items()]
    return section("files", "Where the files are", table("On the server", ["What", "Where"], rows))


def glossary(run: Run) -> str:
    """The words of this page, for a clinician."""
    known = SINGLE_LABEL_GLOSSARY if run.single_label else GLOSSARY
    if run.segmentation:
        known = SEGMENTATION_GLOSSARY
    if run.single_label and run.repairs:
        known = known | {word: GLOSSARY[word] for word in ("Pseudo-label", "Precision of pseudo-labels")}
    if run.decided("noisy_client_detection"):
        known = known | NOISY_CLIENT_GLOSSARY
    if run.decided("class_knowledge"):
        known = known | LABEL_SET_GLOSSARY
    if run.decided("completeness"):
        known = known | COMPLETENESS_GLOSSARY
    degrees = bool(run.decided("learning_degree"))
    used = {"Warm-up": run.warmup > 0, "Prototype": degrees, "Learning degree": degrees}
    known = {word: meaning for word, meaning in known.items() if used.get(word, True)}
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>\n" for word, meaning in known.items())
    return section("glossary", "Words", f"<dl>{words}</dl>")


SECTIONS: tuple[Callable[[Run], str], ...] = (
    key_numbers,
    sites,
    curves,
    per_class,
    confusion,
    pseudo_labels,
    learning_degree,
    uncertainty,
    class_knowledge,
    noisy_sites,
    second_stage,
    completeness,
    iou,
    completeness_weights,
    corrections,
    refused,
    decisions,
    files,
    glossary,
)


def write_report(run_dir: Path) -> Path:
    """Writes ``report.html`` into the run folder and, of a finished run, ``TABLES``. The same input gives the same bytes.

    Each file is written whole or not at all.

    Args:
        run_dir: as in :func:`load_run`.

    Returns:
        the path of the page.

    Raises:
        FedMendError: as in :func:`load_run`.
    """
    run = load_run(run_dir)
    for name, text in comparison({run.info["method"]: [run]}).items() if run.results and run.evaluations else ():
        write_text(run.folder / name, text)
    body = "".join(show(run) for show in SECTIONS)
    links = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', body)
    nav = " ".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in links)
    title = escape(f"{'PHANTOM ' if run.info['phantom'] else ''}{run.info['run_name']} ({run.info['method']})")
    shaded = 'class="heat' in body
    style = f"{CSS}{HEAT_CSS if shaded else ''}{PHANTOM_CSS if run.info['phantom'] else ''}"
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{style}</style></head>\n"
        f"<body>\n{headline(run)}<nav>{nav}</nav>\n<main>\n{body}</main>\n"
        f"<footer class='fine'>{title} · FedMend report · sums over samples only, no patient data</footer>\n"
        "</body></html>\n"
    )
    write_text(run.folder / REPORT_NAME, page)
    return run.folder / REPORT_NAME


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
    columns = [(m.macro, m.word, max(8, len(m.word) + 2)) for m in _metrics(run)]
    title = f"{run.split} split" if run.single_label or run.segmentation else f"{run.split} split, macro"
    lines.append(f"{title:<26}" + "".join(f"{word:>{width}}" for _, word, width in columns))
    for name, round_num, macro in milestones:
        values = "".join(f"{number(macro.get(key)):>{width}}" for key, _, width in columns)
        lines.append(f"  {f'{name}, round {round_num}':<24}{values}")
    if not milestones:
        lines[-1] = "No model has been evaluated yet."
    lines += [f"{name}: {number(value)}" for name, value in _last_and_best(run)]
    lines += [f"  left out: {name} ({reason})" for name, reason in left_out.items()]
    lines += [f"Annotated by no site: {', '.join(run.nowhere)}"] if run.nowhere else []
    lines += pseudo_label_lines(run) + noisy_site_lines(run) + completeness_lines(run)
    count = sum(d["what"] == "refused" for d in run.decisions)
    lines += [f"Refused results: {count}"] if count else []
    lines += [f"{name}: {path}" for name, path in run.results.get("files", {}).items()]
    return "\n".join([*lines, f"report: {run.folder / REPORT_NAME}"]) + "\n"
