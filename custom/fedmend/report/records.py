"""What the server writes into the run folder while a job runs; :mod:`fedmend.report.run_folder` reads it back."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmend.files import write_text
from fedmend.report.run_folder import DECISIONS, METRICS, REPAIRS, RESULTS, RUN


class RunRecords:
    """Collects the records of a run; files are rewritten whole, so a reader never sees half a line.

    Args:
        folder: the run folder; made when missing.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lines: dict[str, list[dict]] = {METRICS: [], REPAIRS: [], DECISIONS: []}
        self._latest: dict[tuple[str, str], dict] = {}  # (site, class) → its last line of repairs

    @property
    def decisions(self) -> list[dict]:
        """The decisions so far."""
        return self._lines[DECISIONS]

    @property
    def metric_lines(self) -> list[dict]:
        """The metrics so far."""
        return self._lines[METRICS]

    @property
    def latest_repairs(self) -> list[dict]:
        """The last counts of repairs of each site and class."""
        return list(self._latest.values())

    def start(self, description: Mapping) -> None:
        """Writes ``run.json``."""
        self._write_text(RUN, json.dumps(description, indent=2))
        self.write()

    def decision(self, what: str, value, round_num: int | None = None) -> None:
        """One decision of the server, written at once."""
        now = datetime.datetime.now().isoformat(timespec="seconds")
        self._lines[DECISIONS].append({"time": now, "round": round_num, "what": what, "value": value})
        self._write_lines(DECISIONS)

    def metrics(self, round_num: int, stage: str, split: str, merged: Mapping, seconds: float) -> None:
        """Metrics of the global model after ``round_num`` rounds on one split."""
        line = {"round": round_num, "stage": stage, "split": split, **merged, "seconds": round(seconds, 2)}
        self._lines[METRICS].append(line)

    def repairs(
        self, round_num: int, site: str, classes: Sequence[str], annotated: np.ndarray, counts: Mapping[str, np.ndarray]
    ) -> None:
        """Repaired labels of a site, one line per class that the site does not annotate.

        Args:
            round_num: rounds done.
            site: its name.
            classes: C names.
            annotated: (C,) bool, classes without a line.
            counts: count → (C,) numbers.
        """
        for index in np.flatnonzero(~annotated):
            now = {name: int(values[index]) for name, values in counts.items()}
            before = self._latest.get((site, classes[index]))
            if before is not None and before["round"] == round_num:
                continue  # the final evaluation repairs nothing
            new = {f"new_{k}": now[k] - (before[k] if before else 0) for k in ("positive", "negative")}
            unknown = dict.fromkeys(("correct_positive", "correct_negative"))
            line = {"round": round_num, "site": site, "class": classes[index], **unknown, **now, **new}
            self._lines[REPAIRS].append(line)
            self._latest[site, classes[index]] = line

    def finish(self, files: Mapping[str, str], seconds: float, *, intervals: Mapping[str, Mapping]) -> None:
        """Writes ``results.json``: final and best metrics, intervals of the final ones, and where the files are."""
        final = (
            {m["split"]: m["macro"] for m in self._at(max(m["round"] for m in self._lines[METRICS]))}
            if self._lines[METRICS]
            else {}
        )
        best_round = next((d["round"] for d in reversed(self.decisions) if d["what"] == "best_model"), None)
        best = {"round": best_round, **{m["split"]: m["macro"] for m in self._at(best_round)}}
        results = {
            "final": final,
            "intervals": dict(intervals),
            "best": best,
            "files": dict(files),
            "seconds": round(seconds, 1),
        }
        self._write_text(RESULTS, json.dumps(results, indent=2))
        self.write()

    def _at(self, round_num: int | None) -> list[dict]:
        return [m for m in self._lines[METRICS] if m["round"] == round_num]

    def write(self) -> None:
        """Writes the JSON Lines files."""
        for name in self._lines:
            self._write_lines(name)

    def dump(self) -> str:
        """Everything so far, for a checkpoint."""
        return json.dumps(self._lines)

    def restore(self, dumped: str) -> None:
        """Takes over what :meth:`dump` gave; records made since this object was created come after it."""
        self._lines = {name: lines + self._lines[name] for name, lines in json.loads(dumped).items()}
        self._latest = {(line["site"], line["class"]): line for line in self._lines[REPAIRS]}

    def _write_lines(self, name: str) -> None:
        self._write_text(name, "".join(json.dumps(line) + "\n" for line in self._lines[name]))

    def _write_text(self, name: str, text: str) -> None:
        write_text(self.folder / name, text)
