"""Packages evaluated at the sites of a federation: the job that trains nothing.

A site counts what a model says of its splits, as in every round of a training, and where it lets them, of subgroups. A
subgroup's counts that describe few people, or would give such counts away, stay there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from fedmend.data.site import EVALUATION_SPLITS
from fedmend.errors import FedMendError, check_variables
from fedmend.evaluation.groups import Column, held_back
from fedmend.evaluation.held_out import column_of, persons_of, unit_of
from fedmend.fields import GROUP_COUNTS, GROUP_PEOPLE, Field, Report
from fedmend.kinds import kind_of
from fedmend.labels import KIND_NAMES
from fedmend.method import Federation, LocalMethod, Round, RoundTask, Site, Workflow

MOST_BYTES = 960 * 1024  # of the counts of all subgroups; a site's guard lets 1 MB leave
OPTED_IN = "evaluate_by"


def columns_of_job(subgroups: Sequence[str], split: str) -> list[Column]:
    """The columns that a job names, each with fixed groups: the sites tell no value of their tables.

    Args:
        subgroups: such as ``sex:F,M`` and ``age:40,60``.
        split: the split that is counted.

    Raises:
        FedMendError: a column without values or bands, or one that is named twice.
    """
    check_variables(split in EVALUATION_SPLITS, f"one of {list(EVALUATION_SPLITS)}", split=split)
    listed = isinstance(subgroups, Sequence) and all(isinstance(words, str) for words in subgroups)
    check_variables(listed, "a list such as ['sex:F,M', 'age:40,60']", subgroups=subgroups)
    columns = [Column.of(words) for words in subgroups]
    if not all(column.fixed for column in columns) or len({column.name for column in columns}) < len(columns):
        raise FedMendError(
            f"job variable subgroups: expected each column once, with values or bands behind it, got {list(subgroups)}"
        )
    return columns


class NoTraining(Round):
    """A round of a training, which a job that evaluates has none of."""

    def loss(self, index: Tensor) -> Tensor:
        """Refuses to train on the samples ``index`` (B,).

        Raises:
            FedMendError: always.
        """
        raise FedMendError(f"{self.site.name}: expected to be asked for an evaluation, got a round of a training")


@dataclass(kw_only=True, eq=False)
class EvaluateModels(LocalMethod):
    """Client half.

    Attributes:
        subgroups: columns with their groups, such as ``sex:F,M`` and ``age:40,60``.
        split: the split that subgroups are of, ``val`` or ``test``.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = {
        GROUP_COUNTS: Field(
            ("G", "C", "K"),
            "int64",
            0,
            1e12,
            "per subgroup that the job names and class: what `counts` holds, of the samples in the subgroup",
            "exact scores of a small subgroup; those of few people, and what would give them away, stay at the site",
            counted_by=GROUP_PEOPLE,
            allowed_by=OPTED_IN,
        ),
        GROUP_PEOPLE: Field(
            ("G",),
            "int64",
            0,
            1e9,
            "per subgroup: people, or images where no patient is known",
            "how many people of a site are in a subgroup",
            allowed_by=OPTED_IN,
        ),
    }
    KINDS: ClassVar[tuple[str, ...]] = KIND_NAMES
    ROUND: ClassVar[type[Round]] = NoTraining

    subgroups: Sequence[str] = ()
    split: str = "test"

    def __post_init__(self) -> None:
        self._columns = columns_of_job(self.subgroups, self.split)

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """The counts of the subgroups whose columns the site lets be counted; zeros of the others.

        Raises:
            FedMendError: a column that the table lacks, or more subgroups than a message holds.
        """
        split, wanted = site.data.evaluation.get(self.split), {c.name for c in self._columns} & {*site.evaluate_by}
        if split is None or not wanted:
            return {}
        kind = kind_of(site.data.kind)
        scored = kind.scored(model, split, site)
        rows, people, columns = [], [], []
        for column in self._columns:
            names = column.fixed
            place = np.full(len(persons_of(split)), len(names))
            if column.name in wanted:
                _, place = column.groups(column_of(split, column.name, site.name))
            columns.append((place, len(names)))
        kept = held_back(split, columns, site.min_count, one_label=kind.one_label, told=False)
        for (place, groups), hidden in zip(columns, kept, strict=True):
            for group in range(groups):
                among = place == group
                counts = kind.count(scored, split, among[unit_of(split)])
                counts[hidden[group]] = 0
                rows.append(counts.reshape(len(counts), -1))
                people.append(0 if hidden[group].all() else len(np.unique(persons_of(split)[among])))
        found = np.stack(rows).astype(np.int64)
        if found.nbytes > MOST_BYTES:
            most = MOST_BYTES // (found.nbytes // len(rows))
            raise FedMendError(f"job variable subgroups: expected at most {most} groups, got {len(rows)}")
        return {GROUP_COUNTS: found, GROUP_PEOPLE: np.array(people, dtype=np.int64)}


@dataclass(frozen=True)
class Packages:
    """What the sites are asked to evaluate.

    Attributes:
        names: model packages below the server's ``weights_dir``.
        groups: names of the G subgroups whose counts a site may report.
        split: the split that these are of.
    """

    names: tuple[str, ...]
    groups: tuple[str, ...]
    split: str


@dataclass(kw_only=True, eq=False)
class ModelEvaluation(Workflow):
    """Server half.

    Attributes:
        packages: model packages below the server's ``weights_dir``.
        subgroups: as at the sites.
        split: as at the sites.
    """

    METHOD: ClassVar[type[LocalMethod]] = EvaluateModels
    trains: ClassVar[bool] = False

    packages: Sequence[str] = ()
    subgroups: Sequence[str] = ()
    split: str = "test"

    def __post_init__(self) -> None:
        columns = columns_of_job(self.subgroups, self.split)
        listed = isinstance(self.packages, Sequence) and not isinstance(self.packages, str)
        named = listed and self.packages and all(isinstance(p, str) and p for p in self.packages)
        different = named and len({*self.packages}) == len(self.packages)
        check_variables(bool(different), "a list of different packages", packages=self.packages)
        groups = tuple(f"{column.name} {name}" for column in columns for name in column.fixed)
        self.evaluation = Packages(tuple(self.packages), groups, self.split)

    def run(self, fed: Federation) -> None:
        """Every package, one after the other."""
        for package in self.packages:
            fed.collect(package)
