"""The paper's table for readers: Markdown, LaTeX and one HTML page."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Protocol

from fedmend.basics.files import write_text
from fedmend.basics.page import Markup, phantom_note, section, table, td, whole_page
from fedmend.comparison.paper_table import PageTable, PaperTable
from fedmend.errors import FedMendError
from fedmend.report.figures import inline
from fedmend.report.tables import markdown_table

STYLE = "thead th+th{text-align:right;padding-left:12px}"  # above numbers
PHANTOM_SENTENCE = "The images are synthetic: their numbers say nothing about patients."
LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "↓": r"$\downarrow$",
    "−": "$-$",
    **{sign: f"${sign}$" for sign in "<>|"},  # other signs in LaTeX's own font
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


class Tables(Protocol):
    """What can be written on the pages: a paper's table, or one over several levels."""

    @property
    def name(self) -> str:
        """Of the job."""
        ...

    @property
    def rows(self) -> Mapping[str, object]:
        """By name."""
        ...

    @property
    def seeds(self) -> Sequence[int]:
        """Of every row."""
        ...

    @property
    def phantom(self) -> bool:
        """Whether any image is synthetic."""
        ...

    @property
    def facts(self) -> Sequence[str]:
        """Sentences above the tables."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Footnotes, by number from 1."""
        ...

    def parts(self) -> list[PageTable]:
        """Tables, results first."""
        ...


def markdown(found: Tables) -> str:
    """The tables, one below the other."""
    text = f"# Comparison on {found.name}\n\n"
    text += f"**PHANTOM**: {PHANTOM_SENTENCE[0].lower()}{PHANTOM_SENTENCE[1:]}\n\n" if found.phantom else ""
    text += "".join(f"{fact}\n\n" for fact in found.facts)
    text += "\n".join(f"{part.caption}\n\n{markdown_table(part.head, part.rows)}" for part in found.parts())
    return text + "".join(f"\n[{number}] {note}\n" for number, note in enumerate(found.notes, 1))


def latex(found: Tables) -> str:
    """Tables for a paper with the package booktabs; the facts are comments."""
    name = f"{'PHANTOM ' if found.phantom else ''}Comparison on {found.name}"
    tables = [_latex_table(part, name, found.notes) for part in found.parts()]
    return "".join([*(f"% {line}\n" for line in (name, *found.facts)), *tables])


def _latex_table(part: PageTable, name: str, notes: Sequence[str]) -> str:
    lines = [" & ".join(map(_tex, row)) + r" \\" for row in part.rows]
    below = [rf"\par\footnotesize [{number}] {_tex(note)}" for number, note in enumerate(notes, 1)]
    head = " & ".join(map(_tex, part.head)) + r" \\"
    above = [r"\begin{table}", rf"\caption{{{_tex(name)}. {_tex(part.caption)}}}"]
    above += [rf"\begin{{tabular}}{{l{'r' * (len(part.head) - 1)}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*above, *lines, r"\bottomrule", r"\end{tabular}", *below, r"\end{table}", ""])


def _tex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


def html_page(found: Tables, figure: str) -> str:
    """One page with its figure inside.

    Args:
        found: the table.
        figure: SVG of the curves; "": the page has none.
    """
    heading = f"Comparison on {found.name}"
    below = f"<p class='sub'>{len(found.rows)} methods, {len(found.seeds)} seeds</p>"
    below += phantom_note(PHANTOM_SENTENCE) if found.phantom else ""
    results, *others = found.parts()
    facts = "".join(f"<p>{escape(fact)}</p>\n" for fact in found.facts)
    notes = "".join(f"<p class='fine'>[{n}] {escape(note)}</p>\n" for n, note in enumerate(found.notes, 1))
    alt = "Mean over the seeds of each method, round by round, with one standard deviation to each side"
    body: str = section("results", "Results", facts + _html_table(results) + notes)
    body += section("curves", "Round by round", inline(figure, "curves", alt)) if figure else ""
    body += "".join(section(part.word, part.word.partition("-")[0].capitalize(), _html_table(part)) for part in others)
    footer = f"{'PHANTOM ' * found.phantom}{escape(heading)} · FedMend · sums over samples only, no patient data"
    return whole_page(heading, below, body, footer, phantom=found.phantom, style=STYLE)


def _html_table(part: PageTable) -> Markup:
    """Numbers are aligned to the right, published ones are grey."""
    styles = ["n na" if word.endswith("published") else "n" for word in part.head[1:]]
    rows = [[row[0], *map(td, row[1:], styles)] for row in part.rows]
    return table(part.caption, part.head, rows)


FILES = ("comparison.md", "comparison.csv", "comparison.tex", "comparison.svg", "comparison.html")


def write_paper_table(table: PaperTable, out: Path) -> str:
    """Writes ``FILES`` into a folder and returns the Markdown.

    Raises:
        FedMendError: runs without an evaluation, or that lack the metric.
    """
    if not all(run.evaluations for row in table.rows.values() for run in row.runs):
        raise FedMendError("compare: expected runs with a test or val split, got one without")
    figure = table.figure()
    texts = (markdown(table), table.csv(), latex(table), figure, html_page(table, figure))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return texts[0]
