"""The executor of a site with masks, with FedIA."""

import json
import math

import numpy as np
import pytest
import torch
from fl_factories import Engine, write_settings
from nifti_factories import lesion, make_volume_site
from nvflare.apis.event_type import EventType
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import nn

from fedmend import networks
from fedmend.ledger import read_history, undo_file
from fedmend.methods.base import RoundTask
from fedmend.methods.baselines import FedAvg
from fedmend.methods.fedia import COMPLETENESS, CORRECTION, DONE, TRIGGERED, WAITS, WARMUP, FedIA
from fl_components.executor import GALLERY_NAME, LEDGER_NAME, MethodExecutor
from fl_components.payload import RunCard, pack_task, unpack_result

RUN = RunCard("run-1", ("lesion",), "sure", 7)
T = 2
WHOLE = [lesion(), lesion(((5, 7), (1, 3), (2, 4)))]
PARTLY = [lesion(), np.zeros_like(WHOLE[1])]


class Sure(nn.Module):
    """Lesion wherever the grey value is high; so sure of it that every correction marks it."""

    def __init__(self, classes):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([-5.0]))

    def forward(self, images):
        lesion = 10 * images[:, 0] + self.bias
        logits = torch.stack([torch.zeros_like(lesion), lesion], 1)
        return images, logits


class Client:
    """A site whose every task is a new process."""

    def __init__(self, folder, method=None, **settings):
        self.folder, self.method = folder, method or FedIA(gap=0, augment=False)
        self.settings = {"method_id": "m", "learning_rate": 1e-6, "batch_size": 2, "image_size": 32, **settings}

    def ask(self, name, stage=WARMUP, round_num=0, *, evaluate=False):
        executor = MethodExecutor(**self.settings)
        engine = Engine(self.folder, "site-1", components={"m": self.method})
        executor.handle_event(EventType.START_RUN, engine.new_context())
        knowledge = {"first_round": np.int64(T), "best_completeness": np.float32(1)}
        weights = {k: v.numpy() for k, v in networks.get_weights(Sure(1)).items()}
        task = RoundTask(stage, round_num, 9, knowledge, seed=7)
        shareable = FLModelUtils.to_shareable(pack_task(weights, task, RUN, evaluate=evaluate))
        reply = executor.execute(name, shareable, engine.new_context(), Signal())
        return unpack_result(FLModelUtils.from_shareable(reply), "site-1")

    def train(self, stage, round_num):
        return self.ask("train", stage, round_num)

    @property
    def state(self):
        return self.folder / "state" / "run-1" / "site-1"


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "sure", Sure)
    threads = torch.get_num_threads()
    make_volume_site(tmp_path / "data", PARTLY, complete=WHOLE)
    write_settings(tmp_path)
    yield lambda method=None, **settings: Client(tmp_path, method, **settings)
    torch.set_num_threads(threads)


def corrected(client):
    """Warm-up, estimate, a fall, and the round that corrects."""
    for r in range(T):
        client.train(WARMUP, r)
    client.ask("collect", COMPLETENESS, T)
    state = torch.load(client.state / "fedia.pt", weights_only=True)
    torch.save({**state, "line": (1.0, 0.0)}, client.state / "fedia.pt")  # no IoU reaches it
    return client.train(CORRECTION, T), client.train(CORRECTION, T + 1)


def test_the_census_counts_slices_and_annotated_slices(client):
    census = client().ask("census").census
    assert census["task"] == "segmentation"
    assert census["annotated"].tolist() == [True]
    assert census["positives"].tolist() == [int(WHOLE[0].any((0, 1)).sum())]
    assert set(census["sizes"]) == {"train", "test"}
    assert "lesions" not in census


def test_the_census_says_the_completeness_that_the_card_knows_unless_complete_masks_are_used(client, tmp_path):
    card = tmp_path / "data" / "site.json"
    card.write_text(
        json.dumps({**json.loads(card.read_text()), "provenance": {"site": {"lesions": 9, "kept_lesions": 4}}})
    )
    assert client().ask("census").census["lesions"].tolist() == [4, 9]
    assert "lesions" not in client(all_labels=True).ask("census").census


def test_an_evaluation_sends_sums_of_dice_only(client):
    result = client().ask("evaluate", "evaluate", 9, evaluate=True)
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
    write_settings(tmp_path, state_dir="other")  # a site that has never corrected
    assert undone.report["dice_loss"].tolist() == client().train(WARMUP, T + 2).report["dice_loss"].tolist()
    write_settings(tmp_path)
    assert len(read_history(client().state / LEDGER_NAME)) == rows


def test_an_earlier_round_that_is_repeated_takes_the_correction_back(client):
    corrected(client())
    repeated = client().train(WARMUP, T - 1)
    assert repeated.repairs == {}
    assert repeated.report["correction"].tolist() == [WAITS]


def test_the_loss_is_that_of_the_complete_masks_where_the_job_asks_for_them(client, tmp_path):
    partly = client().train(WARMUP, 0)
    write_settings(tmp_path, state_dir="other")
    whole = client(all_labels=True).train(WARMUP, 0)
    assert whole.error == partly.error == ""
    assert whole.report["dice_loss"] < partly.report["dice_loss"]


def test_a_gallery_is_written_where_the_site_wants_it(client, tmp_path):
    client().ask("evaluate", "evaluate", 9, evaluate=True)
    assert not (client().state / GALLERY_NAME).exists()
    write_settings(tmp_path, gallery=True)
    client().ask("evaluate", "evaluate", 9, evaluate=True)
    assert "</html>" in (client().state / GALLERY_NAME).read_text()


def test_a_method_for_labels_refuses_masks(client):
    assert client(FedAvg()).ask("census").error == (
        "site-1: site.json, field task: expected 'multilabel' for the method of this job, got 'segmentation'"
    )


def test_a_site_with_fewer_slices_than_a_batch_is_refused(client):
    slices = sum(mask.shape[2] for mask in WHOLE)  # each holds tissue
    assert client(batch_size=slices + 1).ask("census").error.endswith(f"(batch_size), got {slices}")
    assert math.isfinite(client(batch_size=slices).train(WARMUP, 0).loss)
