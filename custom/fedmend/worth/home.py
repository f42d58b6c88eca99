"""A site folder as a package sees it: the same preprocessing, the labels with what was repaired and said."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.state import StateStore
from fedmend.data.card import SiteCard, load_card
from fedmend.data.inputs import Inputs
from fedmend.data.site import SiteData
from fedmend.errors import FedMendError
from fedmend.kinds import Kind, kind_of
from fedmend.labels import SEGMENTATION, SINGLELABEL
from fedmend.learning.inference import chosen_device
from fedmend.method import Site
from fedmend.package import Package
from fedmend.package.evaluate import check_modality
from fedmend.repairs.site_run import LEDGER_NAME, load_opened, take_over_verdicts


@dataclass(frozen=True)
class Home:
    """A site that a model is trained on at, and judged.

    Attributes:
        site: its data; the training labels are those in force.
        kind: of its labels.
        phantom: its data are synthetic.
        repaired: training labels, of masks pixels, that differ from the site's own table.
        state: of the run at the site, ``<state_dir>/<run>/<site>``; None: it was not given.
    """

    site: Site
    kind: Kind
    phantom: bool
    repaired: int
    state: Path | None


class _InForce:
    """In the place of a ledger whose repairs are in the labels already.

    Args:
        structures: masks are of several classes.
    """

    def __init__(self, structures: bool):
        self._structures = structures

    def judged(self, labels: np.ndarray) -> np.ndarray:
        return labels.copy()

    def apply(self, masks: np.ndarray) -> np.ndarray:
        return masks.copy() if self._structures else masks > 0


def open_home(
    package: Package, folder: Path | None, state: Path | None, *, work: Path, batch_size: int, device: str = ""
) -> Home:
    """Opens a site folder for a package.

    Args:
        package: the model.
        folder: site folder; None: the one that the run had, by ``state``.
        state: of the run at the site, whose ledger counts; None: the labels as the folder has them.
        work: folder for what need not last, images among it where there is no ``state``.
        batch_size: of the training.
        device: PyTorch's word; empty: a GPU where there is one.

    Raises:
        FedMendError: neither folder nor state, other classes, labels or preprocessing than the package's, or anything
            about the folder that cannot be used.
    """
    place = chosen_device(device)
    name = state.name if state else (folder or Path("site")).resolve().name
    known = load_opened(StateStore(state), name) if state else None
    if folder is None and known is None:
        raise FedMendError("expected a site folder, or the state of a run at a site, got neither")
    card = load_card(folder, name) if folder else known[0]  # type: ignore[index]  # one of them is there
    _check(card, package)
    prepared = package.preprocessing
    if prepared.spacing:
        raise FedMendError(f"{name}: expected a model of slices, got one of volumes")
    opening = Inputs.of(vars(prepared)).opening(known[2].cache_dir if known else work, place)
    kind = kind_of(card.kind)
    data = kind.load(card, package.classes, opening)
    if card.kind != SEGMENTATION:
        data = data.scaled(prepared.pixel_mean, prepared.pixel_deviation)
    repaired = 0
    if state:
        ledger = kind.open_ledger(state / LEDGER_NAME, card, data)
        take_over_verdicts(ledger, state / LEDGER_NAME)
        data, repaired = _with_repairs(data, ledger)
    if card.kind == SINGLELABEL:
        data = _labelled(data, name)
    site = Site(name, place, data, _InForce(len(package.classes) > 1), StateStore(work / "state"), batch_size)
    return Home(site, kind, card.phantom or package.phantom, repaired, state)


def _check(card: SiteCard, package: Package) -> None:
    prepared = package.preprocessing
    pairs = {
        "task": (package.kind, card.kind),
        "window": (prepared.window, card.window),
        "color": (prepared.color, card.color),
    }
    for field, (wanted, got) in pairs.items():
        if wanted != got:
            raise FedMendError(
                f"{card.site}: site.json, field {field}: expected {wanted!r} as in package {package.name}, got {got!r}"
            )
    check_modality(card.site, card.modality, prepared.modality)


def _with_repairs(data: SiteData, ledger: Any) -> tuple[SiteData, int]:
    """The data with the labels in force, and how many of them are not the site's own."""
    train = data.train
    if data.kind == SEGMENTATION:
        masks = ledger.apply(train.masks).astype(np.uint8)
        return replace(data, train=replace(train, masks=masks)), int((masks != train.masks).sum())
    labels = ledger.apply(train.labels)
    changed = int((labels != train.labels).sum())
    split = replace(train, table=replace(train.table, labels=labels))
    return replace(data, train=split, annotated=(labels >= 0).any(0)), changed


def _labelled(data: SiteData, site: str) -> SiteData:
    """Without the training samples of single-label data that nobody has labelled."""
    train = data.train
    keep = np.flatnonzero((train.labels == 1).any(1))
    if len(keep) < 2:
        raise FedMendError(f"{site}: {train.file}: expected at least 2 labelled samples, got {len(keep)}")
    if len(keep) == len(train):
        return data

    return replace(data, train=train.chosen(keep))
