"""A site with masks, with FedIA."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from nifti_factories import lesion, make_volume_site
from torch import nn
from worker_factories import Client, one_site

from fedmend.basics.state import StateStore
from fedmend.learning.weights import get_weights
from fedmend.messages import RunSpec
from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvg
from fedmend.methods.fedia import COMPLETENESS, CORRECTION, DONE, TRIGGERED, WAITS, WARMUP, FedIA
from fedmend.repairs.ledger import read_history, undo_file
from fedmend.repairs.site_run import GALLERY_NAME, LEDGER_NAME

T = 2
WHOLE = [lesion(), lesion(((5, 7), (1, 3), (2, 4)))]
PARTLY = [lesion(), np.zeros_like(WHOLE[1])]


class Sure(nn.Module):
    """Lesion wherever the grey value is high; so sure of it that every correction marks it."""

    channels, num_features = 1, 3

    def __init__(self, classes):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([-5.0]))

    def forward(self, images):
        lesion = 10 * images[:, 0] + self.bias
        logits = torch.stack([torch.zeros_like(lesion), lesion], 1)
        return images, logits


class MaskClient(Client):
    """A site whose every task is a new process."""

    def __init__(self, folder, method=None, **settings):
        usual = {"learning_rate": 1e-6, "batch_size": 2, "image_size": 32}
        super().__init__(folder, method or FedIA(gap=0, augment=False), **{**usual, **settings})
        self.run = RunSpec("run-1", ("lesion",), "tiny", 7)

    def say(self, question, stage=WARMUP, round_num=0, *, evaluate=False):
        self.start()
        knowledge = {"first_round": np.int64(T), "best_completeness": np.float64(1)}
        weights = {k: v.numpy() for k, v in get_weights(Sure(1)).items()}
        task = RoundTask(stage, round_num, 9, knowledge, seed=7, training=question == "train")
        return self.ask(question, task, weights, evaluate=evaluate)

    def train(self, stage, round_num):
        return self.say("train", stage, round_num)

    @property
    def state(self):
        return self.config.state_dir / "run-1" / "site-1"


@pytest.fixture
def client(tmp_path):
    make_volume_site(tmp_path / "data", PARTLY, complete=WHOLE)
    with one_site(Sure):
        yield lambda method=None, **settings: MaskClient(tmp_path, method, **settings)


def corrected(client):
    """Warm-up, estimate, a fall, and the round that corrects."""
    for r in range(T):
        client.train(WARMUP, r)
    client.say("collect", COMPLETENESS, T)
    store = StateStore(client.state)
    store.save("fedia", {**store.load("fedia"), "line": (1.0, 0.0)})  # no IoU reaches it
    return client.train(CORRECTION, T), client.train(CORRECTION, T + 1)


def test_the_census_counts_slices_and_annotated_slices(client):
    census = client().say("census").census
    assert census["kind"] == "segmentation"
    assert census["annotated"].tolist() == [True]
    assert census["positives"].tolist() == [int(WHOLE[0].any((0, 1)).sum())]
    assert set(census["sizes"]) == {"train", "test"}
    assert "lesions" not in census


def test_the_census_says_the_completeness_that_the_card_knows_unless_complete_masks_are_used(client, tmp_path):
    card = tmp_path / "data" / "site.json"
    card.write_text(
        json.dumps({**json.loads(card.read_text()), "provenance": {"site": {"lesions": 9, "kept_lesions": 4}}})
    )
    assert client().say("census").census["lesions"].tolist() == [4, 9]
    assert "lesions" not in client(all_labels=True).say("census").census


def test_an_evaluation_sends_sums_of_dice_only(client):
    result = client().say("evaluate", "evaluate", 9, evaluate=True)
    assert result.error == ""
    assert {split: counts.shape for split, counts in result.counts.items()} == {"test": (1, 7)}


def test_a_fallen_site_corrects_in_the_next_round_and_counts_what_is_right(client):
    before, after = corrected(client())
    assert before.error == after.error == ""
    assert before.report["correction"].tolist() == [TRIGGERED]
    assert before.repairs == {}
    assert after.report["correction"].tolist() == [DONE]
    added, right, missing = (int(after.repairs[k][0]) for k in ("positive", "correct_positive", "missing"))
    assert min(added, missing) >= right > 0
    assert (client().state / LEDGER_NAME).is_file()
    assert list((client().state / "repaired").glob("*/*.nii.gz"))


def test_a_repeated_correction_after_a_crash_ends_with_the_same_masks(client):
    first = corrected(client())[1]
    again = client().train(CORRECTION, T + 1)
    assert {k: v.tolist() for k, v in again.repairs.items()} == {k: v.tolist() for k, v in first.repairs.items()}
    assert again.report["dice_loss"].tolist() == first.report["dice_loss"].tolist()


def test_after_an_undo_training_uses_the_original_masks_and_nothing_is_corrected_again(client, tmp_path):
    corrected(client())
    rows = len(read_history(client().state / LEDGER_NAME))
    assert undo_file(client().state / LEDGER_NAME) == rows > 0
    undone = client().train(CORRECTION, T + 2)
    assert undone.report["correction"].tolist() == [DONE]
    assert undone.repairs == {}
    other = client()
    other.config = replace(other.config, state_dir=tmp_path / "other")  # a site that has never corrected
    assert undone.report["dice_loss"].tolist() == other.train(WARMUP, T + 2).report["dice_loss"].tolist()
    assert len(read_history(client().state / LEDGER_NAME)) == rows


def test_an_earlier_round_that_is_repeated_takes_the_correction_back(client):
    corrected(client())
    repeated = client().train(WARMUP, T - 1)
    assert repeated.repairs == {}
    assert repeated.report["correction"].tolist() == [WAITS]


def test_the_loss_is_that_of_the_complete_masks_where_the_job_asks_for_them(client, tmp_path):
    partly = client().train(WARMUP, 0)
    complete = client(all_labels=True)
    complete.config = replace(complete.config, state_dir=tmp_path / "other")
    whole = complete.train(WARMUP, 0)
    assert whole.error == partly.error == ""
    assert whole.report["dice_loss"] < partly.report["dice_loss"]


def test_a_gallery_is_written_where_the_site_wants_it(client, tmp_path):
    site = client()
    site.say("evaluate", "evaluate", 9, evaluate=True)
    assert not (site.state / GALLERY_NAME).exists()
    site.config = replace(site.config, gallery=True)
    site.say("evaluate", "evaluate", 9, evaluate=True)
    assert "</html>" in (site.state / GALLERY_NAME).read_text()
    assert (site.state / GALLERY_NAME).stat().st_mode & 0o777 == 0o600


def test_a_method_for_labels_refuses_masks(client):
    assert client(FedAvg()).say("census").error == (
        "site-1: site.json, field task: expected 'multilabel' for the method of this job, got 'segmentation'"
    )


def test_a_site_with_fewer_slices_than_a_batch_is_refused(client):
    slices = sum(mask.shape[2] for mask in WHOLE)  # each holds tissue
    assert client(batch_size=slices + 1).say("census").error.endswith(f"(batch_size), got {slices}")
    assert math.isfinite(client(batch_size=slices).train(WARMUP, 0).loss)


def test_volumes_are_not_scaled_as_pictures_are(client):
    said = client(pixel_mean=[0.4], pixel_deviation=[0.2]).train(WARMUP, 0).error
    assert said.startswith("site-1: job variables pixel_mean, pixel_deviation: expected empty lists for volumes")
    assert said.endswith("got [0.4], [0.2] for volumes")
