"""A job's ``tables.json``: the levels and the other tables of its paper, with the numbers printed there; and sweeps."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmend.basics.checked import OBJECT, TEXT, checked, taking
from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError
from fl_components.job.settings import parse_assignments

FILE = "tables.json"
DETECTION = "detection"  # the table of rules that find noisy sites, see fl_components.compare.detection
PAPER = "paper"  # the main table, whose rows are those of the variants, and the levels of it


@dataclass(frozen=True)
class Level:
    """Runs of all rows with the same further settings: a column of a table.

    Attributes:
        title: for people.
        settings: setting → value.
    """

    title: str
    settings: Mapping[str, object]

    @property
    def words(self) -> list[str]:
        """As for ``--set``."""
        return [f"{name}={json.dumps(value)}" for name, value in self.settings.items()]

    @property
    def folder(self) -> str:
        """Name of the folder of its runs: the words of the title. Titles with other signs between them than blanks,
        commas and ``=``, such as a minus, may share their words, so a digest follows."""
        name = re.sub(r"[^\w.]+", "-", self.title).strip("-.") or "level"
        if re.fullmatch(r"[\w., =]*\w", self.title):
            return name
        return f"{name}-{hashlib.sha256(self.title.encode()).hexdigest()[:6]}"


@dataclass(frozen=True, kw_only=True)
class JobTable:
    """One table of a paper.

    Attributes:
        protocol: where the published numbers are from; "": there are none.
        rows: variant, or the job's own method → title; empty: the rows of the main table.
        set: settings of all rows.
        notes: row → why it trains otherwise than the others, by design; as in a variant's own entry.
        level: title of the level at which these settings are; "": none.
        published: row → title of a level, "" where the job has none → metric → points of 100.
    """

    protocol: str = taking(TEXT, default="")
    rows: Mapping[str, str] = taking(OBJECT, default_factory=dict)
    set: Mapping[str, object] = taking(OBJECT, default_factory=dict)
    notes: Mapping[str, str] = taking(OBJECT, default_factory=dict)
    level: str = taking(TEXT, default="")
    published: Mapping[str, Mapping[str, Mapping[str, float]]] = taking(OBJECT, default_factory=dict)

    def numbers(self, row: str, level: str) -> Mapping[str, float]:
        """Published ones of a row at a level; "": the job's own, with the settings of the table."""
        return self.published.get(row, {}).get(level or self.level, {})


@dataclass(frozen=True, kw_only=True)
class ClassNumbers:
    """The paper's numbers class by class.

    Attributes:
        protocol: where they are from; "": there are none.
        published: row → class → points of 100.
    """

    protocol: str = taking(TEXT, default="")
    published: Mapping[str, Mapping[str, float]] = taking(OBJECT, default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DetectionNumbers:
    """The paper's table of rules that find noisy sites.

    Attributes:
        protocol: where the published numbers are from; "": there are none.
        rows: variant → what its rule is called, or "" where it tries many; the first one has all settings.
        set: settings of all rows.
        level: title of the level at which these settings are; "": none.
        published: rule → title of a level → measure of
            :data:`fedmend.comparison.detection_table.MEASURES` → points of 100.
    """

    protocol: str = taking(TEXT, default="")
    rows: Mapping[str, str] = taking(OBJECT, default_factory=dict)
    set: Mapping[str, object] = taking(OBJECT, default_factory=dict)
    level: str = taking(TEXT, default="")
    published: Mapping[str, Mapping[str, Mapping[str, float]]] = taking(OBJECT, default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobTables:
    """Content of ``tables.json``.

    Attributes:
        levels: name → title of a level → its settings.
        tables: name → table.
        detection: the table of rules that find noisy sites; without rows the job has none.
        per_class: the paper's numbers class by class.
    """

    levels: Mapping[str, Mapping[str, Mapping[str, object]]] = taking(OBJECT, default_factory=dict)
    tables: Mapping[str, Mapping] = taking(OBJECT, default_factory=dict)
    detection: DetectionNumbers = taking(DetectionNumbers, default_factory=DetectionNumbers)
    per_class: ClassNumbers = taking(ClassNumbers, default_factory=ClassNumbers)

    def chosen(self, name: str) -> list[Level]:
        """The levels of a name, in the order of the file.

        Raises:
            FedMendError: the job has none of this name.
        """
        if name not in self.levels:
            raise FedMendError(f"--levels: expected one of {sorted(self.levels)} of this job, got {name!r}")
        return [Level(title, settings) for title, settings in self.levels[name].items()]

    def table(self, name: str) -> JobTable:
        """A table by its name; the main one need not be in the file.

        Raises:
            FedMendError: the job has none of this name.
        """
        known = {PAPER, *self.tables, *([DETECTION] if self.detection.rows else [])}
        if name not in known:
            raise FedMendError(f"--table: expected one of {sorted(known)} of this job, got {name!r}")
        return checked(JobTable, self.tables.get(name, {}), f"{FILE}, table {name}")


def read_tables(job: Path) -> JobTables:
    """What the ``tables.json`` of a job says; a job may have none.

    Raises:
        FedMendError: it does not parse, or has keys or values of another kind.
    """
    file = job / FILE
    return checked(JobTables, read_document(file, FILE, "in the job") if file.is_file() else {}, FILE)


def swept(text: str) -> list[Level]:
    """``NAME=v1,v2,...`` as levels, one for each value.

    Raises:
        FedMendError: no such words, or a value twice.
    """
    name, equals, values = text.partition("=")
    words = values.split(",")
    if not (name and equals and all(words)) or len(set(words)) < len(words):
        raise FedMendError(f"--sweep: expected NAME=VALUE,VALUE,... with different values, got {text!r}")
    return [Level(f"{name}={word}", parse_assignments([f"{name}={word}"])) for word in words]


def level_words(level: Level | None, table: JobTable | DetectionNumbers) -> Sequence[str]:
    """Settings of the rows of a table at a level, as for ``--set``."""
    return Level("", {**table.set, **(level.settings if level else {})}).words
