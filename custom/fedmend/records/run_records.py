"""What the server writes into the run folder while a job runs; :mod:`fedmend.records.run_folder` reads it back."""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmend.basics.files import append_text, write_text
from fedmend.errors import WAY_ON, FedMendError
from fedmend.records.run_folder import DECISIONS, METRICS, REPAIRS, RESULTS, RUN


class LineFile:
    """A JSON Lines file that grows with a list of records. Its last line may be half written when a process is killed.

    Args:
        path: what is there gives way to the first records that are written.
    """

    def __init__(self, path: Path):
        self._path, self._written, self._digest = path, 0, hashlib.sha256()
        self._size: int | None = None  # bytes that count; None: nothing of what is there does

    def write(self, records: Sequence[Mapping]) -> None:
        """Adds the records that are not in the file yet; they are on the disk afterwards.

        Args:
            records: those of the last call, and what has come since.
        """
        text = "".join(json.dumps(record) + "\n" for record in records[self._written :])  # ASCII
        if self._size is None:
            write_text(self._path, text)
        elif text:
            append_text(self._path, self._size, text)
        self._written, self._size = len(records), (self._size or 0) + len(text)
        self._digest.update(text.encode())

    def extent(self) -> dict:
        """Says how much is written; :meth:`read` goes on from there."""
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def read(self, extent: Mapping) -> list[dict]:
        """The records that were written when ``extent`` was taken; what was written since goes with the next ones.

        Raises:
            FedMendError: they are not there, or not as they were.
        """
        content = self._path.read_bytes()[: extent["bytes"]] if self._path.is_file() else b""
        digest = hashlib.sha256(content)
        if digest.hexdigest() != extent["sha256"]:
            raise FedMendError(
                f"{self._path.name} beside the checkpoint: expected the lines that the checkpoint counts, got others;"
                f" {WAY_ON}"
            )
        records = [json.loads(line) for line in content.splitlines()]
        self._written, self._size, self._digest = len(records), len(content), digest
        return records


class RunRecords:
    """Collects the records of a run and adds them to the files of its folder.

    Args:
        folder: the run folder; made when missing.
        kept: folder beside the checkpoint, where the same lines are kept for a job that goes on in another run folder;
            None: no job will.
    """

    def __init__(self, folder: Path, kept: Path | None = None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lines: dict[str, list[dict]] = {METRICS: [], REPAIRS: [], DECISIONS: []}
        self._files = _line_files(self.folder)
        self._kept = _line_files(kept) if kept else {}
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
        write_text(self.folder / RUN, json.dumps(description, indent=2))
        self.write()

    def decision(self, what: str, value: object, round_num: int | None = None) -> None:
        """One decision of the server, written at once."""
        now = datetime.datetime.now().isoformat(timespec="seconds")
        self._lines[DECISIONS].append({"time": now, "round": round_num, "what": what, "value": value})
        self._files[DECISIONS].write(self._lines[DECISIONS])

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
        for index in np.flatnonzero(~annotated).tolist():
            now = {name: int(values[index]) for name, values in counts.items()}
            before = self._latest.get((site, classes[index]))
            if before is not None and before["round"] == round_num:
                continue  # the final evaluation repairs nothing
            new = {f"new_{k}": now[k] - (before[k] if before else 0) for k in ("positive", "negative")}
            unknown = dict.fromkeys(("correct_positive", "correct_negative"))
            line = {"round": round_num, "site": site, "class": classes[index], **unknown, **now, **new}
            self._lines[REPAIRS].append(line)
            self._latest[site, classes[index]] = line

    def finish(
        self,
        files: Mapping[str, str],
        seconds: float,
        *,
        rounds: int,
        intervals: Mapping[str, Mapping],
        sites: Mapping[str, Mapping],
        thresholds: Mapping[str, Mapping],
    ) -> None:
        """Writes ``results.json``.

        Args:
            files: what → file.
            seconds: that the job took.
            rounds: that the final model has seen.
            intervals: split → macro metric of the final model → ends of its interval.
            sites: split → site → metrics of the final model there, with ``intervals``.
            thresholds: ``final`` and ``best`` → what :meth:`fedmend.kinds.Kind.thresholds` gives of each model.
        """
        best_round = next((d["round"] for d in reversed(self.decisions) if d["what"] == "best_model"), None)
        results = {
            "final": self.at(rounds),
            "intervals": dict(intervals),
            "thresholds": dict(thresholds),
            "best": {"round": best_round, **self.at(best_round)},
        }
        results |= {"sites": dict(sites), "files": dict(files), "seconds": round(seconds, 1)}
        write_text(self.folder / RESULTS, json.dumps(results, indent=2))
        self.write()

    def at(self, round_num: int | None) -> dict[str, dict]:
        """Split → macro metrics after a round."""
        return {m["split"]: m["macro"] for m in self._lines[METRICS] if m["round"] == round_num}

    def write(self) -> None:
        """Brings the JSON Lines files up to date."""
        for name, file in self._files.items():
            file.write(self._lines[name])

    def dump(self) -> str:
        """Keeps everything so far.

        Returns:
            How much that is, for the checkpoint: its length does not grow with the run.
        """
        for name, file in self._kept.items():
            file.write(self._lines[name])
        return json.dumps({name: file.extent() for name, file in self._kept.items()})

    def restore(self, dumped: str) -> None:
        """Takes over what was kept when :meth:`dump` gave this; records of this object come behind it.

        Raises:
            FedMendError: it is lost or damaged.
        """
        for name, extent in json.loads(dumped).items():
            self._lines[name] = self._kept[name].read(extent) + self._lines[name]
        self._files = _line_files(self.folder)  # written anew, because this may be another folder
        self._latest = {(line["site"], line["class"]): line for line in self._lines[REPAIRS]}


def _line_files(folder: Path) -> dict[str, LineFile]:
    return {name: LineFile(folder / name) for name in (METRICS, REPAIRS, DECISIONS)}
