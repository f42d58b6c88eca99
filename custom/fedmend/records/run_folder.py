"""The run folder: the JSON files that the server writes while a job runs, read back.

``metrics.jsonl`` counts in rounds that the evaluated model has seen (0 = initial model); the other files in the round
that they belong to. :mod:`fedmend.records.run_records` writes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from fedmend.errors import FedMendError
from fedmend.labels import KIND_NAMES, MULTILABEL

RUN, RESULTS = "run.json", "results.json"
METRICS, REPAIRS, DECISIONS = "metrics.jsonl", "repairs.jsonl", "decisions.jsonl"
INPUTS = (RUN, METRICS, REPAIRS, DECISIONS, RESULTS)
REQUIRED = ("run_name", "method", "phantom", "classes", "num_rounds", "sites")
RUN_FOLDER = Path("server") / "simulate_job" / "fedmend"  # in the workspace of a simulation, as FLARE lays it out
MODELS, MODEL, BEST_MODEL = "app_server", "FL_global_model.pt", "best_FL_global_model.pt"  # beside it, named by FLARE
FEWEST = 5  # samples behind a number of one site, as a site's min_count by default; the server does not learn that one
FEW = f"1 to {FEWEST - 1} samples with it or without it, of masks 1 to {FEWEST - 1} volumes with it"
CHOSEN_BY = "best_model_chosen_by"  # the decision that names the classes that choose it and says why not all do
LAST_ROUNDS = 10  # evaluations behind the "Last" of the FedNoRo and FedIA papers


@dataclass(frozen=True)
class RunFiles:
    """What the files of a run folder say.

    Attributes:
        folder: the run folder.
        info: ``run.json``.
        metrics: split → evaluations in the order of their rounds.
        repairs: counts of pseudo-labels, or of pixels added to masks, in the order of round, site, class.
        decisions: what the server decided, in the order of the file.
        results: ``results.json``, empty while the run goes on.
    """

    folder: Path
    info: Mapping
    metrics: Mapping[str, Sequence[Mapping]]
    repairs: Sequence[Mapping]
    decisions: Sequence[Mapping]
    results: Mapping

    @property
    def split(self) -> str:
        """The split that the report is about: test, or val where nothing was tested."""
        return "val" if "val" in self.metrics and "test" not in self.metrics else "test"

    @property
    def evaluations(self) -> Sequence[Mapping]:
        """Those of the split that the report is about."""
        return self.metrics.get(self.split, ())

    @property
    def warmup(self) -> int:
        """Rounds of the warm-up."""
        return self.info.get("warmup_rounds", 0)

    @property
    def best_round(self) -> int | None:
        """Rounds that the best model has seen; None: there is none."""
        chosen = [d["round"] for d in self.decisions if d["what"] == "best_model" and "round" in d]
        return self.results.get("best", {}).get("round", chosen[-1] if chosen else None)

    @property
    def nowhere(self) -> list[str]:
        """Classes that no site annotates."""
        known = {c for site in self.info["sites"].values() for c in site.get("annotated", ())}
        return [c for c in self.info["classes"] if c not in known]

    @property
    def frame(self) -> dict:
        """What all figures of a run share."""
        return {"last_round": self.info["num_rounds"], "warmup": self.warmup, "phantom": self.info["phantom"]}

    def decided(self, what: str, own: Mapping[str, type | UnionType]) -> dict:
        """What the server decided, round by round.

        Args:
            what: the decision.
            own: decision → type of its value, as the asking module declares it; values of other types are passed over.

        Returns:
            round → value in the order of rounds; the last value of a round counts.
        """
        found = {d["round"]: d["value"] for d in self.decisions if d["what"] == what and is_own(d, own)}
        return dict(sorted(found.items()))

    def last_decided(self, what: str, own: Mapping[str, type | UnionType]) -> tuple[int, Any] | None:
        """Round and value of the decision that counts where there is one: the last, should a resumed run have repeated
        it; see :meth:`decided`."""
        return next(reversed(self.decided(what, own).items()), None)

    def measured(self, key: str) -> list[tuple[int, float]]:
        """(round, macro value of a metric) of all evaluations that have it, without the initial model."""
        found = [(m["round"], m["macro"].get(key)) for m in self.evaluations if m["round"] > 0]
        return [(round_num, value) for round_num, value in found if value is not None]

    def evaluation(self, round_num: int | None) -> Mapping | None:
        """The evaluation of the model that has seen so many rounds, if there is one."""
        return next((m for m in self.evaluations if m["round"] == round_num), None)


def last_rounds(runs: Sequence[RunFiles], key: str) -> list[int]:
    """The rounds behind a "Last" that these runs can be compared by: the last ones in which each of them was evaluated,
    after the longest of their warm-ups; none where there are fewer than ``LAST_ROUNDS``.

    Args:
        runs: at least one.
        key: macro metric that is averaged.
    """
    warmup = max(run.warmup for run in runs)
    common = set.intersection(*({r for r, _ in run.measured(key)} for run in runs))
    found = sorted(r for r in common if r > warmup)
    return found[-LAST_ROUNDS:] if len(found) >= LAST_ROUNDS else []


def is_own(decision: Mapping, own: Mapping[str, type | UnionType]) -> bool:
    """Whether a decision is one of ``own`` (decision → type of its value)."""
    return isinstance(decision.get("value"), own.get(decision["what"], ()))


def _parse(text: str, where: str) -> Mapping:
    try:
        value = json.loads(text, parse_constant=lambda _: None)  # NaN and infinities are no numbers: as null
    except json.JSONDecodeError:
        raise FedMendError(f"{where}: expected JSON, got text that does not parse") from None
    if not isinstance(value, dict):
        raise FedMendError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def read_lines(path: Path) -> list[Mapping]:
    """The records of a JSON Lines file without a last line that is half written; none where there is no file.

    Raises:
        FedMendError: a line is no JSON object.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]  # the last line is still being written, or was when the server stopped
    return [_parse(line, f"{path.name} line {i}") for i, line in enumerate(text.splitlines(), start=1) if line.strip()]


def load_run(run_dir: Path | str) -> RunFiles:
    """Reads a run folder. Where a resumed run repeated a round, its last record counts.

    Args:
        run_dir: folder with ``run.json`` and, as far as the run got, ``metrics.jsonl``, ``repairs.jsonl``,
            ``decisions.jsonl`` and ``results.json``.

    Raises:
        FedMendError: no ``run.json``, a field of it is missing or of an unknown kind, or a file does not parse.
    """
    folder = Path(run_dir)
    if not (folder / RUN).exists():
        raise FedMendError(f"{RUN}: expected in the run folder, not found")
    info = _parse((folder / RUN).read_text(encoding="utf-8"), RUN)
    for field in REQUIRED:
        if field not in info:
            raise FedMendError(f"{RUN}, field {field}: expected, not found")
    if info.get("task", MULTILABEL) not in KIND_NAMES:
        raise FedMendError(f"{RUN}, field task: expected one of {', '.join(KIND_NAMES)}, got {info['task']!r}")
    metrics = {(m["split"], m["round"]): m for m in read_lines(folder / METRICS)}
    repairs = {(r["round"], r["site"], r["class"]): r for r in read_lines(folder / REPAIRS)}
    results = folder / RESULTS
    return RunFiles(
        folder=folder,
        info=info,
        metrics={s: [metrics[k] for k in sorted(metrics) if k[0] == s] for s in sorted({k[0] for k in metrics})},
        repairs=[repairs[k] for k in sorted(repairs)],
        decisions=read_lines(folder / DECISIONS),
        results=_parse(results.read_text(encoding="utf-8"), RESULTS) if results.exists() else {},
    )
