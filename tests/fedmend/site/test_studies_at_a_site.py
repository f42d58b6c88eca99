"""A site whose samples are studies."""

from dataclasses import replace

import numpy as np
from factories import CLASSES, make_site_folder
from torch_factories import PlainRound
from worker_factories import RUN, Client, census_task

from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvgPL
from fedmend.methods.closed_form import ClosedForm
from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.ledger import read_history
from fedmend.repairs.site_run import LEDGER_NAME

NETWORK = "study/resnet_narrow"
LABELS = [[n % 2, -1, 1 - n % 2] for n in range(8)]


class TaggingRound(PlainRound):
    """Says that the third study shows the second class."""

    def __init__(self, *args):
        super().__init__(*args)
        labels = self.site.data.train.labels
        self.site.ledger.record("rule", self.task.ledger_round, labels, Repairs(*map(np.array, ([2], [1], [1], [0.9]))))


class Tagging(FedAvgPL):
    ROUND = TaggingRound


def client(folder, method, *, labels=None):
    labels = LABELS if labels is None else labels
    doubled, studies = [row for row in labels for _ in range(2)], [f"s{n // 2}" for n in range(2 * len(labels))]
    make_site_folder(folder / "data", doubled, splits=("test",), size=32, studies=studies)
    site = Client(folder, method, study_slices=2, image_size=32)
    site.run = replace(RUN, network=NETWORK)
    return site


def model():
    return {k: v.numpy() for k, v in get_weights(initial_network(NETWORK, CLASSES, 7)).items()}


def test_the_census_counts_studies_and_says_how_many_slices_are_seen(tmp_path):
    result = client(tmp_path, FedAvgPL()).ask("census", census_task())
    assert result.census["sizes"] == {"train": 8, "test": 8}
    assert result.census["positives"].tolist() == [4, 0, 4]
    assert int(result.census["preprocessing"]["study_slices"]) == 2


def test_a_site_trains_on_studies_counts_them_and_its_ledger_names_them(tmp_path):
    site = client(tmp_path, Tagging())
    result = site.ask("train", RoundTask("train", 0, 2, seed=7), model(), evaluate=True)
    assert (result.error, result.samples) == ("", 8)
    assert result.counts["test"].sum((1, 2)).tolist() == [8, 8, 8]
    assert result.repairs["positive"].tolist() == [0, 1, 0]
    (row,) = read_history(tmp_path / "state" / "run-1" / "site-1" / LEDGER_NAME)
    assert (row["image"], row["class"], row["new"]) == ("s2", CLASSES[1], 1)


def test_heads_are_not_solved_from_studies_whose_logits_are_not_linear_in_their_features(tmp_path):
    site = client(tmp_path, ClosedForm())
    result = site.ask("collect", RoundTask("heads", 0, 1, seed=7, training=False), model())
    assert result.error == "site-1: train.csv: expected images for classifiers that are solved, got studies"
