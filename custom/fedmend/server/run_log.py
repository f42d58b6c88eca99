"""What a run writes down while it goes on: metrics, repairs, decisions, the best model, a line per round."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.page import short_name
from fedmend.errors import place_of
from fedmend.messages import EVALUATE, SiteResult
from fedmend.records.progress import ASIDE, Progress, curves, last_decisions, repaired
from fedmend.records.run_folder import CHOSEN_BY, FEWEST
from fedmend.records.run_records import RunRecords
from fedmend.report.report import summary_text, write_report
from fedmend.server.census import BEST_SPLITS, Census
from fedmend.server.checkpoint import Checkpoint, Saved

LOG = logging.getLogger("fedmend.run")
NOT_CHOSEN = float("-inf")  # value of a best model that is the final one because too few classes could choose
WITHOUT_ANNOTATOR = "classes_without_annotator"
UNTRAINED = "untrained_model"  # the decision that says so, and later that it is no longer


class RunLog:
    """Records of one job.

    Args:
        folder: run folder.
        classes: C class names.
        checkpoint: keeps the best model.
        stream: takes one number for those who watch: tag, value, round.
        progress: the picture of the run.

    Attributes:
        prefix: what every line about synthetic data begins with; empty on other data, and before the census.
    """

    def __init__(
        self,
        folder: Path,
        classes: Sequence[str],
        checkpoint: Checkpoint,
        stream: Callable[[str, float, int], None],
        progress: Progress,
    ):
        self._records, self._classes = RunRecords(folder, checkpoint.folder), classes
        self._checkpoint, self._stream, self._progress = checkpoint, stream, progress
        self.prefix = ""
        self._census: Census
        self._warm_start = False
        self._started, self._first = time.monotonic(), 0
        self._best = checkpoint.best()
        self._merged: dict[str, np.ndarray] = {}  # split → counts of the last evaluation
        self._of_sites: dict[str, dict[str, dict]] = {}  # split → site → its own metrics in the last evaluation
        self._site_counts: dict[str, dict[str, np.ndarray]] = {}  # split → site → counts in the last evaluation
        self._without_annotator: list[str] = []  # classes of which every annotator was absent in the last round
        self._chosen_by: dict | None = None  # what was said of the classes that choose the best model
        self._untrained: bool | None = None  # whether the global model is the initial one; None: no round is done

    @property
    def best_round(self) -> int | None:
        """Rounds that the best model has seen."""
        return self._best[1] if self._best else None

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._records.folder

    def counted(self, census: Census, *, warm_start: bool = False) -> None:
        """Takes the census when it is known, and whether the initial model is a trained one."""
        self._warm_start = warm_start
        self._census, self.prefix = census, "PHANTOM " if census.phantom else ""
        if different := census.differences:
            self.decision("preprocessing_differs", different, 0)
            said = [
                f"{name} {value} at {site}" for name, by_site in different.items() for site, value in by_site.items()
            ]
            self.warn(f"sites prepare their images differently, expected one way: {', '.join(said)}")
        told = {site: said["phantom"] for site, said in census.described.items() if "phantom" in said}
        if told:
            named = (", ".join(site for site, flag in told.items() if flag is wanted) for wanted in (True, False))
            self.warn("data are synthetic at {}, and of patients at {}; the run counts as PHANTOM".format(*named))
        if site := census.chooser:
            self.warn(
                f"{site} has {census.sizes[site]['val']} validation samples, more than all others: thresholds,"
                " calibration and the best model are mostly its choice"
            )
        if not census.choosing_split:
            self.warn(f"census: {census.unmeasured}; nothing will say how good the model is")

    def resume(self, saved: Saved, other_data: Mapping[str, Sequence[str]]) -> None:
        """Takes over the records of an earlier job.

        Args:
            saved: what it left.
            other_data: see :func:`fedmend.server.fingerprint.other_data`.
        """
        self._first = saved.done
        self._records.restore(saved.records)
        self._untrained = self.latest(UNTRAINED, {"untrained": False})["untrained"]
        self._chosen_by = self.latest(CHOSEN_BY)
        self._without_annotator = self.latest(WITHOUT_ANNOTATOR, [])
        chosen_on = self.latest("best_model", {}).get("split", self._census.choosing_split)
        self._records.decision("resumed", {"at_round": saved.done})
        if saved.changes:
            self._records.decision("changed", saved.changes)
            self.warn(f"the run goes on with other settings, as allow_changes says: {', '.join(saved.changes)}")
        if other_data:
            self._records.decision("other_data", dict(other_data), saved.done)
            sites = ", ".join(f"{site} ({', '.join(splits)})" for site, splits in other_data.items())
            self.warn(f"the run goes on with other data from round {saved.done + 1} on, as allow_changes says: {sites}")
        others = {split for splits in other_data.values() for split in splits}
        if self._best and (self._census.choosing_split != chosen_on or self._census.choosing_split in others):
            self._best = (NOT_CHOSEN, self._best[1])  # whose value is of other samples: any of these counts more
        if saved.damaged:
            self._records.decision("checkpoint_damaged", {"at_round": saved.done})
            self.warn(f"the newest checkpoint is damaged; the run goes on from that after round {saved.done}")

    def latest(self, what: str, otherwise: Any = None) -> Any:
        """The value of the last decision of this name."""
        return next((d["value"] for d in reversed(self._records.decisions) if d["what"] == what), otherwise)

    def done_before(self, run_name: str, rounds: int, job: str) -> None:
        """Says that no round is left to do, and which ``job`` did the last of all ``rounds``."""
        self._best = self._checkpoint.best()  # of other data, too, as no other model is there
        self.decision("no_round_left", {"job": job}, rounds)
        by = f" by job {job}" if job else ""
        self.warn(
            f"run_name {run_name!r}: all {rounds} rounds were done before{by}; nothing is trained, the model of then is"
            " evaluated and handed over again; for another model choose another run_name"
        )

    def start(self, described: Mapping) -> None:
        """Writes ``run.json``."""
        self._records.start(described)
        self._progress.begin(described, self._census.kind.unit)
        self._draw(done=self._first)

    def _draw(self, **facts: object) -> None:
        """Brings the picture of the run up to date with the records."""
        lines = self._records
        self._progress.tell(
            **curves(lines.metric_lines),
            repairs=repaired(lines.latest_repairs, self._classes),
            decisions=last_decisions(lines.decisions),
            **facts,
        )

    def dump(self) -> str:
        """Everything so far, for the checkpoint."""
        return self._records.dump()

    def decision(self, what: str, value: Any, round_num: int | None) -> None:
        """Adds a line to ``decisions.jsonl``."""
        self._records.decision(what, value, round_num)
        if what == "refused":
            self._progress.refused(value["site"])
        self._progress.tell(decisions=last_decisions(self._records.decisions))

    def warn(self, text: str) -> None:
        """A sentence in the log."""
        LOG.warning("%s%s", self.prefix, text)

    def tell(self, lines: Sequence[str]) -> None:
        """Lines of the log, each marked where data are synthetic; the records are written."""
        self._records.write()
        for line in lines:
            LOG.info("%s%s", self.prefix, line)

    def moved(self, moved: bool, round_num: int) -> None:
        """Notes whether a site has ``moved`` the global model in a round, by another one than it was sent; while none
        has, no file of a model belongs to the metrics."""
        if not moved and self._untrained is None:
            self._untrained = True
            why = "every site sent back the model that it received; metrics are of that one or of the sites' own"
            self.decision(UNTRAINED, {"untrained": True, "reason": why}, round_num)
        elif moved and self._untrained:
            self.decision(UNTRAINED, {"untrained": False}, round_num)
        if moved:
            self._untrained = False

    def annotators(self, present: Collection[str], round_num: int) -> None:
        """Names the classes of which no annotator took part in a round; the model forgets them while that lasts."""
        known = [self._census.known(site) for site in present]
        missing = [c for c, found in zip(self._classes, np.any(known, axis=0), strict=True) if not found]
        if missing != self._without_annotator:
            self._without_annotator = missing
            self.decision(WITHOUT_ANNOTATOR, missing, round_num)
            words = "every class has an annotator again"
            if missing:
                words = f"no site that annotates {', '.join(missing)} took part"
            LOG.warning("%sround %d: %s", self.prefix, round_num + 1, words)

    def spent(self, results: Mapping[str, SiteResult], round_num: int) -> None:
        """Notes what sites have spent of their privacy."""
        if told := {site: dict(result.privacy) for site, result in results.items() if result.privacy}:
            self.decision("privacy", told, round_num)
            self._census.spent(told)

    def results(
        self, results: Mapping[str, SiteResult], round_num: int, stage: str, model: Mapping, seconds: float
    ) -> dict:
        """Merges counts into metrics, keeps the best model and writes everything down.

        Args:
            results: site → valid result.
            round_num: rounds that the evaluated model has seen.
            stage: the paper's word.
            model: the model that was evaluated.
            seconds: since the question.

        Returns:
            split → metrics.
        """
        counted = [r.counts for r in results.values()]
        splits = sorted({k for c in counted for k in c})
        merged = {split: np.sum([c[split] for c in counted if split in c], axis=0) for split in splits}
        metrics = {split: self._census.kind.metrics(*_with_val(merged, split)) for split in merged}
        if merged or stage == EVALUATE:  # of which there may be none, if sites with such splits are absent
            self._merged = merged
            self._site_counts = {
                split: {site: r.counts[split] for site, r in results.items() if split in r.counts} for split in splits
            }
            self._of_sites = {split: self._alone(counts) for split, counts in self._site_counts.items()}
        for split, measured in metrics.items():
            alone = {site: found["macro"] for site, found in self._of_sites[split].items()}
            self._records.metrics(round_num, stage, split, {**measured, "sites": alone}, seconds)
            for name, value in measured["macro"].items():
                if value is not None:
                    self._stream(f"{split}/{name}", value, round_num)
        self.spent(results, round_num + 1)
        for site, result in results.items():
            if result.repairs:
                done = round_num if stage == EVALUATE else round_num + 1  # a round repairs before it trains
                facts = self._census.facts[site]
                repairable = self._census.kind.repairable(facts.annotated, facts.positives)
                self._records.repairs(done, site, self._classes, ~repairable, result.repairs)
            if stage != EVALUATE and not result.privacy:  # whose mean loss stays there
                self._stream(f"loss/{site}", result.loss, round_num)
        best = self._census.kind.best_metric
        for split in BEST_SPLITS[::-1]:  # as curves: of the test split where there is one
            if split in metrics:
                self._progress.measured(best, {site: m["macro"][best] for site, m in self._of_sites[split].items()})
                break
        self._keep_best(round_num, model, whole=stage == EVALUATE, splits=splits)
        self._records.write()
        self._draw()
        return metrics

    def _alone(self, counted: Mapping[str, np.ndarray]) -> dict[str, dict]:
        """Site → metrics of the model on that site's samples of a split."""
        return {site: self._census.kind.site_metrics(counts, FEWEST) for site, counts in counted.items()}

    def _keep_best(self, round_num: int, model: Mapping, *, whole: bool, splits: Sequence[str]) -> None:
        """Keeps the best model so far; where too few classes can choose, the last evaluated for itself (``whole``)."""
        split = self._census.choosing_split
        if split not in splits or (round_num == 0 and not self._warm_start) or self._untrained:
            return  # an untrained model may be the luckiest one of a small split
        kind, counts = self._census.kind, self._merged[split]
        chooses = self._choosers(split, kind.choosers(counts), round_num)
        value = kind.choice(counts) if chooses else None
        if value is None:
            if not whole or (self._best is not None and self._best[0] != NOT_CHOSEN):
                return
        elif self._best is not None and value <= self._best[0] and round_num > self._best[1]:
            return  # a repeated round replaces its own
        self._best = (NOT_CHOSEN if value is None else value, round_num)
        self._checkpoint.save_best(*self._best, model, self._merged)
        why = {"final": True} if value is None else {kind.best_metric: value}
        self.decision("best_model", why | {"split": split}, round_num)

    def _choosers(self, split: str, able: np.ndarray, round_num: int) -> bool:
        """Whether at least half of the annotated classes, of which ``able`` (C,) names those with enough samples, can
        choose the best model; says so where not all can."""
        annotated = np.any([self._census.known(site) for site in self._census.facts], axis=0) | able
        count, total = int(able.sum()), int(annotated.sum())
        chooses = count > 0 and 2 * count >= total
        if count == total and self._chosen_by is None:
            return chooses
        names = [name for name, flag in zip(self._classes, able, strict=True) if flag]
        lack = f"have {self._census.kind.lacking} in the {split} split"
        if chooses:
            reason = f"the best model is chosen by {count} of {total} classes"
            reason += f": the others {lack}" if count < total else ""
        else:
            who, others = (f"only {count}", "the others") if count else ("none", "all")
            reason = f"the best model is the final one: {who} of {total} classes could choose another, {others} {lack}"
        value = {"split": split, "classes": names, "of": total, "reason": reason}
        if value != self._chosen_by:
            self._chosen_by = value
            self.decision(CHOSEN_BY, value, round_num)
            self.warn(reason)
        return chooses

    def passed(self, round_num: int, num_rounds: int) -> tuple[float, float]:
        """Tells those who watch that a round is done; seconds since this job began and seconds to go."""
        elapsed = time.monotonic() - self._started
        remaining = elapsed / (round_num + 1 - self._first) * (num_rounds - round_num - 1)
        self._progress.tell(done=round_num + 1, elapsed=round(elapsed, 1), remaining=round(remaining, 1))
        return elapsed, remaining

    def progress(
        self, round_num: int, num_rounds: int, stage: str, metrics: Mapping, sites: int, seconds: float
    ) -> None:
        """One line about a round, and its numbers for those who watch."""
        self._stream("round/sites", sites, round_num + 1)
        self._stream("round/seconds", round(seconds, 2), round_num + 1)
        elapsed, remaining = self.passed(round_num, num_rounds)
        split = "test" if "test" in metrics else next(iter(metrics), None)
        values = metrics[split]["macro"] if split else {}
        known = {k: v for k, v in values.items() if v is not None and k not in ASIDE}
        shown = " ".join(f"{short_name(k)} {v:.3f}" for k, v in known.items())
        received, times = f"{split} {shown}" if shown else "not evaluated", (_clock(elapsed), _clock(remaining))
        text = "%sround %d/%d %s | received model: %s | %d sites | %.0f s, elapsed %s, remaining %s"
        LOG.info(text, self.prefix, round_num + 1, num_rounds, stage, received, sites, seconds, *times)

    def finish(
        self, files: dict[str, str], rounds: int, packed: Callable[[Mapping[str, Mapping]], Mapping[str, str]]
    ) -> None:
        """Writes results and report and says where everything is.

        Args:
            files: what → file.
            rounds: that the final model has seen.
            packed: writes packages, given ``final`` and ``best`` → what they say of their model; returns what → where.
        """
        folder, kind = self._records.folder, self._census.kind
        counted = {"final": self._merged, "best": self._checkpoint.best_counts()}
        intervals = {
            model: {split: kind.intervals(*_with_val(counts, split)) for split in counts}
            for model, counts in counted.items()
        }
        thresholds = {k: kind.thresholds(counts["val"]) if "val" in counts else {} for k, counts in counted.items()}
        if self._untrained:  # what the metrics are about stayed at the sites
            files = {k.replace("global", "untrained"): file for k, file in files.items()}
        else:
            delivered = {
                k: kind.calibrated(thresholds[k], counts["val"], FEWEST) if "val" in counts else {}
                for k, counts in counted.items()
            }
            files = {**files, **packed(self._outcomes(rounds, intervals, delivered))}
        files = {**files, "records": str(folder)}
        told: dict[str, Mapping] = {"intervals": intervals["final"], "thresholds": thresholds, "sites": self._sites()}
        self._records.finish(files, time.monotonic() - self._started, rounds=rounds, **told)
        self._report(folder)

    def _report(self, folder: Path) -> None:
        """Writes the page and prints the summary; an error costs these alone, not the handing over that comes next."""
        try:
            write_report(folder)
            lines = summary_text(folder).splitlines()
        except Exception as e:
            words = "%sreport: failed with %s; models, packages and records are complete"
            LOG.error(words, self.prefix, place_of(e))
            return
        for line in lines:
            LOG.info("%s%s", "" if line.startswith("PHANTOM") else self.prefix, line)

    def _sites(self) -> dict[str, dict[str, dict]]:
        """Split → site → its own metrics of the final model, with intervals of the classes that are not held back."""
        kind, found = self._census.kind, {}
        for split, counts in self._site_counts.items():
            found[split] = {
                site: self._of_sites[split][site] | {"intervals": kind.site_intervals(own, FEWEST)}
                for site, own in counts.items()
            }
        return found

    def _outcomes(self, final: int, intervals: Mapping, thresholds: Mapping) -> dict[str, dict]:
        """``final`` and ``best`` → what a package says of the model."""
        rounds = {"final": final, "best": self.best_round}
        repaired: dict[str, dict[str, int]] = {name: {"positive": 0, "negative": 0} for name in self._classes}
        for line in self._records.latest_repairs:
            for sign in repaired[line["class"]]:
                repaired[line["class"]][sign] += line[sign]
        return {
            model: {
                "round": round_num,
                "metrics": self._records.at(round_num),
                "intervals": intervals[model],
                "thresholds": thresholds[model],
                "repaired": repaired,
            }
            for model, round_num in rounds.items()
        }


def _with_val(counts: Mapping[str, np.ndarray], split: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Counts of a split, and those that choose thresholds for it, of another split."""
    return counts[split], counts.get("val") if split != "val" else None


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
