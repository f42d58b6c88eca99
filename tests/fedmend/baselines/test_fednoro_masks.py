"""FedNoRo for masks at a site: prior of the pixels, losses for the detection, and the received model as a teacher."""

import math

import monai.losses  # noqa: F401 - takes seconds, which no test shall seem to take
import numpy as np
import pytest
import torch
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.baselines.fednoro_masks import FedNoRoMasks, log_prior
from fedmend.fields import check_fields
from fedmend.learning.losses import soft_dice_loss
from fedmend.methods.fednoro import FedNoRoWorkflow
from fedmend.methods.shared.noisy_sites import CLEAN, DETECT, NOISY, ROBUST, WARMUP

MASKS = np.zeros((4, 8, 8), dtype=np.uint8)
MASKS[0, 2, 3] = MASKS[3, 5, 5] = 1
ALL = torch.arange(4)
SHIFT = math.log(3 / 255)  # two pixels of 256, and one more of each class


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def logit(p):
    return math.log(p / (1 - p))


def moved(method, site, stage=WARMUP, role="", weight=0.5, received=0.3, student=0.6):
    """Loss, and gradient by the logits of lesion, of a student that has left the received model."""
    model = SaysMasks(np.full(MASKS.shape, received))
    task = make_task(stage, 2, 10, role=role, distillation_weight=np.float32(weight))
    work = method.start(model, task, site)
    with torch.no_grad():
        model.table.fill_(logit(student))
    loss = work.loss(ALL)
    loss.backward()
    return loss.item(), model.table.grad.numpy()


def entropy(p):
    return float(np.where(MASKS > 0, -math.log(p), -math.log(1 - p)).mean())


def test_the_prior_is_the_share_of_the_pixels_and_finite_where_nothing_is_marked():
    assert log_prior(MASKS > 0) == pytest.approx([math.log(255 / 258), math.log(3 / 258)], rel=1e-6)
    assert log_prior(MASKS > 1) == pytest.approx([math.log(257 / 258), math.log(1 / 258)], rel=1e-6)


@pytest.mark.parametrize(
    ("stage", "role", "weight"), [(WARMUP, "", 0.5), (ROBUST, CLEAN, 0.5), (ROBUST, NOISY, 0.0)], ids=str
)
def test_without_a_teacher_the_loss_is_the_cross_entropy_of_logits_with_the_prior(tmp_path, stage, role, weight):
    loss, gradient = moved(FedNoRoMasks(augment=False), make_mask_site(tmp_path, MASKS), stage, role, weight)
    p = sigmoid(logit(0.6) + SHIFT)
    assert loss == pytest.approx(entropy(p), rel=1e-5)
    assert gradient == pytest.approx((p - MASKS) / MASKS.size, abs=1e-7)


def test_a_noisy_site_also_learns_from_the_received_model_pixel_by_pixel(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    loss, gradient = moved(FedNoRoMasks(augment=False), site, ROBUST, NOISY, 0.25)
    p, g = sigmoid(logit(0.6) + SHIFT), sigmoid(logit(0.3) / 0.8)
    divergence = g * math.log(g / p) + (1 - g) * math.log((1 - g) / (1 - p))
    assert loss == pytest.approx(0.25 * divergence + 0.75 * entropy(p), rel=1e-5)
    assert gradient == pytest.approx((0.25 * (p - g) + 0.75 * (p - MASKS)) / MASKS.size, abs=1e-7)


def test_with_the_dice_loss_there_is_no_prior_in_either_term(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    loss = moved(FedNoRoMasks(augment=False, base_loss="dice"), site, ROBUST, NOISY, 0.25)[0]
    g = sigmoid(logit(0.3) / 0.8)
    divergence = g * math.log(g / 0.6) + (1 - g) * math.log((1 - g) / 0.4)
    dice = soft_dice_loss(torch.full(MASKS.shape, 0.6), torch.from_numpy(MASKS)).item()
    assert loss == pytest.approx(0.25 * divergence + 0.75 * dice, rel=1e-5)


def test_the_detection_has_the_mean_loss_of_the_pixels_of_each_class_and_counts_slices(tmp_path):
    probabilities = np.full(MASKS.shape, 0.2)
    probabilities[0], probabilities[3, 5, 5] = 0.4, 0.9
    report = FedNoRoMasks().collect(
        SaysMasks(probabilities), make_task(DETECT, 2), make_mask_site(tmp_path, MASKS, batch_size=3)
    )
    background = -(63 * math.log(0.6) + (64 + 64 + 63) * math.log(0.8)) / 254
    assert report["class_loss"] == pytest.approx([background, -(math.log(0.4) + math.log(0.9)) / 2], rel=1e-5)
    assert report["class_count"].tolist() == [4, 2]
    check_fields(report, FedNoRoMasks.FIELDS, {"R": 2}, "report")
    FedNoRoWorkflow(warmup_rounds=1).check(DETECT, report)
