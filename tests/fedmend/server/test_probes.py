"""Images that nobody has seen before, to ask a model for finite scores."""

import torch

from fedmend.server.probes import BRIGHT, DARK, draw_probes


def test_probes_have_the_size_of_the_jobs_images_and_are_noise_dark_and_bright():
    probes = draw_probes(3, (48, 48))
    assert {tuple(probe.shape) for probe in probes} == {(1, 3, 48, 48)}
    assert all(torch.isfinite(probe).all() for probe in probes)
    quantiles = [probe.quantile(0.5) for probe in probes]
    assert any((probe == DARK).all() for probe in probes)
    assert min(quantiles) < DARK / 2
    assert max(quantiles) > BRIGHT / 2


def test_nobody_knows_them_and_they_take_no_numbers_from_the_run():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, other = draw_probes(1, (32, 32)), draw_probes(1, (32, 32))
    assert not any(torch.equal(a, b) for a, b in zip(one[:-1], other[:-1], strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_probes_of_patches_have_their_slices():
    assert {tuple(probe.shape) for probe in draw_probes(1, (4, 16, 8))} == {(1, 1, 4, 16, 8)}
