"""A package evaluated on a site folder."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmend.basics.checked import NAMES, TEXT, accepted, shown, whole
from fedmend.basics.files import make_folder, write_text
from fedmend.data.inputs import Inputs
from fedmend.errors import FedMendError
from fedmend.evaluation.evaluate import Judged, evaluate
from fedmend.evaluation.groups import Column
from fedmend.evaluation.held_out import open_held_out
from fedmend.evaluation.page import evaluation_page
from fedmend.learning.inference import chosen_device
from fedmend.package.inputs import FILMS
from fedmend.package.opened import OpenedPackage
from fedmend.preprocessing import MODALITIES

PAGE, NUMBERS = "evaluation.html", "evaluation.json"
COLUMNS = NAMES._replace(expected="a list of columns, such as ['sex', 'age:40,60']")
BATCH = 64  # samples of an inference pass, where the package does not say that of its training


@dataclass(frozen=True)
class Evaluated:
    """What :meth:`fedmend.package.Package.evaluate` has found.

    Attributes:
        results: content of ``evaluation.json``.
        counts: (C, ...) int64 counts of the split, as a site of a federation sends them.
        folder: with the two files; None: they were not asked for.
    """

    results: dict[str, Any]
    counts: np.ndarray
    folder: Path | None


def evaluate_package(
    package: OpenedPackage,
    folder: Path,
    out: Path | None,
    *,
    split: str,
    by: Sequence[str],
    min_count: int,
    device: str,
) -> Evaluated:
    """Does what :meth:`fedmend.package.Package.evaluate` says.

    Args:
        package: the model.
        folder: site folder.
        out: folder of the results; None: none are written.
        split: its name.
        by: columns.
        min_count: fewest people behind a number of a subgroup.
        device: PyTorch's word; empty: a GPU where there is one.

    Raises:
        FedMendError: as there.
    """
    accepted(split, [TEXT], "split", shown)
    accepted(min_count, [whole(1)], "min_count", shown)
    columns = [Column.of(words) for words in accepted(by, [COLUMNS], "subgroups", shown)]
    if len({c.name for c in columns}) < len(columns):
        raise FedMendError(f"subgroups: expected each column once, got {[c.name for c in columns]}")
    place = chosen_device(device)
    judged = judged_of(package, place)
    with tempfile.TemporaryDirectory() as cache:
        prepared = package.preprocessing
        opening = Inputs.of(vars(prepared)).opening(Path(cache), place)
        held = open_held_out(folder, split, package.kind, package.classes, prepared, opening)
        check_modality(held.card.site, held.card.modality, prepared.modality)
        found = evaluate(judged, held, columns, min_count, place)
    about = {
        "package": package.name,
        "digest": package.digest,
        "phantom": package.phantom or held.card.phantom,
        "site": held.card.site,
        "split": split,
        "kind": package.kind,
        "classes": list(package.classes),
        "calibrated": package.calibrated,
        "thresholds": list(judged.thresholds),
        "not_fitted": list(package.not_fitted),
        "min_count": min_count,
        "differs": held.differs,
    }
    results = about | found.results
    if out is not None:
        make_folder(out)
        write_text(out / NUMBERS, json.dumps(results, indent=2) + "\n")
        write_text(out / PAGE, evaluation_page(results))
    return Evaluated(results, found.counts, out)


def judged_of(package: OpenedPackage, device: torch.device) -> Judged:
    """The model of a package as it is evaluated. The batches are those of its training: on the same machine the scores
    are then the same to the last digit."""
    settings = (package.info.get("provenance") or {}).get("settings") or {}
    batch = settings.get("batch_size")
    return Judged(
        package.network().to(device),
        package.kind,
        package.classes,
        package.thresholds,
        package.temperatures,
        batch if type(batch) is int and 1 < batch <= 2**16 else BATCH,
    )


def check_modality(site: str, found: str, wanted: str) -> None:
    """Refuses a site folder with images of another modality.

    Args:
        site: its name.
        found: modality of its card.
        wanted: that of the package.

    Raises:
        FedMendError: both are known, and they are not alike.
    """
    known = found in MODALITIES and found and wanted
    if known and found != wanted and not {found, wanted} <= FILMS:
        raise FedMendError(f"{site}: site.json, field modality: expected {wanted}, as the package, got {found}")
