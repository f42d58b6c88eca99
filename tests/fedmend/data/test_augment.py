import math

import torch

from fedmend.data.augment import draw_views, to_network, warp

IDENTITY = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
MIRROR = torch.tensor([[-1.0, 0, 0], [0, 1, 0]])


def views(seed=0, samples=400, count=2):
    return draw_views(samples, count, torch.Generator().manual_seed(seed))


def test_the_same_seed_draws_the_same_views_without_global_random_state():
    before = torch.get_rng_state()
    first = views(3)
    torch.manual_seed(99)
    torch.rand(5)
    assert torch.equal(first, views(3))
    assert not torch.equal(first, views(4))
    torch.set_rng_state(before)
    views(3)
    assert torch.equal(before, torch.get_rng_state())


def test_every_sample_and_view_has_its_own_map():
    drawn = views()
    assert (drawn.shape, drawn.dtype) == ((2, 400, 2, 3), torch.float32)
    assert len(drawn.reshape(-1, 6).unique(dim=0)) == 800


def test_views_rotate_up_to_10_degrees_shift_up_to_2_percent_and_mirror_half_of_the_time():
    drawn = views(samples=2000).reshape(-1, 2, 3)
    mirrored = torch.linalg.det(drawn[:, :, :2]) < 0
    assert 0.45 < mirrored.float().mean() < 0.55
    angle = torch.rad2deg(torch.asin(drawn[:, 1, 0] * torch.where(mirrored, -1, 1)))
    assert 9.5 < angle.max() <= 10.001
    assert -10.001 <= angle.min() < -9.5
    shift = drawn[:, :, 2] / 2  # grid coordinates span 2 edges
    assert 0.019 < shift.abs().max() <= 0.02
    lengths = drawn[:, :, :2].square().sum(1)
    assert torch.allclose(lengths, torch.ones_like(lengths))  # no zoom, no shear


def test_the_identity_changes_nothing():
    images = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(warp(images, IDENTITY.expand(3, 2, 3)), images, atol=1e-6)


def test_each_image_gets_its_own_map():
    images = torch.arange(9.0).view(1, 1, 3, 3).repeat(2, 1, 1, 1)
    warped = warp(images, torch.stack([IDENTITY, MIRROR]))
    assert torch.allclose(warped[0], images[0], atol=1e-5)
    assert torch.allclose(warped[1, 0], images[0, 0].flip(1), atol=1e-5)


def test_points_from_outside_are_zero():
    quarter = torch.tensor([[[1.0, 0, 0.5], [0, 1, 0]]])  # a quarter of the edge to the right
    assert torch.allclose(warp(torch.ones(1, 1, 4, 4), quarter)[0, 0, 0], torch.tensor([1.0, 1, 1, 0]), atol=1e-6)


def test_a_rotation_by_90_degrees_turns_the_image():
    turn = torch.tensor([[[math.cos(math.pi / 2), -1.0, 0], [1.0, math.cos(math.pi / 2), 0]]])
    image = torch.arange(9.0).view(1, 1, 3, 3)
    assert torch.allclose(warp(image, turn)[0, 0], image[0, 0].rot90(), atol=1e-4)


def test_network_input_has_three_channels_with_imagenet_statistics():
    out = to_network(torch.tensor([0.0, 0.5]).view(2, 1, 1, 1))
    assert out.shape == (2, 3, 1, 1)
    expected = [
        [(v - m) / s for m, s in zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)] for v in (0, 0.5)
    ]
    assert torch.allclose(out[:, :, 0, 0], torch.tensor(expected))
