"""What leaves a review in the hospital's own formats: tables, NIfTI masks, and the page to sign; originals stay."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmend.basics.files import make_folder, whole_folder, write_atomically
from fedmend.basics.page import phantom_note, section, table, whole_page
from fedmend.data.card import CARD_NAME, SiteCard
from fedmend.data.csv_files import read_as_written
from fedmend.data.identity import one_path
from fedmend.data.tables import LabelTable
from fedmend.errors import FedMendError
from fedmend.labels import SINGLELABEL

if TYPE_CHECKING:
    from fedmend.data.slices import VolumeSplit

CELLS = {-1: "", 0: "0", 1: "1"}
HASH_DIGITS = 12  # as in messages about ledgers
PAGE_CSS = """
.sign{display:grid;grid-template-columns:2fr 1fr 2fr;gap:32px;margin-top:56px}
.sign span{border-top:1px solid #1f2933;padding-top:4px;font-size:13px}
"""
FOOTER = "This page names no sample and shows no image. Rejected repairs are undone; accepted ones are final."


# ---- label tables ---------------------------------------------------------------------------------------------------
def write_table(card: SiteCard, table: LabelTable, labels: np.ndarray, out: Path) -> int:
    """Writes a copy of a label table in which only the labels that differ are changed.

    All else is as in the original, to the byte: other columns, order of rows, quotation marks, ends of lines. A class
    without a column gets one behind the others as soon as any sample has a label in it.

    Args:
        card: the site's card.
        table: what was read of the original, N samples; rows of other images are copied.
        labels: (N, C) int8, the corrected labels; -1 = not annotated. In single-label data a row has at most one 1; a
            row without is not annotated.
        out: the file to write; its folder is made when missing.

    Returns:
        Number of cells that differ from the original.

    Raises:
        FedMendError: ``out`` is a file of the site folder, the original is not what ``table`` was read from, or a
            sample has several classes where it must have one.
        OSError: ``out`` cannot be written.
    """
    where = f"{card.site}: {table.file}"
    listed = (CARD_NAME, *card.splits.values(), *card.truth.values())
    if out.resolve() in {(card.folder / name).resolve() for name in listed}:
        raise FedMendError(f"{where}: expected another file for the corrected copy, got one that the site card names")
    single = card.kind == SINGLELABEL
    if single and ((labels == 1).sum(1) > 1).any():
        raise FedMendError(f"{where}: expected one class for each sample, got several")
    before, after = (_texts(table, values, single) for values in (table.labels, labels))
    text, differing = zip(*_corrected(card, table, before, after), strict=True)
    marked = (card.folder / table.file).read_bytes().startswith(codecs.BOM_UTF8)
    make_folder(out.parent)
    with write_atomically(out) as temporary:
        temporary.write_bytes("".join(text).encode("utf-8-sig" if marked else "utf-8"))
    return sum(differing)


def _texts(table: LabelTable, labels: np.ndarray, single: bool) -> dict[str, list[str]]:
    """Column → what its N cells say."""
    if single:
        names = np.array(["", *table.classes], dtype=object)
        return {"label": names[np.where((labels == 1).any(1), labels.argmax(1) + 1, 0)].tolist()}
    return {name: [CELLS[v] for v in labels[:, c].tolist()] for c, name in enumerate(table.classes)}


def _corrected(
    card: SiteCard, table: LabelTable, before: dict[str, list[str]], after: dict[str, list[str]]
) -> Iterator[tuple[str, int]]:
    """Rows of the copy, the header first, and how many of their cells differ."""
    where = f"{card.site}: {table.file}"
    rows = read_as_written(card.folder / table.file, where)
    header, written, end = next(rows, ([], [], ""))
    new = [name for name, texts in after.items() if name not in header and any(texts)]
    yield ",".join([*written, *(_field(name, "") for name in new)]) + end, 0
    places = {name: header.index(name) for name in ("image", *after) if name in header}
    sample = {one_path(path): number for number in range(len(table.images)) for path in table.paths(number)}
    for fields, written, end in rows:
        number = sample.get(one_path(fields[places["image"]])) if len(fields) == len(header) else None
        differing = 0
        for name, texts in after.items():
            if number is None:
                continue
            if name in places and fields[places[name]].strip() != before[name][number]:
                raise FedMendError(f"{where}: expected the labels that were read before, got others; begin again")
            if texts[number] != before[name][number]:
                differing += 1
                if name in places:
                    written[places[name]] = _field(texts[number], written[places[name]])
        if fields:  # an empty line stays empty
            written += ["" if number is None else _field(after[name][number], "") for name in new]
        yield ",".join(written) + end, differing


def _field(text: str, like: str) -> str:
    """A field with the quotation marks that it needs, or that the one before had."""
    if like.startswith('"') or any(character in text for character in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


# ---- masks ----------------------------------------------------------------------------------------------------------
def write_masks(card: SiteCard, split: "VolumeSplit", change: np.ndarray, folder: Path, classes: Sequence[str]) -> int:
    """Writes the label volumes in which something changes, with header, affine, data type and axes of the originals.

    Args:
        card: the site's card.
        split: V cases, N slices.
        change: (N, size, size) int8, see :meth:`fedmend.repairs.mask_ledger.MaskLedger.change`.
        folder: where the files go, as ``<number of the case>-<name of its image>``; new or empty.
        classes: in the order of their numbers in ``change``.

    Returns:
        Number of files.

    Raises:
        FedMendError: the folder holds something.
        OSError: it cannot be written.
    """
    from fedmend.repairs.repaired_volumes import write_repaired

    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FedMendError(f"{card.site}: repaired masks: expected a new or an empty folder, got another")
    make_folder(folder.parent)
    with whole_folder(folder) as temporary:
        write_repaired(split, change, temporary, card.label_values("", classes))
    return sum(1 for _ in folder.iterdir())


# ---- the page to sign -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ClassVerdicts:
    """What people said about the repairs of one class.

    Attributes:
        name: the class.
        repairs: number of repairs.
        accepted: of them.
        rejected: of them.
        relabelled: of them, those that got another label.
        unsure: of them.
    """

    name: str
    repairs: int
    accepted: int = 0
    rejected: int = 0
    relabelled: int = 0
    unsure: int = 0

    @property
    def unseen(self) -> int:
        """Repairs without a verdict."""
        return self.repairs - self.accepted - self.rejected - self.relabelled - self.unsure

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of the above, as on the page."""
        return (self.repairs, self.accepted, self.rejected, self.relabelled, self.unsure, self.unseen)


class Reviewer(NamedTuple):
    """One reviewer's part.

    Attributes:
        initials: as the reviewer wrote them.
        verdicts: number of verdicts in force.
        first: time of the first one, for people.
        last: time of the last one.
    """

    initials: str
    verdicts: int
    first: str
    last: str


def sign_off_page(
    site: str, fingerprint: str, classes: Sequence[ClassVerdicts], reviewers: Sequence[Reviewer], *, phantom: bool
) -> str:
    """The summary of a review, with a line to sign; no samples, no images.

    Args:
        site: the site's name.
        fingerprint: of the data set, see :meth:`fedmend.data.tables.LabelTable.fingerprint`.
        classes: one for each class, in the order of the page.
        reviewers: all who gave a verdict.
        phantom: whether the data are synthetic.

    Returns:
        an HTML page that asks for nothing outside itself.
    """
    total = np.sum([c.numbers for c in classes], axis=0, dtype=int).reshape(-1).tolist()
    judged = table(
        "Repairs and what reviewers said of them",
        ("class", "repairs", "accepted", "rejected", "relabelled", "unsure", "unseen"),
        [(c.name, *c.numbers) for c in classes],
        ("all", *total) if len(classes) > 1 else (),
    )
    people = table("Reviewers", ("initials", "verdicts", "first", "last"), reviewers)
    line = '<p class="sign"><span>name</span><span>date</span><span>signature</span></p>\n'
    body: str = section("verdicts", "Verdicts", judged)
    body += section("reviewers", "Reviewers", people if reviewers else "<p>Nobody has given a verdict.</p>\n")
    body += section("signature", "Signature", line)
    words = f"Site: {site}. Data set: {fingerprint[:HASH_DIGITS]}. Classes: {', '.join(c.name for c in classes)}."
    note = phantom_note("These labels say nothing about patients.") if phantom else ""
    below = f'<p class="sub">{escape(words)}</p>{note}'
    return whole_page("Review of repaired labels", below, body, FOOTER, phantom=phantom, style=PAGE_CSS)
