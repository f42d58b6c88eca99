"""What people see of a run while it goes on: one small picture, replaced whenever something happens.

The picture has nothing that the records of the run do not have; ``fedmend watch`` draws it.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fedmend.basics.page import compact
from fedmend.errors import FedMendError

PROGRESS = "progress.json"
STARTS, RUNS, FINISHED, STOPPED = "starts", "runs", "finished", "stopped"
DOING = {
    "census": "checking data",
    "train": "training",
    "collect": "reporting",
    "evaluate": "evaluating",
    "keep": "receiving the model",
}
ANSWERED, REFUSED, LEFT_OUT = "answered", "refused", "left out"
ASIDE = ("ece", "bacc_val")  # metrics for records and report alone
MOST_POINTS = 60  # of a curve, as wide as a terminal shows it
LAST_DECISIONS = 6
COUNTS = ("positive", "negative", "untagged", "correct_positive", "correct_negative")
PAUSE = 3.0  # seconds between two pictures that are shown, and tell of single sites only
PAUSE_PER_SITE = 2e-5  # the same between two that are written: one of 10,000 sites takes about 15 ms


class Progress:
    """Keeps the picture of one run. A disk that cannot take it stops no run.

    Args:
        folder: the run folder; made when missing.
        show: takes the picture for those who cannot read that folder.

    Used as a context manager around the run, whose end it notes: finished, or stopped and why.
    """

    def __init__(self, folder: Path, show: Callable[[Mapping], None]):
        self._folder, self._show, self._shown, self._written = Path(folder), show, float("-inf"), float("-inf")
        self._sites: dict[str, dict] = {}
        self._picture: dict = {"state": STARTS, "sites": self._sites}
        self._asked = time.monotonic()

    def __enter__(self) -> "Progress":
        self.tell()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.tell(state=FINISHED)
        else:
            # What other errors say may name files.
            self.tell(state=STOPPED, reason=str(error) if isinstance(error, FedMendError) else type(error).__name__)

    def begin(self, described: Mapping, unit: str) -> None:
        """The census is done.

        Args:
            described: content of ``run.json``.
            unit: what a repair changes.
        """
        for name, site in described["sites"].items():
            self._sites.setdefault(name, {})["samples"] = site["train"]
        for name in described["settings"].get("without", ()):
            self._sites.setdefault(name, {"state": LEFT_OUT})
        told = {k: described[k] for k in ("run_name", "method", "phantom", "num_rounds", "classes")}
        self.tell(state=RUNS, unit=unit, **told)

    def asked(self, question: str, stage: str, round_num: int, sites: Collection[str]) -> None:
        """A question goes out.

        Args:
            question: one of :data:`fedmend.messages.QUESTIONS`.
            stage: the paper's word.
            round_num: the round, from 0.
            sites: whom it goes to.
        """
        self._asked = time.monotonic()
        for site in sites:
            self._sites.setdefault(site, {}).update(state=DOING[question])
        self.tell(stage=stage, round=round_num + 1)

    def answered(self, site: str, question: str) -> None:
        """An answer has come; whether it counts is seen when all have."""
        found = self._sites[site]
        found.update(state=ANSWERED)
        if question == "train":
            found.update(round=self._picture["round"], seconds=round(time.monotonic() - self._asked, 1))
        self._write(urgent=False)

    def refused(self, site: str) -> None:
        """What a site sent does not count, or nothing came."""
        self._sites.setdefault(site, {}).update(state=REFUSED, refused=self._picture["round"])

    def measured(self, metric: str, values: Mapping[str, float | None]) -> None:
        """The received model at single sites.

        Args:
            metric: name of the main metric.
            values: site → its value there, None where nothing is measured.
        """
        for site, value in values.items():
            if value is not None:
                self._sites[site]["value"] = round(value, 4)
        self._picture["metric"] = metric

    def tell(self, **facts: object) -> None:
        """Puts facts into the picture and shows it."""
        self._picture |= facts
        self._write(urgent=True)

    def _write(self, *, urgent: bool) -> None:
        now = time.monotonic()
        if not urgent and now - self._written < PAUSE_PER_SITE * len(self._sites):
            return  # the next one tells of it
        self._written = now
        self._picture["time"] = round(time.time(), 1)
        file = self._folder / PROGRESS
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f".{PROGRESS}")
            part.write_text(json.dumps(self._picture), encoding="utf-8")
            os.replace(part, file)  # not synced: after a power failure there is nothing to watch
        if urgent or now - self._shown >= PAUSE:
            self._shown = now
            self._show(self._picture)


def curves(metrics: Sequence[Mapping]) -> dict:
    """The main metrics of a run over its rounds.

    Args:
        metrics: lines of ``metrics.jsonl``.

    Returns:
        ``split`` that they are of, test where there is one; ``curves``: name → at most ``MOST_POINTS`` pairs of round
        and value, the last one among them, and ``highest``: name → round and highest value of a trained model.
    """
    splits = {m["split"] for m in metrics}
    split = "test" if "test" in splits else min(splits, default="")
    found: dict[str, dict[int, float]] = {}
    for line in metrics:
        for name, value in line["macro"].items() if line["split"] == split else ():
            if value is not None and name not in ASIDE:
                found.setdefault(name, {})[line["round"]] = value  # a repeated round replaces its own
    trained = {name: [(r, v) for r, v in points.items() if r > 0] for name, points in found.items()}
    highest = {name: max(points, key=lambda point: point[1]) for name, points in trained.items() if points}
    thinned = {name: _thinned(sorted(points.items())) for name, points in found.items()}
    return {"split": split, "curves": thinned, "highest": highest}


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    step = -(-len(points) // MOST_POINTS)
    return [(r, round(value, 4)) for r, value in list(points)[::-1][::step][::-1]]


def repaired(repairs: Sequence[Mapping], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Class → how much is repaired of it, over all sites after the last round of each.

    Args:
        repairs: lines of ``repairs.jsonl``, all or the last ones; a count that a site does not know, as of right
            repairs, is left out.
        classes: names, in the order of the result.
    """
    latest = {(line["site"], line["class"]): line for line in repairs}
    lines = {c: [line for (_, name), line in latest.items() if name == c] for c in classes}
    return {
        c: {k: sum(line[k] for line in found) for k in COUNTS if all(line.get(k) is not None for line in found)}
        for c, found in lines.items()
        if found
    }


def last_decisions(decisions: Sequence[Mapping]) -> list[dict]:
    """The newest decisions: time, round, what, and the value in 300 characters."""
    return [
        {"time": d["time"], "round": d["round"], "what": d["what"], "value": compact(d["value"])}
        for d in decisions[-LAST_DECISIONS:]
    ]
