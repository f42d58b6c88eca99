"""LabelStatistics and what surrounds it in FLARE's statistics workflow: which site annotates what."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.app_common.abstract.statistics_spec import DataType, Feature, Statistics
from nvflare.app_common.app_constant import StatisticsConstants as StC
from nvflare.app_common.statistics.json_stats_file_persistor import JsonStatsFileWriter
from nvflare.fuel.utils import fobs

from fedmend.advice.label_audit import AUDIT_FILE, COUNTS, HELD_BACK, LARGEST, SiteLabels, audit_text, count_labels
from fedmend.basics.files import write_text
from fedmend.data.card import CARD_NAME, load_card
from fedmend.errors import FedMendError, place_of, said_by
from fedmend.labels import KIND_NAMES
from fedmend.messages import LONGEST_ERROR
from fedmend.phantoms.sites import phantom_spec
from fedmend.records.run_records import RunRecords
from fedmend.report.audit import audit_page
from fedmend.site.config import SiteConfig
from fedmend.site.folder import site_folder
from fl_components.approval import approved_audit, submitted
from fl_components.console import quiet_console
from fl_components.wire import shown
from fl_components.workspace import load_site_config

LOG = logging.getLogger("fedmend.audit")
SAMPLES, PHANTOM_SAMPLES = "training samples", "PHANTOM training samples"
KIND_SAMPLES = {f"{kind} samples": kind for kind in KIND_NAMES}
OWN_FEATURES = {SAMPLES, PHANTOM_SAMPLES, *KIND_SAMPLES}
PAGE_NAME = "report.html"
TASKS = {StC.STATS_1st_STATISTICS, StC.STATS_2nd_STATISTICS}


class LabelStatistics(Statistics):
    """Counts of the training labels of a site, for FLARE's StatisticsExecutor with the statistic ``count``.

    The datasets are ``annotated``, ``positive`` and ``missing``, their features the classes and twice the number of
    training samples: the name of one says whether they are synthetic, that of the other their kind of labels. A class
    whose number the site holds back is no feature of that dataset. The site decides by the ``min_count`` of its own
    ``fedmend.json``: FLARE's MinCountCleanser is set by the job, and lets every ``count`` pass. A site that cannot be
    counted has one feature, the sentence that says why.

    Args:
        classes: C class names.
        phantom: the phantom that sites use whose ``data_root`` is the word ``phantom``; fields of the classes in
            :mod:`fedmend.phantoms.sites`.
    """

    def __init__(self, *, classes: list[str], phantom: dict | None = None):
        super().__init__()
        _check_classes(classes)
        self._classes = tuple(classes)
        self._phantom = phantom_spec(phantom) if phantom else None
        self._counts: dict[str, dict[str, int]] = {}  # dataset → feature → number

    def initialize(self, fl_ctx: FLContext) -> None:
        """Notes where the site is; data are opened when the server asks."""
        quiet_console(fl_ctx)
        self._fl_ctx = fl_ctx  # FLARE asks for the features afterwards

    def features(self) -> dict[str, list[Feature]]:
        """Dataset → classes that the site tells a number of."""
        if not self._counts:
            name = self._fl_ctx.get_identity_name()
            try:
                self._counts = self._count_if_approved(name)
            except FedMendError as e:
                self._refuse(said_by(name, e))
            except Exception as e:  # the words of any other error may name a folder or a patient's file
                self.logger.error(place_of(e))
                self._refuse(f"{name}: label audit failed with {type(e).__name__}; see the log of this site")
        return {name: [Feature(feature, DataType.INT) for feature in known] for name, known in self._counts.items()}

    def count(self, dataset_name: str, feature_name: str) -> int:
        """One of the numbers."""
        return self._counts[dataset_name][feature_name]

    def _refuse(self, message: str) -> None:
        self.logger.error(message)
        self._counts = {dataset: {message[:LONGEST_ERROR]: 0} for dataset in COUNTS}

    def _count_if_approved(self, name: str) -> dict[str, dict[str, int]]:
        config = load_site_config(self._fl_ctx)
        if config.approve != "ask":
            return self._count(name, config)
        about = {**submitted(self._fl_ctx), "asks": "label counts", "classes": list(self._classes)}
        with approved_audit(config.state_dir, name, about):
            return self._count(name, config)

    def _count(self, name: str, config: SiteConfig) -> dict[str, dict[str, int]]:
        card = load_card(site_folder(name, config, self._phantom), name)
        if set(card.classes) != set(self._classes):  # no word of the job goes back: FLARE may have put others into it
            raise FedMendError(
                f"{name}: {CARD_NAME}, field classes: expected the {len(self._classes)} classes of the job, got"
                f" {sorted(card.classes)}"
            )
        told = count_labels(card, self._classes, min_count=config.min_count)
        if held := int((told.counts == HELD_BACK).sum()):
            LOG.info("%s: %d counts held back: fewer than %d samples, or next to such", name, held, config.min_count)
        kind = next(feature for feature, kind in KIND_SAMPLES.items() if kind == told.kind)
        marks = dict.fromkeys([PHANTOM_SAMPLES if told.phantom else SAMPLES, kind], told.samples)
        return {
            name: marks | {c: n for c, n in zip(self._classes, row, strict=True) if n != HELD_BACK}
            for name, row in zip(COUNTS, told.counts.tolist(), strict=True)
        }


class LabelAuditWriter(JsonStatsFileWriter):
    """FLARE's writer of statistics, and beside its file ``report.html`` and what ``fedmend advise`` reads.

    Args:
        classes: C class names.
        output_path: the JSON file, below the run's folder.
    """

    def __init__(self, *, classes: list[str], output_path: str):
        super().__init__(output_path)
        _check_classes(classes)
        self._classes = tuple(classes)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keeps FLARE's chatter out of the simulator's console."""
        if event_type == EventType.START_RUN:
            quiet_console(fl_ctx)

    def save(self, data: dict, overwrite_existing: bool, fl_ctx: FLContext) -> None:
        """Writes the page and the refusals as a training job does, then the JSON file: who sees the file finds all."""
        sites = read_statistics(data, self._classes)
        page = Path(self.get_output_path(fl_ctx)).with_name(PAGE_NAME)
        page.parent.mkdir(exist_ok=True)
        page.write_text(audit_page(sites, self._classes), encoding="utf-8")
        write_text(page.with_name(AUDIT_FILE), audit_text(sites, self._classes))
        records = RunRecords(page.parent)
        for name, site in sites.items():
            if site.problem:
                records.decision("refused", {"site": name, "reason": site.problem})
                LOG.error("not counted: %s", site.problem)
        super().save(data, overwrite_existing, fl_ctx)
        mark = "PHANTOM " if any(site.phantom for site in sites.values()) else ""
        counted = sum(not site.problem for site in sites.values())
        LOG.info("%slabel audit: %d of %d sites counted", mark, counted, len(sites))
        LOG.info("%sreport: %s", mark, page)


def read_statistics(data: Mapping, classes: Sequence[str]) -> dict[str, SiteLabels]:
    """What the sites say, out of what FLARE's StatisticsController combines: feature → ``count`` → site → dataset →
    number.

    Args:
        data: the combined statistics.
        classes: C class names.

    Returns:
        site → its counts, in sorted order.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}  # site → feature → dataset → number
    for feature, statistics in data.items():
        for site, numbers in statistics[StC.STATS_COUNT].items():
            if site != StC.GLOBAL:
                found.setdefault(site, {})[feature] = numbers
    return {site: _site_labels(found[site], classes) for site in sorted(found)}


def _site_labels(told: Mapping[str, Mapping[str, int]], classes: Sequence[str]) -> SiteLabels:
    counts = np.array([[told.get(c, {}).get(name, HELD_BACK) for c in classes] for name in COUNTS], dtype=np.int64)
    mark = next((name for name in (SAMPLES, PHANTOM_SAMPLES) if name in told), None)
    if mark is None:
        return SiteLabels(samples=0, counts=counts, problem=next(iter(told)))
    kind = next((kind for feature, kind in KIND_SAMPLES.items() if feature in told), "")
    return SiteLabels(samples=told[mark].get(COUNTS[0], 0), counts=counts, phantom=mark == PHANTOM_SAMPLES, kind=kind)


def check_statistics(dxo: DXO, site: str, *, min_count: int, max_bytes: int) -> None:
    """Refuses what a site may not send in answer to a task of FLARE's statistics workflow.

    Args:
        dxo: the answer.
        site: site name for messages.
        min_count: fewest samples behind a number.
        max_bytes: largest size.

    Raises:
        FedMendError: other statistics than counts, a number from 1 to ``min_count`` - 1, a name that cannot be printed,
            or oversize.
    """
    where = f"{site}: ReportGuard, statistics"
    data = dict(dxo.data)
    task, headers = data.pop(StC.STATISTICS_TASK_KEY, None), data.pop(ReservedHeaderKey.HEADERS, {})
    if headers or task not in TASKS or set(data) - {StC.STATS_FEATURES} != {task}:
        raise FedMendError(f"{where}: expected the answer to one task of the statistics workflow, got another")
    if not all(isinstance(v, bytes) for v in data.values()) or sum(map(len, data.values())) > max_bytes:
        raise FedMendError(f"{where}: expected at most {max_bytes} bytes, got more or another type")
    statistics = fobs.loads(data[task])
    if unknown := set(statistics) - {StC.STATS_COUNT, StC.STATS_FAILURE_COUNT}:
        raise FedMendError(f"{where}: expected counts alone, got also {shown(min(unknown))}")
    listed = fobs.loads(data[StC.STATS_FEATURES]) if StC.STATS_FEATURES in data else {}
    words = [*listed, *(feature.feature_name for features in listed.values() for feature in features)]
    for datasets in statistics.values():
        if unknown := set(datasets) - set(COUNTS):
            raise FedMendError(f"{where}: expected the datasets {list(COUNTS)}, got also {shown(min(unknown))}")
        words += [name for features in datasets.values() for name in features]
        numbers = [number for features in datasets.values() for number in features.values()]
        if not all(type(n) is int and (n == 0 or max(min_count, 1) <= n < LARGEST) for n in numbers):
            raise FedMendError(f"{where}: expected whole numbers of at least min_count or 0, got others")
    if not all(isinstance(word, str) and word.isprintable() and len(word) <= LONGEST_ERROR for word in words):
        raise FedMendError(f"{where}: expected features with names that can be printed, got others")


def _check_classes(classes: Sequence[str]) -> None:
    if not classes or len(set(classes)) < len(classes) or OWN_FEATURES & set(classes):
        raise ValueError(f"expected different class names other than {SAMPLES!r}, got others")
