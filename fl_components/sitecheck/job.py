"""What a job folder asks of a site."""

import importlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.job.arguments import METHOD, METHODS
from fl_components.job.rules import check_job


@dataclass(frozen=True, kw_only=True)
class JobNeeds:
    """What a job asks of a site.

    Attributes:
        name: the job's name.
        classes: its classes.
        method_path: dotted name of the class of its method; empty: it has none.
        method_args: arguments of that class.
        network: name of its network; empty: it trains none.
        num_rounds: rounds of the job.
        local_epochs: epochs of a round.
        decay: how its weight decay acts.
        image_size: edge length in pixels, None where the job opens no images.
        batch_size: fewest training samples.
        phantom: the phantom for sites without data of their own, or None.
        components: every mapping of the client configuration that names a class.
        own_code: it brings code of its own.
    """

    name: str
    classes: tuple[str, ...]
    method_path: str
    method_args: Mapping
    network: str
    num_rounds: int
    local_epochs: int
    decay: str
    image_size: int | None
    batch_size: int
    phantom: Mapping | None
    components: list[Mapping]
    own_code: bool

    def method(self) -> type | None:
        """The class of its method, or None of a job without one.

        Raises:
            FedMendError: the installed FedMend does not have it.
        """
        if not self.method_path:
            return None
        module, _, name = self.method_path.rpartition(".")
        if self.method_path.startswith(METHODS):  # importing runs code: nothing else that a job names
            with suppress(ImportError, AttributeError):
                return getattr(importlib.import_module(module), name)
        raise FedMendError(f"method {name}: expected in FedMend {metadata.version('fedmend')}, not found")


def read_job(folder: Path) -> JobNeeds:
    """Reads what a job folder asks of a site.

    Raises:
        FedMendError: no job folder, or one whose files do not parse, lack classes or would be refused when it arrives.
    """
    files = [folder / "meta.json"]
    for side in ("server", "client"):
        files += sorted(folder.glob(f"*/config/config_fed_{side}.json"))
    try:
        meta, server, client = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        needs = _literal_values(server, client)
        found = JobNeeds(name=meta["name"], own_code=any(folder.glob("*/custom")), **needs)
    except (FileNotFoundError, StopIteration, ValueError, KeyError, TypeError, AttributeError):
        raise FedMendError(
            "expected a job folder with meta.json and one configuration of the server, with classes, and one of the"
            " clients, got another"
        ) from None
    check_job(folder)
    return found


def _literal_values(server: Mapping, client: Mapping) -> dict:
    run = next(c["args"] for c in _components(server) if "classes" in c.get("args", {}))
    executors = [entry["executor"] for entry in client.get("executors", [])]
    components = client.get("components", [])
    opened = _arguments(executors)
    method = next((c for c in components if c.get("id") == METHOD), {"path": ""})
    return {
        "classes": tuple(run["classes"]),
        "method_path": method["path"],
        "method_args": method.get("args", {}),
        "network": run.get("network", ""),
        "num_rounds": run.get("num_rounds", 0),
        "local_epochs": opened.get("local_epochs", 1),
        "decay": opened.get("decay", "coupled"),
        "image_size": opened.get("image_size"),
        "batch_size": opened.get("batch_size", 0),
        "phantom": _arguments(components + executors).get("phantom"),
        "components": _components(client),
    }


def _arguments(components: Sequence[Mapping]) -> dict:
    """Arguments of all these; the last one counts."""
    return {name: value for component in components for name, value in component.get("args", {}).items()}


def _components(config: Mapping) -> list[Mapping]:
    """Every mapping that names a class, the outer ones first."""
    found, queue = [], [config]
    while queue:
        value = queue.pop(0)
        if isinstance(value, Mapping):
            found += [value] if "path" in value or "class_path" in value else []
            queue += value.values()
        elif isinstance(value, list):
            queue += value
    return found
