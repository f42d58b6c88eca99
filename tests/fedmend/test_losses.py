import math

import numpy as np
import pytest
import torch

from fedmend.losses import PRIOR_LIMIT, masked_bce, positive_weight, prior_shift

LN2, LN3 = math.log(2), math.log(3)


def literal_adjustment(logit, prior):
    """Eq. (3) as printed."""
    s = logit.sigmoid()
    return s * prior / (s * prior + (1 - s) * (1 - prior))


def test_masked_bce_sums_the_masked_entries_and_divides():
    logits = torch.tensor([[0.0, LN3], [-LN3, 5.0]])  # sigmoids 1/2, 3/4, 1/4
    target = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    mask = torch.tensor([[True, True], [True, False]])
    expected = (LN2 + math.log(4) + math.log(4)) / 8
    assert masked_bce(logits, target, mask, 8).item() == pytest.approx(expected, rel=1e-6)


def test_the_positive_weight_multiplies_the_positive_term_only():
    logits, mask = torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool)
    target = torch.tensor([[1.0], [0.0]])
    assert masked_bce(logits, target, mask, 1, torch.tensor([5.0])).item() == pytest.approx(6 * LN2, rel=1e-6)


def test_entries_outside_the_mask_get_exactly_no_gradient_whatever_their_target():
    logits = torch.tensor([[0.0, 300.0, -300.0]], requires_grad=True)
    target = torch.tensor([[1.0, math.nan, -1.0]])
    masked_bce(logits, target, torch.tensor([[True, False, False]]), 1).backward()
    assert logits.grad.tolist() == [[-0.5, 0.0, 0.0]]


def test_the_prior_shift_is_the_log_odds_of_the_known_labels():
    labels = np.array([[1, 0, -1], [1, 0, -1], [1, 1, -1], [0, -1, -1]], dtype=np.int8)
    assert prior_shift(labels) == pytest.approx([LN3, -LN2, 0.0], abs=1e-6)
    assert prior_shift(labels).dtype == np.float32


def test_smoothing_adds_to_both_sides_and_leaves_an_unlabelled_class_at_one_half():
    labels = np.array([[0, -1], [0, -1]], dtype=np.int8)
    assert prior_shift(labels, smoothing=1.0) == pytest.approx([math.log(1 / 3), 0.0], abs=1e-6)


def test_priors_of_zero_and_one_are_clamped():
    limit = math.log((1 - PRIOR_LIMIT) / PRIOR_LIMIT)
    assert prior_shift(np.array([[0, 1]] * 9, dtype=np.int8)) == pytest.approx([-limit, limit], rel=1e-6)


@pytest.mark.parametrize("positives", [1, 5, 13])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_shift_equals_the_printed_quotient_in_value_and_gradient(positives, label):
    labels = np.array([[1]] * positives + [[0]] * (14 - positives), dtype=np.int8)
    start = torch.linspace(-6, 6, 25, dtype=torch.float64)[:, None]
    target, mask = torch.full_like(start, label), torch.ones_like(start, dtype=torch.bool)
    ours, printed = start.clone().requires_grad_(), start.clone().requires_grad_()
    loss = masked_bce(ours + torch.from_numpy(prior_shift(labels)).double(), target, mask, 3)
    s = literal_adjustment(printed, positives / 14)
    literal = -(target * s.log() + (1 - target) * (1 - s).log()).sum() / 3
    assert loss.item() == pytest.approx(literal.item(), rel=1e-6)
    loss.backward()
    literal.backward()
    assert ours.grad.flatten().tolist() == pytest.approx(printed.grad.flatten().tolist(), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("label", [0, 1])
def test_a_prior_of_zero_or_one_keeps_the_gradient_finite_where_the_printed_quotient_is_nan(label):
    shift = torch.from_numpy(prior_shift(np.full((6, 1), label, dtype=np.int8)))
    saturated = torch.tensor([[-200.0], [0.0], [200.0]])
    logits = saturated.clone().requires_grad_()
    loss = masked_bce(logits + shift, torch.full((3, 1), 1.0 - label), torch.ones(3, 1, dtype=torch.bool), 1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert literal_adjustment(saturated, float(label)).isnan().any()


def test_the_positive_weight_is_known_over_positive_labels():
    labels = np.array([[1, 0, -1], [0, 0, -1], [0, 0, 1], [0, 0, 0]], dtype=np.int8)
    assert positive_weight(labels).tolist() == [4.0, 1.0, 2.0]
    assert positive_weight(labels).dtype == np.float32
