import errno
import json
import math
import re
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from factories import CLASSES, make_site_folder, refused
from torch_factories import PlainMethod, PlainRound, TinyNetwork
from worker_factories import SETTINGS, Client, census_task, global_model, one_site

from fedmend.basics.files import locked
from fedmend.basics.parallel import cores
from fedmend.basics.state import StateStore
from fedmend.data import site as site_data
from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.errors import WAY_ON, FedMendError
from fedmend.fields import Field
from fedmend.kinds import kind_of
from fedmend.learning.inference import Stopped
from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvg
from fedmend.phantoms.sites import SOURCE
from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.site_run import LEDGER_NAME, OPINIONS
from fedmend.repairs.verdicts import REJECT, Verdict
from fedmend.site import worker as site_worker
from fedmend.site.gpu_settings import Gpu
from fedmend.site.worker import SiteSettings

TRUTH = np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=np.int8)


class TaggingRound(PlainRound):
    """Sets the label of one blank sample of the second class per round: 1 in round 0, else 0.

    Reports the number of labels.
    """

    def __init__(self, *args):
        super().__init__(*args)
        tag(self.site, self.task, self.task.round_num, "rule")

    def report(self):
        return {"labels": (self.site.ledger.apply(self.site.data.train.labels) >= 0).sum(0)}


def tag(site, task, sample, rule):
    chosen = np.array([sample])
    repairs = Repairs(chosen, np.array([1]), np.array([int(task.round_num == 0)]), np.array([0.9]))
    site.ledger.record(rule, task.ledger_round, site.data.train.labels, repairs)


class Tagging(PlainMethod):
    KNOWLEDGE: ClassVar = {"sample": Field((), "int64", 0, 5, "a sample", "none")}
    ROUND = TaggingRound

    def collect(self, model, task, site):
        """Sets the label of the sample that the server names, if it names one."""
        if "sample" in task.knowledge:
            tag(site, task, int(task.word("sample")), "other rule")
        return {"labels": (site.ledger.apply(site.data.train.labels) >= 0).sum(0)}


def raising(error):
    """A method whose loss raises."""

    class Failing(PlainRound):
        def loss(self, index):
            raise error

    class Method(PlainMethod):
        ROUND = Failing

    return Method()


@pytest.fixture
def client(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val", "test"), truth=TRUTH)
    with one_site():
        yield lambda method=None, **settings: Client(tmp_path, method or PlainMethod(), **settings)


def test_the_census_says_what_is_annotated_and_nothing_about_single_samples(client):
    result = client().ask("census", census_task())
    assert result.census["annotated"].tolist() == [True, False, True]
    assert result.census["positives"].tolist() == [2, 0, 2]
    assert result.census["sizes"] == {"train": 6, "val": 6, "test": 6}
    assert (result.census["kind"], result.census["phantom"]) == ("multilabel", False)
    assert (result.samples, result.weights, result.counts, result.report) == (6, {}, {}, {})


def test_what_killed_processes_of_a_run_left_half_written_at_a_site_is_gone_when_it_is_opened_again(client):
    site = client()
    site.ask("census", census_task())
    run = site.folder / "state" / "run-1" / "site-1"
    (run / "masks").mkdir()
    left = [run / ".opened.pt.025bcf20", run / "masks" / ".rule-1.npz.173340f8"]
    for file in left:
        file.write_bytes(b"half")
    site.start()
    assert site.train().error == ""
    assert not any(file.exists() for file in left)


def test_a_site_with_a_gpu_that_is_not_there_says_so(client):
    site = client()
    site.config = replace(site.config, gpu=Gpu(devices=(4096,)))
    found = torch.cuda.device_count()
    assert site.ask("census", census_task()).error == (
        "site-1: local/fedmend.json, field gpu.devices: expected GPUs of this machine, which has"
        f" {found}, got number 4096"
    )


def test_images_are_decoded_on_as_many_cores_as_the_site_allows(client, monkeypatch):
    opened = []
    open_store = site_data.open_store
    monkeypatch.setattr(site_data, "open_store", lambda *a, **k: opened.append(cores()) or open_store(*a, **k))
    site = client()
    site.config = replace(site.config, threads=3)
    site.ask("census", census_task())
    assert set(opened) == {3}


def test_training_gives_a_changed_model_of_the_same_tensors(client):
    result = client().train(2)
    before = global_model()
    assert {k: v.shape for k, v in result.weights.items()} == {k: v.shape for k, v in before.items()}
    assert not np.array_equal(result.weights["classifier.weight"], before["classifier.weight"])
    assert (result.round_num, result.samples, result.error, result.counts) == (2, 6, "", {})
    assert result.loss > 0


def test_the_received_model_is_evaluated_before_the_training(client):
    site = client()
    trained = site.train(evaluate=True)
    assert set(trained.counts) == {"val", "test"}
    assert trained.counts["val"].sum((1, 2)).tolist() == [6, 6, 6]
    assert trained.counts["val"][:, 1].sum(1).tolist() == [2, 0, 2]
    only = site.ask("evaluate", RoundTask("evaluate", 3, 3), global_model(), evaluate=True)
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


def test_a_site_whose_ledger_was_rolled_back_by_a_round_says_so_before_it_trains(client):
    site = client(Tagging())
    file = site.folder / "state" / "run-1" / "site-1" / LEDGER_NAME
    first = site.train(0)
    older = file.read_bytes()
    second = site.train(1, mark=first.ledger_mark)
    assert second.error == ""
    site.start()
    file.write_bytes(older)
    behind = site.train(2, mark=second.ledger_mark)
    assert behind.error.startswith(
        "site-1: label ledger: expected all repairs that this run has recorded, got a ledger without the latest"
    )
    assert (behind.weights, behind.repairs) == ({}, {})
    assert site.ask("census", replace(census_task(), ledger_mark=second.ledger_mark)).error == behind.error
    assert site.train(1, mark=first.ledger_mark).error == ""  # the round may be repeated


def test_a_repeated_or_later_round_finds_a_ledger_that_is_ahead_in_order(client):
    site = client(Tagging())
    first = site.train(0)
    site.train(1, mark=first.ledger_mark)  # its result never arrived
    site.collect(2, sample=np.array(3))
    assert site.train(1, mark=first.ledger_mark).error == ""
    assert site.train(2, mark=first.ledger_mark).error == ""


def test_a_damaged_state_file_is_said_without_a_path(client):
    site = client(PlainMethod(), keep_moments=True)
    site.train(0)
    (file,) = (site.folder / "state" / "run-1" / "site-1").glob("*-0.pt")
    file.write_bytes(file.read_bytes()[:-1])
    assert site.train(1).error == (
        f"site-1: state file {file.name}: expected what FedMend saved, got a damaged file; {WAY_ON}"
    )


def test_the_upper_bound_trains_on_the_complete_labels(client):
    assert client(all_labels=True).ask("census", census_task()).census["annotated"].all()


def test_a_global_model_that_is_not_finite_is_refused_by_the_site(client):
    weights = global_model() | {"classifier.bias": np.full(3, np.nan, np.float32)}
    result = client().ask("train", RoundTask("train", 0, 3), weights)
    assert result.error == "site-1: global model: expected finite numbers, got NaN or infinity in classifier.bias"
    assert result.weights == {}


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


def test_an_unexpected_error_leaves_only_its_type(client, caplog):
    result = client(raising(RuntimeError("/data/site-1/images/img3.png of patient p3"))).train()
    assert result.error == "site-1: train failed with RuntimeError; see the log of this site"
    assert "img3" not in str(result)
    assert "site-1: train failed with RuntimeError at site/worker.py:" in caplog.text
    assert "img3" not in caplog.text


def test_a_full_disk_is_said_in_the_words_of_the_system_without_the_file(client):
    full = OSError(errno.ENOSPC, "No space left on device", "/data/site-1/images/img3.png of patient p3")
    expected = "site-1: train: expected files that can be read and written, got: No space left on device"
    assert client(raising(full)).train().error == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("job", "job variables batch_size, pairs: expected at least 2 images"),
        ("state", "state file opened.pt: expected what FedMend saved"),
        ("site-1", "site-10: train.csv: expected a label"),
    ],
)
def test_a_site_keeps_its_name_before_a_sentence_that_begins_like_it(client, name, sentence):
    site = client(raising(FedMendError(sentence)))
    site.name = name
    assert site.train().error == f"{name}: {sentence}"


def test_a_task_beside_one_of_an_earlier_job_waits_and_is_refused_before_it_touches_the_state(client, monkeypatch):
    monkeypatch.setattr(site_worker, "PREDECESSOR", 0.3)
    site = client(Tagging())
    state = site.folder / "state" / "run-1" / "site-1"
    state.mkdir(parents=True)
    with locked(state / "in_use", patience=0):
        error = site.train().error
        assert [file.name for file in state.iterdir()] == ["in_use"]
    assert error == ("site-1: run_name 'run-1': expected no other task of this run at this site, one is still going on")
    assert site.train().error == ""


def test_an_aborted_task_ends_at_the_next_batch(client):
    with pytest.raises(Stopped):
        client().train(stop=lambda: True)


def test_an_abort_while_a_model_is_evaluated_ends_at_the_next_batch(client, monkeypatch):
    batches, forward = [], TinyNetwork.forward
    monkeypatch.setattr(
        TinyNetwork, "forward", lambda self, images: batches.append(len(images)) or forward(self, images)
    )
    with pytest.raises(Stopped):
        client().ask("evaluate", RoundTask("evaluate", 3, 3), global_model(), evaluate=True, stop=lambda: bool(batches))
    assert batches == [4]  # of two batches in each of two splits


def test_a_later_task_is_not_stopped_by_an_earlier_one(client):
    site = client()
    with pytest.raises(Stopped):
        site.train(stop=lambda: True)
    assert site.train().error == ""


def test_a_sentence_too_long_for_the_guard_is_cut(client):
    assert client(raising(FedMendError("x" * 5000))).train().error == "site-1: " + "x" * 1992


@pytest.mark.parametrize("wrong", [{"batch_size": 1}, {"image_size": 16}])
def test_sizes_that_cannot_be_trained_on_are_refused_at_once(wrong):
    with pytest.raises(ValueError, match="expected batch_size >= 2 and image_size >= 32"):
        SiteSettings.of(**{**SETTINGS, **wrong})


def test_pictures_are_scaled_by_the_numbers_of_the_job(client):
    site = client(pixel_mean=[0.4], pixel_deviation=[0.2])
    assert site.train().error == ""
    train = site.worker._opened[1].site.data.train
    assert (train.mean, train.deviation) == ((0.4,), (0.2,))


@pytest.mark.parametrize(
    ("mean", "deviation", "sentence"),
    [
        ([0.5, 0.5], [1, 1], "pixel_mean: expected a list of no number, 1 or 3, got [0.5, 0.5]"),
        (0.5, [1], "pixel_mean: expected a list of no number, 1 or 3, got 0.5"),
        ("0.5", [1], "pixel_mean: expected a list of no number, 1 or 3, got '0.5'"),
        (["0.5"], [1], "pixel_mean: expected a list of no number, 1 or 3, got ['0.5']"),
        ([math.nan], [1], "pixel_mean: expected a list of no number, 1 or 3, got [nan]"),
        ([0.5], [], "pixel_deviation: expected a list of 1 number(s) > 0, got []"),
        ([0.5], [0], "pixel_deviation: expected a list of 1 number(s) > 0, got [0]"),
        ([0.5], 1, "pixel_deviation: expected a list of 1 number(s) > 0, got 1"),
        ([0.5], [math.inf], "pixel_deviation: expected a list of 1 number(s) > 0, got [inf]"),
        ([], [0.2], "pixel_deviation: expected a list of 0 number(s) > 0, got [0.2]"),
    ],
)
def test_numbers_that_pictures_cannot_be_scaled_by_are_refused_at_once(mean, deviation, sentence):
    with refused(f"job variable {sentence}"):
        SiteSettings.of(**SETTINGS, pixel_mean=mean, pixel_deviation=deviation)


def test_a_network_with_a_scaling_of_its_own_gets_no_other(client):
    site = client(pixel_mean=[0.4], pixel_deviation=[0.2])
    site.run = replace(site.run, network="timm/test_resnet")
    assert site.ask("census", census_task()).error == (
        "site-1: job variables pixel_mean, pixel_deviation: expected empty lists for volumes and for networks of timm,"
        " which have their own scaling, got [0.4], [0.2] for timm/test_resnet"
    )


def test_original_labels_are_never_written(client):
    site = client(Tagging())
    before = (site.folder / "data" / "train.csv").read_bytes()
    site.train(0)
    assert (site.folder / "data" / "train.csv").read_bytes() == before


# ---- reports without training ---------------------------------------------------------------------------------------


def test_collecting_leaves_the_ledger_alone(client):
    site = client(Tagging())
    site.train(0)
    trained = site.train(1)
    collected = site.collect(1)
    assert collected.error == ""
    assert all(np.array_equal(collected.repairs[k], v) for k, v in trained.repairs.items())
    assert collected.repairs["negative"].tolist() == [0, 1, 0]  # the entry of round 1, which training would have undone


def test_what_a_collection_repairs_survives_the_training_of_its_round_and_its_repetition(client):
    site = client(Tagging())
    site.train(0)
    first = site.collect(1, sample=np.array(3))
    assert first.error == ""
    assert first.report["labels"].tolist() == [5, 2, 5]
    trained = site.train(1)
    assert (trained.repairs["positive"] + trained.repairs["negative"]).tolist() == [0, 3, 0]  # of samples 0, 3 and 1
    site.start()  # the job is submitted again: it collects and trains once more
    again = site.collect(1, sample=np.array(3)), site.train(1)
    assert {k: v.tolist() for k, v in again[1].repairs.items()} == {k: v.tolist() for k, v in trained.repairs.items()}
    assert all(np.array_equal(again[1].weights[k], trained.weights[k]) for k in trained.weights)


def test_a_repeated_earlier_round_takes_the_repairs_of_a_later_collection_back(client):
    site = client(Tagging())
    before = site.train(0)
    site.collect(1, sample=np.array(3))
    again = site.train(0)
    assert {k: v.tolist() for k, v in again.repairs.items()} == {k: v.tolist() for k, v in before.repairs.items()}


WHERE = "site-1: round 1, knowledge of the server,"


@pytest.mark.parametrize(
    ("knowledge", "wrong"),
    [
        ({"sample": np.array(6)}, "sample: expected numbers from 0 to 5, got 6 to 6"),
        ({"sample": np.array(3.0)}, "sample: expected int64 of shape (), got float64 of shape ()"),
        ({"sample": 3}, "sample: expected int64 of shape (), got int"),
        ({"features": np.ones(3)}, "features: expected one of ['sample'], got another"),
    ],
)
@pytest.mark.parametrize("question", ["train", "collect"])
def test_knowledge_that_does_not_fit_its_field_is_refused_by_the_site(client, question, knowledge, wrong):
    site = client(Tagging())
    result = site.ask(question, RoundTask("look", 1, 3, knowledge, seed=7), global_model())
    assert result.error == f"{WHERE} {wrong}"
    assert (result.weights, result.report, result.repairs) == ({}, {}, {})


# ---- what people of the site say ------------------------------------------------------------------------------------


def judge(site, word, **more):
    """A verdict about the second class of the sample that :class:`Tagging` tags in round 0."""
    state = site.config.state_dir / site.run.run_name / "site-1"
    card = load_card(site.folder / "data", "site-1")
    data = kind_of(card.kind).load(card, CLASSES, Opening(site.config.cache_dir, 32, torch.device("cpu")))
    ledger = kind_of(card.kind).open_ledger(state / LEDGER_NAME, card, data)
    return ledger.judge(Verdict(0, 1, word, -1, 1, "rule", 0, "AB", **more))


def test_a_rejected_repair_is_not_in_the_next_answer_nor_in_that_of_a_later_run(client):
    site = client(Tagging())
    labelled = int(site.train(0).report["labels"][1])
    judge(site, REJECT)
    assert site.train(0).report["labels"][1] == labelled - 1
    site.run = replace(site.run, run_name="later")
    site.start()
    assert site.train(0).report["labels"][1] == labelled - 1


def test_counts_of_verdicts_leave_where_the_site_says_so(client):
    site = client(Tagging())
    site.train(0)
    judge(site, REJECT)
    assert set(site.train(1).repairs) & {"accepted", "rejected"} == set()
    site.config = replace(site.config, share_verdicts=True, min_count=1)
    shared = site.train(1).repairs
    assert (shared["accepted"].tolist(), shared["rejected"].tolist()) == ([0, 0, 0], [0, 1, 0])


def test_a_damaged_ledger_of_another_run_stops_nobody(client, caplog):
    site = client(Tagging())
    broken = site.config.state_dir / "earlier" / "site-1"
    broken.mkdir(parents=True)
    (broken / LEDGER_NAME).write_bytes(b"no ledger" * 1000)
    assert site.train(0).error == ""
    assert "site-1: label ledger of another run: expected an SQLite ledger" in caplog.text


def test_the_final_model_leaves_its_opinions_at_the_site(client):
    site = client()
    site.train(0)
    result = site.ask("evaluate", RoundTask("evaluate", 3, 3, seed=7, training=False), global_model(), evaluate=True)
    assert result.error == ""
    scores = StateStore(site.config.state_dir / "run-1" / "site-1").load(OPINIONS)
    assert scores.shape == (len(TRUTH), len(CLASSES))
    assert ((scores > 0) & (scores < 1)).all()
    assert (result.report, result.weights) == ({}, {})


def test_what_the_final_model_makes_of_training_images_is_not_said_to_the_server(tmp_path, caplog):
    # A site that leaves val and test out tells nothing of single images: an error sentence would, for each of them.
    make_site_folder(tmp_path / "data", TRUTH)
    with one_site(lambda classes: Dividing(classes)):
        site = Client(tmp_path, PlainMethod())
        task = RoundTask("evaluate", 3, 3, seed=7, training=False)
        result = site.ask("evaluate", task, global_model(), evaluate=True)
    assert (result.error, result.counts) == ("", {})
    assert "site-1: no opinions for a review: site-1: expected finite scores" in caplog.text


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "PATIENT-4711.png"), ValueError("PATIENT-4711")])
def test_what_stays_at_the_site_costs_no_result_where_it_cannot_be_made(client, caplog, monkeypatch, error):
    def broken(*args, **kwargs):
        raise error

    site = client()
    site.config = replace(site.config, gallery=True)
    monkeypatch.setattr(kind_of("multilabel"), "opinions", broken)
    monkeypatch.setattr(kind_of("multilabel"), "gallery", broken)
    result = site.ask("evaluate", RoundTask("evaluate", 3, 3, seed=7, training=False), global_model(), evaluate=True)
    assert (result.error, list(result.counts)) == ("", ["val", "test"])
    for what in ("opinions", "gallery"):
        assert f"site-1: {what} failed with {type(error).__name__} at " in caplog.text
    assert "4711" not in caplog.text


class Dividing(TinyNetwork):
    """Infinite scores for every image."""

    def forward(self, images):
        features, logits = super().forward(images)
        return features, logits / 0


# ---- Adam over rounds -----------------------------------------------------------------------------------------------


def test_moments_second_momentum_and_decay_reach_the_trainer(client):
    trainer = client(keep_moments=True, second_momentum=0.99, learning_rate_decay=0.9).worker._settings.trainer
    assert (trainer.keep_moments, trainer.second_momentum, trainer.learning_rate_decay) == (True, 0.99, 0.9)
    trainer = client().worker._settings.trainer
    assert (trainer.keep_moments, trainer.second_momentum, trainer.learning_rate_decay) == (False, 0.999, 1.0)


def test_a_second_momentum_of_1_is_refused_at_once():
    with pytest.raises(FedMendError, match=r"job variable second_momentum: expected 0 to below 1, got 1\.0"):
        SiteSettings.of(**{**SETTINGS, "second_momentum": 1.0})


def test_moments_go_on_in_another_process_and_a_repeated_round_gives_the_same_bytes(client):
    process = client(keep_moments=True)
    process.train(0)
    second = process.train(1)
    process.start()
    again = process.train(1)
    assert all(np.array_equal(second.weights[k], again.weights[k]) for k in second.weights)
    fresh = client(keep_moments=False).train(1)
    assert not np.array_equal(fresh.weights["classifier.weight"], second.weights["classifier.weight"])


def test_a_task_that_evaluates_logs_how_good_the_received_model_is_here(client, caplog):
    site = client(PlainMethod())
    with caplog.at_level("INFO", "fedmend.executor"):
        site.train(evaluate=True)
    assert re.search(r"received model test AUC \d\.\d{3} mAP", caplog.text)
    caplog.clear()
    site.train(round_num=1)
    assert "received model" not in caplog.text


def test_the_page_of_a_hospital_is_written_for_the_final_model_only(client):
    site = client(PlainMethod())
    page = site.folder / "state" / "run-1" / "site-1" / "site_report.html"
    for round_num, there in ((1, False), (3, True)):
        task = RoundTask("evaluate", round_num, 3, seed=7, training=False)
        assert not site.ask("evaluate", task, global_model(), evaluate=True).error
        assert page.is_file() == there
