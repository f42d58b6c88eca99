"""The heads that a site sends at the end of a job."""

import dataclasses

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import TinyNetwork, make_single_site, make_site, one_hot

from fedmend.learning.discriminant import solve_heads
from fedmend.learning.heads import HEAD_FIELDS, head_report, refit_report
from fedmend.learning.stage_features import StageClassifier
from fedmend.methods.baselines import FedAvgPL
from fedmend.methods.fedlsm import FedLSM

LABELS = [[1, -1], [0, -1], [1, -1], [0, -1], [1, -1], [0, -1]]


def test_heads_are_solved_from_the_received_models_features_and_the_repairs_of_annotated_classes(tmp_path):
    site, model = make_site(tmp_path, LABELS), TinyNetwork(2).eval()
    repaired = np.array([[1, 1], [0, 0], [0, 1], [1, 0], [1, -1], [0, -1]], dtype=np.int8)
    site.ledger.apply = lambda labels: repaired
    report = refit_report(FedAvgPL(), model, site)
    features = model(site.data.train.view(torch.arange(6)))[0].detach()
    annotated = np.where([True, False], repaired, -1)  # guesses of a class that the site does not annotate take no part
    expected = solve_heads(features, annotated, 1.0, balanced=True)
    assert report.keys() == HEAD_FIELDS.keys()
    assert report["head_weights"] == pytest.approx(expected.weights, rel=1e-5)
    assert report["head_biases"] == pytest.approx(expected.biases, rel=1e-5)
    assert report["head_counts"].tolist() == [3, 0]


def test_with_one_label_per_image_guesses_of_a_class_that_the_site_has_no_image_of_take_no_part(tmp_path):
    site = make_single_site(tmp_path, [0, 0, 1, 1, -1, -1])
    site.ledger.apply = lambda labels: one_hot([0, 0, 1, 1, 2, 2], 3)  # two pseudo-labels
    solved = FedLSM(local_iterations=1).solved_from(torch.zeros(6, 3), site)
    assert solved.tolist() == [[1, 0, -1], [1, 0, -1], [0, 1, -1], [0, 1, -1], [0, 0, -1], [0, 0, -1]]


def test_where_the_classifier_reads_stages_heads_read_them_alone(tmp_path):
    site, model = make_site(tmp_path, LABELS), TinyNetwork(2)
    model.classifier = StageClassifier(5, 7, 2)
    features = torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    report = head_report(model, features, np.array(LABELS), site, balanced=False)
    alone = solve_heads(features[:, 5:], np.array(LABELS), 1.0)
    assert not report["head_weights"][:, :5].any()
    assert report["head_weights"][:, 5:] == pytest.approx(alone.weights, rel=1e-5)


def test_a_site_with_one_kind_of_samples_alone_is_told_so(tmp_path):
    site = make_site(tmp_path, [[1, -1], [1, -1]])
    with refused("site-1: train.csv: expected at least two samples with and two without a class, got none"):
        refit_report(FedAvgPL(), TinyNetwork(2), site)


def test_samples_of_one_patient_are_left_out_together(tmp_path):
    site, features = make_site(tmp_path, LABELS), torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    patients = ("a", "b", "a", "b", "c", "d")
    table = dataclasses.replace(site.data.train.table, patients=patients)
    site.data = dataclasses.replace(site.data, train=dataclasses.replace(site.data.train, table=table))
    report = head_report(TinyNetwork(2), features, np.array(LABELS), site, balanced=False)
    together, apart = (solve_heads(features, np.array(LABELS), 1.0, patients=p) for p in (patients, ()))
    assert report["head_weights"] == pytest.approx(together.weights, rel=1e-5)
    assert together.weights[0] != pytest.approx(apart.weights[0], rel=1e-3)


@pytest.mark.parametrize(
    ("method", "balanced"),
    [(FedAvgPL(), True), (FedAvgPL(weighted=False), False), (FedLSM(local_iterations=1), False)],
)
def test_heads_are_solved_for_the_population_that_the_methods_logits_are_of(tmp_path, method, balanced):
    assert method.balanced == balanced
    site, model = make_site(tmp_path, [*LABELS, [0, -1], [0, -1]]), TinyNetwork(2).eval()
    features = model(site.data.train.view(torch.arange(8)))[0].detach()
    expected = solve_heads(features, site.labels(), 1.0, balanced=balanced)
    assert refit_report(method, model, site)["head_biases"] == pytest.approx(expected.biases, rel=1e-4)
