"""What a site answers, and what the server checks before anything of it counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmend.errors import FedMendError
from fedmend.fields import Field, check_fields
from fedmend.kinds import Kind
from fedmend.learning.weights import check_range
from fedmend.messages import SiteResult

# No honest site comes near it. With LARGEST_WEIGHT it keeps sums over sites from overflowing, so that no single site
# can stop a run.
MOST_SAMPLES = 10**8  # of a split


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the server asked for, which a result must fit.

    Attributes:
        round_num: the round.
        num_classes: C.
        weights: the global model that was sent, for names, shapes and dtypes; None for tasks without training.
        sizes: samples per split by the site's census; None for the census itself.
        kind: kind of labels by the census.
        evaluated: the site was asked to evaluate the model.
        fields: what the method may report.
        letters: sizes of the letters in the shapes of fields.
    """

    round_num: int
    num_classes: int
    weights: Mapping[str, np.ndarray] | None = None
    sizes: Mapping[str, int] | None = None
    kind: Kind | None = None
    evaluated: bool = False
    fields: Mapping[str, Field] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)


def check_result(result: SiteResult, expected: Expected) -> None:
    """Refuses a result that must not enter the global model or the records; its parts have the right types.

    Raises:
        FedMendError: the site's own error sentence, or what is wrong: round, sample count, number of classes, a report
            field, tensor name, shape, dtype, NaN.
    """
    where = f"{result.site}: result of round {expected.round_num}"
    if result.error:
        raise FedMendError(result.error)
    if result.round_num != expected.round_num:
        raise FedMendError(f"{where}: expected round {expected.round_num}, got round {result.round_num}")
    sizes = expected.sizes
    announced = (sizes or result.census.get("sizes", {})).get("train", result.samples)
    if result.samples < 1 or result.samples != announced:
        wanted = f"the {announced} of its census" if sizes else "at least 1"
        raise FedMendError(f"{where}, field samples: expected {wanted}, got {result.samples}")
    if sizes is None and not result.census:
        raise FedMendError(f"{where}: expected a census, got none")
    per_class = [*result.counts.values(), *result.repairs.values()]
    per_class += [result.census[name] for name in ("annotated", "positives") if result.census]
    classes = expected.num_classes
    if wrong := [len(value) for value in per_class if len(value) != classes]:
        raise FedMendError(f"{where}: expected counts of {classes} classes, got counts of {wrong[0]}")
    if result.census:
        _check_census(result.census, where)
    for split, value in result.counts.items():
        if expected.kind is None or not expected.evaluated:  # metrics of that site alone would be made of them
            raise FedMendError(f"{where}, counts {split}: expected none, as no evaluation was asked for, got some")
        samples = (sizes or {}).get(split, 0)
        expected.kind.check_counts(value, classes, samples, f"{where}, counts {split}")
    check_fields(result.report, expected.fields, expected.letters, f"{where}, report field")
    if expected.weights is not None:
        _check_weights(result.weights, expected.weights, where)


def _check_census(census: Mapping, where: str) -> None:
    most = max(census["sizes"].values())
    if most > MOST_SAMPLES:
        raise FedMendError(f"{where}, census sizes: expected at most {MOST_SAMPLES} samples per split, got {most}")
    if census["data"].keys() != census["sizes"].keys():
        raise FedMendError(f"{where}, census data: expected a mark of each split of its sizes, got others")
    if (census["positives"] > census["sizes"]["train"]).any():
        raise FedMendError(f"{where}, census positives: expected at most the training samples, got more")


def _check_weights(weights: Mapping[str, Any], sent: Mapping[str, np.ndarray], where: str) -> None:
    if set(weights) != set(sent):
        names = sorted(f"{name!s:.40}" for name in set(sent) ^ set(weights))
        raise FedMendError(
            f"{where}, weights: expected the global model's {len(sent)} tensors, missing or unknown: {names[:3]}"
        )
    for name, value in weights.items():
        own = sent[name]
        got = (value.dtype, value.shape) if isinstance(value, np.ndarray) else (type(value).__name__, "no shape")
        if got != (own.dtype, own.shape):
            raise FedMendError(
                f"{where}, weights {name}: expected {own.dtype} of shape {own.shape}, got {got[0]} of {got[1]}"
            )
        if not np.isfinite(value).all():
            raise FedMendError(f"{where}, weights {name}: expected finite numbers, got NaN or infinity")
        check_range(name, value, f"{where}, weights {name}")
