"""What the file of a variant says of its row in the paper's table: ``table`` in ``jobs/variants/<problem>/*.json``, and
for the job's own row in the job's ``variants/paper.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from fedmend.errors import FedMendError


@dataclass(frozen=True, kw_only=True)
class Entry:
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
        main: the job that stands for its problem; in the preset ``paper`` alone.
    """

    title: str
    order: int = 50
    simple: bool = False
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""
    protocol: str = ""
    main: bool = False


KEYS = tuple(f.name for f in fields(Entry))
TYPES = {"title": str, "order": int, "simple": bool, "published": dict, "note": str, "protocol": str, "main": bool}


def read_entry(content: object, where: str) -> Entry:
    """Checks what a file says.

    Args:
        content: the value of ``table``.
        where: first words of messages.

    Raises:
        FedMendError: other keys, or values of another kind.
    """
    if not isinstance(content, dict) or "title" not in content or set(content) - set(KEYS):
        raise FedMendError(f"{where}, table: expected a mapping with title and of {', '.join(KEYS[1:])}, got another")
    for name, value in content.items():
        if type(value) is not TYPES[name]:
            raise FedMendError(f"{where}, table, {name}: expected {TYPES[name].__name__}, got {value!r:.40}")
    for job, numbers in content.get("published", {}).items():
        if not isinstance(numbers, dict) or not all(map(_is_points, numbers.values())):
            raise FedMendError(f"{where}, table, published: expected points of 100 for {job}, got {numbers!r:.80}")
    return Entry(**content)


def _is_points(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100
