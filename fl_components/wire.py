"""What travels between server and sites, and the only place that knows the keys of ``FLModel.meta``.

Stock FLARE filters and encryption see weights only, not ``meta``; the site's own ReportGuard checks what stands here.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedmend.basics.checked import COUNT, FLAG, Check, accepted, one_of, that
from fedmend.data.site import EVALUATION_SPLITS
from fedmend.errors import FedMendError
from fedmend.kinds import KINDS
from fedmend.messages import KEEP_MODEL, LONGEST_ERROR, MARK, TRAIN, RunSpec, SiteResult
from fedmend.method import RoundTask
from fedmend.preprocessing import is_told
from fedmend.site.privacy import TOLD

KEY = "fedmend"
REPORT = "report"
CLASSES = "fedmend_classes"  # under which a site's guard finds the number of classes of the run
RUN_NAME = "fedmend_run_name"  # under which it finds the run
NO_WEIGHTS = {"samples": 1.0}  # a message without weights carries a metric: FLARE takes no model without both
TAGGED, CORRECT, MISSING = ("positive", "negative", "untagged"), ("correct_positive", "correct_negative"), "missing"
JUDGED = ("accepted", "rejected")
LESIONS = "lesions"  # may stand in the census too
PRIVACY = "privacy"  # may stand in the content too
LONGEST_WORD = 100  # characters
MOST_SITES = 1000  # of a federation
LARGEST_COUNT = 2**50  # keeps sums over sites from overflowing


def pack_task(weights: Mapping[str, np.ndarray], task: RoundTask, run: RunSpec, *, evaluate: bool) -> FLModel:
    """Server → site."""
    card = {"run_name": run.run_name, "classes": list(run.classes), "network": run.network, "seed": run.seed}
    card |= {"mark": run.mark}
    order = {"stage": task.stage, "knowledge": dict(task.knowledge), "role": task.role, "evaluate": evaluate}
    order |= {"ledger_mark": task.ledger_mark, "sites": list(task.sites)}
    meta, rounds = {KEY: {"run": card, "task": order}}, task.total_rounds
    return FLModel(**_body(weights), current_round=task.round_num, total_rounds=rounds, meta=meta)


def _body(weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {"params": dict(weights), "params_type": ParamsType.FULL} if weights else {"metrics": dict(NO_WEIGHTS)}


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
            "network": isinstance(card["network"], str) and card["network"].isprintable(),
            "seed": _is_whole(card["seed"]),
            "current_round": _is_whole(model.current_round),
            "total_rounds": _is_whole(model.total_rounds),
            "knowledge": isinstance(order["knowledge"], Mapping),
            "mark": _is_mark(card["mark"]),
            "ledger_mark": _is_mark(order["ledger_mark"]),
            "sites": _are_sites(order["sites"]),
            "weights": model.params is None or isinstance(model.params, Mapping),
        }
        if wrong := [name for name, right in kinds.items() if not right]:
            raise ValueError(wrong[0])
        run = RunSpec(card["run_name"], tuple(card["classes"]), card["network"], card["seed"], card["mark"])
        task = RoundTask(
            order["stage"],
            model.current_round,
            model.total_rounds,
            order["knowledge"],
            order["role"],
            run.seed,
            training=question == TRAIN,
            ledger_mark=order["ledger_mark"],
            sites=tuple(order["sites"]),
        )
        return dict(model.params or {}), task, run, bool(order["evaluate"])
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise FedMendError(f"task from the server: expected a FedMend task, got one that lacks or breaks {e}") from None


def _are_sites(value: object) -> bool:
    if not (isinstance(value, list | tuple) and 1 <= len(value) <= MOST_SITES):
        return False
    words = all(isinstance(v, str) and 0 < len(v) <= LONGEST_WORD and v.isprintable() for v in value)
    return words and len({*value}) == len(value)


def _is_mark(value: object) -> bool:
    return isinstance(value, str) and MARK.fullmatch(value) is not None


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
    return FLModel(**_body(result.weights), current_round=result.round_num, meta={KEY: content})


def unpack_result(model: FLModel, site: str) -> SiteResult:
    """Server side of :func:`pack_result`.

    Raises:
        FedMendError: the message is not one of FedMend's, see :func:`parse_content`, or its weights are encrypted.
    """
    meta = model.meta if isinstance(model.meta, Mapping) else {}
    if (algorithm := meta.get(MetaKey.PROCESSED_ALGORITHM)) is not None:
        raise FedMendError(
            f"{site}: weights: expected plain weights, which the checks and distances of the server need, got weights"
            f" processed by {shown(algorithm)}; switch homomorphic encryption off for this job"
        )
    weights = {} if model.params is None else model.params
    if not isinstance(weights, Mapping):
        raise FedMendError(f"{site}: weights: expected tensors by name, got {type(weights).__name__}")
    result = parse_content(meta.get(KEY), site)
    result.weights = dict(weights)
    return result


def _names(required: Collection[str], optional: Collection[str], expected: str) -> Check:
    """Takes mappings with these names, and empty ones."""
    known = {*required, *optional}
    return that(lambda v: isinstance(v, Mapping) and (not v or {*required} <= {*v} <= known), expected)


def _pairs_are_whole(repairs: Collection[str]) -> bool:
    pairs = all({*pair} <= {*repairs} or {*pair}.isdisjoint(repairs) for pair in (CORRECT, JUDGED))
    return pairs and (MISSING not in repairs or {*CORRECT} <= {*repairs})


def _array(dtypes: str, expected: str, ndim: int | None = None) -> Check:
    return that(lambda v: isinstance(v, np.ndarray) and v.dtype.kind in dtypes and ndim in (None, v.ndim), expected)


def _counts_of_a_kind(value: np.ndarray) -> bool:
    return value.ndim > 1 and any(value.shape[1:] == kind.counts_shape(len(value)) for kind in KINDS.values())


MAPPING = that(lambda v: isinstance(v, Mapping) and all(isinstance(name, str) for name in v), "a mapping of names")
NO_COUNT_BELOW_0 = that(lambda v: not (v < 0).any(), "counts >= 0")
COUNTS = [
    _array("iu", "an array of numbers"),
    NO_COUNT_BELOW_0,
    that(lambda v: not (v > LARGEST_COUNT).any(), f"counts up to {LARGEST_COUNT}"),
]
*OTHERS, LAST = [kind.counts_words for kind in KINDS.values()]
PROMISE, SIZES, DATA = f"numbers >= 0 for {list(TOLD)}", "samples per split", "32 hexadecimal digits per split"
REPAIRS = (*TAGGED, *CORRECT, MISSING, *JUDGED)
PAIRS = f"both of {list(CORRECT)} or neither, {MISSING!r} only beside them, both of {list(JUDGED)} or neither"
CENSUS = {
    "annotated": [_array("b", "one value per class", ndim=1)],
    "positives": [_array("iu", "one value per class", ndim=1), NO_COUNT_BELOW_0],
    "sizes": [
        that(lambda v: "train" in v and all(type(n) is int and n >= 0 for n in v.values()), SIZES),
        _names(("train",), EVALUATION_SPLITS, SIZES),
    ],
    "data": [
        _names(("train",), EVALUATION_SPLITS, DATA),
        that(lambda v: v and all(type(m) is str and m and MARK.fullmatch(m) for m in v.values()), DATA),
    ],
    "kind": [one_of(list(KINDS))],
    "phantom": [FLAG],
    "preprocessing": [that(is_told, "how images are read")],
    "min_federation": [that(lambda v: type(v) is int and 1 <= v <= MOST_SITES, f"a number from 1 to {MOST_SITES}")],
    KEEP_MODEL: [FLAG],
    LESIONS: [_array("iu", "two counts", ndim=1), that(lambda v: len(v) == 2 and (v >= 0).all(), "two counts")],
}
CENSUS_FIELDS = sorted({*CENSUS} - {KEEP_MODEL, LESIONS})
PARTS = {  # part of the content → what it has to be
    PRIVACY: [
        _names(TOLD, (), PROMISE),
        that(lambda v: all(type(n) is float and 0 <= n < math.inf for n in v.values()), PROMISE),
    ],
    "round": [COUNT],
    "samples": [COUNT],
    "loss": [that(lambda v: type(v) is float and math.isfinite(v), "a finite number")],
    "ledger_mark": [that(lambda v: type(v) is str and MARK.fullmatch(v), "32 hexadecimal digits or none")],
    "error": [that(lambda v: type(v) is str and len(v) <= LONGEST_ERROR and v.isprintable(), "a sentence")],
    REPORT: [MAPPING],
    "counts": [MAPPING, _names((), EVALUATION_SPLITS, f"splits out of {list(EVALUATION_SPLITS)}")],
    "repairs": [MAPPING, _names(TAGGED, REPAIRS, f"{list(REPAIRS)}"), that(_pairs_are_whole, PAIRS)],
    "census": [_names(CENSUS_FIELDS, [KEEP_MODEL, LESIONS], f"{CENSUS_FIELDS}")],
}
FIELDS = sorted({*PARTS} - {PRIVACY})
WHOLE = that(lambda v: isinstance(v, Mapping) and {*v} - {PRIVACY} == {*FIELDS}, f"{FIELDS}")
ENTRIES = {  # part that is a mapping → what each of its entries has to be
    REPORT: [_array("biuf", "an array of numbers")],
    "counts": [*COUNTS, that(_counts_of_a_kind, f"{', '.join(OTHERS)} or {LAST} counts")],
    "repairs": [*COUNTS, that(lambda v: v.ndim == 1, "one count per class")],
}


def parse_content(content: Any, site: str) -> SiteResult:
    """Everything besides the weights of a result, checked for names, types and dimensions.

    The server uses it on what arrives, the ReportGuard of a site on what is about to leave.

    Args:
        content: what stands under FedMend's key of the message.
        site: site name for messages.

    Raises:
        FedMendError: names the first part that is missing, unknown or of another kind.
    """
    _check(content, [WHOLE], "fields", site)
    for part, checks in PARTS.items():
        _check(content.get(part, {}), checks, part, site)
    for part, checks in ENTRIES.items():
        for name, value in content[part].items():
            _check(value, checks, f"{part} {shown(name)}", site)
    for name, value in content["census"].items():
        _check(value, CENSUS[name], f"census {name}", site)
    found: dict[str, Any] = {part: content[part] for part in ("samples", "loss", "ledger_mark", "error")}
    found |= {part: dict(content.get(part, {})) for part in (PRIVACY, *ENTRIES, "census")}
    return SiteResult(site, content["round"], **found)


def _check(value: object, checks: Sequence[Check], part: str, site: str) -> None:
    accepted(value, checks, f"{site}: result, {part}", got=lambda _: "something else")


def shown(name: object) -> str:
    """A name that a site chose, short and without characters that would forge lines of a log."""
    return ascii(f"{name!s:.40}")[1:-1]
