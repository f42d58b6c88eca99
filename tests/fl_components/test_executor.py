import errno
import json
import shutil

import numpy as np
import pytest
import torch
from factories import CLASSES, make_site_folder
from fl_factories import Engine, write_settings
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch_factories import PlainMethod, TinyNetwork

from fedmend import networks
from fedmend.datasets.phantom_sites import SOURCE
from fedmend.errors import FedMendError
from fedmend.evaluation import BINS
from fedmend.files import locked
from fedmend.ledger import Repairs
from fedmend.methods.base import RoundTask
from fedmend.methods.baselines import FedAvg, SingleLabelFedAvg
from fedmend.methods.fedlsm import FedLSM
from fedmend.methods.fednoro import CLEAN, DETECT, NOISY, ROBUST, FedNoRo
from fl_components.executor import LEDGER_NAME, MethodExecutor
from fl_components.payload import RunCard, pack_task, unpack_result

RUN = RunCard("run-1", CLASSES, "tiny", 7)
TRUTH = np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=np.int8)
SETTINGS = {"method_id": "plain", "learning_rate": 0.1, "batch_size": 4, "image_size": 32}


class Tagging(PlainMethod):
    """Sets the label of one blank sample of the second class per round: 1 in round 0, else 0; reports the number of labels."""

    def prepare(self, model, task, site):
        chosen = np.array([task.round_num])
        repairs = Repairs(chosen, np.array([1]), np.array([int(task.round_num == 0)]), np.array([0.9]))
        site.ledger.record("rule", task.round_num, site.data.train.labels, repairs)

    def report(self, model, task, site):
        return {"labels": (site.ledger.apply(site.data.train.labels) >= 0).sum(0)}


class Failing(PlainMethod):
    def loss(self, model, index, task, site):
        raise RuntimeError("/data/site-1/images/img3.png of patient p3")


class Client:
    """A site's process: executor, engine and the files of the site."""

    def __init__(self, folder, method, **settings):
        self.folder, self.method, self.settings = folder, method, {**SETTINGS, **settings}
        write_settings(folder)
        self.start()

    def start(self):
        self.executor = MethodExecutor(**self.settings)
        self.engine = Engine(self.folder, "site-1", components={"plain": self.method})
        self.executor.handle_event(EventType.START_RUN, self.engine.new_context())

    def reply(self, name, task, weights=None, *, evaluate=False, signal=None):
        shareable = FLModelUtils.to_shareable(pack_task(weights or {}, task, RUN, evaluate=evaluate))
        return self.executor.execute(name, shareable, self.engine.new_context(), signal or Signal())

    def ask(self, *args, **options):
        return unpack_result(FLModelUtils.from_shareable(self.reply(*args, **options)), "site-1")

    def train(self, round_num=0, **options):
        return self.ask("train", RoundTask("train", round_num, 3, seed=7), global_model(), **options)


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", TinyNetwork)
    threads = torch.get_num_threads()
    make_site_folder(tmp_path / "data", splits=("val", "test"), truth=TRUTH)
    yield lambda method=None, **settings: Client(tmp_path, method or PlainMethod(), **settings)
    torch.set_num_threads(threads)


def global_model():
    return {k: v.numpy() for k, v in networks.initial_network("tiny", CLASSES, 7).state_dict().items() if v.ndim}


def census_task():
    return RoundTask("census", 0, 3)


def test_the_census_says_what_is_annotated_and_nothing_about_single_samples(client):
    result = client().ask("census", census_task())
    assert result.census["annotated"].tolist() == [True, False, True]
    assert result.census["positives"].tolist() == [2, 0, 2]
    assert result.census["sizes"] == {"train": 6, "val": 6, "test": 6}
    assert (result.census["task"], result.census["phantom"]) == ("multilabel", False)
    assert (result.samples, result.weights, result.counts, result.report) == (6, {}, {}, {})


def test_training_gives_a_changed_model_of_the_same_tensors(client):
    result = client().train(2)
    before = global_model()
    assert {k: v.shape for k, v in result.weights.items()} == {k: v.shape for k, v in before.items()}
    assert not np.array_equal(result.weights["classifier.weight"], before["classifier.weight"])
    assert (result.round_num, result.samples, result.error, result.counts) == (2, 6, "", {})
    assert result.loss > 0


def test_the_received_model_is_evaluated_before_the_training(client):
    executor = client()
    trained = executor.train(evaluate=True)
    assert set(trained.counts) == {"val", "test"}
    assert trained.counts["val"].sum((1, 2)).tolist() == [6, 6, 6]
    assert trained.counts["val"][:, 1].sum(1).tolist() == [2, 0, 2]
    only = executor.ask("evaluate", RoundTask("evaluate", 3, 3), global_model(), evaluate=True)
    np.testing.assert_array_equal(only.counts["test"], trained.counts["test"])
    assert only.weights == {}


def test_another_process_trains_to_the_same_bytes(client):
    process = client()
    first = process.train()
    process.start()
    second = process.train()
    assert all(np.array_equal(first.weights[k], second.weights[k]) for k in first.weights)


def test_repairs_are_counted_against_the_truth_and_reported(client, caplog):
    site = client(Tagging())
    with caplog.at_level("INFO", "fedmend.executor"):
        first = site.train(0)
    assert "1 labels repaired so far" in caplog.text
    assert first.repairs["positive"].tolist() == [0, 1, 0]
    assert first.repairs["correct_positive"].tolist() == [0, 1, 0]
    second = site.train(1)
    assert second.repairs["negative"].tolist() == [0, 1, 0]
    assert second.repairs["untagged"].tolist() == [1, 4, 1]
    assert second.report["labels"].tolist() == [5, 2, 5]


def test_a_repeated_round_starts_from_what_the_rounds_before_it_left(client):
    site = client(Tagging())
    site.train(0)
    once = site.train(1)
    site.train(2)
    site.start()
    again = site.train(1)
    assert again.repairs["negative"].tolist() == once.repairs["negative"].tolist() == [0, 1, 0]
    assert (site.folder / "state" / "run-1" / "site-1" / LEDGER_NAME).is_file()


def test_the_upper_bound_trains_on_the_complete_labels(client):
    assert client(all_labels=True).ask("census", census_task()).census["annotated"].all()


def test_bad_input_becomes_a_result_with_a_sentence(client):
    site = client()
    (site.folder / "local" / "fedmend.json").unlink()
    result = site.ask("census", census_task())
    assert result.error == (
        "site-1: local/fedmend.json: expected in the workspace (data_root, cache_dir, state_dir), not found"
    )
    assert result.samples == 0


def test_a_global_model_that_is_not_finite_is_refused_by_the_site(client):
    weights = global_model() | {"classifier.bias": np.full(3, np.nan, np.float32)}
    result = client().ask("train", RoundTask("train", 0, 3), weights)
    assert result.error == "site-1: global model: expected finite numbers, got NaN or infinity in classifier.bias"
    assert result.weights == {}


def test_a_task_of_another_kind_is_answered_with_a_sentence(client):
    site = client()
    stranger = FLModelUtils.to_shareable(FLModel(metrics={"x": 1.0}, current_round=0, total_rounds=1))
    reply = site.executor.execute("train", stranger, site.engine.new_context(), Signal())
    error = unpack_result(FLModelUtils.from_shareable(reply), "site-1").error
    assert error.startswith("site-1: task from the server: expected a FedMend task")


def test_a_site_without_data_folder_needs_a_job_with_a_phantom(client):
    site = client()
    write_settings(site.folder, data_root="phantom")
    assert site.ask("census", census_task()).error == (
        "site-1: local/fedmend.json, field data_root: expected a folder, as this job has no phantom"
    )


def test_a_phantom_has_no_other_sites_than_its_own(client, monkeypatch):
    site = client(phantom={"dataset": "ich", "images": 60, "sites": 2})
    write_settings(site.folder, data_root="phantom")
    made = []
    monkeypatch.setattr(
        "fl_components.site_config.ensure_phantom", lambda cache, spec: made.append(spec.images) or cache / "nothing"
    )
    error = site.ask("census", census_task()).error
    assert error == "site-1: phantom: expected a site name from site-1 to site-2, got site-1"
    assert made == [60]


def test_a_site_that_repairs_no_labels_does_not_speak_of_them(client, caplog):
    with caplog.at_level("INFO", "fedmend.executor"):
        client(FedAvg()).train(0)
    assert "round 1 train, 6 samples, loss" in caplog.text
    assert "repaired" not in caplog.text


def test_a_run_on_a_phantom_says_so(client, caplog):
    site = client()
    card = site.folder / "data" / "site.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "provenance": {"source": SOURCE}}))
    assert site.ask("census", census_task()).census["phantom"] is True
    with caplog.at_level("INFO", "fedmend.executor"):
        site.train()
    assert "PHANTOM site-1: round 1 train, 6 samples, loss" in caplog.text


def test_an_unexpected_error_leaves_only_its_type(client):
    reply = client(Failing()).reply("train", RoundTask("train", 0, 3), global_model())
    result = unpack_result(FLModelUtils.from_shareable(reply), "site-1")
    assert result.error == "site-1: train failed with RuntimeError; see the log of this site"
    assert "img3" not in str(reply)
    assert "p3" not in str(reply)


class Disk(PlainMethod):
    def loss(self, model, index, task, site):
        raise OSError(errno.ENOSPC, "No space left on device", "/data/site-1/images/img3.png of patient p3")


def test_a_full_disk_is_said_in_the_words_of_the_system_without_the_file(client):
    expected = "site-1: train: expected files that can be read and written, got: No space left on device"
    assert client(Disk()).train().error == expected


def test_a_task_beside_one_of_an_earlier_job_waits_and_is_refused_before_it_touches_the_state(client, monkeypatch):
    monkeypatch.setattr("fl_components.executor.PREDECESSOR", 0.3)
    site = client(Tagging())
    state = site.folder / "state" / "run-1" / "site-1"
    state.mkdir(parents=True)
    with locked(state / "in_use", patience=0):
        error = site.train().error
        assert [file.name for file in state.iterdir()] == ["in_use"]
    assert error == ("site-1: run_name 'run-1': expected no other task of this run at this site, one is still going on")
    assert site.train().error == ""


def test_an_aborted_task_ends_at_the_next_batch(client):
    signal = Signal()
    signal.trigger("stop")
    reply = client().reply("train", RoundTask("train", 0, 3), global_model(), signal=signal)
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED


def test_an_abort_while_a_model_is_evaluated_ends_at_the_next_batch(client, monkeypatch):
    signal, batches, forward = Signal(), [], TinyNetwork.forward

    def aborted_meanwhile(self, images):
        batches.append(len(images))
        signal.trigger("stop")
        return forward(self, images)

    monkeypatch.setattr(TinyNetwork, "forward", aborted_meanwhile)
    order = RoundTask("evaluate", 3, 3)
    reply = client().reply("evaluate", order, global_model(), evaluate=True, signal=signal)
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED
    assert batches == [4]  # of two batches in each of two splits


def test_a_task_with_a_run_name_that_leaves_the_state_folder_is_refused_by_the_site(client):
    site = client()
    task = pack_task({}, census_task(), RUN, evaluate=False)
    task.meta["fedmend"]["run"]["run_name"] = "../../outside"
    reply = site.executor.execute("census", FLModelUtils.to_shareable(task), site.engine.new_context(), Signal())
    error = unpack_result(FLModelUtils.from_shareable(reply), "site-1").error
    assert error.startswith("site-1: job variable run_name: expected letters")
    assert not list(site.folder.parent.glob("outside"))


def test_a_sentence_too_long_for_the_guard_is_cut(client):
    class Wordy(PlainMethod):
        def prepare(self, model, task, site):
            raise FedMendError("x" * 5000)

    assert client(Wordy()).train().error == "site-1: " + "x" * 1992


def test_an_unknown_task_is_answered_as_such(client):
    assert client().reply("bake", census_task()).get_return_code() == ReturnCode.TASK_UNKNOWN


@pytest.mark.parametrize("component", [None, object()], ids=["missing", "no method"])
def test_a_method_id_that_names_no_method_stops_the_job(client, component):
    site = client()
    site.method = component
    site.start()
    assert site.engine.panics() == ["client configuration: expected a method with id 'plain'"]


@pytest.mark.parametrize("wrong", [{"batch_size": 1}, {"image_size": 16}])
def test_sizes_that_cannot_be_trained_on_are_refused_at_once(wrong):
    with pytest.raises(ValueError, match="expected batch_size >= 2 and image_size >= 32"):
        MethodExecutor(**{**SETTINGS, **wrong})


def test_original_labels_are_never_written(client):
    site = client(Tagging())
    before = (site.folder / "data" / "train.csv").read_bytes()
    site.train(0)
    assert (site.folder / "data" / "train.csv").read_bytes() == before


SINGLE = [0, 1, 0, 2, 0, 1]


@pytest.fixture
def single(client, tmp_path):
    """A site with single-label data."""
    shutil.rmtree(tmp_path / "data")
    make_site_folder(tmp_path / "data", SINGLE, splits=("val", "test"))
    return lambda method=None, **settings: client(method or FedNoRo(), **settings)


def detect_task(round_num=2):
    return RoundTask(DETECT, round_num, 3, seed=7)


def test_a_report_is_collected_without_training(single, monkeypatch):
    passes, forward = [], TinyNetwork.forward
    monkeypatch.setattr(
        TinyNetwork,
        "forward",
        lambda self, images: passes.append((self.training, len(images))) or forward(self, images),
    )
    site = single()
    result = site.ask("collect", detect_task(), global_model())
    assert result.error == ""
    assert result.report["class_count"].tolist() == [3, 2, 1]
    assert (result.report["class_loss"] > 0).all()
    assert (result.weights, result.counts, result.repairs, result.census) == ({}, {}, {}, {})
    assert (result.round_num, result.samples, result.loss) == (2, 6, 0.0)
    assert passes == [(False, 4), (False, 2)]


def test_collecting_leaves_the_ledger_alone(client):
    class Reporting(Tagging):
        def report(self, model, task, site):
            return {}

    site = client(Reporting())
    site.train(0)
    trained = site.train(1)
    collected = site.ask("collect", RoundTask("look", 1, 3, seed=7), global_model())
    assert all(np.array_equal(collected.repairs[k], v) for k, v in trained.repairs.items())
    assert collected.repairs["negative"].tolist() == [0, 1, 0]  # the entry of round 1, which training would have undone


def test_the_collected_report_is_about_the_received_model(single):
    site, weights = single(), global_model()
    first = site.ask("collect", detect_task(), weights).report["class_loss"]
    again = site.ask("collect", detect_task(), weights).report["class_loss"]
    other = site.ask("collect", detect_task(), {**weights, "classifier.bias": np.float32([9, 0, 0])}).report[
        "class_loss"
    ]
    assert first.tolist() == again.tolist()
    assert other[0] < first[0]
    assert other[1] > first[1]


def test_a_collection_of_a_model_that_is_not_finite_is_refused(single):
    weights = global_model() | {"classifier.bias": np.full(3, np.nan, np.float32)}
    result = single().ask("collect", detect_task(), weights)
    assert result.error == "site-1: global model: expected finite numbers, got NaN or infinity in classifier.bias"


def test_the_census_of_single_label_data_counts_each_class(single):
    census = single().ask("census", census_task()).census
    assert census["task"] == "singlelabel"
    assert census["annotated"].tolist() == [True, True, True]
    assert census["positives"].tolist() == [3, 2, 1]
    assert census["sizes"] == {"train": 6, "val": 6, "test": 6}


def test_the_model_is_evaluated_by_a_confusion_matrix_and_histograms_on_single_label_data(single):
    result = single().ask("evaluate", RoundTask("evaluate", 3, 3), global_model(), evaluate=True)
    assert set(result.counts) == {"val", "test"}
    matrix, histograms = result.counts["val"][:, :3], result.counts["val"][:, 3:].reshape(3, 2, BINS)
    assert matrix.sum(1).tolist() == [3, 2, 1]
    assert histograms.sum(-1).tolist() == [[3, 3], [4, 2], [5, 1]]


def test_training_starts_with_the_evaluation_of_the_received_model_on_single_label_data(single):
    site = single()
    trained = site.train(evaluate=True)
    only = site.ask("evaluate", RoundTask("evaluate", 3, 3), global_model(), evaluate=True)
    np.testing.assert_array_equal(trained.counts["test"], only.counts["test"])


@pytest.mark.parametrize("method", [FedNoRo(), SingleLabelFedAvg()], ids=lambda m: type(m).__name__)
def test_multi_label_data_is_refused_by_a_single_label_method(client, method):
    assert client(method).ask("census", census_task()).error == (
        "site-1: site.json, field task: expected 'singlelabel' for the method of this job, got 'multilabel'"
    )


def test_single_label_data_is_refused_by_a_multi_label_method(single):
    assert single(FedAvg()).ask("census", census_task()).error == (
        "site-1: site.json, field task: expected 'multilabel' for the method of this job, got 'singlelabel'"
    )


def test_a_noisy_site_trains_to_another_model_than_a_clean_one_and_each_to_the_same_bytes_again(single):
    site, trained = single(local_epochs=2), {}
    for role in (CLEAN, NOISY, NOISY, CLEAN):
        task = RoundTask(ROBUST, 2, 3, {"distillation_weight": np.float32(0.5)}, role, seed=7)
        trained.setdefault(role, []).append(site.ask("train", task, global_model()).weights)
    for first, second in trained.values():
        assert all(np.array_equal(first[k], second[k]) for k in first)
    assert not np.array_equal(*(trained[role][0]["classifier.weight"] for role in (CLEAN, NOISY)))


def test_a_noisy_site_without_distillation_weight_answers_with_a_sentence(single):
    task = RoundTask(ROBUST, 2, 3, {}, NOISY, seed=7)
    assert single().ask("train", task, global_model()).error == (
        "site-1: round 2, distillation_weight from the server: expected 0 to 1, got another"
    )


def test_a_blank_label_is_named_by_its_row(single, tmp_path):
    site = single()
    make_site_folder(tmp_path / "data", [0, 1, -1, 0, 1, 0])
    assert site.train().error == "site-1: train.csv row 4, column label: expected a class name, got a blank"


# ---- Adam over rounds -----------------------------------------------------------------------------------------------


def test_moments_second_momentum_and_decay_reach_the_trainer(client):
    trainer = client(keep_moments=True, second_momentum=0.99, learning_rate_decay=0.9).executor._trainer
    assert (trainer.keep_moments, trainer.second_momentum, trainer.learning_rate_decay) == (True, 0.99, 0.9)
    trainer = client().executor._trainer
    assert (trainer.keep_moments, trainer.second_momentum, trainer.learning_rate_decay) == (False, 0.999, 1.0)


def test_a_second_momentum_of_1_is_refused_at_once():
    with pytest.raises(FedMendError, match=r"job variable second_momentum: expected 0 to below 1, got 1\.0"):
        MethodExecutor(**{**SETTINGS, "second_momentum": 1.0})


def test_moments_go_on_in_another_process_and_a_repeated_round_gives_the_same_bytes(client):
    process = client(keep_moments=True)
    process.train(0)
    second = process.train(1)
    process.start()
    again = process.train(1)
    assert all(np.array_equal(second.weights[k], again.weights[k]) for k in second.weights)
    fresh = client(keep_moments=False).train(1)
    assert not np.array_equal(fresh.weights["classifier.weight"], second.weights["classifier.weight"])


# ---- FedLSM ---------------------------------------------------------------------------------------------------------

LSM = {"local_iterations": 3, "high": 1, "low": 2, "pairs": 1, "tau_positive": 0.5, "tau_negative": 0.49}


def lsm_task(round_num=0):
    weight = {"pos_weight": np.ones(3, dtype=np.float32)}
    return RoundTask("train", round_num, 3, weight, seed=7)


@pytest.mark.parametrize(
    ("kind", "fields"), [("client", {"class_knowledge", "uncertainty"}), ("single", {"class_knowledge"})]
)
def test_a_site_trains_fedlsm_and_reports_what_it_knows(request, kind, fields):  # all classes are known at "single"
    site = request.getfixturevalue(kind)(FedLSM(**LSM))
    result = site.ask("train", lsm_task(), global_model())
    assert result.error == ""
    assert set(result.report) == fields
    assert result.report["class_knowledge"].shape == (3,)
    assert set(result.weights) == set(global_model())
    assert np.isfinite(result.loss)


def test_a_repeated_round_of_fedlsm_gives_the_same_answer_and_the_same_repairs(client):
    site = client(FedLSM(**LSM), keep_moments=True)
    site.ask("train", lsm_task(), global_model())
    first = site.ask("train", lsm_task(1), global_model())
    assert sum(v.sum() for k, v in first.repairs.items() if k in ("positive", "negative")) > 0
    site.start()
    again = site.ask("train", lsm_task(1), global_model())
    for part in ("weights", "report", "repairs"):
        one, other = getattr(first, part), getattr(again, part)
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[k], other[k]) for k in one)


def test_pools_larger_than_the_site_are_answered_with_a_sentence(client):
    result = client(FedLSM(**LSM | {"high": 5})).ask("train", lsm_task(), global_model())
    assert result.error == "site-1: train.csv: expected at least high + low = 5 + 2 samples, got 6"
    assert result.weights == {}
