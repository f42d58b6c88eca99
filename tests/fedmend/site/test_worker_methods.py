"""A site with the methods for single-label data and for mismatched label sets."""

import shutil

import numpy as np
import pytest
from factories import make_site_folder
from torch_factories import PlainMethod, TinyNetwork
from worker_factories import Client, census_task, global_model, one_site

from fedmend.kinds.multilabel import BINS
from fedmend.method import RoundTask
from fedmend.methods.alone import SingleLabelAlone
from fedmend.methods.baselines import FedAvg, SingleLabelFedAvg
from fedmend.methods.fedlsm import FedLSM
from fedmend.methods.fednoro import CLEAN, DETECT, NOISY, ROBUST, FedNoRo


@pytest.fixture
def client(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val", "test"))
    with one_site():
        yield lambda method=None, **settings: Client(tmp_path, method or PlainMethod(), **settings)


SINGLE = [0, 1, 0, 2, 0, 1]


@pytest.fixture
def single(client, tmp_path):
    """A site with single-label data."""
    shutil.rmtree(tmp_path / "data")
    make_site_folder(tmp_path / "data", SINGLE, splits=("val", "test"))
    return lambda method=None, **settings: client(method or FedNoRo(), **settings)


def detect_task(round_num=2):
    return RoundTask(DETECT, round_num, 3, seed=7, training=False)


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
    assert passes == [(True, 4), (False, 4), (False, 2)]  # the first one is the estimate of the memory, without numbers


def test_a_hospital_alone_counts_its_own_model_and_sends_the_received_one_back(single):
    site, weights = single(SingleLabelAlone(), learning_rate=0.5), global_model()
    first = site.ask("train", RoundTask("train", 0, 3, seed=7), weights, evaluate=True)
    after = site.ask("evaluate", RoundTask("evaluate", 1, 3, seed=7), weights, evaluate=True)
    assert first.error == after.error == ""
    assert all(np.array_equal(first.weights[name], value) for name, value in weights.items())
    assert (first.counts["test"] != after.counts["test"]).any()


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
    assert census["kind"] == "singlelabel"
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
        "site-1: round 2, distillation_weight from the server: expected an array, got nothing"
    )


def test_a_blank_label_is_named_by_its_row(single, tmp_path):
    site = single()
    make_site_folder(tmp_path / "data", [0, 1, -1, 0, 1, 0])
    assert site.train().error == "site-1: train.csv row 4, column label: expected a class name, got a blank"


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
