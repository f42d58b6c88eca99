"""What every run shows first: key numbers, sites, curves, classes."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

from fedmend.basics.page import Section, number, section, short_name, table, td
from fedmend.basics.words import in_order
from fedmend.records.run_folder import CHOSEN_BY, FEW, RunFiles, is_own, last_rounds
from fedmend.report.kinds import shown_as
from fedmend.report.metric_figures import Metric
from fedmend.report.parts import Part


def _milestones(run: RunFiles) -> list[tuple[str, int | None, Mapping]]:
    """(name, round, macro metrics) of the final, best, warmed-up and initial model, as far as there are numbers."""
    last = run.evaluations[-1] if run.evaluations else {"round": run.info["num_rounds"], "macro": {}}
    final = run.results.get("final", {}).get(run.split)
    reached = run.info["num_rounds"] if final else last["round"]
    name = "Final model" if reached >= run.info["num_rounds"] else "Latest model"
    best = run.results.get("best", {}).get(run.split) or (run.evaluation(run.best_round) or {}).get("macro")
    found = [(name, reached, final or last["macro"]), ("Best model", run.best_round, best)]
    initial = "Warm start" if run.info.get("warm_start") else "Before training"
    for name, round_num in (("End of warm-up", run.warmup), (initial, 0)):
        if (round_num or name == initial) and (then := run.evaluation(round_num)):
            found.append((name, round_num, then["macro"]))
    return [item for item in found if item[2]]


def _shown_models(run: RunFiles) -> list[tuple[str, Mapping]]:
    """(word, evaluation) of the last model and, if it is another one, of the best."""
    last, best = run.evaluations[-1], run.evaluation(run.best_round)
    shown = [("final" if last["round"] >= run.info["num_rounds"] else "latest", last)]
    return shown + ([("best", best)] if best and best is not last else [])


def _last_and_best(run: RunFiles) -> list[list[tuple[str, float]]]:
    """Of each metric that papers report so, the mean over the last ten rounds, if there are, and the highest value."""
    found = []
    for metric in shown_as(run).last_and_best:
        known, values = dict(run.measured(metric.macro)), []
        if last := last_rounds([run], metric.macro):
            values = [(f"Last, mean {metric.word} of rounds {last[0]} to {last[-1]}", fmean(known[r] for r in last))]
        if known:
            best = max(known, key=known.__getitem__)
            found.append([*values, (f"Best, highest {metric.word}, round {best}", known[best])])
    return found


def _card(values: Sequence[tuple[str, float | None]]) -> str:
    """The first value large, the others below it."""
    rest = "".join(f"<tr><td>{escape(name)}</td>{td(v)}</tr>" for name, v in values[1:])
    name, value = escape(values[0][0]), number(values[0][1])
    return f'<div class="card"><span>{name}</span><b>{value}</b><table>{rest}</table></div>'


def _intervals(run: RunFiles) -> list[str]:
    """Words for the 95 % interval of each metric of the final model that has one."""
    known = run.results.get("intervals", {}).get(run.split, {})
    shown = [(metric.word, known[metric.macro]) for metric in _all_metrics(run) if metric.macro in known]
    return [f"{word} {number(low)} to {number(high)}" for word, (low, high) in shown]


def _no_number(run: RunFiles) -> str:
    """Why a run without an evaluation has none."""
    private = any("privacy" in site for site in run.info["sites"].values())
    never = f"No model was evaluated: no site{' without differential privacy' * private} has a val or test split."
    return never if run.results else "No model has been evaluated yet."


def _all_metrics(run: RunFiles) -> list[Metric]:
    return [*shown_as(run).metrics, *shown_as(run).more]


def _warnings(run: RunFiles) -> list[str]:
    """What few samples cannot choose: the best model, thresholds."""
    said = run.last_decided(CHOSEN_BY, {CHOSEN_BY: Mapping})
    found = [str(said[1].get("reason", ""))] if said else []
    return [text[:1].upper() + text[1:] for text in [*found, shown_as(run).thresholds([run])] if text]


def _chosen_by(value: Mapping) -> str:
    """Why a model is the best one: its value of the metric that chooses, or that none could choose."""
    found = [
        f"highest {short_name(name)}, {number(best)}" for name, best in value.items() if name not in ("split", "final")
    ]
    return f"{found[0] if found else 'the final one'}; {value.get('split')} split"


def key_numbers(run: RunFiles) -> Section:
    """Macro metrics of the final and the best model."""
    milestones = _milestones(run)
    if not milestones:
        return section("numbers", "Key numbers", f"<p>{_no_number(run)}</p>")
    cards = ""
    for metric in _all_metrics(run):
        values = [(f"{name}, round {r}", macro.get(metric.macro)) for name, r, macro in milestones]
        if any(v is not None for _, v in values):
            title = f"{metric.word} {shown_as(run).macro_words}".strip()
            cards += _card([(f"{title} · {values[0][0]}", values[0][1]), *values[1:]])
    cards += "".join(map(_card, _last_and_best(run)))
    note = shown_as(run).means_over(run)
    note += "".join(f" {name} is left out: {reason}." for name, reason in shown_as(run).left_out(run).items())
    if chosen := [d for d in run.decisions if is_own(d, {"best_model": Mapping})]:
        note += f" Best model: after round {run.best_round} ({_chosen_by(chosen[-1]['value'])})."
    note += "".join(f" {sentence}." for sentence in _warnings(run))
    if intervals := _intervals(run):
        note += f" 95 % intervals of the final model: {', '.join(intervals)}."
    return section("numbers", "Key numbers", f'<div class="cards">{cards}</div><p class="fine">{escape(note)}</p>')


def sites(run: RunFiles) -> Section:
    """What each site has."""
    title, body = shown_as(run).sites(run)
    return section("sites", title, body) if body else Section()


def at_sites(run: RunFiles) -> Section:
    """Metrics of the final model at each site alone, with the samples that they are over."""
    found = run.results.get("sites", {}).get(run.split, {})
    metrics = [m for m in _all_metrics(run) if any(site["macro"].get(m.macro) is not None for site in found.values())]
    if not metrics:
        return Section()
    total, rows = sum(site["train"] for site in run.info["sites"].values()), []
    for name in in_order(run.info["sites"]):
        site = run.info["sites"][name]
        share = f"{site['train'] / total:.0%}"
        alone = found.get(name)
        if alone is None:
            absent = f"no result, not in the {run.split} numbers" if site.get(run.split) else f"no {run.split} split"
            why = "stays at the site" if "privacy" in site else absent
            rows.append([name, share, site.get(run.split), td(why, "na"), *[""] * len(metrics)])
            continue
        measured = sum(v is not None for v in alone["per_class"][metrics[0].per_class])
        classes = f"{measured} of {len(run.info['classes'])}"
        if held := sum(alone["held_back"]):
            classes += f", {held} held back"
        rows.append([name, share, site.get(run.split), classes, *(alone["macro"].get(m.macro) for m in metrics)])
    head = ["Site", "Share of training", f"{run.split} samples", "Classes measured", *(m.word for m in metrics)]
    caption = f"The final model on the {run.split} split of each site; means are over the classes measured there"
    words = (
        "Sites with other classes have other means: compare a site with itself over time, and classes with classes. "
        f"A class is held back where a site has {FEW}."
    )
    return section("at-sites", "The model at each site", table(caption, head, rows), f'<p class="fine">{words}</p>')


def curves(run: RunFiles) -> Section:
    """Metrics over rounds, macro and per class."""
    blocks = shown_as(run).curves(run) if run.evaluations else []
    return section("curves", f"Progress over rounds ({run.split} split)", *blocks) if blocks else Section()


def per_class(run: RunFiles) -> Section:
    """Metrics of the last and the best model for each class."""
    kind = shown_as(run)
    if not (run.evaluations and kind.has_classes(run)):
        return Section()
    last, groups = run.evaluations[-1], _shown_models(run)
    shown = [
        (m, word, record) for word, record in groups for m in kind.of_classes if m.per_class in record["per_class"]
    ]
    counts = [(word, last[key]) for key, word in kind.counted.items() if key in last]
    counts += kind.choosing(run)
    head = ["Class", *(word for word, _ in counts)] + [f"{m.column} {word}" for m, word, _ in shown]
    rows = []
    for i, name in enumerate(run.info["classes"]):
        values = [record["per_class"][m.per_class][i] for m, _, record in shown]
        rows.append([name, *(numbers[i] for _, numbers in counts), *values])
    macro = ["macro", *("" for _ in counts), *(record["macro"].get(m.macro) for m, _, record in shown)]
    rounds = " and ".join(f"round {record['round']} ({word})" for word, record in groups)
    caption = f"Samples of the {run.split} split, and metrics after {rounds}"
    notes = "; ".join(f"{name}: {reason}" for name, reason in kind.left_out(run).items())
    note = f'<p class="fine">n/a, left out of the means. {escape(notes)}.</p>' if notes else ""
    return section("classes", "Results per class", table(caption, head, rows, macro) + note)


def confusion(run: RunFiles) -> Section:
    """Confusion matrices of the last and the best model."""
    body = ""
    for word, record in _shown_models(run) if run.evaluations else ():
        title = f"{word.capitalize()} model, round {record['round']}"
        caption = f"{word.capitalize()} model on the {run.split} split"
        body += shown_as(run).confusion(record, run.info["classes"], title, caption)
    return section("confusion", "Confusion matrix", body) if body else Section()


def result_lines(run: RunFiles) -> list[str]:
    """The same for the plain text."""
    lines, milestones = [_no_number(run)], _milestones(run)
    shown = [m for m in _all_metrics(run) if any(macro.get(m.macro) is not None for _, _, macro in milestones)]
    columns = [(m.macro, m.word, max(8, len(m.word) + 2)) for m in shown]
    if milestones:
        title = f"{run.split} split, {shown_as(run).macro_words}".removesuffix(", ")
        lines = [f"{title:<26}" + "".join(f"{word:>{width}}" for _, word, width in columns)]
    for name, round_num, macro in milestones:
        values = "".join(f"{number(macro.get(key)):>{width}}" for key, _, width in columns)
        lines.append(f"  {f'{name}, round {round_num}':<24}{values}")
    if intervals := _intervals(run):
        lines.append(f"95 % intervals of the final model: {', '.join(intervals)}")
    lines += [f"{name}: {number(value)}" for values in _last_and_best(run) for name, value in values]
    lines += _warnings(run)
    lines += [f"  left out: {name} ({reason})" for name, reason in shown_as(run).left_out(run).items()]
    return lines + ([f"Annotated by no site: {', '.join(run.nowhere)}"] if run.nowhere else [])


PART = Part(place=0, sections=(key_numbers, sites, at_sites, curves, per_class, confusion), lines=result_lines)
