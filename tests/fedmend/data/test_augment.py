import math

import pytest
import torch
import torch.nn.functional as F

from fedmend.data.augment import _maps, blur, draw_views, median, strong, to_network, warp, weak

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


# ---- the pair of FedLSM ---------------------------------------------------------------------------------------------


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count, channels=1, size=8, seed=0):
    return torch.rand(count, channels, size, size, generator=drawn(seed))


def test_weak_is_a_horizontal_flip_or_nothing_in_half_of_the_images_each():
    images = pictures(600, size=4)
    seen = weak(images, drawn(1))
    flipped = (seen == images.flip(3)).flatten(1).all(1)
    same = (seen == images).flatten(1).all(1)
    assert (flipped ^ same).all()
    assert 0.43 < flipped.float().mean() < 0.57


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augment", [weak, strong])
def test_an_augmentation_keeps_shape_and_range_and_the_original(augment, channels):
    images = pictures(64, channels)
    images[:8], images[8:16] = 0, 1  # brightness and noise go beyond
    before = images.clone()
    seen = augment(images, drawn())
    assert (seen.shape, seen.dtype) == (images.shape, torch.float32)
    assert seen.min() >= 0
    assert seen.max() <= 1
    assert torch.equal(images, before)


@pytest.mark.parametrize("augment", [weak, strong])
def test_the_same_generator_augments_alike_whatever_the_global_random_state(augment):
    images, before = pictures(16), torch.get_rng_state()
    first = augment(images, drawn(3))
    torch.manual_seed(99)
    assert torch.equal(augment(images, drawn(3)), first)
    assert not torch.equal(augment(images, drawn(4)), first)
    torch.set_rng_state(before)
    augment(images, drawn(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_each_image_has_its_own_strong_draw():
    images = pictures(1).expand(40, 1, 8, 8)
    assert len(strong(images, drawn()).flatten(1).unique(dim=0)) > 35


def test_a_second_call_of_a_generator_goes_on_with_new_draws():
    images, generator = pictures(16), drawn()
    assert not torch.equal(strong(images, generator), strong(images, generator))


def upright(images):
    """(B,) bool: the bright half is still above."""
    half = images.shape[2] // 2
    return images[:, :, :half].mean((1, 2, 3)) > images[:, :, half:].mean((1, 2, 3))


def test_images_are_turned_upside_down_only_when_asked():
    images = torch.zeros(400, 1, 16, 16)
    images[:, :, 1:7] = 0.8
    assert upright(strong(images, drawn())).all()
    turned = ~upright(strong(images, drawn(), vertical_flip=True))
    assert 0.42 < turned.float().mean() < 0.58


def test_strong_images_are_mirrored_in_half_of_the_cases():
    images = torch.zeros(400, 1, 16, 16)
    images[:, :, :, 1:7] = 0.8
    mirrored = ~upright(strong(images, drawn()).transpose(2, 3))
    assert 0.42 < mirrored.float().mean() < 0.58


def test_brightness_moves_up_to_a_fifth_in_three_of_four_images():
    centre = strong(torch.full((2000, 1, 8, 8), 0.5), drawn())[:, :, 3:5, 3:5].mean((1, 2, 3)) - 0.5
    assert 0.15 < centre.abs().max() < 0.24  # 0.2 and the mean of the noise
    assert 0.2 < (centre.abs() < 1e-4).float().mean() / (1 - 0.7 / 3) < 0.3  # a quarter of those without noise
    assert abs(centre.mean()) < 0.02


def test_noise_has_the_variance_of_8_bit_grey_values():
    generator = drawn()
    seen = strong(torch.full((300, 1, 24, 24), 0.5), generator)
    deviation = seen[:, 0, 8:16, 8:16].flatten(1).std(1) * 255
    noisy = deviation > 0.5
    assert 0.16 < noisy.float().mean() < 0.31  # 0.7 / 3
    assert deviation[noisy].min() > 5**0.5 * 0.4  # interpolation evens some of it out
    assert deviation[noisy].max() < 30**0.5 * 1.4


def test_noise_is_drawn_for_the_images_that_get_it_and_no_others(monkeypatch):
    drawn_for, randn = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda shape, **options: drawn_for.append(shape) or randn(shape, **options))
    strong(torch.full((3000, 3, 2, 2), 0.5), drawn())
    ((images, *rest),) = drawn_for
    assert rest == [3, 2, 2]
    assert 0.21 < images / 3000 < 0.26


def test_strong_brings_nothing_back_from_a_gpu_which_would_wait_for_it(monkeypatch):
    def wait(tensor):
        raise AssertionError("a wait for the GPU")

    monkeypatch.setattr(torch.Tensor, "cpu", wait)
    assert strong(torch.full((30, 3, 4, 4), 0.5), drawn()).shape == (30, 3, 4, 4)


def test_each_kind_of_blur_has_its_share(monkeypatch):
    shares = {}
    for name in ("median", "blur"):

        def note(images, how, name=name):
            key = name, how if name == "median" else 0
            shares[key] = len(images) / 3000
            return images

        monkeypatch.setattr(f"fedmend.data.augment.{name}", note)
    strong(torch.full((3000, 1, 2, 2), 0.5), drawn())
    assert shares == pytest.approx({("median", 3): 0.7 / 6, ("median", 5): 0.7 / 6, ("blur", 0): 0.7 / 3}, abs=0.025)


def test_a_median_is_that_of_the_neighbourhood_and_leaves_channels_apart():
    images = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 99]]).expand(2, 1, 3, 4).repeat(1, 2, 1, 1)
    images[:, 1] = 0
    seen = median(images, 3)
    assert not seen[:, 1].any()
    # Corner: 1 1 2 1 1 2 5 5 6; centre left: 1 2 3 5 6 7 9 10 11; last: 7 8 8 11 99 99 11 99 99.
    assert [seen[0, 0, 0, 0], seen[0, 0, 1, 1], seen[0, 0, 2, 3]] == [2, 6, 11]
    assert median(images, 5)[1, 0, 1, 1] == 6  # rows 1 1 2 3 4 (twice), 5 5 6 7 8, 9 9 10 11 99 (twice)


@pytest.mark.parametrize("edge", [3, 5])
def test_a_median_is_torchs(edge):
    images = pictures(3, 3, size=9)
    near = F.pad(images, (edge // 2,) * 4, mode="replicate").unfold(2, edge, 1).unfold(3, edge, 1)
    assert torch.equal(median(images, edge), near.flatten(4).median(4).values)


def test_points_from_outside_a_strong_image_are_zero_whatever_its_brightness_and_noise():
    images = torch.full((500, 1, 32, 32), 0.5)
    corners = strong(images, drawn())[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    dark = corners[corners < 0.25]  # the image itself is about 0.3 bright or more
    assert len(dark) > 500
    assert (dark == 0).float().mean() > 0.7  # the others are half outside


@pytest.mark.parametrize("channels", [1, 3])
def test_a_blur_keeps_a_constant_image(channels):
    images = torch.tensor([0.2, 0.9]).view(2, 1, 1, 1).expand(2, channels, 6, 6)
    assert torch.allclose(blur(images, torch.tensor([0.3, 1.2])), images, atol=1e-6)


def test_a_blur_has_the_sigma_of_its_image_and_leaves_channels_apart():
    images = torch.zeros(2, 3, 9, 9)
    images[:, 1, 4, 4] = 1
    seen = blur(images, torch.tensor([0.5, 1.0]))
    assert not seen[:, [0, 2]].any()
    for blurred, sigma in zip(seen[:, 1], (0.5, 1.0), strict=True):
        line = torch.tensor([math.exp(-(d**2) / (2 * sigma**2)) for d in (-2, -1, 0, 1, 2)])
        line = line / line.sum()
        assert torch.allclose(blurred[2:7, 2:7], line[:, None] * line[None], atol=1e-6)
        assert blurred.sum().item() == pytest.approx(1, abs=1e-5)


def motion(angle=0.0, scale=1.0, shift=(0.0, 0.0), mirror=1.0, upside_down=1.0):
    numbers = (angle, scale), (mirror, upside_down)
    (angle, scale), (mirror, upside_down) = [[torch.tensor([v]) for v in pair] for pair in numbers]
    return _maps(angle, scale, torch.tensor([shift]), mirror, upside_down)


def test_a_map_without_motion_is_the_identity():
    assert torch.equal(motion()[0], IDENTITY)
    assert torch.equal(motion(mirror=-1.0)[0], MIRROR)
    assert motion(upside_down=-1.0)[0].tolist() == [[1, 0, 0], [0, -1, 0]]


def test_a_map_turns_magnifies_and_shifts():
    assert torch.allclose(motion(angle=math.pi / 2)[0], torch.tensor([[0.0, -1, 0], [1, 0, 0]]), atol=1e-6)
    assert torch.allclose(motion(scale=2.0, shift=(0.5, -0.1))[0], torch.tensor([[0.5, 0, 0.5], [0, 0.5, -0.1]]))
    corner = motion(angle=math.pi / 2, mirror=-1.0, upside_down=-1.0)[0]
    assert torch.allclose(corner, torch.tensor([[0.0, 1, 0], [-1, 0, 0]]), atol=1e-6)


def test_maps_are_as_exact_under_mixed_precision():
    images = pictures(2, size=48)
    plain = strong(images, drawn())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(warp(images, IDENTITY.expand(2, 2, 3)), images, atol=1e-5)
        seen = strong(images, drawn())
    assert torch.allclose(seen, plain, atol=1e-5)


def test_the_memory_layout_of_colour_pictures_changes_no_value_of_a_strong_view():
    pictures = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    as_stored = pictures.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last, as decoded files are
    one, other = (strong(x, torch.Generator().manual_seed(2)) for x in (pictures, as_stored))
    torch.testing.assert_close(one, other)
