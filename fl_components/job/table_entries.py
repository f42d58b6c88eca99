"""What the file of a variant says of its row in the paper's table: ``table`` in ``jobs/variants/<problem>/*.json``, and
for the job's own row in the job's ``variants/paper.json``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedmend.basics.checked import COUNT, FLAG, OBJECT, TEXT, taking, that


def _is_points(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100


PUBLISHED = that(
    lambda jobs: all(all(map(_is_points, numbers.values())) for numbers in jobs.values()),
    "points of 100 by job and metric",
)


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """A row of the paper's table.

    Attributes:
        title: as in the paper.
        order: rows stand in this order, those of one number by their titles.
        simple: one of the simple baselines, the best of which the other rows are compared with.
        published: job → metric → what the paper printed, in points of 100. A metric is a key of ``metrics.jsonl``;
            ``_last`` and ``_best`` at its end name the mean of the last ten rounds and the highest value of all.
        note: why the row trains otherwise than the others, by design; a footnote of the table.
        protocol: which of the paper's tables and settings the published numbers of all rows are from; in the preset
            ``paper`` alone.
        primary: the measure that a claim about the job stands on, a key as in ``published``; in the preset ``paper``
            alone.
        main: the job that stands for its problem; in the preset ``paper`` alone.
    """

    title: str = taking(TEXT)
    order: int = taking(COUNT, default=50)
    simple: bool = taking(FLAG, default=False)
    published: Mapping[str, Mapping[str, float]] = taking(OBJECT, PUBLISHED, default_factory=dict)
    note: str = taking(TEXT, default="")
    protocol: str = taking(TEXT, default="")
    primary: str = taking(TEXT, default="")
    main: bool = taking(FLAG, default=False)
