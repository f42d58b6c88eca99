"""What travels between server and sites, and the only place that knows the keys of ``FLModel.meta``.

Stock FLARE filters and encryption see weights only, not ``meta``; the site's own ReportGuard checks what stands here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedmend.errors import FedMendError
from fedmend.evaluation import BINS
from fedmend.methods.base import Report, RoundTask

KEY = "fedmend"
REPORT = "report"
NO_WEIGHTS = {"samples": 1.0}  # a message without weights carries a metric: FLARE takes no model without both
CENSUS, TRAIN, EVALUATE = "census", "train", "evaluate"
TASKS = (CENSUS, TRAIN, EVALUATE)


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


@dataclass
class SiteResult:
    """What a site answers.

    Attributes:
        site: site name (set by the server from FLARE's own identity, never taken from the message).
        round_num: the task's round.
        samples: N_k training samples.
        weights: floating tensors of the local model, empty for tasks without training.
        report: fields declared in the method's REPORT_FIELDS.
        counts: split → (C, 2, BINS) score histograms of the received global model.
        repairs: name → (C,) counts of repaired labels.
        census: annotated (C,), positives (C,), sizes of the splits, phantom flag.
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
        FedMendError: the message is not one of FedMend's.
    """
    try:
        content = model.meta[KEY]
        return SiteResult(
            site=site,
            round_num=int(content["round"]),
            samples=int(content["samples"]),
            weights=dict(model.params or {}),
            report=dict(content[REPORT]),
            counts=dict(content["counts"]),
            repairs=dict(content["repairs"]),
            census=dict(content["census"]),
            loss=float(content["loss"]),
            error=str(content["error"]),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise FedMendError(f"{site}: result: expected a FedMend result, got one that lacks or breaks {e}") from None


def check_result(
    result: SiteResult, *, round_num: int, num_classes: int, weights: Mapping[str, np.ndarray] | None
) -> None:
    """Refuses a result that must not enter the global model.

    Args:
        result: what a site answered.
        round_num: the round that was asked for.
        num_classes: C.
        weights: the global model that was sent, for names and shapes; None for tasks without training.

    Raises:
        FedMendError: the site's own error sentence, or what is wrong: round, sample count, tensor name, shape, NaN.
    """
    where = f"{result.site}: result of round {round_num}"
    if result.error:
        raise FedMendError(result.error)
    if result.round_num != round_num:
        raise FedMendError(f"{where}: expected round {round_num}, got round {result.round_num}")
    if result.samples < 1:
        raise FedMendError(f"{where}, field samples: expected at least 1, got {result.samples}")
    arrays = {**result.report, **result.counts, **result.repairs}
    if odd := sorted(name for name, value in arrays.items() if not isinstance(value, np.ndarray)):
        raise FedMendError(f"{where}: expected arrays, got something else in {odd}")
    for name, value in result.counts.items():
        if value.shape != (num_classes, 2, BINS) or value.dtype.kind not in "iu" or (value < 0).any():
            raise FedMendError(f"{where}, counts {name}: expected {(num_classes, 2, BINS)} counts, got {value.shape}")
    for name, value in result.report.items():
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            raise FedMendError(f"{where}, report field {name}: expected finite numbers, got NaN or infinity")
    if (census := result.census) and not (
        {"annotated", "positives", "sizes", "phantom"} <= set(census)
        and np.shape(census["annotated"]) == np.shape(census["positives"]) == (num_classes,)
        and "train" in census["sizes"]
    ):
        raise FedMendError(f"{where}, census: expected flags and positives of {num_classes} classes and split sizes")
    if weights is None:
        return
    if set(result.weights) != set(weights):
        names = sorted(set(weights) ^ set(result.weights))
        raise FedMendError(
            f"{where}, weights: expected the global model's {len(weights)} tensors, missing or unknown: {names[:3]}"
        )
    for name, value in result.weights.items():
        if value.shape != weights[name].shape:
            raise FedMendError(f"{where}, weights {name}: expected shape {weights[name].shape}, got {value.shape}")
        if not np.isfinite(value).all():
            raise FedMendError(f"{where}, weights {name}: expected finite numbers, got NaN or infinity")
