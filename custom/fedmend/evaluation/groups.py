"""Groups of samples by what a table says of them, and which of them are too small to be told.

Groups of one column and the samples in none of them add up to the whole, which is told too. So a single small group
that is held back would follow by subtraction: the smallest of the others is held back with it. It may also follow from
other columns whose groups are made of the same people.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from scipy.linalg import orth

from fedmend.data.identity import is_missing, loose
from fedmend.data.site import Split
from fedmend.data.slices import VolumeSplit
from fedmend.errors import FedMendError
from fedmend.evaluation.held_out import labels_of, persons_of

MOST_GROUPS = 20  # of a column
MOST_COLUMNS = 6  # what they tell together is looked at for every choice among them
REST = "not given"  # a blank, or what is in no group
AGE = re.compile(r"(\d{1,3})([DWMY])", re.IGNORECASE)  # DICOM's value representation AS, as people copy it
A_YEAR = {"D": 365.25, "W": 365.25 / 7, "M": 12, "Y": 1}


@dataclass(frozen=True)
class Column:
    """A column, and how its values become groups.

    Attributes:
        name: of the column.
        values: the values that are groups, in order; empty: bands, or every value that is found.
        edges: of bands of numbers, ascending; each belongs to the band above it.
    """

    name: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    @classmethod
    def of(cls, words: str) -> "Column":
        """Reads ``sex`` (every value is a group), ``sex:F,M`` (these are) or ``age:40,60`` (below 40, 40 to below 60,
        from 60 on).

        Raises:
            FedMendError: it reads otherwise.
        """
        name, colon, listed = (part.strip() for part in words.partition(":"))
        parts = [part.strip() for part in listed.split(",")] if colon else []
        numbers = [_number(part) for part in parts]
        edges = tuple(n for n in numbers if n is not None)
        whole = len(edges) == len(parts)
        wrong = not name or not all(parts) or len({*parts}) < len(parts) or REST in parts
        if wrong or (whole and list(edges) != sorted({*edges})):
            expected = "a column, with values or ascending numbers behind it if wanted, such as sex:F,M or age:40,60"
            raise FedMendError(f"subgroups: expected {expected}, got {words!r:.100}")
        return cls(name, edges=edges) if whole else cls(name, values=tuple(parts))

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of the groups, where they do not depend on the values that are found."""
        if not self.edges:
            return self.values
        # All digits: dates such as 20200101 differ in the last ones alone.
        edges = [f"{edge:.15g}" for edge in self.edges]
        between = [f"{a} to {b}" for a, b in pairwise(edges)]
        return (f"below {edges[0]}", *between, f"from {edges[-1]}")

    def groups(self, found: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """Names of G groups, and (M,) int64, for each of M values the number of its group, G where it is in none.
        Values that differ in their writing alone, such as ``F`` and ``f``, are one unless both are named.

        Args:
            found: M texts of the column; bands take ages as DICOM writes them, too, in years.

        Raises:
            FedMendError: the column has more values than a person reads.
        """
        values = sorted(value for value in found if not is_missing(value) and value != REST)
        by_form: dict[str, Counter[str]] = {}
        for value in values:
            by_form.setdefault(loose(value), Counter())[value] += 1
        names = self.fixed or tuple(sorted(written.most_common(1)[0][0] for written in by_form.values()))
        if len(names) > MOST_GROUPS:
            raise FedMendError(
                f"subgroups: expected at most {MOST_GROUPS} groups of {self.name}, got {len(names)}; give bands of"
                f" numbers, such as {self.name}:40,60"
            )
        if self.edges:
            ages = (value.replace(",", ".") for value in found)  # a decimal comma
            numbers = [_years(value) if AGE.fullmatch(value) else _number(value) for value in ages]
            places = [len(names) if n is None else int(np.searchsorted(self.edges, n, "right")) for n in numbers]
        else:
            known = {name: place for place, name in enumerate(names)}
            alike = {loose(name): place for place, name in reversed([*enumerate(names)])}
            places = [known.get(value, alike.get(loose(value), len(names))) for value in found]
        return names, np.array(places, dtype=np.int64)


def columns_of(text: str, known: Sequence[str]) -> list[str]:
    """What stands on a command line, ``sex:F,M,scanner,age:40,60``, column by column: behind a column with a colon,
    numbers belong to it, and behind one with other values all that is not the name of a column.

    Args:
        text: the words.
        known: the columns of the site.
    """
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        values = found[-1].partition(":")[2] if found else ""
        words = any(_number(value) is None for value in values.split(","))
        if values and ":" not in part and (_number(part) is not None or (words and part not in known)):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _years(age: str) -> float:
    """An age as DICOM writes it, such as 045Y or 018M, in years."""
    return int(age[:-1]) / A_YEAR[age[-1].upper()]


def held_back(
    split: Split | VolumeSplit,
    columns: Sequence[tuple[np.ndarray, int]],
    fewest: int,
    *,
    one_label: bool,
    told: bool,
) -> list[np.ndarray]:
    """Which numbers of the groups of some columns stay behind, so that none describes, or by subtraction gives away, 1
    to ``fewest`` - 1 people, neither from one column nor from several: of two columns, such as vendor and scanner, a
    group of one may be made of groups of the other.

    Args:
        split: of a site.
        columns: (M,) group of each image or volume, G for those in none, and G, of each column.
        fewest: people that a number may describe. An image without a patient counts as one.
        one_label: each sample has one class, so that the classes of a group add up.
        told: those in no group are told as a group of their own, the last one.

    Returns:
        (G + 1, C) bool of each column, the last row for those in none.

    Raises:
        FedMendError: more columns than can be looked at together.
    """
    if len(columns) > MOST_COLUMNS:
        raise FedMendError(f"subgroups: expected at most {MOST_COLUMNS} columns, got {len(columns)}")
    labels, persons = labels_of(split), persons_of(split)
    # Of everybody, as one class, and of each class those with it and those without it.
    everybody, by_class = _Cells(np.zeros((len(labels), 1)), persons, (0,)), _Cells(labels, persons, (0, 1))

    def complete(place: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        whole = _complete(everybody, place, np.asarray(hidden.all(1))[:, None], fewest, across=False)
        return _complete(by_class, place, hidden | whole, fewest, across=one_label)

    found = []
    for place, groups in columns:
        hidden = np.zeros((groups + 1, labels.shape[1]), dtype=bool)
        hidden[groups] = not told
        found.append(complete(place, hidden))
    places = [place for place, _ in columns]
    while True:
        before = [hidden.copy() for hidden in found]
        _part(everybody, places, found, fewest, whole=True)
        _part(by_class, places, found, fewest, whole=False)
        found = [complete(place, hidden) for (place, _), hidden in zip(columns, found, strict=True)]
        if all(np.array_equal(*pair) for pair in zip(before, found, strict=True)):
            return found


@dataclass(frozen=True)
class _Cells:
    """The people behind numbers.

    Attributes:
        labels: (M, C) of images or volumes.
        persons: (M,) their patients.
        values: the labels that are counted apart.
    """

    labels: np.ndarray
    persons: np.ndarray
    values: tuple[int, ...]

    def people(self, among: np.ndarray, c: int) -> np.ndarray:
        """Different ones with each value of a class; a patient may be in several groups."""
        parts = [among & (self.labels[:, c] == value) for value in self.values]
        return np.array([len(np.unique(self.persons[part])) for part in parts])

    def behind(self, place: np.ndarray, groups: int) -> np.ndarray:
        """(groups, C, values) int64 people of each cell."""
        cells = [[self.people(place == g, c) for c in range(self.labels.shape[1])] for g in range(groups)]
        return np.array(cells, dtype=np.int64)


def _complete(cells: _Cells, place: np.ndarray, hidden: np.ndarray, fewest: int, *, across: bool) -> np.ndarray:
    """Hides more cells until no sum of hidden ones is small.

    Args:
        cells: people behind numbers.
        place: (M,) groups.
        hidden: (G, C) bool, cells that are hidden in any case.
        fewest: people that a number may describe.
        across: the last number of the classes of a group adds up too.
    """
    behind = cells.behind(place, len(hidden))
    hidden = hidden | np.any((behind > 0) & (behind < fewest), axis=-1)
    positive = cells.labels == cells.values[-1]
    while True:
        before = hidden.copy()
        for c in range(hidden.shape[1]):
            _hide(behind[:, c], hidden[:, c], cells.people(hidden[place, c], c), fewest)
        for g in range(len(hidden)) if across else ():
            left = np.unique(cells.persons[(place == g) & positive[:, hidden[g]].any(1)])
            _hide(behind[g, :, -1:], hidden[g], np.array([len(left)]), fewest)
        if np.array_equal(before, hidden):
            return hidden


def _hide(numbers: np.ndarray, line: np.ndarray, left: np.ndarray, fewest: int) -> None:
    """Hides the smallest cell of a line, in place, where too few people are ``left`` behind its hidden ones."""
    shown = np.flatnonzero(~line & numbers.any(-1))
    if np.any((left > 0) & (left < fewest)) and len(shown):
        line[shown[numbers[shown].sum(-1).argmin()]] = True


def _part(
    cells: _Cells, places: Sequence[np.ndarray], hidden: Sequence[np.ndarray], fewest: int, *, whole: bool
) -> None:
    """Hides groups of the columns, in place, until none of the parts into which they divide each other is small and
    follows from what is told. ``whole``: a group is hidden with all of its classes."""
    for c in range(cells.labels.shape[1]):
        # Of a class views, which are changed in place.
        lines: list[np.ndarray] = [np.asarray(h.all(axis=1)) if whole else h[:, c] for h in hidden]
        for value in cells.values:
            inside = cells.labels[:, c] == value
            where, persons = [place[inside] for place in places], cells.persons[inside]
            while _small_part(where, lines, persons, fewest):
                sizes = [np.bincount(place, minlength=len(line)) for place, line in zip(where, lines, strict=True)]
                told = [
                    (size[g], i, g)
                    for i, (size, line) in enumerate(zip(sizes, lines, strict=True))
                    for g in np.flatnonzero(~line & (size > 0)).tolist()
                ]
                if not told:
                    break
                # The smallest group without which nothing follows, or else the smallest.
                ways = (
                    (i, g) for _, i, g in sorted(told) if not _small_part(where, _less(lines, i, g), persons, fewest)
                )
                column, group = next(ways, min(told)[1:])
                lines[column][group] = True
        if whole:
            for h, line in zip(hidden, lines, strict=True):
                h[line] = True


def _less(lines: Sequence[np.ndarray], column: int, group: int) -> list[np.ndarray]:
    """The lines with one more group hidden."""
    less = [line.copy() for line in lines]
    less[column][group] = True
    return less


def _small_part(places: Sequence[np.ndarray], lines: Sequence[np.ndarray], persons: np.ndarray, fewest: int) -> bool:
    """Whether a part of few people follows from what the columns tell together. What is hidden of a column is one rest,
    whose sum follows from the whole; a part, those whom groups of two or more columns have in common, follows if it is
    in the span of all sums."""
    if len(lines) < 2 or not len(persons):
        return False
    shown = np.stack([np.where(line[place], len(line), place) for line, place in zip(lines, places, strict=True)])
    cells, of = _different(shown)
    span = orth(np.concatenate([_indicators(row) for row in cells]).T.astype(float)).T
    for count in range(2, len(cells) + 1):
        for chosen in map(list, combinations(range(len(cells)), count)):
            parts, into = _different(cells[chosen])
            # A part is in the span if its projection is as long as itself.
            inside = np.stack([np.bincount(into, weights) for weights in span])
            follows = (inside**2).sum(axis=0) > np.bincount(into) - 1e-6
            people = np.bincount(_different(np.stack([into[of], persons]))[0][0])
            if np.any(follows & (people < fewest)):
                return True
            # What a group has besides the parts that follow.
            besides = (groups & ~follows for row in parts for groups in _indicators(row))
            if any(0 < len(np.unique(persons[one[into[of]]])) < fewest for one in besides):
                return True
    return False


def _different(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different columns (K, N) of a matrix (K, M), and (M,) which of them each one is."""
    found, of = np.unique(columns, axis=1, return_inverse=True)
    return found, of.ravel()


def _indicators(row: np.ndarray) -> np.ndarray:
    """(G, N) bool, one line for each value of (N,)."""
    return row == np.unique(row)[:, None]
