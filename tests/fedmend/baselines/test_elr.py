"""ELR at a site: running means of predictions, their term, and what a round leaves for the next one."""

import math

import monai.losses  # noqa: F401 - takes seconds, which no test shall seem to take
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from factories import refused
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.baselines.elr import ELR
from fedmend.learning.losses import soft_dice_loss
from fedmend.learning.training import LocalTrainer

MASKS = np.zeros((4, 8, 8), dtype=np.uint8)
MASKS[0, 2, 3] = MASKS[3, 5, 5] = 1
ALL = torch.arange(4)


def start(method, site, p=0.3, round_num=0):
    return method.start(SaysMasks(np.full(MASKS.shape, p)), make_task(round_num=round_num), site)


def step(work, epoch=0):
    """Loss of the first step of an epoch and its gradient by the logits of lesion."""
    work.batches(epoch)
    loss = work.loss(ALL)
    loss.backward()
    return loss.item(), work.model.table.grad.numpy()


def entropy(p):
    return float(np.where(MASKS > 0, -math.log(p), -math.log(1 - p)).mean())


def product(lesion, updates, p, beta=0.7):
    """<t, p>"""
    return lesion * p + (1 - beta**updates - lesion) * (1 - p)


def test_the_term_is_the_log_of_1_less_the_agreement_with_the_running_mean(tmp_path):
    work = start(ELR(augment=False), make_mask_site(tmp_path, MASKS))
    loss, gradient = step(work)
    t = 0.3 * 0.3  # (1 - beta) p
    agreement = product(t, 1, 0.3)
    assert loss == pytest.approx(entropy(0.3) + 3 * math.log(1 - agreement), rel=1e-5)
    slope = -3 * (t - (0.3 - t)) * 0.3 * 0.7 / (1 - agreement)  # the running mean has no gradient
    assert gradient == pytest.approx(((0.3 - MASKS) + slope) / MASKS.size, abs=1e-7)


def test_the_mean_goes_on_over_steps_and_rounds(tmp_path):
    site, method = make_mask_site(tmp_path, MASKS), ELR(augment=False)
    work = start(method, site)
    step(work)
    t = 0.7 * (0.3 * 0.3) + 0.3 * 0.3
    assert step(work, 1)[0] == pytest.approx(entropy(0.3) + 3 * math.log(1 - product(t, 2, 0.3)), rel=1e-3)
    assert work.report() == {}
    t = 0.7 * t + 0.3 * 0.8
    loss = step(start(method, site, 0.8, round_num=1))[0]
    assert loss == pytest.approx(entropy(0.8) + 3 * math.log(1 - product(t, 3, 0.8)), rel=1e-3)


def test_a_repeated_round_starts_from_what_the_round_before_it_left(tmp_path):
    site, method = make_mask_site(tmp_path, MASKS), ELR(augment=False)
    seen = []
    for round_num, p in ((0, 0.3), (1, 0.6), (1, 0.6), (2, 0.6)):
        work = start(method, site, p, round_num)
        seen.append(step(work)[0])
        work.report()
    assert seen[1] == seen[2]
    assert seen[3] != seen[2]


def test_another_process_finds_the_means_and_other_slices_do_not_count(tmp_path):
    method = ELR(augment=False)
    for site in (make_mask_site(tmp_path, MASKS), make_mask_site(tmp_path, MASKS)):
        work = start(method, site, round_num=1)
        step(work)
        work.report()
    again = start(method, make_mask_site(tmp_path, MASKS), round_num=2)
    assert again._mean.float().numpy() == pytest.approx(0.09, rel=1e-3)
    assert again._updates == 1
    others = MASKS.copy()
    others[1, 1, 1] = 1
    elsewhere = make_mask_site(tmp_path / "other", others)
    elsewhere.state = site.state
    other = start(method, elsewhere, round_num=2)
    assert not other._mean.any()
    assert other._updates == 0


@pytest.mark.parametrize("base_loss", ["ce", "dice"])
def test_without_its_weight_the_row_is_its_base_loss_to_the_last_digit(tmp_path, base_loss):
    work = start(ELR(weight=0.0, base_loss=base_loss, augment=False), make_mask_site(tmp_path, MASKS))
    loss, gradient = step(work)
    model = SaysMasks(np.full(MASKS.shape, 0.3))
    logits, marks = model(work.batch(ALL)[0])[1], torch.from_numpy(MASKS)
    plain = (
        F.cross_entropy(logits, marks.long()) if base_loss == "ce" else soft_dice_loss(logits.softmax(1)[:, 1], marks)
    )
    plain.backward()
    assert loss == plain.item()
    assert np.array_equal(gradient, model.table.grad.numpy())


def test_the_term_pulls_a_pixel_back_to_what_the_network_believed(tmp_path):
    gradients = {}
    for weight in (0.0, 3.0):
        work = start(ELR(weight=weight, augment=False), make_mask_site(tmp_path / str(weight), MASKS), 0.9)
        for epoch in range(6):
            gradients[weight] = step(work, epoch)[1]
            work.model.table.grad = None
    unmarked = MASKS == 0  # the network has believed in lesion there all along
    assert (gradients[0.0][unmarked] > 0).all()
    assert (gradients[3.0][unmarked] < gradients[0.0][unmarked]).all()


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_predictions_without_any_doubt_give_finite_numbers(tmp_path, p):
    work = start(ELR(augment=False), make_mask_site(tmp_path, MASKS), p)
    for epoch in range(60):
        loss, gradient = step(work, epoch)
    assert math.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_whole_rounds_are_the_same_to_the_last_bit(tmp_path):
    tables = []
    for name in ("a", "b"):
        site, model, method = make_mask_site(tmp_path / name, MASKS, batch_size=2), SaysMasks(MASKS * 0.5), ELR()
        for r in range(2):
            work = method.start(model, make_task(round_num=r), site)
            LocalTrainer(learning_rate=0.1, local_epochs=2).train(work)
            assert work.report() == {}
        assert site.state.last_turn("elr-updates", before=2)[1] == 4
        tables.append(model.table.detach())
    assert torch.equal(*tables)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("beta", 1.0, "0 to below 1"), ("weight", -1.0, ">= 0"), ("weight", math.nan, ">= 0")],
)
def test_arguments_that_make_no_term_are_refused(name, value, expected):
    with refused(f"job variable {name}: expected {expected}, got {value}"):
        ELR(**{name: value})


def test_the_base_loss_is_the_cross_entropy_or_the_dice_loss():
    with refused("job variable base_loss: expected one of ['ce', 'dice'], got 'bce'"):
        ELR(base_loss="bce")
