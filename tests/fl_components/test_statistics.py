import inspect
import json

import numpy as np
import pytest
from factories import CLASSES, make_site_folder, refused
from fl_factories import JOB, Engine, write_settings
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.statistics_spec import DataType, Feature, Histogram, HistogramType
from nvflare.app_common.app_constant import StatisticsConstants as StC
from nvflare.app_common.executors.statistics.statistics_executor import StatisticsExecutor
from nvflare.app_common.statistics.numeric_stats import get_global_stats
from nvflare.app_common.statistics.statisitcs_objects_decomposer import fobs_registration
from nvflare.app_common.workflows.statistics_controller import StatisticsController
from nvflare.fuel.utils import fobs

from fedmend.advice.label_audit import read_audit
from fedmend.errors import FedMendError
from fedmend.phantoms.sites import SOURCE
from fl_components.approval import approve, requests
from fl_components.guard import ReportGuard
from fl_components.statistics import (
    COUNTS,
    PHANTOM_SAMPLES,
    SAMPLES,
    LabelAuditWriter,
    LabelStatistics,
    check_statistics,
    read_statistics,
)

FIRST, SECOND = StC.STATS_1st_STATISTICS, StC.STATS_2nd_STATISTICS
COUNT = {"count": {}}
# 60 samples: 30 with edema, 4 with fracture; nodule has no column.
SAID = {SAMPLES: 60, "multilabel samples": 60}
LABELS = np.stack([np.arange(60) < 30, np.arange(60) < 4, np.full(60, -1)], axis=1).astype(np.int8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_site_folder(tmp_path_factory.mktemp("data") / "site", LABELS, columns=[0, 1])


class Client:
    """FLARE's executor with LabelStatistics at a site."""

    def __init__(self, workspace, data, *, classes=CLASSES, name="site-1", **settings):
        write_settings(workspace, data_root=str(data), **settings)
        self.engine = Engine(workspace, name, components={"labels": LabelStatistics(classes=list(classes))})
        self.executor = StatisticsExecutor("labels")
        self.executor.handle_event(EventType.START_RUN, self.engine.new_context())

    def reply(self, configs, task=FIRST):
        asked = StatisticsController(configs, "writer")._prepare_inputs(task)
        return self.executor.execute(StC.FED_STATS_TASK, asked, self.engine.new_context(), Signal())

    def ask(self, configs=COUNT, task=FIRST):
        """Statistic → dataset → feature → number."""
        return fobs.loads(from_shareable(self.reply(configs, task)).data[task])


@pytest.fixture
def client(tmp_path, folder):
    return lambda data=folder, **options: Client(tmp_path / "work", data, **options)


def test_a_site_tells_what_is_annotated_positive_and_missing(client):
    assert client(min_count=3).ask()["count"] == {
        "annotated": {**SAID, "edema": 60, "fracture": 60, "nodule": 0},
        "positive": {**SAID, "edema": 30, "fracture": 4, "nodule": 0},
        "missing": {**SAID, "edema": 0, "fracture": 0, "nodule": 60},
    }


def test_a_site_that_asks_opens_nothing_until_somebody_has_approved_the_audit_and_counts_once(client, tmp_path):
    state, waits = tmp_path / "work" / "state", "site-1: waits until somebody of this site has approved the job"
    for _ in range(2):
        (sentence,) = client(tmp_path / "no data", approve="ask").ask()["count"]["positive"]
        assert sentence == f"{waits}; submit the label audit again then"
    ((name, request),) = requests(state, "site-1").items()
    assert request["about"] == {"job": "", "submitter": "", "asks": "label counts", "classes": list(CLASSES)}
    approve(state, "site-1", name)
    assert "site.json" in str(client(tmp_path / "no data", approve="ask").ask())  # a failure uses up nothing
    assert waits in str(client(approve="ask", classes=CLASSES[:2]).ask())
    site = client(approve="ask")
    assert site.ask()["count"]["positive"]["edema"] == site.ask(task=SECOND)["count"]["positive"]["edema"] == 30
    assert waits in str(client(approve="ask").ask())


def test_a_count_below_the_minimum_of_the_site_stays_there(client):
    told = client(min_count=5).ask()["count"]
    assert told["positive"] == {**SAID, "edema": 30, "nodule": 0}
    assert told["annotated"]["fracture"] == 60


def test_the_job_has_no_word_in_the_minimum():
    assert set(inspect.signature(LabelStatistics).parameters) == {"classes", "phantom"}


@pytest.mark.parametrize("name", ["sum", "mean", "stddev", "quantile", "histogram"])
def test_whatever_else_a_job_asks_for_it_gets_counts_alone(client, name):
    site = client(min_count=5)
    nothing = (None, Histogram(HistogramType.STANDARD, []), 0, 1)  # the last two are the range that the job itself gave
    for task in (FIRST, SECOND):
        told = site.ask({"count": {}, name: {"*": {"bins": 60, "range": [0, 1]}}}, task)
        assert "fracture" not in told.pop("count")["positive"]
        assert {n for datasets in told.pop("failure_count").values() for n in datasets.values()} == {0}
        assert all(n in nothing for datasets in told.values() for d in datasets.values() for n in d.values())


def test_the_pre_run_handshake_that_a_job_may_ask_for_tells_nothing(client):
    site = client()
    asked = Shareable({StC.STATS_TARGET_STATISTICS: fobs.dumps([])})
    reply = site.executor.execute(StC.FED_STATS_PRE_RUN, asked, site.engine.new_context(), Signal())
    assert from_shareable(reply).data == {}


def test_data_are_opened_once(client, folder, monkeypatch):
    site = client()
    first = site.ask()
    monkeypatch.setattr("fl_components.statistics.count_labels", None)
    assert site.ask(task=SECOND)["count"] == first["count"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"classes": ["edema", "fracture"]},
            "site-1: site.json, field classes: expected the 2 classes of the job, got ['edema', 'fracture', 'nodule']",
        ),
        ({"min_count": 61}, "site-1: train.csv: expected at least min_count training samples, got fewer"),
        (
            {"data": "phantom"},
            "site-1: local/fedmend.json, field data_root: expected a folder, as this job has no phantom",
        ),
        ({"min_count": "x"}, "site-1: local/fedmend.json, field min_count: expected a whole number >= 0, got text"),
    ],
)
def test_a_site_that_cannot_be_counted_says_why(client, options, sentence):
    told = client(**options).ask()["count"]
    assert set(told) == set(COUNTS)
    for features in told.values():
        ((feature, number),) = features.items()
        assert feature.startswith(sentence)
        assert number == 0


def test_no_word_of_the_job_comes_back_from_a_site(client, caplog):
    # what FLARE makes of {$https_proxy} and {WORKSPACE} in a job, were they not refused when it arrives
    words = ("http://user:password@proxy", "/opt/kit")
    with caplog.at_level("DEBUG"):
        told = client(classes=[*words, "edema"]).ask()["count"]
    assert [word for word in words if word in str(told) or word in caplog.text] == []
    with pytest.raises(ValueError, match="expected different class names") as caught:
        LabelStatistics(classes=[words[0]] * 2)
    assert words[0] not in str(caught.value)


@pytest.mark.parametrize("error", [PermissionError, RuntimeError])
def test_an_unexpected_error_is_told_and_logged_without_its_words(client, monkeypatch, caplog, error):
    def fail(*_):
        raise error(13, "Permission denied", "/hospital/MUELLER_ANNA/train.csv")

    monkeypatch.setattr("fl_components.statistics.load_card", fail)
    with caplog.at_level("DEBUG"):
        told = client().ask()["count"]
    sentence = f"site-1: label audit failed with {error.__name__}; see the log of this site"
    assert told == {kind: {sentence: 0} for kind in COUNTS}
    assert sentence in caplog.text
    assert f"{error.__name__} at test_statistics.py:" in caplog.text
    assert not [word for word in ("MUELLER", "hospital", "train.csv") if word in caplog.text]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("label", "label tables: expected some, got none"), ("site-1", "site-10: train.csv: expected a label, got none")],
)
def test_a_site_keeps_its_name_before_a_sentence_that_begins_like_it(client, monkeypatch, name, sentence):
    def fail(*_, **__):
        raise FedMendError(sentence)

    monkeypatch.setattr("fl_components.statistics.count_labels", fail)
    assert client(name=name).ask()["count"] == {kind: {f"{name}: {sentence}": 0} for kind in COUNTS}


def test_a_phantom_says_that_it_is_one(client, tmp_path, monkeypatch):
    phantoms = tmp_path / "phantoms"
    phantoms.mkdir()
    card = make_site_folder(phantoms / "site-1", LABELS, columns=[0, 1]) / "site.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "provenance": {"source": SOURCE}}))
    monkeypatch.setattr("fedmend.site.folder.ensure_phantom", lambda cache_dir, spec: phantoms)
    site = client("phantom")
    site.engine.get_component("labels")._phantom = object()
    assert PHANTOM_SAMPLES in site.ask()["count"]["annotated"]


@pytest.mark.parametrize("classes", [[], ["a", "a"], ["a", SAMPLES], ["a", "multilabel samples"]])
def test_impossible_classes_are_refused_at_once(classes):
    for build in (LabelStatistics, lambda **c: LabelAuditWriter(output_path="x.json", **c)):
        with pytest.raises(ValueError, match="expected different class names"):
            build(classes=classes)


# ---- the server
# ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def server(tmp_path):
    """Runs the end of FLARE's controller on what the sites sent; returns the run's folder and the context's engine."""

    def run(replies):
        workspace = tmp_path / "server"
        engine = Engine(
            workspace,
            "server",
            components={"writer": LabelAuditWriter(classes=list(CLASSES), output_path="fedmend/results.json")},
            clients=replies,
        )
        fl_ctx = engine.new_context()
        fl_ctx.set_prop(FLContextKey.APP_ROOT, str(workspace / JOB / "app_server"), private=True, sticky=True)
        controller = StatisticsController(COUNT, "writer")
        controller.min_clients = len(replies)
        controller.client_statistics = {"count": replies}
        controller.global_statistics = get_global_stats({}, controller.client_statistics, FIRST, COUNT)
        controller.post_fn("fed_stats", fl_ctx)
        return workspace / JOB / "fedmend", engine

    return run


def test_the_page_lies_beside_the_json_file(client, server, caplog):
    told = client(min_count=5).ask()["count"]
    with caplog.at_level("INFO", "fedmend.audit"):
        records, engine = server({"site-2": told, "site-1": told})
    assert engine.panics() == []
    data = json.loads((records / "results.json").read_text())
    assert data["edema"]["count"]["site-1"] == {"annotated": 60, "positive": 30, "missing": 0}
    assert data["fracture"]["count"]["site-1"] == {"annotated": 60, "missing": 0}
    assert data["nodule"]["count"]["Global"] == {"annotated": 0, "positive": 0, "missing": 120}
    page = (records / "report.html").read_text()
    assert "? of 60" in page
    assert "2 of 2 sites counted" in page
    assert "<code>fedmend configure jobs/fedmlp_ich advised --sites 2" in page
    sites, classes = read_audit(records / "audit.json")
    assert (list(sites), classes) == (["site-1", "site-2"], CLASSES)
    assert sites["site-1"].counts.tolist() == [[60, 60, 0], [30, -1, 0], [0, 0, 60]]
    assert sites["site-1"].kind == "multilabel"
    assert caplog.messages[-2:] == ["label audit: 2 of 2 sites counted", f"report: {records / 'report.html'}"]


def test_a_site_that_tells_no_class_at_all_does_not_stop_the_others(server):
    few = {kind: {SAMPLES: 9} for kind in COUNTS}
    sentence = {kind: {"site-3: site.json: expected, not found": 0} for kind in COUNTS}
    records, engine = server({"site-1": few, "site-3": sentence})
    assert engine.panics() == []
    page = (records / "report.html").read_text()
    assert "1 of 2 sites counted" in page
    assert "site-3 was not counted.</strong> site.json: expected, not found" in page
    (refused,) = (json.loads(line) for line in (records / "decisions.jsonl").read_text().splitlines())
    assert refused["what"] == "refused"  # fedmend simulate looks for it
    assert refused["value"] == {"site": "site-3", "reason": "site-3: site.json: expected, not found"}


def test_sites_are_read_in_sorted_order_and_what_is_not_told_is_no_zero():
    numbers = {"annotated": 9, "positive": 9, "missing": 9}
    data = {
        PHANTOM_SAMPLES: {"count": {"site-2": numbers}},
        SAMPLES: {"count": {"site-1": numbers, "Global": numbers}},
        "edema": {"count": {"site-2": {"positive": 7}, "Global": {"positive": 7}}},
    }
    sites = read_statistics(data, ("edema",))
    assert list(sites) == ["site-1", "site-2"]
    assert (sites["site-1"].samples, sites["site-1"].phantom, sites["site-2"].phantom) == (9, False, True)
    assert sites["site-2"].counts.ravel().tolist() == [-1, 7, -1]


# ---- the guard
# ----------------------------------------------------------------------------------------------------------
def answer(statistics, task=FIRST, **more):
    data = {StC.STATISTICS_TASK_KEY: task, task: fobs.dumps(statistics), StC.STATS_FEATURES: fobs.dumps({}), **more}
    return DXO(DataKind.STATISTICS, data=data)


def counts(number, kind="annotated"):
    return {"count": {kind: {"edema": number}}}


@pytest.fixture
def guard(tmp_path):
    """What a site with min_count 5 makes of an answer."""
    write_settings(tmp_path, min_count=5)
    fl_ctx = Engine(tmp_path, "site-1").new_context()
    return lambda shareable: ReportGuard(fields={}, counts={}, max_kilobytes=8).process(shareable, fl_ctx)


def test_the_guard_of_the_site_lets_its_own_answers_pass(client, guard):
    for task in (FIRST, SECOND):
        reply = client(min_count=5).reply(COUNT, task)
        assert from_shareable(guard(reply)).data[task] == from_shareable(reply).data[task]


@pytest.mark.parametrize("number", [1, 4, -7, 2**31, 30.0, True])
def test_the_guard_lets_no_other_number_pass(guard, number):
    assert guard(answer(counts(number)).to_shareable()).get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    sentence = "site-1: ReportGuard, statistics: expected whole numbers of at least min_count or 0, got others"
    with refused(sentence):
        check_statistics(answer(counts(number)), "site-1", min_count=5, max_bytes=1000)


@pytest.mark.parametrize(
    ("dxo", "sentence"),
    [
        (answer({"sum": {"annotated": {"edema": 30}}}), "expected counts alone, got also sum"),
        (answer(counts(30, "ages")), "expected the datasets ['annotated', 'positive', 'missing'], got also ages"),
        (answer(counts(30), notes=b""), "expected the answer to one task of the statistics workflow, got another"),
        (answer(counts(30), task="x"), "expected the answer to one task of the statistics workflow, got another"),
        (
            answer(counts(30), __headers__={"a": 1}),
            "expected the answer to one task of the statistics workflow, got another",
        ),
        (answer(counts(30), stats_features=bytes(2000)), "expected at most 1000 bytes, got more or another type"),
        (answer(counts(30), stats_features="text"), "expected at most 1000 bytes, got more or another type"),
    ],
)
def test_the_guard_lets_nothing_but_counts_pass(dxo, sentence):
    with refused(f"site-1: ReportGuard, statistics: {sentence}"):
        check_statistics(dxo, "site-1", min_count=5, max_bytes=1000)


@pytest.mark.parametrize("name", ["\x1b[2J", "x\nERROR server: all is lost", "x" * 3000, 7], ids=repr)
@pytest.mark.parametrize("where", ["count", "features"])
def test_a_feature_name_that_would_forge_lines_or_clear_a_screen_does_not_leave(guard, name, where):
    if where == "count":
        dxo = answer({"count": {"annotated": {name: 30}}})
    else:
        listed = {"annotated": [Feature(name, DataType.INT)]}
        fobs_registration()  # as FLARE's handler of these tasks does
        dxo = answer(counts(30), stats_features=fobs.dumps(listed))
    assert guard(dxo.to_shareable()) == make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
    with refused("site-1: ReportGuard, statistics: expected features with names that can be printed, got others"):
        check_statistics(dxo, "site-1", min_count=5, max_bytes=10**4)


def test_a_name_that_is_refused_is_not_echoed_raw():
    with refused(r"site-1: ReportGuard, statistics: expected counts alone, got also \x1b[2J"):
        check_statistics(answer({"\x1b[2J": {"annotated": {"edema": 30}}}), "site-1", min_count=5, max_bytes=1000)
