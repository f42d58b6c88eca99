"""The packages that a job has evaluated by the sites, and what comes of it: a matrix of models and sites."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import write_text
from fedmend.basics.page import short_name
from fedmend.errors import FedMendError
from fedmend.fields import GROUP_COUNTS, Report
from fedmend.messages import COLLECT, EVALUATE, Question, RunSpec, SiteResult
from fedmend.method import Answer
from fedmend.records.package_files import WEIGHTS, is_package, package_digest, read_package, read_weights
from fedmend.records.run_folder import FEWEST
from fedmend.report.evaluations import evaluations_page
from fedmend.server.census import Census
from fedmend.server.exchange import valid_results
from fedmend.server.federation import RunningFederation
from fedmend.server.packing import Start

PAGE, RESULTS = "report.html", "results.json"


@dataclass(frozen=True)
class Evaluations:
    """What is evaluated, and what has been counted so far.

    Attributes:
        folder: where packages lie.
        spec: of the run.
        census: of the sites.
        groups: names of the subgroups.
        split: the split that these are of.
        found: package → what ``results.json`` says of it.
    """

    folder: Path
    spec: RunSpec
    census: Census
    groups: Sequence[str]
    split: str
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self, package: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Content of ``package.json``, and name → weights.

        Args:
            package: path below the folder.

        Raises:
            FedMendError: no such package, a file that has changed, or one that was made for something else.
        """
        where = Path(package)
        if where.is_absolute() or ".." in where.parts:
            raise FedMendError(f"job variable packages: expected paths below weights_dir, got {package!r:.100}")
        place = self.folder / where
        if not is_package(place):
            folder = "the server's weights folder (weights_dir of its local/fedmend.json)"
            raise FedMendError(f"job variable packages: expected {package} in {folder}, not found")
        about = read_package(place)
        Start(str(place / WEIGHTS), trained=True, parent=about).check(self.spec, self.census, variable="packages")
        return {**about, "digest": package_digest(place)}, read_weights(place)

    def take(self, package: str, about: Mapping[str, Any], results: Mapping[str, SiteResult]) -> None:
        """Notes what the sites have counted of a package; merged and site by site."""
        kind, splits = self.census.kind, sorted({split for r in results.values() for split in r.counts})
        by_split: dict[str, Any] = {}
        merged = {s: sum_of(r.counts[s] for r in results.values() if s in r.counts) for s in splits}
        for split in splits:
            chosen_on = merged.get("val") if split != "val" else None
            by_split[split] = {
                "all": kind.metrics(merged[split], chosen_on) | {"intervals": kind.intervals(merged[split], chosen_on)},
                "sites": {
                    s: kind.site_metrics(r.counts[split], FEWEST) for s, r in results.items() if split in r.counts
                },
            }
        self.found[package] = {
            "name": about["name"],
            "digest": about["digest"],
            "phantom": about["phantom"],
            "splits": by_split,
            "groups": self._groups(results),
        }

    def _groups(self, results: Mapping[str, SiteResult]) -> dict[str, Any]:
        """Subgroup → metrics of all sites that told it, and how many did."""
        kind, classes, found = self.census.kind, len(self.spec.classes), {}
        told: dict[str, Report] = {site: r.report for site, r in results.items() if GROUP_COUNTS in r.report}
        for number, name in enumerate(self.groups):
            sites = {s: r[GROUP_COUNTS][number] for s, r in told.items() if r[GROUP_COUNTS][number].any()}
            if sites:
                counts = sum_of(sites.values()).reshape(classes, *kind.counts_shape(classes))
                metrics = kind.metrics(counts) | {"intervals": kind.intervals(counts)}
                metrics.pop("confusion", None)
                found[name] = {"sites": sorted(sites), **metrics}
        return found

    def check(self, site: str, report: Report) -> None:
        """Refuses counts of subgroups that a site cannot have made.

        Args:
            site: its name.
            report: fields that fit their description.

        Raises:
            FedMendError: more samples than there are.
        """
        kind, classes = self.census.kind, len(self.spec.classes)
        samples = self.census.sizes[site].get(self.split, 0)
        for row in report.get(GROUP_COUNTS, ()):
            counts = row.reshape(classes, *kind.counts_shape(classes))
            kind.check_counts(counts, classes, samples, f"{site}: counts of subgroups")

    def write(self, folder: Path, phantom: bool) -> list[str]:
        """Writes ``results.json`` and ``report.html`` into the run folder; returns a line for each package."""
        kind = self.census.kind
        results = {
            "phantom": phantom or any(found["phantom"] for found in self.found.values()),
            "kind": kind.name,
            "classes": list(self.spec.classes),
            "best_metric": kind.best_metric,
            "split": self.split,
            "subgroups": list(self.groups),
            "packages": self.found,
            "final": {},  # of no model of its own, for those who read the results of any run
        }
        write_text(folder / RESULTS, json.dumps(results, indent=2) + "\n")
        write_text(folder / PAGE, evaluations_page(results))
        lines = []
        for package, found in self.found.items():
            for split, measured in found["splits"].items():
                value = measured["all"]["macro"][kind.best_metric]
                shown = "n/a" if value is None else f"{value:.3f}"
                lines.append(
                    f"{package}: {split} {short_name(kind.best_metric)} {shown}, {len(measured['sites'])} sites"
                )
        return [*lines, f"report: {folder / PAGE}"]


def sum_of(counts: Any) -> np.ndarray:
    """The sum of (C, ...) int64 counts of sites, in their order."""
    return np.sum(list(counts), axis=0)


class EvaluatingFederation(RunningFederation):
    """A federation that evaluates packages: a collection is about one of them, and nothing is trained.

    Attributes:
        evaluations: set when it is made.
    """

    evaluations: Evaluations

    def collect(
        self,
        stage: str,
        *,
        sites: Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        at_least: int = 0,
    ) -> dict[str, Answer]:
        """All sites evaluate the package that the stage names; what they count goes into the results. A site whose
        counts of subgroups cannot be is left out, and named.

        Raises:
            FedMendError: too few valid results.
        """
        about, weights = self.evaluations.read(stage)
        tasks = self._tasks(EVALUATE, sorted(self.sites if sites is None else sites), roles, knowledge, training=False)
        question = Question(COLLECT, weights, tasks, self._spec, evaluate=True)
        needed = at_least or self._settings.needed(len(tasks))
        good = {}
        for site, result in valid_results(self._exchange, self._log, question, needed).items():
            try:
                self.evaluations.check(site, result.report)
                good[site] = result
            except FedMendError as e:
                self._log.decision("refused", {"site": site, "reason": str(e)}, 0)
                self._log.warn(str(e))
        self.evaluations.take(stage, about, good)
        return {site: Answer(result.report) for site, result in good.items()}

    def finish(self) -> None:
        """Writes the results and says where they are; there is no model to keep."""
        self._log.tell(self.evaluations.write(self._log.folder, self.census.phantom))
