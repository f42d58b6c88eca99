"""The picture of a run as those who watch it get it: from a file or log of another party, so checked field by field."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedmend.basics.json_files import parse_json
from fedmend.errors import FedMendError
from fedmend.records.progress import COUNTS, FINISHED, PROGRESS, RUNS, STARTS, STOPPED

LARGEST = 2**20  # characters; a picture has a few thousand
LONGEST = 300  # characters of a text
MOST = 10_000  # entries of a list or object


@dataclass(frozen=True)
class Picture:
    """See :mod:`fedmend.records.progress`; texts have printable characters alone.

    Attributes:
        state: ``starts``, ``runs``, ``finished`` or ``stopped``.
        reason: why it stopped.
        run_name: name of the run; empty before the census is done, as are the next fields.
        method: its method.
        phantom: whether data are synthetic.
        unit: what a repair changes.
        num_rounds: R, 0 while it is unknown.
        done: rounds done.
        round: the round at work, from 1.
        stage: the paper's word.
        elapsed: seconds of this job when the last round was done.
        remaining: seconds that the others take, as estimated then; -1 before the first one is done.
        time: seconds since 1970 by the server's clock.
        split: split of the metrics.
        curves: metric → pairs of round and value.
        highest: metric → round and highest value of a trained model.
        repairs: class → count → number.
        sites: site → ``state``, last ``round``, ``samples``, ``seconds``, round of the last ``refused`` result, as far
            as known.
        decisions: the newest, with ``time``, ``round``, ``what``, ``value``.
    """

    state: str
    reason: str = ""
    run_name: str = ""
    method: str = ""
    phantom: bool = False
    unit: str = ""
    num_rounds: int = 0
    done: int = 0
    round: int = 0
    stage: str = ""
    elapsed: float = 0.0
    remaining: float = -1.0
    time: float = 0.0
    split: str = ""
    curves: Mapping[str, list] = field(default_factory=dict)
    highest: Mapping[str, tuple] = field(default_factory=dict)
    repairs: Mapping[str, Mapping] = field(default_factory=dict)
    sites: Mapping[str, Mapping] = field(default_factory=dict)
    decisions: tuple = ()

    @property
    def latest(self) -> str:
        """Split and last value of each metric, e.g. ``test AUC 0.734 mAP 0.250``; empty before there is one."""
        found = [f"{n.upper() if n != 'map' else 'mAP'} {p[-1][1]:.3f}" for n, p in self.curves.items() if p]
        return " ".join([self.split, *found]) if found else ""


def read_picture(text: str) -> Picture:
    """Reads what :class:`fedmend.records.progress.Progress` wrote.

    Args:
        text: JSON.

    Raises:
        FedMendError: it is not a picture; names the first field that is wrong.
    """
    try:
        found = parse_json(text) if len(text) <= LARGEST else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise FedMendError(f"{PROGRESS}: expected the picture of a run, got text that does not read as one")
    values = {}
    for name, (check, expected) in FIELDS.items():
        if name in found:
            try:
                values[name] = check(found[name])
            except (ValueError, TypeError, KeyError):
                raise FedMendError(f"{PROGRESS}, field {name}: expected {expected}, got another value") from None
    if "state" not in values:
        raise FedMendError(f"{PROGRESS}, field state: expected, not found")
    return Picture(**values)


def clean(text: object) -> str:
    """A text that cannot steer a terminal: whatever is not printable becomes a question mark; cut where it is long."""
    shown = "".join(c if c.isprintable() else "?" for c in _of(str)(text))
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _of(kind: type) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ValueError
        return value

    return check


def _count(value: object) -> int:
    if not 0 <= _of(int)(value) < 2**53:
        raise ValueError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)) or abs(float(value)) > 2**53:
        raise ValueError
    return float(value)


def _state(value: object) -> str:
    if value not in (STARTS, RUNS, FINISHED, STOPPED):
        raise ValueError
    return value


def _point(value: object) -> tuple[int, float]:
    r, v = _of(list)(value)
    return _count(r), _number(v)


def _list(check: Callable) -> Callable[[object], tuple]:
    return lambda value: tuple(check(entry) for entry in _of(list)(value)[:MOST])


def _table(check: Callable) -> Callable[[object], dict]:
    return lambda value: {clean(k): check(v) for k, v in list(_of(dict)(value).items())[:MOST]}


def _record(**checks: Callable) -> Callable[[object], dict]:
    return lambda value: {k: check(value[k]) for k, check in checks.items() if k in _of(dict)(value)}


def _maybe(check: Callable) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


_SITE = _record(state=clean, round=_count, samples=_count, seconds=_number, refused=_count)
_DECISION = _record(time=clean, round=_maybe(_count), what=clean, value=clean)
FIELDS = {
    "state": (_state, f"one of {STARTS}, {RUNS}, {FINISHED}, {STOPPED}"),
    **dict.fromkeys(("reason", "run_name", "method", "unit", "stage", "split"), (clean, "a text")),
    "phantom": (_of(bool), "true or false"),
    **dict.fromkeys(("num_rounds", "done", "round"), (_count, "a whole number")),
    **dict.fromkeys(("elapsed", "remaining", "time"), (_number, "a number")),
    "curves": (_table(_list(_point)), "metrics with pairs of round and value"),
    "highest": (_table(_point), "metrics with a round and a value"),
    "repairs": (_table(_record(**dict.fromkeys(COUNTS, _count))), "classes with whole numbers"),
    "sites": (_table(_SITE), "sites with their state"),
    "decisions": (_list(_DECISION), "a list of decisions"),
}
