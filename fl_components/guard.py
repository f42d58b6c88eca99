"""ReportGuard: the site's own last look at what leaves besides the weights."""

from collections.abc import Collection, Mapping

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmend.errors import FedMendError
from fedmend.fields import Field, check_fields, hold_back, sizes_of
from fedmend.messages import LONGEST_ERROR, SiteResult
from fedmend.site.config import CONFIG_NAME, SiteConfig
from fedmend.site.private_site import check_withheld
from fedmend.site.register import digest_of, note, size_of, told
from fl_components.job.reading import TASKS
from fl_components.statistics import check_statistics
from fl_components.wire import CLASSES, KEY, LONGEST_WORD, REPORT, RUN_NAME, pack_result, parse_content
from fl_components.workspace import load_site_config

_META = {KEY, MetaKey.FILTER_HISTORY, MetaKey.PROCESSED_ALGORITHM}  # the latter two are left by FLARE's own filters
_CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
_ACCOUNTS = {"svt_privacy_budget", "svt_privacy_accountant"}  # SVTPrivacy's, which are in the site's log too


class ReportGuard(Filter):
    """Result filter for the site policy (``local/privacy.json``), so that a job cannot take it away.

    Lets a result pass when its fields are known, its report fields are as the policy describes them and the whole is
    small enough; otherwise nothing but a sentence leaves. Rows of a report field that are made from fewer than
    ``min_count`` samples are set to zero, their count too. Of FLARE's statistics workflow, label counts of at least
    ``min_count`` pass. Of an error reply, nothing but its code passes. The accounts that FLARE's ``SVTPrivacy`` adds
    stay at the site, and so do the report fields that it refuses by ``refuse_fields``. What passes is put into a new
    message, so that nothing beside it travels along, and is written into the site's register first
    (:mod:`fedmend.site.register`).

    FLARE's simulator does not run site policies at the clients; there the server, which has the same policy, runs this
    filter on what arrives.

    Args:
        fields: report fields that may leave → ``shape``, ``dtype``, ``low``, ``high`` and ``of_samples`` of
            :class:`fedmend.fields.Field`.
        counts: report field → the report field that says how many samples are behind each of its rows.
        max_kilobytes: largest size of everything besides the weights.
    """

    def __init__(self, *, fields: dict[str, dict], counts: dict[str, str], max_kilobytes: int = 1024):
        super().__init__()
        if not isinstance(fields, dict):  # a policy of an earlier version
            raise ValueError(
                "privacy.json, ReportGuard: expected fields with their shapes, got names; take over the new one"
            )
        self._fields = {
            name: Field(**{**told, "shape": tuple(told["shape"]), "meaning": "", "risk": ""})
            for name, told in fields.items()
        }
        self._counts, self._max_bytes = dict(counts), max_kilobytes * 1024

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Checks one task result; one that may not leave is replaced by the sentence that says why. At a site, what
        leaves is on record before."""
        passed = self._passed(shareable, fl_ctx)
        if fl_ctx.get_process_type() == ProcessType.SERVER_JOB:  # it has left already
            return passed
        try:
            task = {"job": fl_ctx.get_job_id(), "run": fl_ctx.get_prop(RUN_NAME, "")}
            asked = fl_ctx.get_prop(FLContextKey.TASK_NAME, "")
            about = task | {"task": asked if asked in ("", *TASKS) else "unknown", **_told(passed)}
            note(load_site_config(fl_ctx).state_dir, fl_ctx.get_identity_name(), about)
        except FedMendError as e:
            sentence = self._sentence(e, fl_ctx)
            counted = passed.get_return_code() == ReturnCode.OK and KEY not in from_shareable(passed).meta
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR) if counted else sentence
        return passed

    def _sentence(self, error: FedMendError, fl_ctx: FLContext) -> Shareable:
        self.log_error(fl_ctx, str(error))
        sentence = "".join(letter for letter in str(error) if letter.isprintable())[:LONGEST_ERROR]
        return FLModelUtils.to_shareable(pack_result(SiteResult(error=sentence)))

    def _passed(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code if isinstance(code, str) and code in _CODES else ReturnCode.ERROR)
        peer = fl_ctx.get_peer_context() if fl_ctx.get_process_type() == ProcessType.SERVER_JOB else None
        site = (peer or fl_ctx).get_identity_name()
        dxo = from_shareable(shareable)
        if dxo.data_kind == DataKind.STATISTICS:
            return self._process_statistics(dxo, site, fl_ctx)
        try:
            dxo.meta = {name: value for name, value in dxo.meta.items() if name not in _ACCOUNTS}
            self._check_envelope(dxo, f"{site}: ReportGuard")
            content, config = dxo.meta[KEY], load_site_config(fl_ctx)
            dxo.meta[KEY] = self.check(content, site, config.min_count, fl_ctx.get_prop(CLASSES), config.refuse_fields)
            self._check_allowed(dxo.meta[KEY][REPORT], config, site)
            if config.privacy:
                weights = dxo.data_kind == DataKind.WEIGHTS
                check_withheld(parse_content(dxo.meta[KEY], f"{site}: ReportGuard"), self._fields, weights=weights)
        except FedMendError as e:
            return self._sentence(e, fl_ctx)
        passed = dxo.to_shareable()
        passed.set_header(AppConstants.CURRENT_ROUND, dxo.meta[KEY]["round"])
        return passed

    def _check_allowed(self, report: Mapping, config: SiteConfig, site: str) -> None:
        """Refuses a field that leaves only where a setting of the site allows it."""
        for name in report:
            if (setting := self._fields[name].allowed_by) and not getattr(config, setting, None):
                raise FedMendError(
                    f"{site}: ReportGuard: expected {name} to stay at this site, whose fedmend.json has no {setting}"
                )

    def _process_statistics(self, dxo: DXO, site: str, fl_ctx: FLContext) -> Shareable:
        try:
            _check_meta(dxo, f"{site}: ReportGuard")
            config = load_site_config(fl_ctx)
            if config.privacy:
                raise FedMendError(f"{site}: privacy: expected exact label counts to stay at this site, got some")
            check_statistics(dxo, site, min_count=config.min_count, max_bytes=self._max_bytes)
        except FedMendError as e:  # FLARE's statistics workflow has no room for a sentence
            self.log_error(fl_ctx, str(e))
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
        return dxo.to_shareable()

    @staticmethod
    def _check_envelope(dxo: DXO, where: str) -> None:
        """Weights, or the one number that stands in for them, and nothing beside FedMend's key in the meta data."""
        if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.METRICS) or KEY not in dxo.meta:
            raise FedMendError(f"{where}: expected a FedMend result, got {dxo.data_kind!s:.40} of another kind")
        _check_meta(dxo, where)
        if dxo.data_kind == DataKind.METRICS and {k: type(v) for k, v in dxo.data.items()} != {"samples": float}:
            raise FedMendError(f"{where}: expected no metrics besides the report, got others")

    def check(
        self,
        content: Mapping,
        site: str,
        min_count: int,
        num_classes: int | None = None,
        kept: Collection[str] = (),
    ) -> dict:
        """The content that may leave.

        Args:
            content: what stands under FedMend's key of the message.
            site: site name for messages.
            min_count: fewest samples behind a row.
            num_classes: C of the run; None where it is not known, as at the server.
            kept: report fields that the site lets nobody have, its ``refuse_fields``.

        Raises:
            FedMendError: a field that is kept, unknown or not as described, a kept one that is unknown,
                oversize, or a report field without its counts.
        """
        where = f"{site}: ReportGuard"
        parse_content(content, where)
        report = dict(content[REPORT])
        if misspelt := sorted(set(kept) - set(self._fields)):  # the field that was meant would leave
            known = f"fields of {sorted(self._fields)}"
            raise FedMendError(f"{where}: local/{CONFIG_NAME}, field refuse_fields: expected {known}, got {misspelt}")
        if held := sorted(set(report) & set(kept)):
            raise FedMendError(f"{where}: expected no report field that this site keeps, got {', '.join(held)}")
        if unknown := sorted(f"{name:.40}" for name in set(report) - set(self._fields)):
            raise FedMendError(f"{where}: expected report fields out of {sorted(self._fields)}, got also {unknown}")
        if (size := size_of(content)) > self._max_bytes:
            raise FedMendError(f"{where}: expected at most {self._max_bytes} bytes besides the weights, got {size}")
        field, sizes = (
            f"{where}: report field",
            {"N": content["samples"]} | ({} if num_classes is None else {"C": num_classes}),
        )
        check_fields(report, self._fields, sizes_of(report, self._fields, sizes, field), field)
        try:
            report, few = hold_back(report, self._counts, min_count)
        except FedMendError as e:
            raise FedMendError(f"{where}: {e}") from None
        for name, rows in few.items():
            self.logger.warning("%s: %d rows of %s held back: fewer than %d samples", site, rows, name, min_count)
        return {**content, REPORT: report}


def _check_meta(dxo: DXO, where: str) -> None:
    if unknown := sorted(f"{name!s:.40}" for name in set(dxo.meta) - _META):
        raise FedMendError(f"{where}: expected meta data under {KEY!r} alone, got also {unknown}")
    for name in _META - {KEY}:
        words = dxo.meta.get(name)
        words = [] if words is None else [words] if isinstance(words, str) else words
        texts = isinstance(words, list) and all(isinstance(w, str) and w.isprintable() for w in words)
        if not (texts and all(len(w) <= LONGEST_WORD for w in words)):
            raise FedMendError(f"{where}: expected names of filters, got something else")


def _told(passed: Shareable) -> dict:
    """What the register says of a message that leaves."""
    if (code := passed.get_return_code()) != ReturnCode.OK:
        return {"round": 0, "fields": {}, "digest": digest_of(code), "error": code}
    dxo = from_shareable(passed)
    if dxo.data_kind == DataKind.STATISTICS:
        sizes = {name: size_of(value) for name, value in sorted(dxo.data.items()) if isinstance(value, bytes)}
        return {"round": 0, "fields": sizes, "digest": digest_of({name: dxo.data[name] for name in sizes})}
    result = parse_content(dxo.meta[KEY], "")
    result.weights = dxo.data if dxo.data_kind == DataKind.WEIGHTS else {}
    return told(result)
