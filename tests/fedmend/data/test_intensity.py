import pytest
import torch

from fedmend.data import intensity
from fedmend.data.intensity import STEPS, _blur, _gamma, _low_resolution, _noise, augment_intensity


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count, height=16, width=16, seed=0):
    return torch.rand(count, 1, height, width, generator=drawn(seed))


def row(*values):
    """One image of identical rows."""
    return torch.tensor(values).expand(1, 1, len(values), len(values))


def strengths(*values):
    return torch.tensor(values)


def test_an_augmentation_keeps_shape_and_type_and_the_original():
    images = pictures(40, 12, 20)
    before = images.clone()
    seen = augment_intensity(images, drawn())
    assert (seen.shape, seen.dtype) == (images.shape, torch.float32)
    assert torch.isfinite(seen).all()
    assert torch.equal(images, before)


def test_the_same_generator_augments_alike_whatever_the_global_random_state():
    images, before = pictures(40), torch.get_rng_state()
    first = augment_intensity(images, drawn(3))
    torch.manual_seed(99)
    assert torch.equal(augment_intensity(images, drawn(3)), first)
    assert not torch.equal(augment_intensity(images, drawn(4)), first)
    torch.set_rng_state(before)
    augment_intensity(images, drawn(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_each_image_has_its_own_draw_and_most_stay_as_they_are():
    images = pictures(1).expand(1000, 1, 16, 16)
    same = (augment_intensity(images, drawn()) == images).flatten(1).all(1)
    assert 0.55 < same.float().mean() < 0.65  # 0.9 * 0.9 * 0.875 * 0.85
    assert len(augment_intensity(images, drawn()).flatten(1).unique(dim=0)) > 280  # only low resolution has few values


def test_the_steps_happen_independently_and_as_often_as_published(monkeypatch):
    def add(bit):
        return lambda images, strength, generator: images + 2**bit

    monkeypatch.setattr(intensity, "STEPS", tuple((p, add(bit)) for bit, (p, _) in enumerate(STEPS)))
    code = augment_intensity(torch.zeros(20000, 1, 1, 1), drawn()).flatten().long()
    happened = torch.stack([code >> bit & 1 for bit in range(4)]).float()
    assert [step for _, step in STEPS] == [_noise, _blur, _low_resolution, _gamma]
    assert happened.mean(1).tolist() == pytest.approx([0.1, 0.1, 0.125, 0.15], abs=0.007)  # 3 standard errors
    assert torch.corrcoef(happened).fill_diagonal_(0).abs().max() < 0.03


def test_the_strengths_are_uniform_and_go_with_their_image(monkeypatch):
    def say(images, strength, generator):
        return images + 1 + strength.view(-1, 1, 1, 1)

    monkeypatch.setattr(intensity, "STEPS", ((0.5, say),))
    seen = augment_intensity(torch.zeros(2000, 1, 1, 1), drawn()).flatten()
    chance, strength = torch.rand(1, 2, 2000, generator=drawn())[0]
    assert torch.equal(seen, torch.where(chance < 0.5, 1 + strength, 0.0))


def test_noise_has_up_to_a_tenth_of_the_standard_deviation_of_its_image():
    images = torch.cat([pictures(1, 200, 200) * scale for scale in (1.0, 1.0, 3.0, 1.0)])
    noise = _noise(images, strengths(1.0, 0.5, 1.0, 0.0), drawn()) - images
    expected = images[0].std().item() * torch.tensor([0.1, 0.05, 0.3, 0.0])
    assert noise.std((1, 2, 3)).tolist() == pytest.approx(expected.tolist(), rel=0.02)
    assert noise.mean((1, 2, 3)).abs().max() < 1e-3
    assert torch.corrcoef(noise[:3].flatten(1)).fill_diagonal_(0).abs().max() < 0.03  # each image its own


def test_a_blur_has_a_sigma_of_half_a_pixel_to_one():
    point = torch.zeros(2, 1, 9, 9)
    point[:, :, 4, 4] = 1
    seen = _blur(point, strengths(0.0, 1.0), drawn())
    ratio = seen[:, 0, 4, 5] / seen[:, 0, 4, 4]  # exp(-1 / (2 sigma^2))
    assert ratio.tolist() == pytest.approx([0.135335, 0.606531], rel=1e-5)


def test_low_resolution_takes_the_nearest_pixel_and_does_not_average():
    seen = _low_resolution(row(0.0, 1.0, 0.0, 1.0, 0.0, 1.0), strengths(0.0), drawn())
    assert torch.equal(seen, torch.ones_like(seen))  # zoom 1/2 sees every other column


def test_low_resolution_comes_back_by_cubic_interpolation_within_the_range():
    seen = _low_resolution(row(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0), strengths(0.0), drawn())
    # 0 0 1 1 at -0.25, 0.25, ..., 3.25; at 1.25 the cubic kernel with a = -0.75 gives 0.26171875 - 0.03515625
    expected = torch.tensor([0, 0, 0, 0.2265625, 0.7734375, 1, 1, 1])
    assert torch.allclose(seen[0, 0], expected.expand(8, 8), atol=1e-6)


def test_each_image_has_its_own_zoom_between_one_half_and_one():
    images = pictures(3, 10, 20)
    seen = _low_resolution(images, strengths(0.0, 0.5, 0.999), drawn())
    assert seen.shape == images.shape
    assert torch.equal(seen[2], images[2])  # rounds to 10 x 20
    for image, back, zoom in zip(images[:2], seen, (0.5, 0.75), strict=False):
        assert len(image.unique()) == 200
        assert (back != image).float().mean() > 0.9, zoom
    assert torch.equal(seen[1:2], _low_resolution(images[1:2], strengths(0.5), drawn()))


def test_gamma_bends_the_grey_values_between_darkest_and_brightest():
    images = row(0.2, 0.3, 0.6, 0.2).repeat(3, 1, 1, 1)  # 0, 1/4 and 1 of the range
    seen = _gamma(images, strengths(0.0, 0.5, 0.999999), drawn())[:, 0, 0]
    relative = (seen[:, 1] - seen[:, 0]) / (seen[:, 2] - seen[:, 0])
    assert relative.tolist() == pytest.approx([0.25**0.7, 0.25, 0.125], rel=1e-4)
    assert torch.allclose(seen[1], images[1, 0, 0], atol=1e-6)  # gamma 1


def test_gamma_is_below_and_above_one_half_of_the_time_each():
    images = row(0.0, 0.25, 1.0, 0.0).repeat(4, 1, 1, 1)
    seen = _gamma(images, strengths(0.25, 0.499999, 0.5, 0.75), drawn())[:, 0, 0]
    relative = (seen[:, 1] - seen[:, 0]) / (seen[:, 2] - seen[:, 0])
    assert relative.tolist() == pytest.approx([0.25**0.85, 0.25, 0.25, 0.25**1.25], rel=1e-4)


def test_gamma_keeps_mean_and_standard_deviation_of_each_image():
    images = torch.cat([pictures(1), pictures(1, seed=1) * 40 - 7])
    seen = _gamma(images, strengths(0.0, 0.9), drawn())
    assert not torch.allclose(seen, images, atol=1e-2)
    assert torch.allclose(seen.mean((1, 2, 3)), images.mean((1, 2, 3)), atol=1e-5)
    assert torch.allclose(seen.std((1, 2, 3)), images.std((1, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_constant_image_stays_constant(value):
    images = torch.full((300, 1, 8, 8), value)
    assert torch.allclose(augment_intensity(images, drawn()), images, atol=1e-6)


def test_mixed_precision_changes_nothing():
    images = pictures(60)
    plain = augment_intensity(images, drawn())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment_intensity(images, drawn()), plain)
