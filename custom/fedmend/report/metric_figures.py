"""Figures of metrics over rounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedmend.basics.page import Figure
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import Line, Panel, grid_figure

AROUND_HALF = ("auc", "bacc")  # values per class of which a guess gives one half
ROUNDS = "training rounds that the model has seen"  # what the x axis counts


class Metric(NamedTuple):
    """A metric of ``metrics.jsonl`` and its words.

    Attributes:
        macro: key of its mean over classes (or of the one value for all samples).
        per_class: key of its values per class, "" where there are none.
        word: of the mean.
        column: word of the values per class.
        curve: word of both together.
    """

    macro: str
    per_class: str
    word: str
    column: str
    curve: str


def metric_figure(run: RunFiles, metric: Metric, *, missing: Callable[[int], str]) -> Figure:
    """One panel for the macro value of a metric over rounds and one for each class, as far as the metric has them.

    Args:
        run: with at least one evaluation.
        metric: what to draw.
        missing: number of a class → why it has no value.
    """
    evaluations, classes = run.evaluations, run.info["classes"]
    rounds = [m["round"] for m in evaluations]
    mean = [m["macro"].get(metric.macro) for m in evaluations]
    panels, story, drawn = [], [], []
    for i, title in enumerate(["macro", *classes] if metric.per_class else ["all samples"]):
        unknown = [None] * len(classes)
        values = [m["per_class"].get(metric.per_class, unknown)[i - 1] for m in evaluations] if i else mean
        known = [v for v in values if v is not None]
        lines = [Line(rounds, values)] + ([Line(rounds, mean, "reference")] if i else [])
        chance = _guessing(metric, evaluations[-1], len(classes))[i]
        panels.append(Panel(title, lines, chance) if known else Panel(title, note=f"n/a:\n{missing(i - 1)}"))
        story.append(_from_to(title, known))
        drawn += known
    legend = {"main": metric.curve}
    if metric.per_class:
        legend["reference"] = "macro"
    if any(panel.chance is not None for panel in panels):
        legend["chance"] = "guessing"
    from_zero = metric.per_class not in AROUND_HALF
    return grid_figure(
        f"{metric.macro}-curves",
        panels,
        alt=f"{metric.curve} over rounds {rounds[0]} to {rounds[-1]}: {'; '.join(story)}.",
        ylim=(0.0 if from_zero else min(0.4, int(min(drawn, default=0.0) * 10) / 10), 1.0),
        legend=legend,
        xlabel=ROUNDS,
        best=run.best_round if run.best_round in rounds else None,
        **run.frame,
    )


def metrics_figure(run: RunFiles, metrics: Sequence[Metric]) -> Figure:
    """One panel per metric, where there is one class only.

    Args:
        run: with at least one evaluation.
        metrics: what to draw, from 0 to 1.
    """
    rounds, panels, story = [m["round"] for m in run.evaluations], [], []
    for metric in metrics:
        values = [m["macro"].get(metric.macro) for m in run.evaluations]
        known = [v for v in values if v is not None]
        panels.append(Panel(metric.curve, [Line(rounds, values)]) if known else Panel(metric.curve, note="n/a"))
        story.append(_from_to(metric.curve, known))
    return grid_figure(
        "metric-curves",
        panels,
        alt=f"Metrics over rounds {rounds[0]} to {rounds[-1]}: {'; '.join(story)}.",
        ylim=(0.0, 1.0),
        legend={"main": "global model"},
        xlabel=ROUNDS,
        best=run.best_round if run.best_round in rounds else None,
        **run.frame,
    )


def _from_to(name: str, known: Sequence[float]) -> str:
    return f"{name} from {known[0]:.2f} to {known[-1]:.2f}" if known else f"{name} not measured"


def _guessing(metric: Metric, evaluation: Mapping, width: int) -> list[float | None]:
    """What a model that guesses reaches: macro, then each class; ``None`` where that depends on how it guesses."""
    if metric.per_class == "ap":
        return _prevalences(evaluation, width)
    if (metric.macro, metric.per_class) == ("bacc", "recall"):  # one answer of C; masks are not guessed
        return [1 / width] * (width + 1)
    return [0.5 if metric.per_class in AROUND_HALF else None] * (width + 1)


def _prevalences(evaluation: Mapping, width: int) -> list[float | None]:
    """Average precision of guessing: macro, then each class."""
    counts = zip(evaluation.get("positives", [0] * width), evaluation.get("negatives", [0] * width), strict=True)
    shares = [p / (p + n) if p and n else None for p, n in counts]
    known = [s for s in shares if s is not None]
    return [sum(known) / len(known) if known else None, *shares]
