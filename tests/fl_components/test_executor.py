"""What is FLARE's about a site: messages, settings, aborted tasks, the method's component."""

import dataclasses
import json

import numpy as np
import pytest
from certificate_factories import make_root, sign_as
from factories import make_site_folder, refused
from fl_factories import Engine, write_settings
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch_factories import PlainMethod, PlainRound
from worker_factories import RUN, SETTINGS, global_model, one_site

from fedmend.evaluation.federated import EvaluateModels
from fedmend.fields import Field
from fedmend.method import RoundTask
from fedmend.records.package_files import write_package
from fl_components import approval
from fl_components.approval import approve, requests
from fl_components.executor import MethodExecutor
from fl_components.wire import pack_task, unpack_result


class Reporting(PlainRound):
    def report(self):
        return {"number": np.array(3)}


class Method(PlainMethod):
    FIELDS = {"number": Field((), "int64", 0, 9, "a number", "none")}  # noqa: RUF012
    ROUND = Reporting

    def collect(self, model, task, site):
        return {"number": np.array(task.ledger_round)}


class Process:
    """A site's process in FLARE: executor, engine and the files of the site."""

    def __init__(self, folder, component, name="site-1", **settings):
        write_settings(folder, **settings)
        self.folder, self.executor = folder, MethodExecutor(**SETTINGS)
        self.engine = Engine(folder, name, components={"method": component})
        self.executor.handle_event(EventType.START_RUN, self.engine.new_context())

    def execute(self, name, message, signal=None):
        shareable = FLModelUtils.to_shareable(message)
        return self.executor.execute(name, shareable, self.engine.new_context(), signal or Signal())

    def reply(self, name, round_num=0, *, evaluate=False, signal=None):
        weights = {} if name == "census" else global_model()
        message = pack_task(
            weights, RoundTask(name, round_num, 3, seed=7, sites=("site-1", "site-2")), RUN, evaluate=evaluate
        )
        return self.execute(name, message, signal)

    def ask(self, name, round_num=0, **options):
        return read(self.reply(name, round_num, **options))


def read(reply):
    return unpack_result(FLModelUtils.from_shareable(reply), "site-1")


@pytest.fixture
def process(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val", "test"))
    with one_site():
        yield lambda component=None, **options: Process(tmp_path, component or Method(), **options)


def test_the_model_that_the_server_has_signed_is_kept_at_a_site_with_a_kit(process, tmp_path):
    about = {"name": "run-1", "classes": list(RUN.classes), "network": {"name": "tiny"}}
    write_package(tmp_path / "p.fedmend", about, global_model())
    root = make_root(tmp_path / "startup")
    servers = [{"identity": "server.example.org"}]
    (root.parent / "fed_client.json").write_text(json.dumps({"servers": servers}))
    state, site = tmp_path.parent / f"{tmp_path.name}-state", process()
    write_settings(tmp_path, keep_model=True, state_dir=str(state))
    assert site.ask("census").census["keep_model"]

    task = RoundTask("keep", 3, 3, sites=("site-1", "site-2"))

    def keep():
        files = {f.name: np.fromfile(f, np.uint8) for f in (tmp_path / "p.fedmend").iterdir()}
        return read(site.execute("keep", pack_task(files, task, RUN, evaluate=False))).error

    assert "expected a signature of the federation's server" in keep()
    sign_as(tmp_path / "p.fedmend", tmp_path / "server")
    assert keep() == ""
    assert (state / "run-1" / "site-1" / "model" / "run-1.fedmend" / "signature.json").is_file()


def test_the_four_tasks_are_answered(process):
    site = process()
    assert site.ask("census").census["sizes"] == {"train": 6, "val": 6, "test": 6}
    trained = site.ask("train", 2, evaluate=True)
    assert (trained.error, trained.round_num, trained.samples, int(trained.report["number"])) == ("", 2, 6, 3)
    assert set(trained.weights) == set(global_model())
    assert set(trained.counts) == {"val", "test"}
    collected = site.ask("collect", 2)
    assert (collected.weights, int(collected.report["number"])) == ({}, 1)
    evaluated = site.ask("evaluate", 3, evaluate=True)
    np.testing.assert_array_equal(evaluated.counts["test"], trained.counts["test"])


def test_the_site_s_settings_are_read_for_every_task(process):
    site = process()
    (site.folder / "local" / "fedmend.json").unlink()
    result = site.ask("census")
    assert result.error == (
        "site-1: local/fedmend.json: expected in the workspace (data_root, cache_dir, state_dir), not found"
    )
    assert result.samples == 0
    write_settings(site.folder, data_root="phantom")
    assert site.ask("census").error == (
        "site-1: local/fedmend.json, field data_root: expected a folder, as this job has no phantom"
    )
    write_settings(site.folder)
    assert site.ask("census").error == ""


def test_a_task_of_another_kind_is_answered_with_a_sentence(process):
    stranger = FLModel(metrics={"x": 1.0}, current_round=0, total_rounds=1)
    error = read(process().execute("train", stranger)).error
    assert error.startswith("site-1: task from the server: expected a FedMend task")


def test_a_task_with_a_run_name_that_leaves_the_state_folder_is_refused_by_the_site(process, tmp_path):
    task = pack_task({}, RoundTask("census", 0, 3, sites=("site-1", "site-2")), RUN, evaluate=False)
    task.meta["fedmend"]["run"]["run_name"] = "../../outside"
    error = read(process().execute("census", task)).error
    assert error.startswith("site-1: job variable run_name: expected at most 100 letters")
    assert not list(tmp_path.parent.glob("outside"))


def test_a_site_called_job_keeps_its_name_in_a_sentence_about_a_job_variable(process):
    task = pack_task({}, RoundTask("census", 0, 3, sites=("site-1", "site-2")), RUN, evaluate=False)
    task.meta["fedmend"]["run"]["run_name"] = "../../outside"
    error = read(process(name="job").execute("census", task)).error
    assert error.startswith("job: job variable run_name: expected at most 100 letters")


def test_a_sentence_of_a_site_too_long_for_the_guard_is_cut(process):
    site = process()
    write_settings(site.folder, **{f"unknown setting {i}": 0 for i in range(200)})
    assert len(site.ask("census").error) == 2000


def test_an_unknown_task_is_answered_as_such(process):
    assert process().reply("bake").get_return_code() == ReturnCode.TASK_UNKNOWN


def test_an_aborted_task_is_answered_as_such(process):
    signal = Signal()
    signal.trigger("stop")
    assert process().reply("train", signal=signal).get_return_code() == ReturnCode.TASK_ABORTED


def test_an_unexpected_error_leaves_only_its_type(process):
    class Failing(PlainRound):
        def loss(self, index):
            raise RuntimeError("/data/site-1/images/img3.png of patient p3")

    class Broken(PlainMethod):
        ROUND = Failing

    reply = process(Broken()).reply("train")
    assert read(reply).error == "site-1: train failed with RuntimeError; see the log of this site"
    assert "img3" not in str(reply)


@pytest.mark.parametrize("component", [None, object()], ids=["missing", "no method"])
def test_a_job_without_a_method_is_stopped(tmp_path, component):
    assert Process(tmp_path, component).engine.panics() == ["client configuration: expected a method with id 'method'"]


def test_all_settings_reach_the_worker():
    settings = {"learning_rate_decay": 0.9, "weight_decay": 0.0, "local_epochs": 3, "second_momentum": 0.99}
    trainer = MethodExecutor(**SETTINGS, **settings, keep_moments=True)._settings.trainer
    assert {name: getattr(trainer, name) for name in settings} == settings
    assert (trainer.keep_moments, trainer.learning_rate) == (True, 0.1)


def test_settings_that_cannot_be_trained_with_are_refused_at_once():
    with pytest.raises(ValueError, match="expected batch_size >= 2 and image_size >= 32"):
        MethodExecutor(**{**SETTINGS, "batch_size": 1})
    with refused("job variable second_momentum: expected 0 to below 1, got 1.0"):
        MethodExecutor(**SETTINGS, second_momentum=1.0)


def test_a_site_that_asks_does_nothing_until_somebody_has_approved_what_was_shown(process, monkeypatch):
    monkeypatch.setattr(approval, "HOLD", 0)
    site = process()
    write_settings(site.folder, approve="ask")
    for task in ("census", "census", "train"):
        assert site.ask(task).error == "site-1: waits until somebody of this site has approved the job"
    state = site.folder / "state"
    assert not (state / "run-1").exists()
    (request,) = requests(state, "site-1").values()
    assert request["about"]["method"].endswith("test_executor.Method")
    shown = {name: request["about"][name] for name in ("run_name", "network", "classes")}
    assert shown == {"run_name": "run-1", "network": "tiny", "classes": list(RUN.classes)}
    assert (request["about"]["settings"]["learning_rate"], request["shown"]["rounds"]) == (0.1, 3)
    assert request["shown"]["sites"] == ["site-1", "site-2"]
    other = dataclasses.replace(RUN, run_name="run-2")
    message = pack_task({}, RoundTask("census", 0, 3, sites=("site-1", "site-2")), other, evaluate=False)
    another = "site-1: approval: expected the job as it was first shown, got another under its id"
    assert read(site.execute("census", message)).error == another
    assert requests(state, "site-1") == {"job-1": request}
    approve(state, "site-1", "job-1")
    assert site.ask("census").error == ""
    assert read(site.execute("census", message)).error == another
    assert site.ask("train").error == ""


def test_a_method_with_other_arguments_is_another_job_than_the_one_that_was_approved(tmp_path, monkeypatch):
    monkeypatch.setattr(approval, "HOLD", 0)
    first = Process(tmp_path, EvaluateModels(subgroups=["sex:F,M"]), approve="ask")
    assert "waits until" in first.ask("census").error
    (request,) = requests(tmp_path / "state", "site-1").values()
    assert request["about"]["arguments of the method"] == {"subgroups": ["sex:F,M"], "split": "test"}
    approve(tmp_path / "state", "site-1", "job-1")
    again = Process(tmp_path, EvaluateModels(subgroups=["sex:F,M", "age:40,60"]), approve="ask")
    assert "expected the job as it was first shown" in again.ask("census").error
    same = Process(tmp_path, EvaluateModels(subgroups=["sex:F,M"]), approve="ask")
    assert "approval" not in same.ask("census").error


def test_a_task_that_waits_begins_when_somebody_approves_and_ends_when_the_job_is_aborted(process, monkeypatch):
    site = process()
    write_settings(site.folder, approve="ask")
    site.ask("census")
    signal = Signal()
    signal.trigger(True)
    assert "waits until" in read(site.reply("census", signal=signal)).error
    state = site.folder / "state"
    monkeypatch.setattr(approval.time, "sleep", lambda _: approve(state, "site-1", "job-1"))
    assert site.ask("census").error == ""
