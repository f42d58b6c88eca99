"""How labels and predictions are read, for each kind of labels: Eqs. (3)-(6) of FedLSM."""

import math

import numpy as np
import pytest
import torch
from torch_factories import one_hot

from fedmend.labels import MULTILABEL, SINGLELABEL
from fedmend.methods.shared.readings import READINGS

every_kind = pytest.mark.parametrize("kind", [MULTILABEL, SINGLELABEL])
MULTI, SINGLE = READINGS[MULTILABEL], READINGS[SINGLELABEL]
UNKNOWN = torch.tensor([False, False, True])
LN2, LN3 = math.log(2), math.log(3)


def logit(p):
    p = np.asarray(p, dtype=np.float64)
    return np.log(p / (1 - p))


def test_there_is_a_reading_of_each_kind_of_labels():
    assert set(READINGS) == {MULTILABEL, SINGLELABEL}


# ---- known classes, weights, probabilities --------------------------------------------------------------------------


def test_known_classes_are_the_columns_with_a_label_or_in_single_label_data_the_classes_that_occur():
    labels = np.array([[0, -1, 1], [-1, -1, 0]])
    assert MULTI.known_classes(labels).tolist() == [True, False, True]
    assert SINGLE.known_classes(one_hot([0, -1, 2], 4)).tolist() == [True, False, True, False]


def test_multi_label_data_alone_have_weights_of_positive_terms():
    assert MULTI.weighted
    assert not SINGLE.weighted


def test_probabilities_are_those_of_each_class_or_of_one_class():
    logits = torch.tensor([[0.0, LN3, -LN3]])
    assert MULTI.probabilities(logits)[0].tolist() == pytest.approx([1 / 2, 3 / 4, 1 / 4])
    assert SINGLE.probabilities(logits)[0].tolist() == pytest.approx([3 / 13, 9 / 13, 1 / 13])


# ---- uncertainty ----------------------------------------------------------------------------------------------------


def test_the_uncertainty_of_single_label_data_is_the_entropy_over_all_classes_by_ln_m():
    p = np.array([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3], [0.98, 0.01, 0.01]])
    seen = READINGS[SINGLELABEL].uncertainty(np.log(p).astype(np.float32) + 7, np.array([True, True, False]))
    expected = [1.5 * math.log(2), math.log(3), -0.98 * math.log(0.98) - 0.02 * math.log(0.01)]
    assert seen == pytest.approx(np.array(expected) / math.log(3), abs=1e-6)
    assert seen.dtype == np.float64


def test_the_uncertainty_of_multi_label_data_is_the_mean_binary_entropy_of_unknown_classes_in_bits():
    p = np.array([[0.5, 0.5, 0.25], [0.9, 0.25, 0.25], [0.5, 0.999, 0.001]])
    h = lambda q: -q * math.log2(q) - (1 - q) * math.log2(1 - q)  # noqa: E731
    seen = READINGS[MULTILABEL].uncertainty(logit(p).astype(np.float32), np.array([True, False, False]))
    assert seen == pytest.approx([(1 + h(0.25)) / 2, h(0.25), h(0.001)], abs=1e-5)
    assert not READINGS[MULTILABEL].uncertainty(logit(p), np.ones(3, dtype=bool)).any()


@every_kind
def test_extreme_logits_have_an_uncertainty_of_0(kind):
    z = np.array([[800, -800, -800], [-800, 800, -800]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):  # a warning in the site's log would frighten people
        seen = READINGS[kind].uncertainty(z, np.array([True, False, False]))
    assert seen.tolist() == [0, 0]


@every_kind
@pytest.mark.parametrize("classes", [2, 3, 5, 7, 14])
def test_the_uncertainty_never_exceeds_1(kind, classes):
    z = np.random.default_rng(0).normal(size=(200, classes)) * 1e-9
    z[0] = 0
    seen = READINGS[kind].uncertainty(z, np.arange(classes) < 1)
    assert seen.max() <= 1
    assert seen[0] == pytest.approx(1)


# ---- pseudo-labels --------------------------------------------------------------------------------------------------


def test_each_unknown_class_of_a_multi_label_sample_is_labelled_for_itself():
    labels = torch.tensor([[1.0, 0, -1], [-1, 1, -1], [0, -1, -1]])
    predicted = torch.tensor([[0.1, 0.9, 0.9], [0.99, 0.0, 0.01], [0.9, 0.9, 0.5]])
    target, valid = MULTI.pseudo_labels(predicted, labels, UNKNOWN, 0.85, 0.01)
    assert valid.tolist() == [[True, True, True], [False, True, True], [True, False, False]]
    assert target[valid].tolist() == [1, 0, 1, 1, 0, 0]


def test_the_surest_class_of_an_unlabelled_sample_counts_only_where_it_is_unknown():
    labels = torch.tensor(one_hot([0, -1, -1, -1], 3)).float()
    predicted = torch.tensor([[0.0, 0.0, 1.0], [0.05, 0.05, 0.9], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8]])
    target, valid = SINGLE.pseudo_labels(predicted, labels, UNKNOWN, 0.85, 0.01)
    assert valid.tolist() == [[True] * 3, [True] * 3, [False] * 3, [False] * 3]
    assert target[:2].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_a_threshold_of_one_label_includes_its_own_value():
    reading, predicted, unknown = READINGS[SINGLELABEL], torch.tensor([[0.25, 0.75]]), torch.tensor([False, True])
    for tau, counts in ((0.75, True), (0.7501, False)):
        _, valid = reading.pseudo_labels(predicted, torch.full((1, 2), -1.0), unknown, tau, 0.0)
        assert valid.tolist() == [[counts] * 2]


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_the_multi_label_losses_sum_over_valid_entries_and_divide_by_all():
    logits, target = torch.tensor([[0.0, LN3, -LN3]]), torch.tensor([[1.0, 0.0, 1.0]])  # 1/2, 3/4, 1/4
    valid, weight = torch.tensor([[True, True, False]]), torch.tensor([5.0, 7.0, 9.0])
    expected = (5 * LN2 + math.log(4)) / 3
    loss = MULTI.loss(logits, target, valid, target, weight, over_batch=False)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert MULTI.mixed_loss(logits, target, valid, weight).item() == pytest.approx(expected, rel=1e-6)


def test_the_single_label_loss_divides_labelled_and_unlabelled_samples_by_their_own_numbers():
    labels = torch.tensor(one_hot([0, 1, -1, -1, -1], 2)).float()
    logits = torch.tensor([[0.0, LN3]] * 5)  # 1/4, 3/4
    target = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1], [0, 1]])
    valid = torch.tensor([True, True, True, False, False])[:, None].expand(5, 2)
    expected = (math.log(4) + math.log(4 / 3)) / 2 + math.log(4) / 3
    loss = SINGLE.loss(logits, target, valid, labels, None, over_batch=False)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    over_batch = (math.log(4) + math.log(4 / 3) + math.log(4)) / 5
    seen = SINGLE.loss(logits, target, valid, labels, None, over_batch=True)
    assert seen.item() == pytest.approx(over_batch, rel=1e-6)


def test_the_mixed_single_label_loss_is_the_mean_of_the_pairs_that_count():
    logits, target = torch.tensor([[0.0, LN3]] * 3), torch.tensor([[0.25, 0.75], [1, 0], [0, 1]])
    valid = torch.tensor([True, True, False])[:, None].expand(3, 2)
    expected = (math.log(4) / 4 + 3 * math.log(4 / 3) / 4 + math.log(4)) / 2
    assert SINGLE.mixed_loss(logits, target, valid, None).item() == pytest.approx(expected, rel=1e-6)
    assert SINGLE.mixed_loss(logits, target, torch.zeros_like(valid), None).item() == 0
