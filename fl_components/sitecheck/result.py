"""What one check found."""

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        status: ``ok``, ``warn``, ``fail`` or ``skip``.
        text: what was expected and found.
        details: further lines.
    """

    status: str
    text: str
    details: Sequence[str] = ()
