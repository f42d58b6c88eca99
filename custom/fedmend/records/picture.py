"""The picture of a run as those who watch it get it: from a file or log of another party, so checked field by field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedmend.basics.checked import COUNT, FLAG, OBJECT, TEXT, Check, checked, number, one_of, taking, that
from fedmend.basics.json_files import parse_json
from fedmend.basics.page import short_name
from fedmend.errors import FedMendError
from fedmend.records.progress import COUNTS, FINISHED, PROGRESS, RUNS, STARTS, STOPPED

LARGEST = 2**20  # characters; a picture has a few thousand
LONGEST = 300  # characters of a text
MOST = 10_000  # entries of a list or object


def clean(text: object) -> str:
    """A text that cannot steer a terminal: whatever is not printable becomes a question mark; cut where it is long."""
    shown = "".join(c if c.isprintable() else "?" for c in TEXT.read(text))
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _many(read: Callable) -> Callable[[list], tuple]:
    return lambda value: tuple(read(entry) for entry in LIST.read(value)[:MOST])


def _by_name(read: Callable) -> Callable[[dict], dict]:
    return lambda value: {clean(name): read(v) for name, v in list(OBJECT.read(value).items())[:MOST]}


def _record(**reads: Callable) -> Callable[[dict], dict]:
    return lambda value: {name: read(value[name]) for name, read in reads.items() if name in OBJECT.read(value)}


def _point(value: list) -> tuple[int, float]:
    r, v = LIST.read(value)
    return COUNT.read(r), NUMBER.read(v)


def _round(value: int | None) -> int | None:
    return None if value is None else COUNT.read(value)


NUMBER, LIST, WORDS = number(), that(lambda value: isinstance(value, list), "a list"), Check(clean, "a text")
_WHOLE = dict.fromkeys(("round", "samples", "refused"), COUNT.read)
_SITE = _record(state=clean, seconds=NUMBER.read, value=NUMBER.read, **_WHOLE)
_DECISION = _record(time=clean, round=_round, what=clean, value=clean)
CURVES = Check(_by_name(_many(_point)), "metrics with pairs of round and value")
HIGHEST = Check(_by_name(_point), "metrics with a round and a value")
REPAIRS = Check(_by_name(_record(**dict.fromkeys(COUNTS, COUNT.read))), "classes with whole numbers")
SITES = Check(_by_name(_SITE), "sites with their state")
DECISIONS = Check(_many(_DECISION), "a list of decisions")


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
            as known, and ``value`` of the main metric there.
        metric: the main metric; empty before it is measured.
        decisions: the newest, with ``time``, ``round``, ``what``, ``value``.
    """

    state: str = taking(one_of((STARTS, RUNS, FINISHED, STOPPED)))
    reason: str = taking(WORDS, default="")
    run_name: str = taking(WORDS, default="")
    method: str = taking(WORDS, default="")
    phantom: bool = taking(FLAG, default=False)
    unit: str = taking(WORDS, default="")
    num_rounds: int = taking(COUNT, default=0)
    done: int = taking(COUNT, default=0)
    round: int = taking(COUNT, default=0)
    stage: str = taking(WORDS, default="")
    elapsed: float = taking(NUMBER, default=0.0)
    remaining: float = taking(NUMBER, default=-1.0)
    time: float = taking(NUMBER, default=0.0)
    split: str = taking(WORDS, default="")
    curves: Mapping[str, list] = taking(CURVES, default_factory=dict)
    highest: Mapping[str, tuple] = taking(HIGHEST, default_factory=dict)
    repairs: Mapping[str, Mapping] = taking(REPAIRS, default_factory=dict)
    sites: Mapping[str, Mapping] = taking(SITES, default_factory=dict)
    metric: str = taking(WORDS, default="")
    decisions: tuple = taking(DECISIONS, default=())

    @property
    def latest(self) -> str:
        """Split and last value of each metric, e.g. ``test AUC 0.734 mAP 0.250``; empty before there is one."""
        found = [f"{short_name(n)} {p[-1][1]:.3f}" for n, p in self.curves.items() if p]
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
    return checked(Picture, found, PROGRESS, others=True)
