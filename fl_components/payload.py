"""What travels between server and sites, and the only place that knows the keys of ``FLModel.meta``.

Stock FLARE filters and encryption see weights only, not ``meta``; the site's own ReportGuard checks what stands here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedmend.data.manifest import MULTILABEL, SEGMENTATION, SINGLELABEL
from fedmend.data.manifest import TASKS as KINDS
from fedmend.data.site import EVALUATION_SPLITS
from fedmend.errors import FedMendError
from fedmend.evaluation import BINS, DICE_UNIT, SEGMENTATION_COUNTS
from fedmend.methods.base import Report, RoundTask

KEY = "fedmend"
REPORT = "report"
NO_WEIGHTS = {"samples": 1.0}  # a message without weights carries a metric: FLARE takes no model without both
CENSUS, TRAIN, COLLECT, EVALUATE = "census", "train", "collect", "evaluate"
TASKS = (CENSUS, TRAIN, COLLECT, EVALUATE)
TAGGED, CORRECT = ("positive", "negative", "untagged"), ("correct_positive", "correct_negative", "missing")
CENSUS_FIELDS = {"annotated", "positives", "sizes", "task", "phantom"}
LESIONS = "lesions"  # may stand in the census too
LONGEST_ERROR = 2000  # characters
# No honest site comes near these. They keep sums over sites from overflowing, so that no single site can stop a run.
MOST_SAMPLES = 10**8  # of a split
LARGEST_COUNT = 2**50
LARGEST_REPORTED = 1e9
LARGEST_WEIGHT = 1e12


@dataclass(frozen=True)
class RunCard:
    """What all tasks of a run share; it has its one home in the server's job configuration.

    Attributes:
        run_name: names state and ledger; a job submitted again under it goes on where it stopped.
        classes: C class names in the order of all arrays.
        network: backbone name.
        seed: the run's seed.
    """

    run_name: str
    classes: tuple[str, ...]
    network: str
    seed: int

    def __post_init__(self):
        if not isinstance(self.run_name, str) or not re.fullmatch(r"\w[\w.-]{0,99}", self.run_name):
            raise FedMendError(
                f"job variable run_name: expected letters, digits, '_', '.' or '-', got {self.run_name!r}"
            )


@dataclass
class SiteResult:
    """What a site answers.

    Attributes:
        site: site name (set by the server from FLARE's own identity, never taken from the message).
        round_num: the task's round.
        samples: N_k training samples.
        weights: floating tensors of the local model, empty for tasks without training.
        report: fields declared in the method's REPORT_FIELDS.
        counts: split → counts of the received global model, see :func:`fedmend.evaluation.evaluation_counts`.
        repairs: name → (C,) counts of repaired labels.
        census: annotated (C,), positives (C,), sizes of the splits, task (kind of labels), phantom flag; of masks that were made
            incomplete also lesions (2,), those in the masks and those that there are.
        loss: mean training loss.
        error: one sentence when the site could not do the task, else empty.
    """

    site: str = ""
    round_num: int = 0
    samples: int = 0
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    report: Report = field(default_factory=dict)
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    repairs: dict[str, np.ndarray] = field(default_factory=dict)
    census: dict = field(default_factory=dict)
    loss: float = 0.0
    error: str = ""


def pack_task(weights: Mapping[str, np.ndarray], task: RoundTask, run: RunCard, *, evaluate: bool) -> FLModel:
    """Server → site."""
    card = {"run_name": run.run_name, "classes": list(run.classes), "network": run.network, "seed": run.seed}
    order = {"stage": task.stage, "knowledge": dict(task.knowledge), "role": task.role, "evaluate": evaluate}
    body = {"params": dict(weights), "params_type": ParamsType.FULL} if weights else {"metrics": dict(NO_WEIGHTS)}
    return FLModel(
        **body, current_round=task.round_num, total_rounds=task.total_rounds, meta={KEY: {"run": card, "task": order}}
    )


def unpack_task(model: FLModel) -> tuple[dict[str, np.ndarray], RoundTask, RunCard, bool]:
    """Site side of :func:`pack_task`.

    Raises:
        FedMendError: the message is not one of FedMend's.
    """
    try:
        card, order = model.meta[KEY]["run"], model.meta[KEY]["task"]
        run = RunCard(card["run_name"], tuple(card["classes"]), card["network"], int(card["seed"]))
        task = RoundTask(
            order["stage"],
            int(model.current_round),
            int(model.total_rounds),
            order["knowledge"],
            order["role"],
            run.seed,
        )
        return dict(model.params or {}), task, run, bool(order["evaluate"])
    except (KeyError, TypeError, ValueError) as e:
        raise FedMendError(f"task from the server: expected a FedMend task, got one that lacks or breaks {e}") from None


def pack_result(result: SiteResult) -> FLModel:
    """Site → server."""
    content = {
        "round": result.round_num,
        "samples": result.samples,
        REPORT: dict(result.report),
        "counts": dict(result.counts),
        "repairs": dict(result.repairs),
        "census": dict(result.census),
        "loss": result.loss,
        "error": result.error,
    }
    body = (
        {"params": result.weights, "params_type": ParamsType.FULL} if result.weights else {"metrics": dict(NO_WEIGHTS)}
    )
    return FLModel(**body, current_round=result.round_num, meta={KEY: content})


def unpack_result(model: FLModel, site: str) -> SiteResult:
    """Server side of :func:`pack_result`.

    Raises:
        FedMendError: the message is not one of FedMend's, see :func:`parse_content`, or its weights are encrypted.
    """
    meta = model.meta or {}
    if (algorithm := meta.get(MetaKey.PROCESSED_ALGORITHM)) is not None:
        raise FedMendError(
            f"{site}: weights: expected plain weights, which the checks and distances of the server need, got weights"
            f" processed by {algorithm!s:.40}; switch homomorphic encryption off for this job"
        )
    result = parse_content(meta.get(KEY), site)
    result.weights = dict(model.params or {})
    return result


def parse_content(content, site: str) -> SiteResult:
    """Everything besides the weights of a result, checked for names, types and dimensions.

    The server uses it on what arrives, the ReportGuard of a site on what is about to leave.

    Args:
        content: what stands under FedMend's key of the message.
        site: site name for messages.

    Raises:
        FedMendError: names the first part that is missing, unknown or of another kind.
    """

    def need(condition: bool, part: str, expected: str) -> None:
        if not condition:
            raise FedMendError(f"{site}: result, {part}: expected {expected}, got something else")

    known = {"round", "samples", REPORT, "counts", "repairs", "census", "loss", "error"}
    need(isinstance(content, Mapping) and set(content) == known, "fields", f"{sorted(known)}")
    for name in ("round", "samples"):
        need(type(content[name]) is int and content[name] >= 0, name, "a whole number >= 0")
    need(type(content["loss"]) is float and math.isfinite(content["loss"]), "loss", "a finite number")
    error = content["error"]
    need(type(error) is str and len(error) <= LONGEST_ERROR and error.isprintable(), "error", "a sentence")
    for part, kinds in ((REPORT, "biuf"), ("counts", "iu"), ("repairs", "iu")):
        need(isinstance(content[part], Mapping), part, "a mapping")
        for name, value in content[part].items():
            numeric = isinstance(name, str) and isinstance(value, np.ndarray) and value.dtype.kind in kinds
            need(numeric, f"{part} {_shown(name)}", "an array of numbers")
            if part != REPORT:
                need(not (value < 0).any(), f"{part} {_shown(name)}", "counts >= 0")
                need(not (value > LARGEST_COUNT).any(), f"{part} {_shown(name)}", f"counts up to {LARGEST_COUNT}")
    need(set(content["counts"]) <= set(EVALUATION_SPLITS), "counts", f"splits out of {list(EVALUATION_SPLITS)}")
    for split, value in content["counts"].items():
        known_shape = value.ndim > 1 and value.shape[1:] in {_counts_shape(kind, len(value)) for kind in KINDS}
        need(
            known_shape,
            f"counts {split}",
            f"(C, 2, {BINS}), (C, C + {2 * BINS}) or (C, {len(SEGMENTATION_COUNTS)}) counts",
        )
    names = set(content["repairs"])
    need(not names or {*TAGGED} <= names <= {*TAGGED, *CORRECT}, "repairs", f"{[*TAGGED, *CORRECT]}")
    need(all(v.ndim == 1 for v in content["repairs"].values()), "repairs", "one count per class")
    census = content["census"]
    fields = set(census) - {LESIONS} if isinstance(census, Mapping) else None
    need(fields in (set(), CENSUS_FIELDS), "census", f"{sorted(CENSUS_FIELDS)}")
    if census:
        for name, kind in (("annotated", "b"), ("positives", "iu")):
            array = census[name]
            one_per_class = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in kind
            need(one_per_class, f"census {name}", "one value per class")
        need(not (census["positives"] < 0).any(), "census positives", "counts >= 0")
        sizes = census["sizes"]
        whole = isinstance(sizes, Mapping) and all(type(v) is int and v >= 0 for v in sizes.values())
        need(whole and {"train"} <= set(sizes) <= {"train", *EVALUATION_SPLITS}, "census sizes", "samples per split")
        known_task = type(census["task"]) is str and census["task"] in KINDS
        need(known_task, "census task", f"one of {list(KINDS)}")
        lesions = census.get(LESIONS)
        counted = isinstance(lesions, np.ndarray) and lesions.shape == (2,) and lesions.dtype.kind in "iu"
        need(lesions is None or (counted and (lesions >= 0).all()), "census lesions", "two counts")
        need(type(census["phantom"]) is bool, "census phantom", "true or false")
    return SiteResult(
        site=site,
        round_num=content["round"],
        samples=content["samples"],
        **{part: dict(content[part]) for part in (REPORT, "counts", "repairs", "census")},
        loss=content["loss"],
        error=content["error"],
    )


def check_result(
    result: SiteResult,
    *,
    round_num: int,
    num_classes: int,
    weights: Mapping[str, np.ndarray] | None,
    sizes: Mapping[str, int] | None = None,
    task: str = MULTILABEL,
) -> None:
    """Refuses a result that must not enter the global model or the records.

    Args:
        result: what a site answered, as :func:`unpack_result` gave it.
        round_num: the round that was asked for.
        num_classes: C.
        weights: the global model that was sent, for names, shapes and dtypes; None for tasks without training.
        sizes: samples per split by the site's census; None for the census itself.
        task: kind of labels by the census, which decides what the counts are.

    Raises:
        FedMendError: the site's own error sentence, or what is wrong: round, sample count, number of classes, tensor name,
            shape, dtype, NaN.
    """
    where = f"{result.site}: result of round {round_num}"
    if result.error:
        raise FedMendError(result.error)
    if result.round_num != round_num:
        raise FedMendError(f"{where}: expected round {round_num}, got round {result.round_num}")
    announced = (sizes or result.census.get("sizes", {})).get("train", result.samples)
    if result.samples < 1 or result.samples != announced:
        expected = f"the {announced} of its census" if sizes else "at least 1"
        raise FedMendError(f"{where}, field samples: expected {expected}, got {result.samples}")
    if sizes is None and not result.census:
        raise FedMendError(f"{where}: expected a census, got none")
    per_class = [*result.counts.values(), *result.repairs.values()]
    per_class += [result.census[name] for name in ("annotated", "positives") if result.census]
    for value in per_class:
        if len(value) != num_classes:
            raise FedMendError(f"{where}: expected counts of {num_classes} classes, got counts of {len(value)}")
    if result.census:
        most = max(result.census["sizes"].values())
        if most > MOST_SAMPLES:
            raise FedMendError(f"{where}, census sizes: expected at most {MOST_SAMPLES} samples per split, got {most}")
        if (result.census["positives"] > result.census["sizes"]["train"]).any():
            raise FedMendError(f"{where}, census positives: expected at most the training samples, got more")
    for split, value in result.counts.items():  # compared as Python numbers, which do not wrap
        if value.shape[1:] != _counts_shape(task, num_classes):
            raise FedMendError(f"{where}, counts {split}: expected those of {task} data, got others")
        groups = list(value.reshape(num_classes, -1))
        if task == SINGLELABEL:  # the confusion matrix and the histograms of each class
            groups = [value[:, :num_classes].ravel(), *value[:, num_classes:]]
        if task == SEGMENTATION:  # slices, and volumes; no Dice is above 1
            groups = [value[0, [0]], value[0, [2]]]
            if any(value[0, i + 1] > DICE_UNIT * int(value[0, i]) for i in (0, 2)):
                raise FedMendError(f"{where}, counts {split}: expected Dice sums of at most one per sample, got more")
        if any(sum(group.tolist()) > (sizes or {}).get(split, 0) for group in groups):
            raise FedMendError(f"{where}, counts {split}: expected at most the samples of its census, got more")
    for name, value in result.report.items():
        _check_numbers(value, f"{where}, report field {_shown(name)}", largest=LARGEST_REPORTED)
    if weights is None:
        return
    if set(result.weights) != set(weights):
        names = sorted(f"{name!s:.40}" for name in set(weights) ^ set(result.weights))
        raise FedMendError(
            f"{where}, weights: expected the global model's {len(weights)} tensors, missing or unknown: {names[:3]}"
        )
    for name, value in result.weights.items():
        own = weights[name]
        kind = (value.dtype, value.shape) if isinstance(value, np.ndarray) else (type(value).__name__, "no shape")
        if kind != (own.dtype, own.shape):
            raise FedMendError(
                f"{where}, weights {name}: expected {own.dtype} of shape {own.shape}, got {kind[0]} of {kind[1]}"
            )
        _check_numbers(value, f"{where}, weights {name}", largest=LARGEST_WEIGHT)


def _shown(name) -> str:
    """A name that a site chose, short and without characters that would forge lines of a log."""
    return ascii(f"{name!s:.40}")[1:-1]


def _check_numbers(value: np.ndarray, where: str, *, largest: float) -> None:
    if not np.isfinite(value).all():
        raise FedMendError(f"{where}: expected finite numbers, got NaN or infinity")
    if value.size and max(float(value.max()), -float(value.min())) > largest:
        raise FedMendError(f"{where}: expected numbers from -{largest:.0e} to {largest:.0e}, got larger ones")


def _counts_shape(task: str, num_classes: int) -> tuple[int, ...]:
    shapes = {SINGLELABEL: (num_classes + 2 * BINS,), SEGMENTATION: (len(SEGMENTATION_COUNTS),)}
    return shapes.get(task, (2, BINS))
