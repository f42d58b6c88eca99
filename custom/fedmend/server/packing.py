"""The packages of a run: its final and its best model with all that somebody needs who uses them, written by the server
beside the records; and a package as the initial weights of another run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.errors import FedMendError
from fedmend.learning.local_norm import AVERAGED
from fedmend.messages import RunSpec
from fedmend.records.package_files import SUFFIX, WEIGHTS, package_digest, read_package, write_package
from fedmend.server.census import Census
from fedmend.server.fingerprint import versions

FINAL, BEST = "final", "best"
AT_HOME = ("positives", "lesions")  # exact counts of patients do not travel with a model
OF_PARENT = ("name", "model", "round", "parent")


@dataclass(frozen=True)
class Start:
    """What a run starts from.

    Attributes:
        file: of the initial weights; empty: random ones.
        trained: the file is a model that a run has trained, so that round 0 may be the best one.
        parent: what the package of the weights says of itself; empty: they are of no package.
    """

    file: str = ""
    trained: bool = False
    parent: Mapping[str, Any] | None = None

    def check(self, spec: RunSpec, census: Census, variable: str = "weights") -> None:
        """Refuses a package that was made for something else.

        Args:
            spec: of the run.
            census: of its sites.
            variable: the job's, which names the package.

        Raises:
            FedMendError: another network, kind of labels, order of classes or preprocessing.
        """
        if self.parent is None:
            return
        where = f"job variable {variable}, package"
        prepared = census.preprocessing.of_package(census.kind.name)
        try:
            given, network = dict(self.parent["preprocessing"]), self.parent["network"]["name"]
            name, kind, classes = (self.parent[key] for key in ("name", "kind", "classes"))
        except (KeyError, TypeError, ValueError):
            raise FedMendError(f"{where}: expected fields as a run of FedMend writes them, got others") from None
        pairs = {
            "network": (spec.network, network),
            "kind of labels": (census.kind.name, kind),
            "classes in this order": (list(spec.classes), classes),
            **{
                f"preprocessing, {k}": (v, given.get(k)) for k, v in prepared.items() if k not in ("digest", "modality")
            },
        }
        for what, (wanted, got) in pairs.items():
            if wanted != got:
                raise FedMendError(
                    f"{where} {name!s:.200}: expected {what} as in this run, {wanted!r:.200}, got {got!r:.200}"
                )

    @property
    def as_parent(self) -> dict[str, Any] | None:
        """The package as the packages of this run name it, with its own parents."""
        if self.parent is None:
            return None
        return {**{k: self.parent.get(k) for k in OF_PARENT}, "digest": package_digest(Path(self.file).parent)}


def start_from_package(folder: str) -> Start:
    """The weights of a package.

    Args:
        folder: the package.

    Raises:
        FedMendError: a file of it is missing or has changed.
    """
    return Start(str(Path(folder) / WEIGHTS), trained=True, parent=read_package(folder))


def pack(
    folder: Path,
    model: str,
    weights: Mapping[str, np.ndarray],
    *,
    info: Mapping[str, Any],
    network: str,
    census: Census,
    outcome: Mapping[str, Any],
    start: Start,
    sign: Callable[[Path], None],
) -> Path:
    """Writes one package beside the records of a run.

    Args:
        folder: the run folder.
        model: ``final`` or ``best``.
        weights: name → floating array.
        info: content of ``run.json``.
        network: its name.
        census: of the sites.
        outcome: ``round``, ``metrics``, ``intervals``, ``thresholds`` and ``repaired`` of the model.
        start: what the run started from.
        sign: signs a folder with all files of a package, where there is a certificate.

    Returns:
        The package.
    """
    kind, classes = census.kind, info["classes"]
    name = info["run_name"] + ("" if model == FINAL else f"-{model}")
    about = {
        "name": name,
        "model": model,
        "phantom": info["phantom"],
        "kind": kind.name,
        "classes": classes,
        "network": {"name": network, "arguments": {"num_classes": len(classes)}},
        "norm": info["settings"].get("norm", AVERAGED),
        "preprocessing": census.preprocessing.of_package(kind.name),
        **outcome,
        "provenance": {k: v for k, v in info.items() if k not in ("classes", "phantom", "task", "parent", "sites")},
        "sites": {site: {k: v for k, v in said.items() if k not in AT_HOME} for site, said in info["sites"].items()},
        "parent": start.as_parent,
        "versions": versions(),
    }
    write_package(folder / f"{name}{SUFFIX}", about, weights, sign=sign)
    return folder / f"{name}{SUFFIX}"
