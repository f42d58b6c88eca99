"""What travels between server and sites, and the only place that knows the keys of ``FLModel.meta``.

Stock FLARE filters and encryption see weights only, not ``meta``; the site's own ReportGuard checks what stands here.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedmend.data.site import EVALUATION_SPLITS
from fedmend.errors import FedMendError
from fedmend.kinds import KINDS
from fedmend.messages import LONGEST_ERROR, MARK, TRAIN, RunSpec, SiteResult
from fedmend.method import RoundTask
from fedmend.site.privacy import TOLD

KEY = "fedmend"
REPORT = "report"
CLASSES = "fedmend_classes"  # under which a site's guard finds the number of classes of the run
NO_WEIGHTS = {"samples": 1.0}  # a message without weights carries a metric: FLARE takes no model without both
TAGGED, CORRECT = ("positive", "negative", "untagged"), ("correct_positive", "correct_negative", "missing")
JUDGED = ("accepted", "rejected")
CENSUS_FIELDS = {"annotated", "positives", "sizes", "kind", "phantom"}
LESIONS = "lesions"  # may stand in the census too
PRIVACY = "privacy"  # may stand in the content too
LONGEST_WORD = 100  # characters
LARGEST_COUNT = 2**50  # keeps sums over sites from overflowing


def pack_task(weights: Mapping[str, np.ndarray], task: RoundTask, run: RunSpec, *, evaluate: bool) -> FLModel:
    """Server → site."""
    card = {"run_name": run.run_name, "classes": list(run.classes), "network": run.network, "seed": run.seed}
    order = {"stage": task.stage, "knowledge": dict(task.knowledge), "role": task.role, "evaluate": evaluate}
    order["ledger_mark"] = task.ledger_mark
    body = {"params": dict(weights), "params_type": ParamsType.FULL} if weights else {"metrics": dict(NO_WEIGHTS)}
    return FLModel(
        **body, current_round=task.round_num, total_rounds=task.total_rounds, meta={KEY: {"run": card, "task": order}}
    )


def unpack_task(model: FLModel, question: str) -> tuple[dict[str, np.ndarray], RoundTask, RunSpec, bool]:
    """Site side of :func:`pack_task`.

    Args:
        model: the message.
        question: FLARE's name of the task.

    Returns:
        Weights, task, run, and whether to evaluate the model.

    Raises:
        FedMendError: the message is not one of FedMend's.
    """
    try:
        card, order = model.meta[KEY]["run"], model.meta[KEY]["task"]
        for name in ("stage", "role"):  # they stand in the log of the site
            word = order[name]
            if not (isinstance(word, str) and word.isprintable() and len(word) <= LONGEST_WORD):
                raise ValueError(name)
        kinds = {
            "classes": isinstance(card["classes"], list | tuple) and all(isinstance(c, str) for c in card["classes"]),
            "network": isinstance(card["network"], str),
            "seed": _is_whole(card["seed"]),
            "current_round": _is_whole(model.current_round),
            "total_rounds": _is_whole(model.total_rounds),
            "knowledge": isinstance(order["knowledge"], Mapping),
            "ledger_mark": isinstance(order["ledger_mark"], str) and MARK.fullmatch(order["ledger_mark"]) is not None,
            "weights": model.params is None or isinstance(model.params, Mapping),
        }
        if wrong := [name for name, right in kinds.items() if not right]:
            raise ValueError(wrong[0])
        run = RunSpec(card["run_name"], tuple(card["classes"]), card["network"], card["seed"])
        task = RoundTask(
            order["stage"],
            model.current_round,
            model.total_rounds,
            order["knowledge"],
            order["role"],
            run.seed,
            training=question == TRAIN,
            ledger_mark=order["ledger_mark"],
        )
        return dict(model.params or {}), task, run, bool(order["evaluate"])
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise FedMendError(f"task from the server: expected a FedMend task, got one that lacks or breaks {e}") from None


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def pack_result(result: SiteResult) -> FLModel:
    """Site → server."""
    content = {
        **({PRIVACY: dict(result.privacy)} if result.privacy else {}),
        "round": result.round_num,
        "samples": result.samples,
        REPORT: dict(result.report),
        "counts": dict(result.counts),
        "repairs": dict(result.repairs),
        "census": dict(result.census),
        "loss": result.loss,
        "ledger_mark": result.ledger_mark,
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
    meta = model.meta if isinstance(model.meta, Mapping) else {}
    if (algorithm := meta.get(MetaKey.PROCESSED_ALGORITHM)) is not None:
        raise FedMendError(
            f"{site}: weights: expected plain weights, which the checks and distances of the server need, got weights"
            f" processed by {algorithm!s:.40}; switch homomorphic encryption off for this job"
        )
    weights = {} if model.params is None else model.params
    if not isinstance(weights, Mapping):
        raise FedMendError(f"{site}: weights: expected tensors by name, got {type(weights).__name__}")
    result = parse_content(meta.get(KEY), site)
    result.weights = dict(weights)
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

    known = {"round", "samples", REPORT, "counts", "repairs", "census", "loss", "ledger_mark", "error"}
    need(isinstance(content, Mapping) and set(content) - {PRIVACY} == known, "fields", f"{sorted(known)}")
    promise = content.get(PRIVACY, {})
    told = isinstance(promise, Mapping) and set(promise) in (set(), set(TOLD))
    whole = told and all(type(v) is float and 0 <= v < math.inf for v in promise.values())
    need(whole, PRIVACY, f"numbers >= 0 for {list(TOLD)}")
    for name in ("round", "samples"):
        need(type(content[name]) is int and content[name] >= 0, name, "a whole number >= 0")
    need(type(content["loss"]) is float and math.isfinite(content["loss"]), "loss", "a finite number")
    mark = content["ledger_mark"]
    need(type(mark) is str and MARK.fullmatch(mark) is not None, "ledger_mark", "32 hexadecimal digits or none")
    error = content["error"]
    need(type(error) is str and len(error) <= LONGEST_ERROR and error.isprintable(), "error", "a sentence")
    for part, dtypes in ((REPORT, "biuf"), ("counts", "iu"), ("repairs", "iu")):
        need(isinstance(content[part], Mapping), part, "a mapping")
        for name, value in content[part].items():
            numeric = isinstance(name, str) and isinstance(value, np.ndarray) and value.dtype.kind in dtypes
            need(numeric, f"{part} {_shown(name)}", "an array of numbers")
            if part != REPORT:
                need(not (value < 0).any(), f"{part} {_shown(name)}", "counts >= 0")
                need(not (value > LARGEST_COUNT).any(), f"{part} {_shown(name)}", f"counts up to {LARGEST_COUNT}")
    need(set(content["counts"]) <= set(EVALUATION_SPLITS), "counts", f"splits out of {list(EVALUATION_SPLITS)}")
    kinds = KINDS.values()
    *others, last = [kind.counts_words for kind in kinds]
    for split, value in content["counts"].items():
        known = value.ndim > 1 and any(value.shape[1:] == kind.counts_shape(len(value)) for kind in kinds)
        need(known, f"counts {split}", f"{', '.join(others)} or {last} counts")
    names = set(content["repairs"])
    known = [*TAGGED, *CORRECT, *JUDGED]
    need(not names or {*TAGGED} <= names <= {*known}, "repairs", f"{known}")
    need(all(v.ndim == 1 for v in content["repairs"].values()), "repairs", "one count per class")
    _check_census(content["census"], need)
    return SiteResult(
        site=site,
        round_num=content["round"],
        samples=content["samples"],
        **{part: dict(content[part]) for part in (REPORT, "counts", "repairs", "census")},
        loss=content["loss"],
        ledger_mark=content["ledger_mark"],
        error=content["error"],
        privacy=dict(promise),
    )


def _shown(name) -> str:
    """A name that a site chose, short and without characters that would forge lines of a log."""
    return ascii(f"{name!s:.40}")[1:-1]


def _check_census(census: object, need: Callable[[bool, str, str], None]) -> None:
    fields = set(census) - {LESIONS} if isinstance(census, Mapping) else None
    need(fields in (set(), CENSUS_FIELDS), "census", f"{sorted(CENSUS_FIELDS)}")
    if not census:
        return
    for name, dtypes in (("annotated", "b"), ("positives", "iu")):
        array = census[name]
        one_per_class = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in dtypes
        need(one_per_class, f"census {name}", "one value per class")
    need(not (census["positives"] < 0).any(), "census positives", "counts >= 0")
    sizes = census["sizes"]
    whole = isinstance(sizes, Mapping) and all(type(v) is int and v >= 0 for v in sizes.values())
    need(whole and {"train"} <= set(sizes) <= {"train", *EVALUATION_SPLITS}, "census sizes", "samples per split")
    need(type(census["kind"]) is str and census["kind"] in KINDS, "census kind", f"one of {list(KINDS)}")
    lesions = census.get(LESIONS)
    counted = isinstance(lesions, np.ndarray) and lesions.shape == (2,) and lesions.dtype.kind in "iu"
    need(lesions is None or (counted and (lesions >= 0).all()), "census lesions", "two counts")
    need(type(census["phantom"]) is bool, "census phantom", "true or false")
