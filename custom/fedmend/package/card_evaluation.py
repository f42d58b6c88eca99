"""The numbers of ``fedmend evaluate`` as the card of the package has them: those of its file, and none beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmend.basics.checked import COUNT, FLAG, OBJECT, TEXT, checked, taking, that
from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError
from fedmend.evaluation.evaluate import HELD_BACK
from fedmend.labels import SEGMENTATION
from fedmend.package.evaluate import NUMBERS
from fedmend.package.opened import NAMES, OpenedPackage

PEOPLE = that(lambda v: v is None or (type(v) is int and v >= 0), "a number of people or null")
DRAWN = ("images", "patients", "volumes")
SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class _Evaluation:
    """The fields of ``evaluation.json`` that every kind of labels has."""

    digest: str = taking(TEXT)
    phantom: bool = taking(FLAG)
    site: str = taking(TEXT)
    split: str = taking(TEXT)
    kind: str = taking(TEXT)
    classes: Sequence[str] = taking(NAMES)
    samples: int = taking(COUNT)
    patients: int | None = taking(PEOPLE)
    min_count: int = taking(COUNT)
    differs: str = taking(TEXT)
    metrics: Mapping[str, Any] = taking(OBJECT)
    bootstrap: Mapping[str, Any] = taking(OBJECT)
    groups: Mapping[str, Any] = taking(OBJECT)


def read_evaluation(path: Path, package: OpenedPackage) -> dict[str, Any]:
    """What a card says of an evaluation.

    Args:
        path: ``evaluation.json``, or the folder that it lies in.
        package: the one that was evaluated.

    Returns:
        ``site``, ``split``, ``phantom``, ``samples``, ``patients``, ``min_count``, ``differs``; ``drawn``: what was
        drawn again for intervals; ``metrics``: name → value and interval of the means; ``classes``: class → the same of
        each class; ``groups``: column → group → class → the same, or that it is held back.

    Raises:
        FedMendError: no such file, one of another package, or fields as ``fedmend evaluate`` does not write them.
    """
    file = path / NUMBERS if path.is_dir() else path
    where = f"--evaluation, {file.name}"
    raw: Any = read_document(file, where, f"the {NUMBERS} that fedmend evaluate writes")
    about = checked(_Evaluation, raw, where, others=True)
    if (about.digest, about.kind, tuple(about.classes)) != (package.digest, package.kind, package.classes):
        words = f"an evaluation of this package, digest {package.digest[:16]}"
        raise FedMendError(f"{where}: expected {words}, got one of digest {about.digest:.16}")
    try:
        return _taken(about, raw)
    except SHAPE:
        raise FedMendError(f"{where}: expected fields as fedmend evaluate writes them, got others") from None


def _taken(about: _Evaluation, raw: Mapping[str, Any]) -> dict[str, Any]:
    again, drawn = about.bootstrap, about.bootstrap["of"]
    if drawn not in DRAWN:
        raise ValueError
    whole = {**raw, "per_class": about.metrics["per_class"], "intervals": again}
    return {
        **{name: getattr(about, name) for name in ("site", "split", "phantom", "samples", "patients")},
        **{name: getattr(about, name) for name in ("min_count", "differs")},
        "drawn": drawn,
        "metrics": {n: _measured(value, again["macro"].get(n)) for n, value in about.metrics["macro"].items()},
        "classes": {name: _of_class(whole, about.kind, i) for i, name in enumerate(about.classes)},
        "groups": {
            column: {group: _of_group(found, about) for group, found in groups.items()}
            for column, groups in about.groups.items()
        },
    }


def _of_group(found: Any, about: _Evaluation) -> dict[str, Any]:
    hidden = list(about.classes) if found == HELD_BACK else found["held_back"]
    if not isinstance(hidden, list):
        raise TypeError
    return {
        name: HELD_BACK if name in hidden else _of_class(found, about.kind, i) for i, name in enumerate(about.classes)
    }


def _of_class(found: Mapping[str, Any], kind: str, i: int) -> dict[str, Any]:
    """The numbers of one class in the whole split, or in a group."""
    ranked = "volume_dice" if kind == SEGMENTATION else "auc"
    ranks = found["intervals"]["per_class"].get(ranked)  # none where nothing could be measured
    said = {ranked: _measured(found["per_class"][ranked][i], ranks[i] if ranks else None)}
    if kind == SEGMENTATION:
        return said | {name: _measured(found["volumes"][i][name], None) for name in ("lesion_f1", "hd95")}
    row = found["decisions"][i]
    said |= {name: _measured(row[name], row[f"{name}_interval"]) for name in ("sensitivity", "specificity")}
    return said | {"ece": _measured(found["calibration"][i]["ece"], None)}


def _measured(value: Any, interval: Any) -> dict[str, Any]:
    numbers = [*([] if value is None else [value]), *([] if interval is None else interval)]
    if not all(type(n) in (int, float) for n in numbers) or (interval is not None and len(interval) != 2):
        raise ValueError
    return {"value": value, "interval": interval}
