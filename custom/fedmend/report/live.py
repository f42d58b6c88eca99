"""The picture of a run on a terminal, drawn with rich; every text of another party goes in as text, never as markup."""

import re
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmend.basics.page import duration, short_name
from fedmend.basics.words import rounds_text
from fedmend.records.picture import Picture
from fedmend.records.progress import ANSWERED, FINISHED, LEFT_OUT, REFUSED, STOPPED

BARS = "▁▂▃▄▅▆▇█"
STYLES = {ANSWERED: "green", REFUSED: "bold red", LEFT_OUT: "dim"}
NARROW = 70  # columns below which less is shown
QUIET = 60  # seconds without a word from the run that are worth a remark
FOREIGN_FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def draw(picture: Picture, *, silent: float, console: Console) -> RenderableType:
    """One frame.

    Args:
        picture: what is known of the run.
        silent: seconds since it was new.
        console: its width and encoding decide what fits.
    """
    wide, unicode = console.width >= NARROW, not console.options.ascii_only
    parts: list[RenderableType] = [_head(picture, silent), _bar(picture, silent, console)]
    if picture.curves:
        parts.append(_metrics(picture, wide and unicode))
    if picture.sites:
        parts.append(_sites(picture, wide))
    if picture.repairs:
        parts.append(_repairs(picture, wide))
    if picture.decisions:
        parts.append(_decisions(picture, console.width - 45 if wide else 0))
    title = Text(f" {picture.run_name or 'run'} ", style="bold")
    spaced = [Padding(part, (0 if part is parts[0] else 1, 0, 0, 0)) for part in parts]
    return Panel(Group(*spaced), title=title, title_align="left", padding=(0, 1), border_style="dim")


def _head(picture: Picture, silent: float) -> Text:
    words = Text()
    if picture.phantom:
        words.append("PHANTOM ", style="bold red")
    words.append(picture.method or "census")
    words.append({FINISHED: "  finished", STOPPED: "  stopped"}.get(picture.state, ""), style="bold")
    if picture.reason:
        words.append(f": {picture.reason}", style="red")
    elif picture.state not in (FINISHED, STOPPED) and silent >= QUIET:
        words.append(f"  nothing new for {duration(silent)}", style="yellow")
    return words


def _bar(picture: Picture, silent: float, console: Console) -> RenderableType:
    over = picture.state in (FINISHED, STOPPED)
    words = f"{picture.done} of {rounds_text(picture.num_rounds or '?')}"
    if picture.stage and not over:
        words += f", now {min(picture.round, picture.num_rounds or picture.round)}: {picture.stage}"
    if picture.elapsed:
        words += f", {duration(picture.elapsed)}"
    if not over and picture.remaining >= 0:
        words += f", about {duration(max(picture.remaining - silent, 0))} left"
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=picture.num_rounds or 1, completed=picture.done, width=max(min(console.width // 4, 30), 6))
    row.add_row(bar, Text(words))
    return row


def _table(title: str, *columns: str) -> Table:
    """A table whose first column holds names and the others numbers."""
    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False, expand=False)
    for i, name in enumerate(columns):
        table.add_column(Text(name, style="dim"), justify="right" if i else "left", no_wrap=True, overflow="ellipsis")
    return table


def _metrics(picture: Picture, curve: bool) -> Table:
    table = _table(f"Received model, {picture.split}", "", "now", "highest", "round", *["over rounds"] * curve)
    if curve:
        table.columns[-1].justify = "left"
    for name, points in picture.curves.items():
        r, best = picture.highest.get(name, (None, None))
        cells = [short_name(name), _value(points[-1][1] if points else None), _value(best)]
        cells += ["" if r is None else str(r), *([sparkline([v for _, v in points])] if curve else [])]
        table.add_row(*map(Text, cells))
    return table


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def sparkline(values: list[float]) -> str:
    """A bar per value between the lowest and the highest one."""
    low, high = min(values, default=0), max(values, default=0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((v - low) * scale)] for v in values)


def _sites(picture: Picture, wide: bool) -> Table:
    refused = any("refused" in site for site in picture.sites.values())
    measured = wide and any("value" in site for site in picture.sites.values())
    columns = ["refused in"] * refused + ["samples", "seconds"] * wide
    columns += [f"{picture.split} {short_name(picture.metric)}"] * measured
    table = _table("Sites", "", "state", "last round", *columns)
    table.columns[1].justify = "left"
    for name, site in picture.sites.items():
        state = site.get("state", "")
        cells = [Text(name), Text(state, style=STYLES.get(state, "cyan")), Text(str(site.get("round", "–")))]
        cells += [Text(str(site.get("refused", "")), style="bold red")] * refused
        if wide:
            cells += [Text(f"{site['samples']:,}" if "samples" in site else "–"), Text(str(site.get("seconds", "–")))]
        cells += [Text(_value(site.get("value")))] * measured
        table.add_row(*cells)
    return table


def _repairs(picture: Picture, wide: bool) -> Table:
    kinds = [k for k in ("positive", "negative") if any(counts.get(k) for counts in picture.repairs.values())]
    judged = any("correct_positive" in counts for counts in picture.repairs.values())
    columns = [word for k in kinds for word in (k, *["right"] * judged)]
    table = _table(f"Repaired {picture.unit}", "", *columns, *["open"] * wide)
    for name, counts in picture.repairs.items():
        cells = [name]
        for kind in kinds:
            count, correct = counts.get(kind, 0), counts.get(f"correct_{kind}")
            cells.append(f"{count:,}")
            if judged:
                cells.append("–" if correct is None or not count else f"{100 * correct / count:.0f} %")
        table.add_row(*map(Text, [*cells, *([f"{counts.get('untagged', 0):,}"] if wide else [])]))
    return table


def _decisions(picture: Picture, room: int) -> Table:
    """``room``: columns for values; 0: they are left out."""
    table = _table("Last decisions of the server", "", "round", *(["value"] if room else []))
    if room:
        table.columns[-1].justify, table.columns[-1].max_width = "left", room
    for said in picture.decisions:
        r = "" if said.get("round") is None else str(said["round"])
        cells = [said.get("what", "").replace("_", " "), r, *([said.get("value", "")] if room else [])]
        table.add_row(*map(Text, cells))
    return table


def last_line(picture: Picture) -> str:
    """What came out, in one line."""
    return f"{'PHANTOM ' * picture.phantom}finished: {rounds_text(picture.done)}, {picture.latest}".strip()


def save_svg(frame_console: Console, file: Path, title: str) -> None:
    """Writes what a recording console has shown as a picture that loads nothing from other hosts.

    Args:
        frame_console: made with ``record=True``.
        file: to write.
        title: stands above it.
    """
    form = FOREIGN_FONTS.sub("", CONSOLE_SVG_FORMAT)
    svg = frame_console.export_svg(title=title, code_format=form, unique_id="watch")
    file.write_text(svg, encoding="utf-8")
