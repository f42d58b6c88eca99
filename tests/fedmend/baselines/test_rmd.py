"""RMD at a site: what the networks leave out for each other, and what they teach each other."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from factories import refused
from torch import nn
from torch_factories import SaysMasks, make_mask_site, make_task, make_twin

from fedmend.baselines.rmd import RMD, dropout, lesion_logits, mean_of_smallest, random_maps, warp

MASKS = np.zeros((4, 8, 8), dtype=np.uint8)
MASKS[0, 2, 3] = MASKS[3, 5, 5] = 1
ALL = torch.arange(4)


def full(p):
    return np.full(MASKS.shape, p)


def step(method, site, first, second, round_num=0, total_rounds=10):
    """Loss, and gradients of both networks by their logits of lesion."""
    model = make_twin(first, second)
    loss = method.start(model, make_task(round_num=round_num, total_rounds=total_rounds), site).loss(ALL)
    loss.backward()
    return loss.item(), model.first.table.grad.numpy(), model.second.table.grad.numpy()


def entropy(p):
    return float(np.where(MASKS > 0, -np.log(p), -np.log(1 - p)).mean())


def divergence(t, p):
    return t * math.log(t / p) + (1 - t) * math.log((1 - t) / (1 - p))


# ---- pixels that are left out ---------------------------------------------------------------------------------------


def test_the_mean_is_over_the_values_that_the_other_judges_smallest():
    values, judged = torch.tensor([1.0, 2, 3, 4]), torch.tensor([9.0, 7, 5, 3])
    assert mean_of_smallest(values, judged, 0.5) == 3.5
    assert mean_of_smallest(values, judged, 1.0) == 2.5
    assert mean_of_smallest(values, judged, 0.01) == 4
    assert mean_of_smallest(values, torch.ones(4), 0.5) == 2.5  # ties
    assert mean_of_smallest(values[:0], judged[:0], 0.5) == 0


def test_without_its_parts_two_networks_are_trained_apart(tmp_path):
    loss, *gradients = step(
        RMD(drop=0.0, weight=0.0, augment=False), make_mask_site(tmp_path, MASKS), full(0.6), full(0.3)
    )
    apart = []
    for p, gradient in zip((0.6, 0.3), gradients, strict=True):
        table = SaysMasks(full(p)).table
        plain = F.binary_cross_entropy_with_logits(table, torch.from_numpy(MASKS).float())
        plain.backward()
        assert np.array_equal(gradient, table.grad.numpy())
        apart.append(plain.item())
    assert loss == pytest.approx(sum(apart), rel=1e-6)


@pytest.mark.parametrize(("round_num", "dropped"), [(0, 0), (1, 2), (2, 4), (9, 4)])
def test_a_network_leaves_out_the_pixels_that_the_other_one_believes_least(tmp_path, round_num, dropped):
    first = full(0.4)
    second = np.linspace(0.15, 0.2, MASKS.size)  # no ties
    second[MASKS.flatten() > 0] = 0.8
    doubted = [11, 70, 140, 200]  # unmarked, but lesion in the eyes of the second network
    second[doubted] = [0.99, 0.97, 0.95, 0.93]
    method = RMD(drop=4 / 256, weight=0.0, augment=False)
    site, second = make_mask_site(tmp_path, MASKS), second.reshape(MASKS.shape)
    _, by_second, _ = step(method, site, first, second, round_num)  # the ramp ends in round 2
    _, _, by_first = step(method, site, second, first, round_num)
    for gradient in (by_second, by_first):
        assert np.flatnonzero(gradient == 0).tolist() == doubted[:dropped]
        rest = gradient.flatten() != 0
        assert gradient.flatten()[rest] == pytest.approx((0.4 - MASKS.flatten()[rest]) / (256 - dropped), abs=1e-7)


def test_the_logit_is_that_of_the_lesion_less_that_of_the_background():
    logits = torch.tensor([1.0, 3.5]).view(1, 2, 1, 1)
    assert lesion_logits(lambda images: (None, logits), logits).tolist() == [[[2.5]]]


def test_networks_that_teach_each_other_nothing_see_each_slice_once(tmp_path):
    model = make_twin(full(0.6), full(0.3))
    RMD(weight=0.0, augment=False).start(model, make_task(), make_mask_site(tmp_path, MASKS)).loss(ALL)
    assert [len(network.calls) for network in (model.first, model.second)] == [1, 1]


# ---- what they teach each other -------------------------------------------------------------------------------------


def test_each_learns_the_probabilities_of_the_other_where_that_is_stable(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    loss, first, second = step(RMD(drop=0.0, weight=2.0, augment=False), site, full(0.6), full(0.3))
    weight = 2 * math.exp(-5)
    taught = divergence(0.3, 0.6) + divergence(0.6, 0.3)
    assert loss == pytest.approx(entropy(0.6) + entropy(0.3) + weight * taught, rel=1e-5)
    assert first == pytest.approx(((0.6 - MASKS) + weight * (0.6 - 0.3)) / 256, abs=1e-7)  # targets have no gradient
    assert second == pytest.approx(((0.3 - MASKS) + weight * (0.3 - 0.6)) / 256, abs=1e-7)


def identity_maps(count=4):
    """Places of random_maps where each pixel comes from itself."""
    return F.affine_grid(torch.eye(2, 3).expand(count, 2, 3), [count, 1, 8, 8], align_corners=False)


def test_the_pixels_that_teach_grow_with_the_ramp_and_are_those_on_which_the_peer_agrees_with_itself(
    tmp_path, monkeypatch
):
    offsets = torch.arange(256).view(4, 1, 8, 8) / 256  # by which the second network is no longer what it said

    def other_view(values, maps):
        return values + offsets if values.shape[1] == 1 and values.min() < -0.5 else values

    monkeypatch.setattr("fedmend.baselines.rmd.warp", other_view)
    site, options = make_mask_site(tmp_path, MASKS), {"drop": 0.0, "augment": False}
    plain = step(RMD(weight=0.0, **options), site, full(0.6), full(0.3), 1, 10)[1]
    taught = step(RMD(weight=300.0, **options), site, full(0.6), full(0.3), 1, 10)[1]
    ramp = math.exp(-5 / 4)  # round 1 of a ramp of 2
    number = 73  # 0.2865 * 256 = 73.3
    target = 1 / (1 + 7 / 3 * np.exp(-offsets.flatten().numpy()))
    expected = np.where(np.arange(256) < number, 300 * ramp * (0.6 - target) / number, 0)
    assert (taught - plain).flatten() == pytest.approx(expected, abs=1e-5)


def test_pixels_from_outside_the_slice_along_one_axis_teach_nothing(tmp_path, monkeypatch):
    maps = identity_maps()
    maps[0, 2, 3, 0], maps[1, 4, 4, 1] = 1.05, -1.05
    monkeypatch.setattr("fedmend.baselines.rmd.random_maps", lambda *args, **options: maps)
    site, options = make_mask_site(tmp_path, MASKS), {"drop": 0.0, "augment": False}
    plain = step(RMD(weight=0.0, **options), site, full(0.6), full(0.3), 2)[1]
    moved = step(RMD(weight=3.0, **options), site, full(0.6), full(0.3), 2)[1] - plain
    assert np.argwhere(np.abs(moved) < 1e-6).tolist() == [[0, 2, 3], [1, 4, 4]]
    assert moved[3] == pytest.approx(3 * (0.6 - 0.3) / 254, abs=1e-6)  # after the ramp all others teach


@pytest.mark.parametrize(("round_num", "noise"), [(1, 0), (2, 0.02)])
def test_after_the_ramp_maps_are_smooth_and_images_noisy_by_the_sites_generator(
    tmp_path, monkeypatch, round_num, noise
):
    asked, seen = [], []

    def maps(count, size, generator, *, smooth):
        asked.append((count, size, generator.initial_seed(), smooth))
        return identity_maps()

    monkeypatch.setattr("fedmend.baselines.rmd.random_maps", maps)
    site, task = make_mask_site(tmp_path, MASKS), make_task(round_num=round_num, total_rounds=10)
    model = make_twin(full(0.6), full(0.3))
    model.first.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    RMD(augment=False).start(model, task, site).loss(ALL)
    generator = site.generator(task, "maps")
    assert asked == [(4, 8, generator.initial_seed(), round_num == 2)]
    plain, mapped = seen
    drawn = noise * torch.randn(plain.shape, generator=generator)
    assert (mapped - plain).numpy() == pytest.approx(drawn.numpy(), abs=1e-5)


def test_both_networks_see_the_map_with_dropout_by_the_sites_generator(tmp_path, monkeypatch):
    found = []

    @contextmanager
    def recorded(blocks, generator):
        found.append((len(blocks), generator.initial_seed()))
        yield

    monkeypatch.setattr("fedmend.baselines.rmd.dropout", recorded)
    site = make_mask_site(tmp_path, MASKS)
    step(RMD(augment=False), site, full(0.6), full(0.3))
    assert found == [(5, site.generator(make_task(total_rounds=10), "dropout").initial_seed())] * 2


def test_the_settings_are_those_of_the_published_code_for_lesions_of_the_lung():
    assert (RMD().drop, RMD().weight) == (0.005, 0.0009)


# ---- maps and dropout -----------------------------------------------------------------------------------------------


def test_the_first_maps_are_flips():
    images = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    maps = random_maps(40, 6, torch.Generator().manual_seed(0), smooth=False)
    assert (maps.abs() <= 1).all()
    drawn = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(maps[:, 0, 0] > 0, drawn < 0.5)
    kinds = ([], [2], [3], [2, 3])
    found = []
    for image, seen in zip(images, warp(images, maps), strict=True):
        near = [torch.allclose(seen, image.unsqueeze(0).flip(axes)[0] if axes else image, atol=1e-5) for axes in kinds]
        assert sum(near) == 1
        found.append(near.index(True))
    assert set(found) == {0, 1, 2, 3}


def test_later_maps_move_pixels_smoothly_and_partly_outside():
    maps = random_maps(20, 32, torch.Generator().manual_seed(0), smooth=True)
    assert torch.equal(maps, random_maps(20, 32, torch.Generator().manual_seed(0), smooth=True))
    inside = (maps.abs() <= 1).all(-1).float().mean()
    assert 0.3 < inside < 1
    assert (maps[:, 1:] - maps[:, :-1]).abs().median() < 3 * 2 / 32
    assert (warp(torch.ones(20, 1, 32, 32), maps)[:, 0][(maps.abs() > 1.1).any(-1)] == 0).all()


def test_a_later_map_turns_magnifies_and_shifts_by_hand():
    maps = random_maps(1, 5, torch.Generator().manual_seed(3), smooth=True)[0].numpy()
    drawn = torch.Generator().manual_seed(3)
    flips = np.where(torch.rand(1, 2, generator=drawn)[0].numpy() < 0.5, -1, 1)
    angle, zoom, deviation = torch.rand(3, 1, generator=drawn)[:, 0].tolist()
    shifts = torch.randn(1, 2, 3, 3, generator=drawn)[0].movedim(0, -1).numpy()
    angle, zoom = angle * math.pi / 3, 1 + zoom  # up to 60 degrees, 1 to 2
    pixels = (1 + 25 * deviation) / 128 * 2  # 1 to 26 of 128, and places span 2

    def place(x, y, shift):
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        return (np.array([cos * x - sin * y, sin * x + cos * y]) + pixels * shift) * flips

    assert maps[0, 0] == pytest.approx(place(-0.8, -0.8, shifts[0, 0]), abs=1e-5)
    assert maps[2, 2] == pytest.approx(place(0, 0, shifts[1, 1]), abs=1e-5)
    assert maps[4, 2] == pytest.approx(place(0, 0.8, shifts[2, 1]), abs=1e-5)
    between = 0.5 * shifts[0, 0] + 0.59375 * shifts[0, 1] - 0.09375 * shifts[0, 2]  # bicubic
    assert maps[0, 1] == pytest.approx(place(-0.4, -0.8, between), abs=1e-5)


def test_blocks_drop_their_shares_by_the_sites_generator_and_only_inside():
    blocks = [nn.Identity() for _ in range(5)]
    ones = torch.ones(10_000)
    seen = []
    for _ in range(2):
        with dropout(blocks, torch.Generator().manual_seed(0)):
            seen.append([block(ones) for block in blocks])
    for share, first, second in zip((0.05, 0.1, 0.2, 0.3, 0.5), *seen, strict=True):
        assert torch.equal(first, second)
        assert (first == 0).float().mean().item() == pytest.approx(share, abs=0.02)
        assert first.max().item() == pytest.approx(1 / (1 - share))
    assert all(torch.equal(block(ones), ones) for block in blocks)


# ---- whole rounds ---------------------------------------------------------------------------------------------------


def test_a_network_that_is_alone_is_refused(tmp_path):
    with refused("job variable network: expected one of two networks for RMD, such as unet_twin"):
        RMD().start(SaysMasks(full(0.3)), make_task(), make_mask_site(tmp_path, MASKS))
