"""A package trained on at a hospital: it becomes that hospital's own, and names the given one as its parent."""

import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedmend.errors import FedMendError
from fedmend.learning.local_norm import AVERAGED, LOCAL, kept_norm
from fedmend.learning.weights import get_weights
from fedmend.package import Package
from fedmend.records.package_files import SUFFIX, is_package, write_package
from fedmend.records.run_folder import FEWEST
from fedmend.worth.home import Home
from fedmend.worth.training import ALL, Trained, plan_of, train_at

EPOCHS = 20  # at most
RATE = 0.3  # of the run's learning rate: what is there already shall not be forgotten
PERSONALISED = "personalised"


def settings_of(package: Package) -> Mapping[str, Any]:
    """The settings of the run that left a package; empty where it does not say them."""
    found = (package.info.get("provenance") or {}).get("settings")
    return found if isinstance(found, Mapping) else {}


def given_model(package: Package, home: Home) -> nn.Module:
    """The network of a package on the device of a site, with the normalisation layers that the site kept where they
    stayed there.

    Raises:
        FedMendError: they are not in the given state.
    """
    if package.info.get("norm") != LOCAL:
        return package.network().to(home.site.device)
    kept = kept_norm(home.state, int(package.info.get("round") or 0)) if home.state else None
    if kept is None:
        raise FedMendError(
            f"package {package.folder.name}: expected the state of its run at this site (--state or --kit), where its"
            " normalisation layers are, found none of this model"
        )
    model = package.network_without_norm()
    model.load_state_dict(dict(kept), strict=False)
    return model.to(home.site.device)


def personalise(package: Package, home: Home, *, layers: str = ALL, epochs: int = EPOCHS) -> Trained:
    """Trains the model of a package on at a hospital, with nothing but the hospital's own files.

    Args:
        package: the model.
        home: the hospital.
        layers: as of :func:`fedmend.worth.training.train_at`.
        epochs: at most.

    Raises:
        FedMendError: as :func:`given_model` and :func:`fedmend.worth.training.train_at`.
    """
    plan = plan_of(settings_of(package), package.name, home, epochs=epochs, rate=RATE)
    return train_at(home, copy.deepcopy(given_model(package, home)), plan, layers=layers, from_start=False)


def check_out(out: Path) -> None:
    """Refuses a folder that no package can be written to.

    Raises:
        FedMendError: another name than ``NAME.fedmend``, or a folder with something else than a package that was made
            here in it.
    """
    if out.suffix != SUFFIX or not out.stem:
        raise FedMendError(f"--out: expected a folder NAME{SUFFIX}, got {out.name!r:.60}")
    if out.exists() and not is_package(out):
        raise FedMendError(f"--out: expected a new folder, {out} has other files")
    if out.exists() and Package(out).info.get("model") != PERSONALISED:  # e.g. the one that it is made from
        raise FedMendError(f"--out: expected a new folder, {out} has the model of a run, which would be lost")


def write_personal(out: Path, package: Package, home: Home, trained: Trained, *, layers: str) -> Path:
    """Writes the package of a hospital.

    Args:
        out: the folder ``NAME.fedmend``.
        package: the one that it was made from.
        home: the hospital.
        trained: of :func:`personalise`.
        layers: that were trained.

    Returns:
        The package.

    Raises:
        FedMendError: as :func:`check_out`.
    """
    check_out(out)
    kind, info, splits = home.kind, package.info, home.site.data.evaluation
    counts = {split: kind.evaluate(trained.model, data, home.site) for split, data in splits.items()}
    val = counts["val"]
    training = {
        "layers": layers,
        "epochs": trained.epochs,
        "chosen_epoch": trained.chosen,
        "chosen_on": f"{trained.metric} of the site's val split",
        "labels_repaired": home.repaired,
        "made": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    parent = {key: info.get(key) for key in ("name", "model", "round", "parent")}
    about = {key: value for key, value in info.items() if key not in ("format", "repaired", "sites")} | {
        "name": out.stem,
        "model": PERSONALISED,
        "phantom": home.phantom,
        "norm": AVERAGED,
        "round": None,
        "metrics": {
            split: kind.metrics(own, val if split != "val" else None)["macro"] for split, own in counts.items()
        },
        "intervals": {split: kind.intervals(found, val if split != "val" else None) for split, found in counts.items()},
        "thresholds": kind.calibrated(kind.thresholds(val), val, FEWEST),
        "provenance": {**(info.get("provenance") or {}), PERSONALISED: {"site": home.site.name, **training}},
        "sites": {home.site.name: {"train": len(home.site.data.train)}},
        "parent": {**parent, "digest": package.digest},
    }
    write_package(out, about, {name: value.numpy() for name, value in get_weights(trained.model).items()})
    return out
