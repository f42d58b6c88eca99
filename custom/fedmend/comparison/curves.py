"""The figure of a comparison: one metric over rounds, a line and a band for each row."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedmend.report.figures import MUTED, RC, RULE, svg_of
from fedmend.report.metric_figures import ROUNDS

SIZE = (6.4, 3.2)  # inches
# Okabe-Ito colours, the method's first; from the second turn on the dashes tell rows apart.
COLOURS = ("#0072b2", "#b84a00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6770")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.5)))


def curves_figure(rows: Mapping[str, Sequence[Mapping[int, float]]], title: str, *, phantom: bool) -> str:
    """Draws the mean over the seeds of each row, with a band of one standard deviation to each side.

    Args:
        rows: row → for each seed round → value, from 0 to 1; a round that a seed lacks is left out.
        title: what is drawn.
        phantom: writes PHANTOM into the figure.

    Returns:
        an SVG document; the same input gives the same bytes.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**RC, "figure.facecolor": "white"})
        figure = Figure(figsize=SIZE, layout="constrained")
        ax = figure.subplots()
        for i, (row, seeds) in enumerate(rows.items()):
            rounds = sorted(set.intersection(*(set(values) for values in seeds)))
            points = [[100 * values[r] for values in seeds] for r in rounds]
            mean = [statistics.fmean(p) for p in points]
            sd = [statistics.stdev(p) if len(p) > 1 else 0.0 for p in points]
            colour = COLOURS[i % len(COLOURS)]
            look: dict[str, Any] = {
                "lw": 1.2 if i else 2.0,
                "ls": DASHES[i // len(COLOURS) % len(DASHES)],
                "zorder": 3 if i else 4,
            }
            ax.plot(
                rounds, mean, color=colour, marker="o", ms=2.4, label=f"{row} {mean[-1]:.1f}" if mean else row, **look
            )
            low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
            ax.fill_between(rounds, low, high, color=colour, alpha=0.13, lw=0)
        ax.set_title(title)
        ax.set_xlabel(ROUNDS, color=MUTED, loc="left")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(axis="y", color=RULE, lw=0.5)
        figure.legend(loc="outside right upper", frameon=False)
        if phantom:
            figure.text(0.99, 0.01, "PHANTOM", ha="right", weight="bold", color="#9c1c1c")
        return svg_of(figure)
