"""Small-multiple figures of the run report, as inline SVG: the same input gives the same bytes."""

import io
import re
import textwrap
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fedmend.basics.page import Figure
from fedmend.basics.words import in_order
from fedmend.records.run_folder import RunFiles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

WIDTH, PANEL_HEIGHT, MAX_COLUMNS = 9.0, 1.05, 6  # inches, inches, panels in a row
INK, MUTED, RULE, WARMUP = "#1f2933", "#5b6770", "#d5dbe1", "#eef1f4"
# Okabe-Ito colours: told apart with every common colour vision; the dash patterns say the same again.
STYLES: Mapping[str, dict] = {
    "main": {"color": "#0072b2", "lw": 1.8, "zorder": 4},
    "reference": {"color": "#a3adb6", "lw": 1.2, "zorder": 3},
    "outline": {"color": "#1f2933", "lw": 0.7, "zorder": 3},
    "positive": {"color": "#b84a00", "lw": 1.8, "zorder": 5},
    "negative": {"color": "#0072b2", "lw": 1.8, "ls": (0, (4, 1.5)), "zorder": 4},
    "noisy": {"color": "#b84a00", "lw": 1.8, "ls": (0, (4, 1.5)), "zorder": 5},
    "line": {"color": "#1f2933", "lw": 1.0, "ls": (0, (4, 2)), "zorder": 3},
    # Triangles whose tip is on the curve, from below, and from above: both are seen even in neighbouring rounds.
    "triggered": {"color": "#b84a00", "ls": "", "marker": 6, "ms": 7, "zorder": 6},
    "corrected": {"color": "#1f2933", "ls": "", "marker": 7, "ms": 7, "zorder": 6},
    "site positive": {"color": "#b84a00", "lw": 0.7, "alpha": 0.5, "zorder": 3},
    "site negative": {"color": "#0072b2", "lw": 0.7, "alpha": 0.5, "ls": (0, (4, 1.5)), "zorder": 2},
}
BEST: dict[str, Any] = {"ls": "", "marker": "o", "ms": 5, "mfc": "white", "mec": "#0072b2", "mew": 1.4}
LABELLED = ("main", "positive", "negative", "noisy")  # lines that carry their last value
STACK = (("positive", "#b84a00"), ("negative", "#4c9fcf"), ("untagged", "#c9d1d8"))
RC: dict[Any, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmend",
    "text.parse_math": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), RULE),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("text.color", "axes.titlecolor"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
}


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        rounds: x values.
        values: y values, ``None`` where there is no number.
        style: a key of ``STYLES``.
    """

    rounds: Sequence[float]
    values: Sequence[float | None]
    style: str = "main"


@dataclass(frozen=True)
class Panel:
    """One small plot.

    Attributes:
        title: the class, site or mean that it shows.
        lines: its curves.
        chance: level of a model that guesses, drawn dotted.
        note: text in place of curves.
        stack: edges of bins on the x axis and, in the order of ``STACK``, the heights of the stacked bins.
        subtitle: small second line of the title.
    """

    title: str
    lines: Sequence[Line] = ()
    chance: float | None = None
    note: str = ""
    stack: tuple[Sequence[float], Sequence[Sequence[float]]] | None = None
    subtitle: str = ""


def grid_figure(
    key: str,
    panels: Sequence[Panel],
    *,
    alt: str,
    ylim: tuple[float, float],
    last_round: int,
    legend: Mapping[str, str],
    xlabel: str = "round",
    warmup: int = 0,
    best: int | None = None,
    phantom: bool = False,
    xlim: tuple[float, float] | None = None,
) -> Figure:
    """Draws panels with common axes, six in a row at most.

    Args:
        key: name of the figure.
        panels: one or more.
        alt: of the figure.
        ylim: common y range.
        last_round: right end of the common x range, which starts at 0.
        legend: style (of ``STYLES`` or ``STACK``, or "chance") → its words.
        xlabel: what the x axis counts.
        warmup: number of warm-up rounds, shaded; 0 for none.
        best: round of the best model, marked on the main curves.
        phantom: writes PHANTOM into the figure.
        xlim: common x range where the x axis does not count rounds.
    """
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    rows = -(-len(panels) // MAX_COLUMNS)
    columns = -(-len(panels) // rows)
    letters = max(14, 105 // columns)  # in a line of a title
    title = 0.36 if any(p.subtitle or len(p.title) > letters for p in panels) else 0.24  # inches, as all lengths here
    gap = title + (0.25 if rows > 1 else 0)
    height = rows * PANEL_HEIGHT + (rows - 1) * gap + title + 0.25 + 0.45
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        figure = Drawing(figsize=(WIDTH, height))
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        figure.subplots_adjust(0.45 / WIDTH, 0.45 / height, 1 - 0.1 / WIDTH, 1 - (0.25 + title) / height)
        figure.subplots_adjust(wspace=0.14, hspace=gap / PANEL_HEIGHT)
        axes[0].set(xlim=xlim or (0, max(1, last_round) * 1.2), ylim=ylim)  # room for the last values
        for i, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
            _draw_panel(ax, panel, warmup=warmup, best=best, letters=letters, whole_numbers=xlim is None)
            ax.tick_params(labelbottom=i + columns >= len(panels), labelleft=i % columns == 0)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        _draw_legend(figure, height, legend, warmup=warmup, best=best)
        figure.text(0.45 / WIDTH, 0.05 / height, xlabel, color=MUTED)
        if phantom:
            figure.text(1 - 0.1 / WIDTH, 0.05 / height, "PHANTOM", ha="right", weight="bold", color="#9c1c1c")
        return inline(svg_of(figure), key, alt)


def svg_of(figure: "Drawing") -> str:
    """A figure of matplotlib as an SVG document without dates and names of programs; its texts stay texts, which the
    reader's fonts draw, in every script that they have."""
    stream = io.StringIO()
    with warnings.catch_warnings():  # that the font which measures them lacks a sign
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return stream.getvalue()


def _draw_panel(ax: "Axes", panel: Panel, *, warmup: int, best: int | None, letters: int, whole_numbers: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    title = textwrap.wrap(panel.title, letters, max_lines=1 if panel.subtitle else 2, placeholder="…")
    ax.set_title("\n".join(title), pad=14 if panel.subtitle else 5)
    if panel.subtitle:
        ax.text(0, 1.06, panel.subtitle, transform=ax.transAxes, size=7, color=MUTED)
    steps = {"nbins": 4, "integer": True} if whole_numbers else {"nbins": 3, "steps": [5, 10]}
    ax.xaxis.set_major_locator(MaxNLocator(**steps))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    ax.tick_params(length=2)
    if panel.note:
        ax.text(0.5, 0.5, panel.note, transform=ax.transAxes, ha="center", va="center", color=MUTED, size=7.5)
        return
    ax.grid(axis="y", color=RULE, lw=0.5)
    ax.set_axisbelow(True)
    if warmup:
        ax.axvspan(0, warmup, color=WARMUP, lw=0, zorder=0)
        ax.axvline(warmup, color=MUTED, lw=0.8, ls=(0, (1, 1.5)), zorder=1)
    if panel.chance is not None:
        ax.axhline(panel.chance, color=MUTED, lw=0.9, ls=(0, (1, 2)), zorder=1)
    for line in panel.lines:
        _draw_line(ax, line, best)
    labels = [(line.values[-1], line) for line in panel.lines if line.style in LABELLED and line.values[-1] is not None]
    _label_ends(ax, labels)
    if panel.stack:
        edges, layers = panel.stack
        floor = [0.0] * (len(edges) - 1)
        for (_, colour), layer in zip(STACK, layers, strict=True):
            top = [a + b for a, b in zip(floor, layer, strict=True)]
            ax.stairs(top, edges, baseline=floor, fill=True, color=colour, lw=0)
            floor = top


def _draw_line(ax: "Axes", line: Line, best: int | None) -> None:
    values = [float("nan") if v is None else v for v in line.values]
    marker = {"marker": "o", "ms": 2.4} if sum(v is not None for v in line.values) == 1 else {}
    ax.plot(line.rounds, values, **(marker | STYLES[line.style]))
    if line.style == "main" and best is not None and best in line.rounds:
        point = values[list(line.rounds).index(best)]
        ax.plot([best], [point], **BEST, zorder=6, clip_on=False)  # whole, even at the edge


def _label_ends(ax: "Axes", labels: Sequence[tuple[float, Line]]) -> None:
    """Writes the last value of each curve beside it, one above the other where they would meet."""
    low, high = ax.get_ylim()
    step, previous = (high - low) * 0.13, float("-inf")
    for value, line in sorted(labels, key=lambda item: item[0]):
        y = max(value, previous + step)
        look = {"va": "center", "size": 7.5, "color": STYLES[line.style]["color"]}
        text = f"{value:.{2 if value < 10 else 1}f}"
        ax.annotate(text, (line.rounds[-1], y), xytext=(3, 0), textcoords="offset points", **look)
        previous = y


def _draw_legend(figure: "Drawing", height: float, legend: Mapping[str, str], *, warmup: int, best: int | None) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: dict[str, Artist] = {style: Line2D([], [], **look) for style, look in STYLES.items()}
    keys["chance"] = Line2D([], [], color=MUTED, lw=0.9, ls=(0, (1, 2)))
    if "untagged" in legend:
        keys.update({name: Patch(color=colour, lw=0) for name, colour in STACK})
    handles = [(keys[style], words) for style, words in legend.items()]
    if best is not None:
        handles.append((Line2D([], [], **BEST), f"best model (round {best})"))
    if warmup:
        handles.append((Patch(facecolor=WARMUP, edgecolor=RULE, lw=0.6), "warm-up"))
    look = {"frameon": False, "borderaxespad": 0.1, "handlelength": 2.0, "columnspacing": 1.6, "ncols": len(handles)}
    figure.legend(*zip(*handles, strict=True), loc="upper left", bbox_to_anchor=(0.36 / WIDTH, 1.0), **look)


def inline(svg: str, key: str, alt: str) -> Figure:
    """Makes matplotlib's SVG document a figure of an HTML page: own ids, no namespaces, no style sheet, alt text."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, flags=re.DOTALL)

    def rename(tag: re.Match) -> str:
        return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{key}-", tag[0].replace("xlink:href", "href"))

    svg = re.sub(r"<[^>]+>", rename, svg)
    view = re.findall(r'viewBox="[^"]+"', svg)[0]
    body = svg[svg.index(">") + 1 :].strip()
    return Figure(key, alt, f'<svg role="img" aria-label="{escape(alt)}" {view}>\n{body}')


def share_figure(
    run: RunFiles,
    weights: Mapping[int, Mapping[str, float]],
    words: Mapping[str, str],
    *,
    legend: Mapping[str, str],
    noisy: Collection[str] = (),
) -> Figure:
    """One panel per site with its share in the average of the models over rounds, noisy sites first.

    Args:
        run: tells how many training samples sites have.
        weights: round → site → weight; the weights of a round sum to 1; in the order of rounds, at least one.
        words: site → what is known about it.
        legend: words of the styles of the lines, "main" and "noisy".
        noisy: sites that are drawn as such.
    """
    rounds = list(weights)
    sites = sorted(in_order({site for row in weights.values() for site in row}), key=lambda site: site not in noisy)
    train = {name: site.get("train") for name, site in run.info["sites"].items()}
    samples = {site: size for site in sites if (size := train.get(site)) is not None}
    total = sum(samples.values()) if len(samples) == len(sites) else None
    panels, story, highest = [], [], 0.0
    for site in sites:
        values = [None if row.get(site) is None else 100 * row[site] for row in weights.values()]
        by_samples = 100 * samples[site] / total if total else None
        line = Line(rounds, values, "noisy" if site in noisy else "main")
        panels.append(Panel(site, [line], by_samples, subtitle=words.get(site, "")))
        highest = max(highest, by_samples or 0.0, *(v for v in values if v is not None))
        end = "not used" if values[-1] is None else f"{values[-1]:.1f}"
        story.append(f"{site} {end}" + (f" ({words[site]})" if site in words else ""))
    return grid_figure(
        "aggregation-curves",
        panels,
        alt=f"Aggregation weights in per cent over rounds {rounds[0]} to {rounds[-1]}, at the end: {'; '.join(story)}.",
        ylim=(0.0, highest * 1.1),
        legend={**legend, "chance": "by samples alone"},
        **run.frame,
    )
