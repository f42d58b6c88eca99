"""Cells of a hospital's table → 1, 0, a class name or blank.

Data frames write 2.0 for 2 and a word for a blank; people write a class in several ways; some tables say that a label
is uncertain. What is not taken as it stands is counted, and told.
"""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedmend.data.identity import canonical, is_missing, known_as, loose, names_of
from fedmend.data.tables import LabelTable
from fedmend.datasets.checks import need
from fedmend.errors import FedMendError

# CheXpert's, and what others write.
UNCERTAIN = {
    *("-1", "u", "uncertain", "unsure", "unclear", "equivocal", "indeterminate", "unklar", "unsicher", "fraglich"),
    *("incertain", "douteux", "incierto", "dudoso", "incerto", "dubbio", "onzeker"),
}
# What programs and people write for 1 and 0; only whole words, as an n may be "not done".
YES = {
    *("true", "yes", "ja", "oui", "si", "sí", "sì", "sim", "wahr", "vrai", "vero", "verdadero", "verdadeiro", "waar"),
    *("tak", "так", "да", "da", "ano", "áno", "jah", "jā", "taip", "igen", "evet", "var", "kyllä", "ναι", "نعم"),
    *("是", "有", "はい", "あり", "有り", "예", "네", "있음"),
    *("present", "vorhanden", "présent", "présente", "presente", "aanwezig"),
    *("pos", "pos.", "positive", "positiv", "positif", "positivo", "positiva", "positief", "阳性", "陽性", "양성"),
}
NO = {
    *("false", "no", "nein", "nee", "non", "não", "falsch", "faux", "falso", "onwaar"),
    *("nie", "nej", "nei", "нет", "ні", "не", "ne", "nu", "nem", "hayır", "hayir", "yok", "ei", "nē", "όχι", "لا"),
    *("否", "无", "無", "いいえ", "なし", "無し", "아니오", "아니요", "없음"),
    *("absent", "absente", "nicht vorhanden", "assente", "ausente", "afwezig"),
    *("neg", "neg.", "negative", "negativ", "négatif", "négative", "negativo", "negativa", "negatief"),
    *("阴性", "陰性", "음성"),
}
YES, NO, UNCERTAIN = ({*map(loose, words)} for words in (YES, NO, UNCERTAIN))
FLAGS = {**dict.fromkeys(YES | {"1"}, "1"), **dict.fromkeys(NO | {"0"}, "0")}  # loose form of a cell → label
WAYS = {"blank": "", "positive": "1", "negative": "0"}  # what an uncertain label is taken as


class Labelled(NamedTuple):
    """A table of rows with their labels, and what was made of its cells.

    Attributes:
        kind: ``multilabel`` or ``singlelabel``.
        table: the rows.
        notes: what was made of cells that are no labels as they stand, in words with counts; for the card.
    """

    kind: str
    table: LabelTable
    notes: dict[str, str]


def is_uncertain(cell: str) -> bool:
    """Whether a cell says that a label is uncertain: -1, -1.0 or u."""
    return loose(cell) in UNCERTAIN


def uncertain_argument(parser: ArgumentParser) -> None:
    """Adds what an uncertain label is taken as."""
    words = "what uncertain labels (-1, u) are taken as (default: they are refused)"
    parser.add_argument("--uncertain", choices=list(WAYS), help=words)


class Cells:
    """Reads the cells of class columns, one by one, and counts what it changes.

    Args:
        classes: all classes, for a column of class names; None: columns of 1, 0 and blank.
        uncertain: one of :data:`WAYS`, or None: an uncertain label is refused.

    Raises:
        FedMendError: another way; or uncertain labels that would be 1 or 0 in a column of class names.
    """

    def __init__(self, classes: Sequence[str] | None, uncertain: str | None):
        words = f"one of {list(WAYS)}" if classes is None else "blank, for a column of class names"
        need(uncertain in (None, *(WAYS if classes is None else ["blank"])), "argument uncertain", words, uncertain)
        self._classes, self._uncertain = classes, uncertain
        self._counts: Counter[str] = Counter()
        self._known: dict[str, str | None] = {}

    def read(self, cell: str, where: str) -> str:
        """What the label is in a site folder's table; a cell that is no label is left for the reader to refuse.

        Raises:
            FedMendError: an uncertain label, where nobody said what it is taken as.
        """
        text = canonical(cell)
        if self._classes is not None:
            if text not in self._known:
                self._known[text] = known_as(text, self._classes)
            if name := self._known[text]:
                self._counts["class_names"] += name != text
                return name
        if is_missing(text):
            self._counts["missing_values"] += text != ""
            return ""
        form = loose(text)
        if form in UNCERTAIN and (self._classes is None or form == "-1"):
            ways = "blank, positive or negative" if self._classes is None else "blank"
            if self._uncertain is None:
                expected = "1, 0 or blank" if self._classes is None else "a class or blank"
                got = f"an uncertain label; say --uncertain {ways}"
                raise FedMendError(f"{where}: expected {expected}, got {got}")
            self._counts["uncertain_labels"] += 1
            return WAYS[self._uncertain]
        self._counts["words"] += form in YES or form in NO
        return FLAGS.get(form, text)

    def notes(self) -> dict[str, str]:
        """What was changed, in words with counts."""
        words = {
            "uncertain_labels": f"uncertain labels are taken as {self._uncertain}",
            "missing_values": "cells with a word for a missing value (e.g. nan, N/A, none) are taken as blank",
            "words": "cells with a word (e.g. true, nein) are taken as 1 or 0",
            "class_names": "cells write a class in another way (case, blanks) and are taken as that class",
        }
        return {name: f"{self._counts[name]} {text}" for name, text in words.items() if self._counts[name]}


def class_columns(header: Sequence[str], classes: Sequence[str], file: str) -> dict[str, str]:
    """Column → its class, for columns whose names differ from a class in case or blanks alone too.

    Args:
        header: the columns that may be classes.
        classes: all classes; empty: every column is one.
        file: name of the table.

    Raises:
        FedMendError: two columns are of one class.
    """
    names = list(classes) or names_of(header)
    found = {name: known for name in header if (known := known_as(name, names)) is not None}
    twice = len(found) - len(set(found.values()))
    words = "one column for each class"
    need(not twice, f"{file}, header", words, f"{twice} whose name differs from another one in case or blanks only")
    return found if classes else {name: name for name in header}
