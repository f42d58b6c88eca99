"""Fields: the one description of every array that leaves a site, or is sent to one, besides the weights.

The site's policy (ReportGuard), the checks of the server and the table for the data-protection officer all come from
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmend.errors import FedMendError

Report = Mapping[str, np.ndarray]
GROUP_COUNTS, GROUP_PEOPLE = "group_counts", "group_people"  # fields of an evaluation
# What a mean over enough samples still tells: weights can be made so that a feature fires for one image alone.
OF_MEANS = "a mean over at least min_count samples; a server with weights made for it reads a single patient from it"
OF_PRIVACY = "privacy"  # by which fields are allowed that are sums with the noise of differential privacy
UNBOUNDED = 1e9  # no honest number of a report comes near it
LARGEST = {"C": 1000, "R": 1001, "F": 8192, "G": 100, "K": 3000}  # letter → largest size of any run


@dataclass(frozen=True)
class Field:
    """One array that may leave a site or be sent to one; the only description of it anywhere.

    Attributes:
        shape: whole numbers, and letters of the run with an optional factor in front, e.g. ``("2C", "F")``. C is the
            number of classes, R that of the rows of labels (the classes; for masks also the background), F the length
            of a feature, G the number of subgroups of an evaluation, K that of counts of one class.
        dtype: numpy's word.
        low: smallest value.
        high: largest value.
        meaning: what it is, in one line for the data-protection officer.
        risk: what it could give away, likewise.
        counted_by: the field with the number of samples behind each row; rows with fewer than ``min_count`` stay at the
            site.
        of_samples: each number counts training samples, so that none may be above their number N.
        allowed_by: the setting of the site's ``fedmend.json`` without which the field stays at the site; "": none.
    """

    shape: tuple[str | int, ...]
    dtype: str
    low: float
    high: float
    meaning: str
    risk: str
    counted_by: str = ""
    of_samples: bool = False
    allowed_by: str = ""

    def numbers(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in a run whose letters have these ``sizes``."""
        parts = ((1, part) if isinstance(part, int) else _letter(part) for part in self.shape)
        return tuple(factor * (size if isinstance(size, int) else sizes[size]) for factor, size in parts)

    def check(self, value: object, sizes: Mapping[str, int], where: str) -> None:
        """Refuses a value that does not fit.

        Args:
            value: what was sent.
            sizes: letter → number; N, where it is known, the training samples.
            where: first words of the sentence.

        Raises:
            FedMendError: another type, dtype or shape, or a number that is not finite or out of range.
        """
        shape, dtype = self.numbers(sizes), np.dtype(self.dtype)
        if not isinstance(value, np.ndarray | np.generic):
            raise FedMendError(f"{where}: expected {dtype} of shape {shape}, got {type(value).__name__}")
        if (value.dtype, value.shape) != (dtype, shape):
            raise FedMendError(f"{where}: expected {dtype} of shape {shape}, got {value.dtype} of shape {value.shape}")
        if not np.isfinite(value).all():
            raise FedMendError(f"{where}: expected finite numbers, got NaN or infinity")
        low, high = (float(np.min(value)), float(np.max(value))) if value.size else (self.low, self.high)
        most = min(self.high, sizes.get("N", self.high)) if self.of_samples else self.high
        if low < self.low or high > most:
            raise FedMendError(f"{where}: expected numbers from {self.low:g} to {most:g}, got {low:g} to {high:g}")


def _letter(part: str) -> tuple[int, str]:
    return int(part[:-1] or 1), part[-1]


def sizes_of(
    values: Mapping[str, np.ndarray], known: Mapping[str, Field], sizes: Mapping[str, int], where: str
) -> dict[str, int]:
    """The sizes of letters as arrays have them, for those who do not know the run.

    Args:
        values: name → array, all names ``known``.
        known: the description.
        sizes: letters that are known.
        where: first words of the sentence.

    Returns:
        Letter → number: the known ones, and each other one as the first array has it.

    Raises:
        FedMendError: another number of axes, or a size that no run has.
    """
    found = dict(sizes)
    for name, value in values.items():
        shape = known[name].shape
        if value.ndim != len(shape):
            raise FedMendError(f"{where} {name}: expected {len(shape)} axes, got {value.ndim}")
        for part, length in zip(shape, value.shape, strict=True):
            if isinstance(part, str):
                factor, letter = _letter(part)
                found.setdefault(letter, length // factor)
                if found[letter] > LARGEST[letter]:
                    raise FedMendError(f"{where} {name}: expected {letter} up to {LARGEST[letter]}, got more")
    if "C" in sizes and found.get("R", sizes["C"]) - sizes["C"] not in (0, 1):
        raise FedMendError(f"{where}: expected a row for each of {sizes['C']} classes, got {found['R']}")
    return found


def check_fields(
    values: Mapping[str, object], known: Mapping[str, Field], sizes: Mapping[str, int], where: str
) -> None:
    """Refuses arrays that are not described or do not fit their description.

    Args:
        values: name → array.
        known: the description.
        sizes: letter → number.
        where: first words of the sentence.

    Raises:
        FedMendError: names the first field that is unknown or does not fit.
    """
    for name, value in values.items():
        shown = ascii(f"{name!s:.40}")[1:-1]  # a name that somebody else chose must not forge lines of a log
        if name not in known:
            raise FedMendError(f"{where} {shown}: expected one of {sorted(known)}, got another")
        known[name].check(value, sizes, f"{where} {shown}")


def hold_back(
    report: Report, counts: Mapping[str, str], min_count: int
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Sets rows that describe too few samples to zero, and every count of too few samples, with its row or without.

    Args:
        report: name → array.
        counts: field → the field with the number of samples behind each of its rows.
        min_count: fewest samples behind a row.

    Returns:
        What may leave, and the number of rows held back by field.

    Raises:
        FedMendError: a field without a count for each of its rows.
    """
    told, held = dict(report), {}
    for counted_by in {*counts.values()} & set(told):  # a small count tells as much without its rows
        number = np.asarray(told[counted_by])
        told[counted_by] = np.where(number >= min_count, number, 0).astype(number.dtype)
    for name, counted_by in counts.items():
        if name not in told:
            continue
        rows, number = np.asarray(told[name]), np.asarray(report.get(counted_by, ()))
        if number.shape != rows.shape[:1]:
            raise FedMendError(f"expected {counted_by} with one count per row of {name}")
        enough = number >= min_count
        told[name] = np.where(enough.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0).astype(rows.dtype)
        if few := int((~enough & (number > 0)).sum()):
            held[name] = few
    return told, held


def counted(fields: Mapping[str, Field]) -> dict[str, str]:
    """Field → the field that counts the samples behind its rows, of those that have one."""
    return {name: field.counted_by for name, field in sorted(fields.items()) if field.counted_by}
