"""FedLSR for single-label data: the loss of two views at a site."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, TinyNetwork, make_single_site, make_task

from fedmend.baselines.fedlsr import FedLSR, confidence_entropy, mixed_prediction, view_divergence

LN2 = math.log(2)
ALL = torch.arange(4)


def logits(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log().float()


def start(site_of, table, *, labels=(0, 1, 2, 0), round_num=0, total_rounds=10, **options):
    """The round of a network that gives each sample these logits, whatever the view."""
    site = site_of(list(labels))
    return FedLSR(**options).start(Says(table), make_task(round_num=round_num, total_rounds=total_rounds), site)


def loss_of(work):
    list(work.batches(0))
    return work.loss(ALL)


# ---- equations ------------------------------------------------------------------------------------------------------


def test_the_mixed_prediction_is_the_square_of_the_weighted_mean():
    first, second = logits([0.5, 0.25, 0.25]), logits([0.1, 0.8, 0.1])
    p = [0.75 * 0.5 + 0.25 * 0.1, 0.75 * 0.25 + 0.25 * 0.8, 0.75 * 0.25 + 0.25 * 0.1]
    expected = [x**2 / sum(y**2 for y in p) for x in p]
    assert mixed_prediction(first, second, 0.75).exp()[0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("m", [0.0, 0.5])
def test_extreme_logits_have_a_finite_mixed_prediction_with_finite_gradients(m):
    first = torch.tensor([[300.0, -300, 0]], requires_grad=True)
    second = torch.tensor([[-300.0, 300, 0]], requires_grad=True)
    mixed_prediction(first, second, m)[0, 2].backward()
    assert torch.isfinite(first.grad).all()
    assert torch.isfinite(second.grad).all()


def test_the_divergence_of_two_views_is_the_mean_over_samples_and_classes():
    # softmax(3 o) of odds 2 is odds 8: 8/9, 1/9; of odds 1 it is 1/2, 1/2.
    first, second = torch.tensor([[LN2, 0], [0, 0]]), torch.tensor([[0.0, 0], [0, 0]])
    middle = [(8 / 9 + 1 / 2) / 2, (1 / 9 + 1 / 2) / 2]
    of_first = sum(q * math.log(q / m) for q, m in zip((8 / 9, 1 / 9), middle, strict=True))
    of_second = sum(0.5 * math.log(0.5 / m) for m in middle)
    assert view_divergence(first, second).item() == pytest.approx((of_first + of_second) / 2 / 4, rel=1e-5)
    assert view_divergence(second, first).item() == view_divergence(first, second).item()
    assert view_divergence(first, first).item() == 0


def test_opposite_views_that_are_sure_have_a_finite_divergence():
    first = torch.tensor([[200.0, -200]], requires_grad=True)
    loss = view_divergence(first, -first.detach())
    loss.backward()
    assert loss.item() == pytest.approx(LN2 / 2, rel=1e-3)
    assert torch.isfinite(first.grad).all()


def test_the_entropy_is_that_of_a_softmax_of_a_softmax():
    sure = torch.tensor([[100.0, 0, 0, 0, 0]])
    p, rest = math.e / (math.e + 4), 1 / (math.e + 4)
    assert confidence_entropy(sure).item() == pytest.approx(-p * math.log(p) - 4 * rest * math.log(rest), rel=1e-4)
    assert confidence_entropy(torch.zeros(3, 5)).item() == pytest.approx(math.log(5))


# ---- at a site ------------------------------------------------------------------------------------------------------

TABLE = np.log([[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [0.8, 0.1, 0.1]])


def squares(row):
    p = np.exp(row) ** 2
    return p / p.sum()


def test_the_published_loss_takes_the_mixed_prediction_for_logits(site_of):
    loss = loss_of(start(site_of, TABLE, entropy_weight=0.0))
    terms = [math.log(np.exp(squares(row)).sum()) - squares(row)[y] for row, y in zip(TABLE, (0, 1, 2, 0), strict=True)]
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)


def test_the_mended_loss_takes_the_mixed_prediction_for_a_probability(site_of):
    loss = loss_of(start(site_of, TABLE, entropy_weight=0.0, ce_of_probability=True))
    terms = [-math.log(squares(row)[y]) for row, y in zip(TABLE, (0, 1, 2, 0), strict=True)]
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)


def test_the_entropy_has_its_weight(site_of):
    plain, more = (loss_of(start(site_of, TABLE, entropy_weight=w)).item() for w in (0.0, 0.6))
    assert more - plain == pytest.approx(0.6 * confidence_entropy(torch.tensor(TABLE).float()).item(), rel=1e-4)


def divergence_weight(tmp_path, **options):
    """What the weight of the divergence adds to the loss, per unit of the divergence of two real views."""
    site, found = make_single_site(tmp_path, [0, 1, 2, 0]), []
    for gamma in (0.0, 0.4):
        order = make_task(round_num=1, total_rounds=20)
        work = FedLSR(gamma=gamma, **options).start(TinyNetwork(3), order, site)
        found.append(loss_of(work).item())
    images = [work.batch(ALL, view)[0] for view in (0, 1)]
    views = [TinyNetwork(3)(image)[1] for image in images]
    return (found[1] - found[0]) / view_divergence(*views).item()


def test_the_two_views_are_kept_alike_with_a_weight_that_rises_in_a_fifth_of_the_rounds(tmp_path):
    assert divergence_weight(tmp_path) == pytest.approx(0.4 / 4, rel=1e-2)  # round 1 of 20: a quarter of the warm-up
    assert divergence_weight(tmp_path, warmup_share=0.05) == pytest.approx(0.4, rel=1e-2)
    assert divergence_weight(tmp_path, warmup_share=0.0) == pytest.approx(0.4, rel=1e-2)
