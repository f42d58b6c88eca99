"""The figure of a comparison: one metric over rounds, a line and a band for each row."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedmend.errors import FedMendError
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import MUTED, RC, RULE, svg_of
from fedmend.report.kinds import shown_as
from fedmend.report.metric_figures import ROUNDS
from fedmend.report.tables import metric_word

SIZE = (6.4, 3.2)  # inches
LEGEND_LINE = 0.17  # inches; of more rows than fit beside the axes the figure is higher
# Okabe-Ito colours, the method's first; from the second turn on the dashes tell rows apart.
COLOURS = ("#0072b2", "#b84a00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6770")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.5)))


def curves_figure(runs: Mapping[str, Sequence[RunFiles]], metric: str = "") -> str:
    """Draws the mean over the seeds of each row, with a band of one standard deviation to each side.

    Args:
        runs: row → runs with evaluations, one per seed; a round that a seed lacks is left out.
        metric: key of what is drawn; "": the main one of the kind of labels. Where no class could be measured, the
            figure has no line.

    Returns:
        an SVG document; the same input gives the same bytes.

    Raises:
        FedMendError: no such metric.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    every = [run for group in runs.values() for run in group]
    metric = metric or shown_as(every[0]).main_metric
    known = {key for run in every for evaluation in run.evaluations for key in evaluation["macro"]}
    if metric not in known:
        raise FedMendError(f"--metric: expected one of {sorted(known)}, got {metric!r}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**RC, "figure.facecolor": "white"})
        height = max(SIZE[1], LEGEND_LINE * (len(runs) + 1))
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        ax = figure.subplots()
        for i, (row, group) in enumerate(runs.items()):
            seeds = [dict(run.measured(metric)) for run in group]
            rounds = sorted(set.intersection(*(set(values) for values in seeds)))
            points = [[100 * values[r] for values in seeds] for r in rounds]
            mean = [statistics.fmean(p) for p in points]
            sd = [statistics.stdev(p) if len(p) > 1 else 0.0 for p in points]
            colour = COLOURS[i % len(COLOURS)]
            look: dict[str, Any] = {"lw": 1.2, "zorder": 3} if i else {"lw": 2.0, "zorder": 4}
            look |= {"color": colour, "ls": DASHES[i // len(COLOURS) % len(DASHES)], "marker": "o", "ms": 2.4}
            ax.plot(rounds, mean, label=f"{row} {mean[-1]:.1f}" if mean else f"{row} n/a", **look)
            low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
            ax.fill_between(rounds, low, high, color=colour, alpha=0.13, lw=0)
        ax.set_title(f"{metric_word(metric, every[0])}, {every[0].split} split")
        ax.set_xlabel(ROUNDS, color=MUTED, loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.grid(axis="y", color=RULE, lw=0.5)
        figure.legend(loc="outside right upper", frameon=False)
        if any(run.info["phantom"] for run in every):
            figure.text(0.99, 0.01, "PHANTOM", ha="right", weight="bold", color="#9c1c1c")
        return svg_of(figure)
