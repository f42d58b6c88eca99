import math

import monai.losses  # noqa: F401 - takes seconds, which no test shall seem to take
import numpy as np
import pytest
import torch
from torch_factories import one_hot

from fedmend.learning.losses import (
    PRIOR_LIMIT,
    distillation,
    log_class_prior,
    masked_bce,
    noise_robust_dice_loss,
    positive_weight,
    prior_shift,
    soft_dice_loss,
)

LN2, LN3 = math.log(2), math.log(3)
IMPOSSIBLE = -math.inf


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


def test_the_log_class_prior_is_the_log_share_of_each_class():
    prior = log_class_prior(one_hot([0, 0, 1, 0], 3))
    assert prior.tolist() == [pytest.approx(math.log(3 / 4)), pytest.approx(math.log(1 / 4)), IMPOSSIBLE]
    assert prior.dtype == np.float32


def test_rows_without_a_label_do_not_enter_the_class_prior():
    assert log_class_prior(one_hot([0, -1, 1, -1], 2)).tolist() == pytest.approx([-LN2, -LN2])


def test_an_absent_class_raises_no_warning(recwarn):
    log_class_prior(one_hot([0, 1], 3))
    assert not recwarn.list


def test_distillation_is_the_divergence_from_the_teacher_to_the_student():
    soft = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.8, 0.0]])
    student = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.6, 0.3]])
    by_hand = [0.5 * LN2 - 0.25 * LN2, 0.2 * LN2 + 0.8 * math.log(0.8 / 0.6)]
    for logits in (student.log(), student.log() + 3):  # a constant does not matter
        assert distillation(logits, soft).item() == pytest.approx(sum(by_hand) / 2, rel=1e-5)  # mean over samples


def test_a_student_like_the_teacher_has_no_divergence():
    soft = torch.tensor([[0.5, 0.3, 0.2]])
    assert distillation(soft.log(), soft).item() == pytest.approx(0, abs=1e-6)


def test_the_teachers_mass_on_an_impossible_class_is_dropped_and_the_rest_is_not_rescaled():
    soft = torch.tensor([[0.5, 0.3, 0.2]])
    logits = torch.tensor([[0.0, 0.0, IMPOSSIBLE]])  # probabilities 1/2, 1/2, 0
    assert distillation(logits, soft).item() == pytest.approx(0.3 * math.log(0.3 / 0.5), rel=1e-5)


def test_an_impossible_class_gets_exactly_no_gradient_and_the_others_a_finite_one():
    scores = torch.tensor([[0.3, -0.2, 5.0], [400.0, 0.0, -3.0]], requires_grad=True)
    prior = torch.tensor([-LN2, -LN2, IMPOSSIBLE])
    soft = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])
    loss = distillation(scores + prior, soft)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[:, 2].tolist() == [0.0, 0.0]
    p = torch.softmax(
        torch.tensor([0.3, -0.2]), 0
    )  # d/ds of sum_c q_c (log q_c - log p_c) = p * sum(q) - q, halved by the mean
    assert scores.grad[0, :2].tolist() == pytest.approx(((p * 0.8 - torch.tensor([0.5, 0.3])) / 2).tolist(), abs=1e-6)


def test_cross_entropy_with_an_impossible_class_is_finite_and_gives_it_no_gradient():
    scores = torch.tensor([[0.3, -0.2, 5.0]], requires_grad=True)
    prior = torch.from_numpy(log_class_prior(one_hot([0, 1], 3)))
    loss = torch.nn.functional.cross_entropy(scores + prior, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.5)), rel=1e-5)
    assert scores.grad[0, 2].item() == 0.0
    assert torch.isfinite(scores.grad).all()


# ---- segmentation ---------------------------------------------------------------------------------------------------


def maps(*rows, grad=False):
    """(B, 1, W) of B rows."""
    return torch.tensor(rows).unsqueeze(1).requires_grad_(grad)


def test_the_soft_dice_loss_is_one_minus_the_mean_dice_of_the_samples():
    probability = maps([0.5, 0.25, 0.0, 0.25], [1.0, 1.0, 0.0, 0.0])
    target = maps([1, 0, 0, 1], [0, 1, 1, 1]).to(torch.uint8)
    dice = 2 * 0.75 / (1 + 2 + 1e-4), 2 * 1 / (2 + 3 + 1e-4)  # pooled pixels would give 2 * 1.75 / 8
    assert soft_dice_loss(probability, target).item() == pytest.approx(1 - sum(dice) / 2, abs=1e-6)


def test_the_small_number_of_the_soft_dice_loss_stands_in_the_denominator():
    assert soft_dice_loss(maps([1e-4, 0.0]), maps([1, 0])).item() == pytest.approx(1 - 2e-4 / 1.0002, abs=1e-7)
    assert soft_dice_loss(maps([0.0, 0.0]), maps([0, 0])).item() == 1


def test_a_slice_without_annotated_lesion_costs_one_and_has_exactly_no_gradient():
    probability = maps([0.9, 0.1, 0.0], [0.9, 0.1, 0.0], grad=True)
    loss = soft_dice_loss(probability, maps([0, 0, 0], [1, 0, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(1 - 0.5 * 1.8 / 2.0001, abs=1e-6)
    assert probability.grad[0].tolist() == [[0.0, 0.0, 0.0]]
    assert probability.grad[1].all()


def test_the_noise_robust_dice_loss_is_the_mean_of_error_over_size():
    probability, target = maps([0.25, 1.0], [0.75, 0.0]), maps([0, 1], [1, 1]).to(torch.uint8)
    by_hand = 0.125 / (1.0625 + 1 + 1e-5), (0.125 + 1) / (0.5625 + 2 + 1e-5)  # 0.25 ** 1.5 = 0.125
    assert noise_robust_dice_loss(probability, target).item() == pytest.approx(sum(by_hand) / 2, rel=1e-6)


@pytest.mark.parametrize(("gamma", "error"), [(1.0, 0.25), (1.5, 0.125), (2.0, 0.0625)])
def test_a_larger_gamma_takes_small_errors_for_smaller(gamma, error):
    loss = noise_robust_dice_loss(maps([0.25, 1.0]), maps([0, 1]), gamma=gamma)
    assert loss.item() == pytest.approx(error / (2.0625 + 1e-5), rel=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("target", [[0, 1, 0], [0, 0, 0]])
def test_the_noise_robust_gradient_is_finite_where_prediction_and_target_agree(gamma, target):
    probability = maps([float(v) for v in target], grad=True)
    loss = noise_robust_dice_loss(probability, maps(target), gamma=gamma)
    loss.backward()
    assert loss.item() == 0
    assert probability.grad.flatten().tolist() == [0.0, 0.0, 0.0]


def test_the_noise_robust_loss_does_have_a_gradient_on_a_slice_without_annotated_lesion():
    probability = maps([0.25, 0.0], grad=True)
    loss = noise_robust_dice_loss(probability, maps([0, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.125 / (0.0625 + 1e-5), rel=1e-6)  # about p ** -0.5
    assert probability.grad[0, 0, 0] < 0


def test_sums_of_the_noise_robust_loss_may_go_over_all_samples_and_without_squares():
    probability, target = maps([0.25, 1.0], [0.75, 0.0]), maps([0, 1], [1, 1])
    pooled = noise_robust_dice_loss(probability, target, pooled=True)
    assert pooled.item() == pytest.approx((0.125 + 0.125 + 1) / (1.0625 + 1 + 0.5625 + 2 + 1e-5), rel=1e-6)
    plain = noise_robust_dice_loss(probability, target, squares=False)
    by_hand = 0.125 / (1.25 + 1 + 1e-5), (0.125 + 1) / (0.75 + 2 + 1e-5)
    assert plain.item() == pytest.approx(sum(by_hand) / 2, rel=1e-6)


@pytest.mark.parametrize(("squares", "signs"), [(True, [1, -1]), (False, [1, 1])], ids=["squares", "sums"])
def test_on_an_unmarked_slice_squares_make_the_network_surer_and_sums_let_it_forget(squares, signs):
    values = [0.01] * 4095 + [0.9]
    probability = maps(values, grad=True)
    noise_robust_dice_loss(probability, maps([0] * 4096), squares=squares).backward()
    gradient = probability.grad.flatten()
    assert [gradient[0].sign().item(), gradient[-1].sign().item()] == signs
