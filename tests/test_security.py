"""What a rogue site, a rogue server and a rogue lead researcher cannot do; ``docs/security.md`` lists the rest."""

import ast
import json
import os
from dataclasses import replace
from unittest.mock import patch

import msgpack
import numpy as np
import pytest
import torch
from factories import CLASSES, ROOT, make_site_folder, refused
from federation_factories import Script, histograms, in_rounds, initial, plain_answers
from fl_factories import Engine, Federation, write_settings
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils.fobs.datum import DatumManager
from nvflare.fuel.utils.fobs.fobs import deserialize
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from torch_factories import PlainMethod, PlainRound, TinyNetwork, make_task

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.store import open_store
from fedmend.data.tables import load_table
from fedmend.errors import FedMendError
from fedmend.kinds import kind_of
from fedmend.learning import networks
from fedmend.learning.weights import get_weights
from fedmend.messages import TRAIN, RunSpec, SiteResult
from fedmend.method import RoundTask
from fedmend.methods.fedmlp import DETECT, FedMLP
from fedmend.phantoms.sites import phantom_spec
from fedmend.repairs.ledger import read_history
from fedmend.server.checks import Expected, check_result
from fedmend.site.config import read_site_config
from fl_components.controller import WorkflowController
from fl_components.executor import MethodExecutor
from fl_components.guard import ReportGuard
from fl_components.wire import KEY, LARGEST_COUNT, pack_result, pack_task, parse_content, unpack_result

SITES = {"site-1": [1, 1], "site-2": [1, 1]}
PRIVACY = json.loads((ROOT / "simulator_workspace" / "local" / "privacy.json").read_text())
POLICY = PRIVACY["scopes"][0]["task_result_filters"][0]["args"]  # of the ReportGuard
ROGUE = "site-2"
CHOSEN = ["edema", "nodule"]


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", lambda classes: TinyNetwork(classes, torch.initial_seed()))


# ---- a rogue site ---------------------------------------------------------------------------------------------------


def federation(folder, spoil, **settings):
    """Two rounds of averaging with an honest site and one whose results ``spoil(result, task_name, round)`` changed."""
    honest = plain_answers(SITES, step={"site-1": 1, ROGUE: 3})

    def answer(site, task_name, weights, task, evaluate):
        result = honest(site, task_name, weights, task, evaluate)
        if site == ROGUE:
            spoil(result, task_name, task.round_num)
        return result

    given = {"run_name": "run-1", "classes": CHOSEN, "network": "tiny", "num_rounds": 2, "min_sites": 1}
    workflow = Script(in_rounds(lambda fed, r: fed.train("train")))  # its one field is a number from 0 to 99
    return Federation(folder, WorkflowController(**{**given, **settings}), workflow, list(SITES), answer)


def moved(run):
    """How far the run has moved the global model, which the honest site alone moves by 2."""
    model = torch.load(run.app / "FL_global_model.pt", weights_only=False)["model"]["classifier.bias"]
    return float((model.numpy() - initial(CHOSEN, 0)["classifier.bias"])[0])


def weights(change):
    def spoil(result, task_name, round_num):
        if result.weights:
            result.weights["classifier.bias"] = change(result.weights["classifier.bias"])

    return spoil


def census(**changes):
    return lambda result, task_name, round_num: result.census and result.census.update(changes)


def trained(**changes):
    return lambda result, task_name, round_num: task_name == TRAIN and vars(result).update(changes)


def counts(value):
    return lambda result, task_name, round_num: result.counts and result.counts.update(val=value)


def many_samples(result, task_name, round_num):
    result.samples = 10**15
    census(sizes={"train": 10**15, "val": 20, "test": 20})(result, task_name, round_num)


def many_scores(result, task_name, round_num):
    census(sizes={"train": 10, "val": 2**62, "test": 20})(result, task_name, round_num)
    counts(histograms(1, 1) * 2**55)(result, task_name, round_num)


def late(result, task_name, round_num):
    result.round_num = 0


HOSTILE = {  # what is wrong → how, and words of the sentence
    "weights that are NaN": (weights(lambda v: v * np.nan), "got NaN or infinity"),
    "weights whose average would be infinite": (weights(lambda v: v * 0 + np.float32(3e38)), "to 1e+12, got larger"),
    "weights far below": (weights(lambda v: v * 0 - np.float32(3e38)), "to 1e+12, got larger"),
    "weights of another shape": (weights(lambda v: np.zeros((9, 9), v.dtype)), "of shape (2,), got float32 of (9, 9)"),
    "a tensor too few": (
        lambda result, *_: result.weights and result.weights.pop("classifier.bias"),
        "missing or unknown: ['classifier.bias']",
    ),
    "a tensor too many": (
        lambda result, *_: result.weights and result.weights.update(evil=np.ones(2)),
        "missing or unknown: ['evil']",
    ),
    "10**15 samples": (many_samples, "census sizes: expected at most 100000000 samples per split"),
    "more samples than announced": (trained(samples=10**6), "field samples: expected the 10 of its census"),
    "scores whose sum would overflow": (many_scores, "census sizes: expected at most 100000000"),
    "more scores than samples": (counts(histograms(1, 1) * 9), "expected at most the samples of its census, got more"),
    "more positives than samples": (census(positives=np.array([10**9, 1])), "census positives: expected at most"),
    "negative positives": (census(positives=np.array([-(10**9), 1])), "census positives: expected counts >= 0"),
    "a report number beyond all bounds": (trained(report={"number": np.array(10**15)}), "from 0 to 99, got 1e+15"),
    "the smallest whole number in a report": (trained(report={"number": np.array(-(2**63))}), "from 0 to 99, got -9.2"),
    "a report number that is none": (trained(report={"number": np.array(np.nan)}), "expected int64 of shape ()"),
    "a report field that nobody described": (
        trained(report={"x": np.array([1e300])}),
        "field x: expected one of ['number']",
    ),
    "a report field that is text": (trained(report={"number": "7"}), "report number: expected an array of numbers"),
    "a report name that forges a line of the log": (
        trained(report={"x\nERROR server: all is lost": np.array([np.nan])}),
        r"report field x\nERROR server: all is lost: expected one of",
    ),
    "an endless report name": (trained(report={"x" * 10**6: np.array([np.nan])}), f"field {'x' * 40}: expected one of"),
    "a sentence of two lines": (trained(error="x\nsite-1: ok"), "error: expected a sentence"),
    "a sentence that clears the screen": (trained(error="\x1b[2J"), "error: expected a sentence"),
    "an array in the place of a sentence": (trained(error=np.ones(3)), "error: expected a sentence"),
    "a result of the round before": (late, "expected round 1, got round 0"),
}


@pytest.mark.parametrize(("spoil", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_result_costs_its_site_alone(tmp_path, spoil, words):
    run = federation(tmp_path, spoil).run()
    assert run.engine.panics() == []
    refusals = [value for _, value in run.decisions("refused")]
    assert {value["site"] for value in refusals} == {ROGUE}
    assert words in refusals[0]["reason"]
    assert all(len(value["reason"]) < 300 and value["reason"].isprintable() for value in refusals)
    assert moved(run) == pytest.approx(3 if spoil is late else 2)  # a late result is right in round 0


def test_counts_that_could_overflow_in_a_sum_are_refused():
    content = pack_result(SiteResult(counts={"val": np.full((1, 7), LARGEST_COUNT)})).meta[KEY]
    parse_content(content, "site-1")
    content["counts"]["val"] = content["counts"]["val"] + 1
    with refused(f"site-1: result, counts val: expected counts up to {LARGEST_COUNT}, got something else"):
        parse_content(content, "site-1")


def test_a_site_that_answers_twice_counts_once(tmp_path):
    run = federation(tmp_path, lambda *_: None, min_sites=0)
    direct = run._broadcast

    def twice(*, callback, **message):
        direct(callback=lambda reply: [callback(reply)] * 2 and callback(reply), **message)

    run.controller.broadcast_model = twice
    assert run.run().engine.panics() == []
    assert moved(run) == pytest.approx(2 * (1 + 3) / 2)


def test_a_result_counts_for_the_site_that_flare_authenticated_whatever_name_it_bears(tmp_path):
    controller = federation(tmp_path, lambda *_: None).controller
    model = pack_result(SiteResult(site="site-1", samples=10))
    model.meta["client_name"] = "site-1"
    received = []
    props = {AppConstants.TASK_PROP_CALLBACK: received.append, AppConstants.META_DATA: {}}
    sent = ClientTask(client=Client(ROGUE, "token"), task=Task("train", Shareable(), props=props))
    sent.result = FLModelUtils.to_shareable(model)
    controller._process_result(sent, controller.fl_ctx)
    (reply,) = received
    assert reply.meta["client_name"] == ROGUE
    assert unpack_result(reply, reply.meta["client_name"]).site == ROGUE


def test_a_result_of_a_round_that_is_over_reaches_nobody(tmp_path):
    """FLARE hands a result of a task that is over to the controller; here in the middle of every later task."""
    run = federation(tmp_path, lambda *_: None, min_sites=0)
    direct, late_ones = run._broadcast, []

    def with_late_ones(*, task_name, data, **message):
        result = SiteResult(
            round_num=data.current_round, samples=10, weights={"classifier.bias": np.float32([1e9] * 2)}
        )
        for code in (ReturnCode.OK, ReturnCode.EXECUTION_EXCEPTION):
            shareable = FLModelUtils.to_shareable(pack_result(result))
            shareable.set_return_code(code)
            run.controller.process_result_of_unknown_task(
                Client(ROGUE, "token"), TRAIN, "task-0", shareable, run.fl_ctx
            )
            late_ones.append(code)
        direct(task_name=task_name, data=data, **message)

    run.controller.broadcast_model = with_late_ones
    assert run.run().engine.panics() == []
    assert len(late_ones) >= 4
    assert moved(run) == pytest.approx(2 * (1 + 3) / 2)  # as without them


def test_a_prototype_of_a_gigabyte_is_replaced_by_a_sentence_before_the_controller_sees_it(tmp_path):
    write_settings(tmp_path)
    endless = np.broadcast_to(np.float32(0), (2**14, 2**14))  # as large as a gigabyte, and none
    result = SiteResult(samples=9, report={"prototypes": endless, "prototype_counts": np.full(2**14, 9)})
    guard = ReportGuard(fields=POLICY["fields"], counts=POLICY["counts"])
    sent = guard.process(FLModelUtils.to_shareable(pack_result(result)), Engine(tmp_path, "site-1").new_context())
    error = unpack_result(FLModelUtils.from_shareable(sent), "site-1").error
    assert error.startswith("site-1: ReportGuard: expected at most 1048576 bytes besides the weights, got 10738")


def test_the_report_page_runs_nothing_that_a_site_wrote(tmp_path):
    script = "<script>alert(1)</script>"
    run = federation(tmp_path, trained(error=f"{ROGUE}: {script}")).run(report=True)
    page = (run.records / "report.html").read_text()
    assert script not in page
    assert "&lt;script&gt;alert(1)" in page


# ---- what is decoded before any code of ours sees it ----------------------------------------------------------------


class Harmful:
    """Leaves a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def decoded(meta):
    """What FLARE's decoder makes of these bytes, written by somebody who does not use FLARE's encoder."""
    fobs_initialize()
    return deserialize(msgpack.packb({"meta": meta}), DatumManager())["meta"]


@pytest.mark.parametrize("decomposer", ["DataClassDecomposer", "EnumTypeDecomposer", None])
@pytest.mark.parametrize("name", ["subprocess.Popen", "os.system", "pickle.Unpickler", "fedmend.messages.SiteResult"])
def test_a_message_makes_no_object_of_a_class_that_is_not_registered(name, decomposer):
    forged = {"__fobs_type__": name, "__fobs_data__": {"data": {"x": 1}}}
    if decomposer:
        forged["__fobs_dc__"] = f"nvflare.fuel.utils.fobs.decomposer.{decomposer}"
    assert decoded({"x": 1}) == {"x": 1}
    with pytest.raises(ValueError, match=f"Type '{name}' is not allowed"):
        decoded(forged)


def test_a_message_cannot_bring_its_own_decoder():
    forged = {"__fobs_type__": "x.Y", "__fobs_data__": b"", "__fobs_dc__": "torch.load"}
    with pytest.raises(ValueError, match=r"Decomposer torch.load must be registered"):
        decoded(forged)


def test_a_pickle_in_an_array_is_not_opened(tmp_path):
    file = tmp_path / "array.npy"
    np.save(file, np.array([Harmful(tmp_path / "ran")], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        NumpyArrayDecomposer().native_recompose(file.read_bytes())
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_the_place_of_a_checkpoint_is_not_opened(tmp_path):
    harmful = {"round": 1, "weights": Harmful(tmp_path / "ran")}
    StateStore(tmp_path).save("state", harmful)  # a whole file with a checksum
    with pytest.raises(FedMendError, match=r"state file state\.pt: expected what FedMend saved, got something else"):
        StateStore(tmp_path).load("state")
    torch.save(harmful, tmp_path / "checkpoint.pt")
    with pytest.raises(FedMendError, match="got a file of another format or version"):
        StateStore(tmp_path).load("checkpoint")
    with pytest.raises(FedMendError, match="expected a PyTorch state dict, got a file that does not load"):
        networks.initial_network("tiny", CLASSES, 0, str(tmp_path / "checkpoint.pt"))
    assert not (tmp_path / "ran").exists()


def calls(file):
    """Every call in a module as its dotted name and its keyword arguments."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


def test_no_code_of_ours_unpickles_or_evaluates_what_it_reads():
    seen = []
    for file in (f for folder in ("custom", "fl_components", "provisioning") for f in (ROOT / folder).rglob("*.py")):
        assert "pickle" not in {line.split()[1] for line in file.read_text().splitlines() if line.startswith("import ")}
        for name, keywords in calls(file):
            seen.append(name)
            assert name not in ("eval", "exec", "os.system", "yaml.load", "joblib.load"), (file.name, name)
            assert name != "torch.load" or keywords.get("weights_only") == "True", file.name
            assert keywords.get("allow_pickle", "False") == "False", file.name
            assert keywords.get("shell", "False") == "False", file.name
    assert "torch.load" in seen


# ---- a rogue server or lead researcher ------------------------------------------------------------------------------

RUN = RunSpec("run-1", CLASSES, "tiny", 7)


class TalkativeRound(PlainRound):
    def report(self):
        return {"class_loss": np.float32([0.5, 0.25, 4.0]), "class_count": np.array([4, 3, 2])}


class Talkative(PlainMethod):
    """Reports means, one over too few samples."""

    ROUND = TalkativeRound


class FailingRound(PlainRound):
    def loss(self, index):
        raise RuntimeError("cannot open /hospital/MUELLER_ANNA.dcm of PATIENT-4711")


class Failing(PlainMethod):
    ROUND = FailingRound


@pytest.fixture
def site(tmp_path):
    """A site with min_count 3: asks it as a server would, and gives what its policy lets out."""
    make_site_folder(tmp_path / "data", splits=("val", "test"))
    write_settings(tmp_path, min_count=3)
    threads = torch.get_num_threads()

    def ask(*, method=None, task_name=TRAIN, tamper=lambda model: None, task=None):
        executor = MethodExecutor(learning_rate=0.1, batch_size=4, image_size=32)
        engine = Engine(tmp_path, "site-1", components={"method": method or PlainMethod()})
        executor.handle_event(EventType.START_RUN, engine.new_context())
        network = networks.initial_network("tiny", CLASSES, 7)
        model = pack_task(
            {k: v.numpy() for k, v in get_weights(network).items()},
            replace(task or RoundTask("train", 0, 3), sites=("site-1", "site-2")),
            RUN,
            evaluate=False,
        )
        tamper(model)
        fl_ctx = engine.new_context()
        reply = executor.execute(task_name, FLModelUtils.to_shareable(model), fl_ctx, Signal())
        reply = ReportGuard(**POLICY).process(reply, fl_ctx)
        return unpack_result(FLModelUtils.from_shareable(reply), "site-1")

    yield ask
    torch.set_num_threads(threads)


@pytest.mark.parametrize("where", ["task", "run", "meta"])
def test_a_server_that_asks_for_a_lower_min_count_is_not_heard(site, where):
    def ask_for_less(model):
        for place in (model.meta, *([model.meta[KEY][where]] if where in ("task", "run") else [])):
            place.update(min_count=0, fields=["class_loss", "labels"], max_kilobytes=10**9)

    result = site(method=Talkative(), tamper=ask_for_less)
    assert result.error == ""
    assert result.report["class_loss"].tolist() == [0.5, 0.25, 0.0]
    assert result.report["class_count"].tolist() == [4, 3, 0]


def test_a_server_that_hides_a_lower_min_count_in_its_knowledge_gets_nothing(site):
    result = site(method=Talkative(), task=make_task(min_count=np.int64(0)))
    sentence = "site-1: round 0, knowledge of the server, min_count: expected one of [], got another"
    assert result == SiteResult(site="site-1", error=sentence)


def test_a_report_field_that_the_site_does_not_declare_stays_there(site):
    class LeakingRound(PlainRound):
        def report(self):
            return {"labels": self.site.data.train.labels}

    class Leaking(PlainMethod):
        ROUND = LeakingRound

    result = site(method=Leaking())
    assert result.error.startswith("site-1: ReportGuard: expected report fields out of [")
    assert (result.report, result.weights) == ({}, {})


@pytest.mark.parametrize("degree", [-0.1, 1.5])
def test_a_learning_degree_that_would_make_other_sites_tag_everything_is_refused_by_server_and_site(
    site, tmp_path, degree
):
    told = {"prototypes": np.eye(6, 12, dtype=np.float32), "learning_degree": np.float32([0.5, 0.5, degree])}
    wrong = f"learning_degree: expected numbers from 0 to 1, got {min(0.5, degree):g} to {max(0.5, degree):g}"
    report = {**told, "prototype_counts": np.ones(6, dtype=np.int64)}
    letters = {"C": 3, "R": 3, "F": 12}
    expected = {"round_num": 0, "num_classes": 3, "sizes": {"train": 10}, "kind": kind_of("multilabel")}
    with refused(f"site-2: result of round 0, report field {wrong}"):
        check_result(
            SiteResult(site=ROGUE, samples=10, report=report),
            Expected(**expected, fields=FedMLP.FIELDS, letters=letters),
        )
    result = site(method=FedMLP(), task=make_task(DETECT, 1, 3, **told))
    assert result == SiteResult(site="site-1", error=f"site-1: round 1, knowledge of the server, {wrong}")
    assert read_history(tmp_path / "state" / "run-1" / "site-1" / "ledger.sqlite") == []


def in_run(**changes):
    return lambda model: model.meta[KEY]["run"].update(changes)


def in_task(**changes):
    return lambda model: model.meta[KEY]["task"].update(changes)


def in_weights(value):
    return lambda model: model.params.update({"classifier.bias": value})


TAMPERED = {  # what is wrong → how, and words of the sentence
    "a run name with a parent folder": (in_run(run_name="../../other"), "run_name: expected at most 100 letters"),
    "an absolute run name": (in_run(run_name="/root/x"), "run_name: expected at most 100 letters"),
    "other classes": (in_run(classes=["edema", "fracture", "age"]), "site.json, field classes: expected the job's"),
    "classes that are no text": (in_run(classes=[{}, [], 3]), "breaks classes"),
    "a network that is code": (in_run(network="subprocess.Popen"), "network: expected one of"),
    "a network that is a list": (in_run(network=["tiny"]), "breaks network"),
    "a network that clears the screen": (in_run(network="monai/SegResNet(norm='x\x1b[2J')"), "breaks network"),
    "a network that forges a line of the log": (in_run(network="monai/SegResNet(# x\rERROR\r)"), "breaks network"),
    "a seed that is none": (in_run(seed="x"), "expected a FedMend task"),
    "knowledge that nobody described": (
        in_task(knowledge={"x": np.ones(2)}),
        "server, x: expected one of [], got another",
    ),
    "knowledge that forges a line of the log": (
        in_task(knowledge={"x\nERROR": np.ones(2)}),
        r"server, x\nERROR: expected",
    ),
    "knowledge that is a list": (in_task(knowledge=[1]), "breaks knowledge"),
    "a stage that forges a line of the log": (in_task(stage="x\nERROR"), "got one that lacks or breaks stage"),
    "a round without end": (lambda model: vars(model).update(current_round=float("inf")), "failed with TypeError"),
    "an endless role": (in_task(role="x" * 10**6), "got one that lacks or breaks role"),
    "a stage that is no text": (in_task(stage=[1]), "got one that lacks or breaks stage"),
    "no knowledge": (lambda model: model.meta[KEY]["task"].pop("knowledge"), "expected a FedMend task"),
    "no run": (lambda model: model.meta[KEY].pop("run"), "expected a FedMend task"),
    "no meta data": (lambda model: model.meta.pop(KEY), "expected a FedMend task"),
    "weights of another network": (
        lambda model: vars(model).update(params={"x": np.ones(2, np.float32)}),
        "global model: expected the 6 tensors of the network",
    ),
    "weights that are objects": (in_weights(np.array([None, {}, 3])), "train failed with TypeError"),
    "weights that are too large": (
        in_weights(np.zeros((99, 99), np.float32)),
        "expected classifier.bias with shape (3,)",
    ),
    "weights that are NaN": (in_weights(np.full(3, np.nan, np.float32)), "global model: expected finite numbers"),
}


@pytest.mark.parametrize(("tamper", "words"), TAMPERED.values(), ids=TAMPERED)
def test_a_hostile_task_gets_one_sentence_and_nothing_else(site, tmp_path, tamper, words):
    before = sorted((tmp_path / "data").rglob("*"))
    result = site(tamper=tamper)
    assert result.error.startswith("site-1: ")
    assert words in result.error
    assert result.error.isprintable()
    assert str(tmp_path) not in result.error
    assert result == SiteResult(site="site-1", error=result.error)
    assert sorted((tmp_path / "data").rglob("*")) == before
    assert {f.name for f in tmp_path.glob("*")} <= {"data", "local", "startup", "job-1", "state", "cache"}
    assert {f.name for f in tmp_path.glob("state/*")} <= {"run-1", ".register"}


def test_an_honest_task_gets_a_result(site):
    assert set(site().weights) == set(get_weights(TinyNetwork(3)))


def test_a_task_of_another_name_runs_nothing(tmp_path):
    executor = MethodExecutor(learning_rate=0.1, batch_size=4, image_size=32)
    fl_ctx = Engine(tmp_path, "site-1").new_context()
    reply = executor.execute("__sync__; rm -rf /", Shareable(), fl_ctx, Signal())
    assert reply.get_return_code() == ReturnCode.TASK_UNKNOWN


def test_an_unexpected_error_leaves_no_words_that_could_name_a_patient_in_message_or_log(site, caplog):
    with caplog.at_level("INFO"):
        result = site(method=Failing())
    assert result.error == "site-1: train failed with RuntimeError; see the log of this site"
    assert "train failed with RuntimeError at site/worker.py:" in caplog.text
    assert "loss" in caplog.text  # the function that failed
    assert not [word for word in ("MUELLER", "4711", "/hospital") if word in caplog.text]


def test_an_unexpected_error_has_its_words_in_the_log_for_who_asks_for_them(site, caplog):
    with caplog.at_level("DEBUG"):
        site(method=Failing())
    assert "PATIENT-4711" in caplog.text


# ---- a job that names classes of ours with hostile arguments --------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [{"image_size": 10**6}, {"batch_size": 10**9}, {"image_size": 2048, "batch_size": 65}]
)
def test_a_job_cannot_make_a_site_fill_its_memory_with_one_batch(sizes):
    settings = {"learning_rate": 0.1, "batch_size": 4, "image_size": 32}
    MethodExecutor(**{**settings, "image_size": 512, "batch_size": 512})  # more than any job has
    with pytest.raises(
        ValueError, match=r"^expected image_size <= 2048 and batch_size \* image_size\^2 <= 268435456, got"
    ):
        MethodExecutor(**{**settings, **sizes})


def test_nor_with_the_slices_of_its_studies():
    settings = {"learning_rate": 0.1, "batch_size": 4, "image_size": 512}
    MethodExecutor(**settings, study_slices=256)
    with pytest.raises(ValueError, match=r"batch_size \* study_slices \* image_size\^2 <= 268435456, got"):
        MethodExecutor(**settings, study_slices=257)
    for slices in (-1, 513):
        with pytest.raises(FedMendError, match=f"study_slices: expected 0 to 512, got {slices}"):
            MethodExecutor(**{**settings, "image_size": 32}, study_slices=slices)


@pytest.mark.parametrize("given", [{"images": 10**12}, {"pixels": 10**6}, {"sites": 10**9}])
@pytest.mark.parametrize("dataset", ["ich", "isic2019", "cxr14", "ms"])
def test_a_job_cannot_make_a_site_draw_phantoms_for_days(dataset, given):
    with refused("job variable phantom: expected at most 200000 images and 20 GB, got more"):
        phantom_spec({"dataset": dataset, **given})


@pytest.mark.parametrize("value", ["9", 1e3, True, None])
def test_sizes_of_a_phantom_are_whole_numbers(value):
    with refused(f"job variable phantom.images: expected a whole number, got {value!r}"):
        phantom_spec({"dataset": "ich", "images": value})


def test_a_job_cannot_fill_the_disk_of_a_site(tmp_path):
    site = make_site_folder(tmp_path / "s")
    options = {"window": None, "size": 1024, "where": lambda i: f"site-1: train.csv row {i + 2}", "processes": 1}
    images = [f"img{i}.png" for i in range(6)]
    with patch("fedmend.data.store.shutil.disk_usage") as usage:
        usage.return_value.free = 12 * 1024**2 - 1
        with refused("site-1: train.csv: cache_dir: expected 13 MB of free space, twice what is needed, got less"):
            open_store(tmp_path / "cache", site / "images", images, **options)
        assert not list((tmp_path / "cache").rglob("images.u8"))
        usage.return_value.free += 1
        assert len(open_store(tmp_path / "cache", site / "images", images, **options).images) == 6


# ---- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", ["../images/img3.png", "/etc/passwd", "a/../../img3.png", ".."])
def test_an_image_outside_its_folder_is_refused_by_its_row_alone(tmp_path, image):
    folder = make_site_folder(tmp_path / "s")
    table = folder / "train.csv"
    table.write_text(table.read_text().replace("img3.png", image))
    with refused("site-1: train.csv row 5, column image: expected a path below image_root, got another"):
        load_table(load_card(folder, "site-1"), "train.csv", CLASSES)


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "a\\b", "/etc"])
def test_a_site_whose_name_would_lead_to_another_folder_is_refused(tmp_path, name):
    write_settings(tmp_path, data_root=f"{tmp_path}/{{SITE_NAME}}")
    with refused(f"site name: expected one without path separators, got {name!r}"):
        read_site_config(tmp_path / "local" / "fedmend.json", tmp_path, name)


@pytest.mark.parametrize("name", ["site-1", "hosp.north", "Klinikum_2", "a..b"])
def test_an_ordinary_site_name_is_put_into_the_path(tmp_path, name):
    write_settings(tmp_path, data_root="{SITE_NAME}/data")
    config = read_site_config(tmp_path / "local" / "fedmend.json", tmp_path, name)
    assert config.data_root == tmp_path.resolve() / name / "data"


# ---- what stays possible, so that the document says so --------------------------------------------------------------


def test_an_honest_looking_site_of_many_samples_outweighs_the_others(tmp_path):
    def boast(result, task_name, round_num):
        result.samples = 10**6
        census(sizes={"train": 10**6, "val": 20, "test": 20})(result, task_name, round_num)

    run = federation(tmp_path, boast).run()
    assert moved(run) == pytest.approx(6, rel=0.01)  # two rounds of the 3 of one site
    assert json.loads((run.records / "run.json").read_text())["sites"][ROGUE]["train"] == 10**6  # there to be seen
    # Of two sites; among three or more, fedmend/server/test_federation.py has what a boast is worth.


def test_the_largest_weights_that_pass_do_not_overflow_the_average(tmp_path):
    largest = weights(lambda v: np.full_like(v, 0.99e12))
    run = federation(tmp_path, largest, max_update_factor=0).run()
    assert run.engine.panics() == []
    assert np.isfinite(moved(run))
    result = SiteResult(site="site-1", samples=10**8, weights={"w": np.full(3, 0.99e12, np.float32)})
    sent = {"w": np.zeros(3, np.float32)}
    check_result(result, Expected(round_num=0, num_classes=2, weights=sent, sizes={"train": 10**8}))
