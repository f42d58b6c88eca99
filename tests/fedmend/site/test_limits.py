"""What a job may ask of a site."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from factories import make_site_folder, refused
from torch import nn
from torch_factories import PlainMethod, PlainRound
from worker_factories import Client, census_task, global_model, one_site

from fedmend.learning import networks
from fedmend.learning.inference import Stopped
from fedmend.method import RoundTask
from fedmend.methods.closed_form_sums import ClosedFormSums
from fedmend.methods.fedmlp import FedMLP
from fedmend.site import limits
from fedmend.site.config import SiteConfig
from fedmend.site.limits import MODELS, check_federation, check_fields_wanted, check_order, check_step, step_bytes
from fedmend.site.privacy import Privacy

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STEP_WORDS = "site-1: job variables network, batch_size, image_size: expected a training step of at most"
SITE = "of this site's fedmend.json"
TRIAL = (
    "job variables network, image_size: expected a network that takes images of {0} x {0} pixels in a trial without"
    " numbers, got {1}, which fails with {2}"
)


@pytest.fixture
def config(tmp_path):
    return lambda **fields: SiteConfig(tmp_path, tmp_path, tmp_path, **fields)


class OneLayer(nn.Module):
    """A convolution of 1x1 from 3 to 8 channels, its ReLU, and a mean that needs nothing of its input."""

    channels, num_features = 3, 8

    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.classifier = nn.Linear(8, num_classes)

    def forward(self, images):
        features = self.conv(images).relu().mean((2, 3))
        return features, self.classifier(features)


@pytest.fixture
def one_layer(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "one", OneLayer)


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_the_estimate_of_a_small_network_is_that_by_hand(one_layer):
    weights = 4 * (3 * 8 + 8 + 8 * 2 + 2)
    images = 4 * 10 * 3 * 6 * 6
    activations = 4 * 10 * 8 * 6 * 6  # what the ReLU gives is kept once, for its own gradient
    features, logits = 4 * 10 * 8, 4 * 10 * 2
    kept = images + activations + features  # inputs of convolution and classifier, and the output of the ReLU
    assert step_bytes("one", 2, 10, (6, 6)) == (
        MODELS * weights + 2 * images + kept + 2 * activations + features + logits
    )


def test_what_a_reviewer_found_to_pass_is_known_for_what_it_is():
    assert step_bytes("resnet18", 5, 64, (2048, 2048)) == pytest.approx(160e9, rel=0.05)
    assert step_bytes("unet", 1, 64, (2048, 2048)) == pytest.approx(1.94e12, rel=0.05)


def test_the_estimate_takes_no_memory_and_no_random_number():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    step_bytes("resnet18", 5, 64, (2048, 2048))
    assert torch.equal(torch.get_rng_state(), before)


def test_images_that_a_network_cannot_take_are_refused_before_any_data_are_opened():
    with refused(TRIAL.format(60, "segresnet", "RuntimeError")):
        step_bytes(network="segresnet", num_classes=1, images=4, shape=(60, 60))


@pytest.mark.parametrize("error", [NotImplementedError, TypeError, ZeroDivisionError])
@pytest.mark.parametrize("when", ["__init__", "forward"])
def test_whatever_a_network_raises_without_numbers_becomes_one_sentence_that_names_the_type(
    one_layer, monkeypatch, when, error
):
    def fail(*args):
        raise error("words of a library")

    monkeypatch.setattr(OneLayer, when, fail)
    with refused(TRIAL.format(32, "one", error.__name__)):
        step_bytes(network="one", num_classes=2, images=4, shape=(32, 32))


@pytest.mark.parametrize("network", ["unet_narrow", "unet_twin", "segresnet"])
def test_a_network_for_masks_is_refused_for_labels_and_taken_for_masks(network):
    with refused(f"job variable network: expected one for labels, got {network}, which is for masks"):
        step_bytes(network, num_classes=2, images=4, shape=(32, 32), masks=False)
    assert step_bytes(network, num_classes=2, images=4, shape=(32, 32), masks=True) > 0


def test_a_network_for_labels_is_refused_for_masks_and_taken_for_labels(one_layer):
    with refused("job variable network: expected one for masks, got one, which is for labels"):
        step_bytes(network="one", num_classes=2, images=4, shape=(32, 32), masks=True)
    assert step_bytes(network="one", num_classes=2, images=4, shape=(32, 32), masks=False) > 0


STEP = {"network": "one", "num_classes": 2, "images": 1000, "shape": (100, 100)}


def test_a_step_above_the_site_s_own_limit_is_refused_and_one_below_it_is_not(one_layer, config):
    # 1000 * 100 * 100 * 4 bytes are 0.04 GB: 3 channels of images 2 + 1 times, 8 of activations 1 + 2 times
    assert step_bytes(**STEP) / 1e9 == pytest.approx(0.04 * (3 * 3 + 8 * 3), rel=0.01)
    check_step("site-1", config(memory_gb=1.4), CPU, step_bytes(**STEP))
    with refused(f"{STEP_WORDS} 1.2 GB (memory_gb {SITE}), got one of about 1.3 GB"):
        check_step("site-1", config(memory_gb=1.2), CPU, step_bytes(**STEP))


@pytest.mark.parametrize("free", [1.4e9, 1.2e9])
def test_without_a_limit_it_is_what_is_free_that_counts(one_layer, config, monkeypatch, free):
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: type("Memory", (), {"available": free}))
    if free > 1.33e9:
        check_step("site-1", config(), CPU, step_bytes(**STEP))
        return
    with refused(f"{STEP_WORDS} 1.2 GB (free at this site), got one of about 1.3 GB"):
        check_step("site-1", config(), CPU, step_bytes(**STEP))


def test_on_a_gpu_its_own_free_memory_counts_and_half_of_the_estimate(one_layer, config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0.6e9, 80e9))
    with refused(f"{STEP_WORDS} 0.6 GB (free at this site), got one of about 0.7 GB"):
        check_step("site-1", config(), CUDA, step_bytes(**STEP))
    check_step("site-1", config(memory_gb=0.7), CUDA, step_bytes(**STEP))


# ---- rounds and epochs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "rounds", "round_num", "epochs", "sentence"),
    [
        ({}, 1000, 0, 100, ""),
        ({}, 1001, 0, 1, f"num_rounds: expected at most 1000 (max_rounds {SITE}), got 1001"),
        ({}, 1, 0, 101, f"local_epochs: expected at most 100 (max_epochs {SITE}), got 101"),
        ({"max_rounds": 10}, 10, 0, 1, ""),
        ({"max_rounds": 10}, 10, 10, 1, ""),  # the evaluation at the end
        ({"max_rounds": 10}, 10, 11, 1, f"num_rounds: expected at most 10 (max_rounds {SITE}), got 11"),
        ({"max_rounds": 0, "max_epochs": 0}, 10**9, 0, 10**9, ""),
    ],
)
def test_a_job_of_more_rounds_or_epochs_than_the_site_allows_is_refused(
    config, limit, rounds, round_num, epochs, sentence
):
    task = RoundTask("train", round_num, rounds)
    if not sentence:
        check_order("site-1", config(**limit), task, epochs)
        return
    with refused(f"site-1: job variable {sentence}"):
        check_order("site-1", config(**limit), task, epochs)


# ---- at a site ------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val",))
    with one_site():

        def make(method=None, *, settings=None, **limit):
            made = Client(tmp_path, method or PlainMethod(), **(settings or {}))
            made.config = dataclasses.replace(made.config, **limit)
            return made

        yield make


@pytest.mark.parametrize(
    ("settings", "limit", "words"),
    [
        ({}, {"memory_gb": 1e-6}, "job variables network, batch_size, image_size: expected a training step of at most"),
        ({}, {"max_rounds": 2}, "job variable num_rounds: expected at most 2"),
        ({"local_epochs": 5}, {"max_epochs": 4}, "job variable local_epochs: expected at most 4"),
    ],
)
def test_a_site_says_so_at_the_census_before_it_opens_anything(client, settings, limit, words):
    site = client(settings=settings, **limit)
    result = site.ask("census", census_task())
    assert result.error.startswith(f"site-1: {words}")
    assert result.census == {}
    assert not (site.folder / "cache").exists()


def test_a_site_with_labels_refuses_a_network_for_masks_at_the_census(client):
    site = client()
    site.run = dataclasses.replace(site.run, network="unet_narrow")
    assert "network: expected one for labels, got unet_narrow" in site.ask("census", census_task()).error
    assert not (site.folder / "cache").exists()


def hours(monkeypatch, *times):
    """Every look at the clock gives the next of these, at last always the last one."""
    clock = itertools.chain(times, itertools.repeat(times[-1]))
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: next(clock) * 3600.0))


def test_a_training_ends_at_the_next_batch_with_a_sentence_when_the_hours_are_over(client, monkeypatch):
    class Counting(PlainRound):
        batches_done = 0

        def loss(self, index):
            Counting.batches_done += 1
            return super().loss(index)

    method = PlainMethod()
    method.ROUND = Counting
    hours(monkeypatch, 0, 0.5, 0.9, 1.1)  # began; asked; first batch; second batch
    result = client(method, settings={"local_epochs": 50}, max_hours=1).train()
    assert result.error == f"site-1: expected a job of at most 1 hours (max_hours {SITE}), got a longer one"
    assert (result.weights, Counting.batches_done) == ({}, 1)


def test_hours_in_which_sites_wait_for_people_who_approve_the_job_do_not_count(client, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now[0] * 3600.0))
    site = client(max_hours=1)
    assert site.ask("census", census_task()).error == ""  # it has answered; others still wait
    now[0] = 100
    assert site.ask("census", census_task()).error == ""
    assert site.train().error == ""
    now[0] = 100.9
    assert site.train(1).error == ""
    now[0] = 101.1
    limit = f"expected a job of at most 1 hours (max_hours {SITE}), got a longer one"
    assert site.train(2).error == f"site-1: {limit}"
    assert site.ask("census", census_task()).error == f"site-1: {limit}"


def test_a_job_that_was_aborted_when_the_hours_were_over_is_aborted(client, monkeypatch):
    hours(monkeypatch, 0, 0.5, 1.1)
    with pytest.raises(Stopped):
        client(max_hours=1).train(stop=lambda: True)


def test_without_a_limit_no_hour_is_too_late(client, monkeypatch):
    hours(monkeypatch, 0, 10**6)
    result = client(max_hours=0.0).train()
    assert result.error == ""
    assert not np.array_equal(result.weights["classifier.weight"], global_model()["classifier.weight"])


def test_a_round_that_is_asked_for_again_and_again_is_refused_also_after_a_restart(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val",))
    with one_site():
        client = Client(tmp_path, PlainMethod())
        client.config = dataclasses.replace(client.config, max_rounds=3)
        for _ in range(2):
            assert [client.train(2).error for _ in range(3)] == [""] * 3
            client.start()  # another job of the run
        limit = "6 tasks train of one run (2 times max_rounds of this site's fedmend.json)"
        assert client.train(2).error == f"site-1: expected at most {limit}, repeated rounds included, got more"
        assert client.collect(2).error == ""  # counted on their own
        client.config = dataclasses.replace(client.config, max_rounds=0)
        assert client.train(2).error == ""


# ---- fewest sites ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "sites"), [(1, 1), (2, 2), (3, 5)])
def test_enough_sites_train_together(config, least, sites):
    check_federation("site-1", config(min_federation=least), [f"site-{i + 1}" for i in range(sites)])


@pytest.mark.parametrize("question", ["census", "train", "collect"])
def test_a_site_opens_no_data_for_a_job_or_round_in_which_it_is_alone(tmp_path, question):
    client = Client(tmp_path, PlainMethod())  # there are no data to open
    with one_site():
        result = client.ask(question, RoundTask(question, 0, 3, sites=("site-1",)), global_model())
    least = f"at least 2 sites (min_federation {SITE})"
    assert result.error == f"site-1: expected to train together with others, {least}, got 1"
    assert not result.weights


def test_a_round_that_names_others_only_is_refused(config):
    with refused("site-1: expected a task that names this site among those of the round, got another"):
        check_federation("site-1", config(), ["site-2", "site-3"])


# ---- report fields that stay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["census", "train"])
def test_a_job_whose_method_reports_what_the_site_keeps_is_refused_before_data_are_opened(tmp_path, question):
    client = Client(tmp_path, FedMLP())
    client.config = dataclasses.replace(client.config, refuse_fields=("prototypes", "centroids"))
    with one_site():
        result = client.ask(question, RoundTask(question, 0, 3, sites=("site-1", "site-2")), global_model())
    without = "without the report fields that this site keeps (refuse_fields of its fedmend.json)"
    assert result.error == f"site-1: expected a method {without}, got one that reports prototypes"


def test_a_method_that_does_not_report_what_the_site_keeps_is_taken(config):
    fields = {"learning_degree": FedMLP.FIELDS["learning_degree"]}
    check_fields_wanted("site-1", config(refuse_fields=("prototypes",)), fields)


def test_a_site_without_differential_privacy_takes_no_part_in_a_job_of_sums_with_noise(config):
    sentence = "site-1: local/fedmend.json, field privacy: expected a policy for a job of sums with noise, got none"
    with refused(sentence):
        check_fields_wanted("site-1", config(), ClosedFormSums.FIELDS)
    check_fields_wanted("site-1", config(privacy=Privacy(clip=1.0, noise_multiplier=1.0)), ClosedFormSums.FIELDS)
