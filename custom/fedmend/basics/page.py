"""Pieces of every HTML page: skeleton, style sheet, number formats, tables. Strings are escaped where they enter."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

CSS = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:28px 32px 48px;background:#fff;color:#1f2933;overflow-wrap:break-word;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
h1{font-size:28px;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:20px;margin:40px 0 8px;padding-top:12px;border-top:1px solid #d5dbe1}
h3{font-size:15px;margin:20px 0 6px}p{margin:6px 0 10px;max-width:75ch}
.sub{color:#52606b;margin:4px 0 12px;max-width:none}
nav{margin:14px 0 0;font-size:14px}nav a{color:#00558a;margin-right:16px;display:inline-block}
.badge{display:inline-block;background:#9c1c1c;color:#fff;font-weight:700;letter-spacing:.08em;font-size:14px;
padding:3px 10px;border-radius:4px;vertical-align:5px;margin-left:10px}
.phantom,.flag{border-left:5px solid #9c1c1c;background:#fdf1f0;padding:9px 14px;margin:14px 0;max-width:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;margin:12px 0}
.card{border:1px solid #d5dbe1;border-radius:8px;padding:12px 16px}
.card b{display:block;font-size:34px;line-height:1.15;
font-variant-numeric:tabular-nums}.card span{color:#52606b;font-size:13px}
.card table{width:100%;margin:8px 0 0;font-size:13px}.card td{padding:1px 0;border:0}
.scroll{overflow-x:auto;margin:10px 0}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:#52606b;font-size:13px;padding-bottom:4px}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid #e6eaee}
thead th{border-bottom:1.5px solid #7b8794;font-size:13px;vertical-align:bottom}
tbody th{font-weight:600;white-space:nowrap}tbody th.long{white-space:normal;overflow-wrap:anywhere;min-width:24ch}
table.wide{font-size:12px}table.wide td{padding:4px 5px;white-space:normal}
table.wide thead th+th{writing-mode:vertical-rl;transform:rotate(180deg);padding:2px 4px;text-align:left;\
vertical-align:middle}
th.n,td.n{text-align:right;padding-left:12px}tr.sum th,tr.sum td{border-top:1.5px solid #7b8794;font-weight:600}
td.yes{background:#e3f0f8}td.no,.na{color:#5b6770}td.bad{background:#fdf1f0;color:#9c1c1c;font-weight:700}
td.yes,td.no,td.bad{padding-left:12px;white-space:nowrap}
td.wrap{max-width:70ch;overflow-wrap:anywhere}td.wrap,td:has(>code){min-width:24ch}
.fine{font-size:13px;color:#52606b;max-width:100ch}
code{font:.93em ui-monospace,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
figure{margin:8px 0 4px;overflow-x:auto}svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}svg text{font-family:inherit!important}
details{margin:12px 0}summary{cursor:pointer;color:#00558a}dt{font-weight:600;margin-top:8px}dd{margin:0;max-width:80ch}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid #0072b2;outline-offset:2px}
footer{margin-top:40px;border-top:1px solid #d5dbe1;padding-top:8px}
@media screen{figure>svg{min-width:720px}caption{max-width:calc(100vw - 64px)}}
@media print{body{max-width:none;padding:0;font-size:11px}nav{display:none}h2,h3{break-after:avoid;margin-top:20px}
figure,.card,tr,dt,dd{break-inside:avoid}dt{break-after:avoid}.scroll{overflow:visible}
.badge,.phantom,.flag,.card,td.yes,td.bad{-webkit-print-color-adjust:exact;print-color-adjust:exact}
table,caption,thead th,.fine,.card span,.card table{font-size:10px}th,td{padding-right:8px}
tbody th,td.yes,td.bad{white-space:normal}}
"""
# Chromium prints this into the margin of every page.
PHANTOM_CSS = "@page{@top-right{content:'PHANTOM data';color:#9c1c1c;font:bold 11px sans-serif}}"
# Dark text has a contrast of at least 4.5 : 1 on every shade.
HEAT = (76, 159, 207)
HEAT_CSS = """
td.heat{padding-left:8px;white-space:nowrap;border:1px solid #fff}tr:has(td.heat)>th{white-space:normal}\
td.heat small{display:block;color:inherit;font-size:11px}
td.hit{font-weight:700;box-shadow:inset 0 0 0 2px #1f2933}
@media print{td.heat{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
WIDE = 12  # columns; the heads of a table with more of them stand upright
SPELT = {"map": "mAP", "dice": "Dice", **{word: word for word in ("volume", "precision", "recall", "accuracy")}}
LONG = 36  # signs; a row with a longer name is broken into lines, or its numbers would lie beyond the edge


class Markup(str):
    """HTML that is escaped already; every other string is escaped where it enters a page."""


@dataclass(frozen=True)
class Figure:
    """A figure of a page.

    Attributes:
        name: unique in the page; prefix of every id in the SVG.
        alt: what it shows, for a reader who cannot see it.
        svg: an ``<svg>`` element without outside references.
    """

    name: str
    alt: str
    svg: str


class Section(str):
    """The HTML of a part of the page under a heading.

    Attributes:
        figures: those in it, in their order.
    """

    figures: Sequence[Figure] = ()


def number(value: float | None) -> str:
    """A metric with three digits; ``None`` reads n/a."""
    return "n/a" if value is None else f"{value:.3f}"


def short_name(metric: str) -> str:
    """A metric's key as a line, table or terminal names it, e.g. AUC, mAP, BACC (val) or volume Dice."""
    words = (SPELT.get(word, word.upper()) for word in metric.removesuffix("_val").split("_"))
    return " ".join(words) + " (val)" * metric.endswith("_val")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def compact(value: object) -> str:
    """A JSON value on one line: four significant digits, 300 characters at most."""
    short = json.loads(json.dumps(value), parse_float=lambda f: float(f"{float(f):.4g}"))
    text = short if isinstance(short, str) else json.dumps(short, ensure_ascii=False).replace('"', "").strip("{}")
    return text if len(text) <= 300 else text[:299] + "…"


def td(value: Any, style: str = "") -> Markup:
    """A table cell; a number is aligned to the right, ``None`` reads n/a."""
    style += " n" if value is None or isinstance(value, int | float) else ""
    style += " na" if value is None else ""
    text = f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else number(value)
    return Markup(f'<td class="{style.strip()}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>")


def heat(text: str, share: float | None, *, below: str = "", style: str = "") -> Markup:
    """A table cell, shaded from white (0) to blue (1); no shade for ``None``."""
    shade = ""
    if share is not None:
        red, green, blue = (round(255 + (end - 255) * min(max(share, 0.0), 1.0)) for end in HEAT)
        shade = f' style="background:#{red:02x}{green:02x}{blue:02x}"'
    small = f"<small>{escape(below)}</small>" if below else ""
    return Markup(f'<td class="{f"heat {style}".strip()}"{shade}>{escape(text)}{small}</td>')


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], total: Sequence[object] = ()) -> Markup:
    """A table whose first column names the row; cells are :class:`Markup` or values for :func:`td`."""
    rows = list(rows)
    body = ""
    for row in [*rows, total] if total else rows:
        cells = "".join(cell if isinstance(cell, Markup) else td(cell) for cell in row[1:])
        kind, name = "sum" if row is total else "row", str(row[0])
        long = ' class="long"' if len(name) > LONG else ""
        body += f'<tr class="{kind}"><th scope="row"{long}>{escape(name)}</th>{cells}</tr>\n'
    numeric = [bool(rows) and (rows[0][i] is None or isinstance(rows[0][i], int | float)) for i in range(len(head))]
    heads = "".join(
        f'<th scope="col" class="{"n" if right else "w"}">{escape(word)}</th>'
        for word, right in zip(head, numeric, strict=True)
    )
    words, wide = escape(caption), ' class="wide"' if len(head) > WIDE else ""
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{words}"><table{wide}><caption>{words}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def section(anchor: str, title: str, *blocks: str | Figure) -> Section:
    """A part of the page under a heading, reachable as ``#anchor``; a block is HTML or a figure."""
    body = "".join(f"<figure>{b.svg}\n</figure>\n" if isinstance(b, Figure) else b for b in blocks)
    found = Section(f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{body}</section>\n')
    found.figures = [b for b in blocks if isinstance(b, Figure)]
    return found


def phantom_note(sentence: str) -> str:
    """The box below the heading of a page that shows synthetic data."""
    return f'<p class="phantom"><strong>PHANTOM data.</strong> {escape(sentence)}</p>'


def whole_page(
    heading: str,
    below: str,
    body: str,
    footer: str,
    *,
    phantom: bool,
    title: str = "",
    style: str = "",
    pictures: bool = False,
) -> str:
    """An HTML page that asks for nothing outside itself; its sections with an anchor are linked at the top.

    Args:
        heading: text of the heading.
        below: HTML of the header below the heading.
        body: HTML of the main part.
        footer: HTML of the last lines.
        phantom: marks the title, the heading and every printed sheet.
        title: text of the title; default: the heading.
        style: CSS of this page alone.
        pictures: the page holds its own images as ``data:`` addresses.
    """
    badge = '<span class="badge">PHANTOM</span>' if phantom else ""
    links = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', body)
    nav = " ".join(f'<a href="#{anchor}">{words}</a>' for anchor, words in links)
    nav = f"<nav>{nav}</nav>\n" if nav else ""
    shades = HEAT_CSS if 'class="heat' in body else ""
    css = f"{CSS}{style}{shades}{PHANTOM_CSS if phantom else ''}"
    policy = f"default-src 'none'; style-src 'unsafe-inline'{'; img-src data:' if pictures else ''}"
    name = escape(f"{'PHANTOM ' if phantom else ''}{title or heading}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{name}</title><style>{css}</style></head>\n"
        f"<body>\n<header><h1>{escape(heading)}{badge}</h1>{below}</header>\n{nav}<main>\n{body}</main>\n"
        f"<footer class='fine'>{footer}</footer>\n</body></html>\n"
    )
