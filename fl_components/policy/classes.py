"""Which classes a job may name: those that our jobs and variants name, each with the reason why it is there."""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.method import LocalMethod
from fl_components.job.reading import BASELINES

SITE_SIDE, SERVER_SIDE = "site", "server"
GROUPS = {  # whether a class is of a baseline → whose policy lists it
    False: "In every kit",
    True: "Only with `baselines: true` in project.yml, and in the simulator",
}
STATISTICS = "nvflare.app_common.executors.statistics.statistics_executor.StatisticsExecutor"
REASONS = {  # class besides methods → where it runs, and what it does and reaches
    "fl_components.controller.WorkflowController": (SERVER_SIDE, "runs a method; its records lie in the run's folder"),
    "fl_components.executor.MethodExecutor": (SITE_SIDE, "trains; opens the folders of the site's `fedmend.json`"),
    "fl_components.persistor.ModelFilePersistor": (SERVER_SIDE, "writes models into the run's folder; no arguments"),
    "fl_components.statistics.LabelAuditWriter": (SERVER_SIDE, "writes the label audit's page into the run's folder"),
    "fl_components.statistics.LabelStatistics": (SITE_SIDE, "counts labels, small numbers held back by the site"),
    STATISTICS: (SITE_SIDE, "FLARE's: hands LabelStatistics' counts on, which the ReportGuard checks"),
    "nvflare.app_common.workflows.statistics_controller.StatisticsController": (
        SERVER_SIDE,
        "FLARE's: asks sites for counts and combines them",
    ),
    "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver": (
        SERVER_SIDE,
        "FLARE's: writes the server's metrics for TensorBoard, below the run's folder alone",
    ),
}


def named_classes(root: Path) -> dict[str, list[str]]:
    """Class → the jobs and variants of a checkout that name it, in order."""
    found: dict[str, list[str]] = {}
    for file in sorted((root / "jobs").rglob("*.json")):
        parts = file.relative_to(root / "jobs").parts
        name = f"variant `{file.stem}`" if "variants" in parts else f"`{parts[0]}`"
        for path in _paths(json.loads(file.read_text(encoding="utf-8"))):
            names = found.setdefault(path, [])
            if name not in names:
                names.append(name)
    return found


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "path" in value:
            yield value["path"]
        for inner in value.values():
            yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)


def allowed_classes(root: Path, methods: Iterable[type]) -> list[str]:
    """The list of classes that a job may name: methods, then the others of ours, then FLARE's.

    Args:
        root: a checkout.
        methods: every method and workflow that there is.

    Raises:
        FedMendError: a job names a class that is no method and has no reason in :data:`REASONS`.
    """
    named, paths = named_classes(root), [f"{cls.__module__}.{cls.__qualname__}" for cls in methods]
    if unknown := sorted(set(named) - set(paths) - set(REASONS)):
        raise FedMendError(f"jobs: expected methods and classes with a reason in fl_components.policy, got {unknown}")
    return [path for path in (*paths, *REASONS) if path in named]


def class_table(root: Path, methods: Iterable[type]) -> str:
    """Markdown, a table for each group: every class of the list, where it runs, what for and who names it."""
    named, methods = named_classes(root), list(methods)
    by_path = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in methods}
    parts = []
    for baseline, title in GROUPS.items():
        parts += [f"## {title}", "", "| class | where | what for | named by |", "|---|---|---|---|"]
        for path in allowed_classes(root, methods):
            if path.startswith(BASELINES) == baseline:
                where, why = REASONS.get(path) or _of_a_method(by_path[path])
                parts.append(f"| `{path}` | {where} | {why} | {', '.join(named[path])} |")
        parts.append("")
    return "\n".join(parts)


def _of_a_method(cls: type) -> tuple[str, str]:
    where = SITE_SIDE if issubclass(cls, LocalMethod) else SERVER_SIDE
    line = " ".join(str(inspect.getdoc(cls)).split("\n\n")[0].split()).rstrip(".")
    return where, re.sub(r":\w+:`([^`]+)`", r"`\1`", line).replace("``", "`")
