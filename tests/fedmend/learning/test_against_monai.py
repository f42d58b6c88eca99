"""Parts that are written by hand give what MONAI's give; their docstrings say why they are not MONAI's."""

import math

import nibabel
import numpy as np
import pytest
import torch
from factories import make_dicom
from nifti_factories import ZYX, make_volume_site, voxels, write_nifti

from fedmend.data import intensity, readers, volumes
from fedmend.data.augment import blur, median, warp
from fedmend.data.card import load_card
from fedmend.data.datalist import load_datalist
from fedmend.data.raw import ROBUST_PERCENTILES, apply_window
from fedmend.kinds.segmentation import segmentation_counts, segmentation_metrics
from fedmend.learning.losses import soft_dice_loss


@pytest.fixture(scope="module")
def monai():
    """MONAI's transforms; its import takes seconds."""
    from monai import transforms

    return transforms


def pictures(count=5, edge=32):
    return torch.rand(count, 1, edge, edge, generator=torch.Generator().manual_seed(0))


def each(transform, images):
    """A transform of single images over a batch."""
    return torch.stack([torch.as_tensor(transform(image)) for image in images])


def farthest(first, second):
    return np.abs(np.asarray(first, dtype=float) - np.asarray(second, dtype=float)).max()


@pytest.mark.parametrize("degrees", [0.0, 7.0, -10.0])
def test_a_rotation_is_monais_the_other_way_round(monai, degrees):
    """Our matrix says where a pixel comes from, MONAI's angle where it goes to."""
    angle = math.radians(degrees)
    matrix = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    ours = warp(pictures(), matrix.expand(5, 2, 3))
    rotate = monai.Affine(rotate_params=-angle, mode="bilinear", padding_mode="zeros", image_only=True)
    assert farthest(ours, each(rotate, pictures())) < 1e-4


@pytest.mark.parametrize(("strength", "gamma"), [(0.0, 0.7), (0.25, 0.85), (0.75, 1.25)])
def test_gamma_is_monais_contrast_with_mean_and_deviation_kept(monai, strength, gamma):
    ours = intensity._gamma(pictures(), torch.full((5,), strength), torch.Generator())
    assert farthest(ours, each(monai.AdjustContrast(gamma=gamma, retain_stats=True), pictures())) < 1e-6


@pytest.mark.parametrize("sigma", [0.5, 0.75, 1.0])
def test_blur_is_monais_sampled_gaussian_away_from_the_edge(monai, sigma):
    """MONAI puts black beyond the edge, its kernel reaches four standard deviations where ours has 5 pixels, and it
    does not add up to 1: at 0.5 pixels a white picture comes out 2.7 % brighter."""
    ours, smooth = blur(pictures(), torch.full((5,), sigma)), monai.GaussianSmooth(sigma=sigma, approx="sampled")
    theirs = each(smooth, pictures()) / each(smooth, torch.ones(1, 1, 32, 32))
    inside = (..., slice(4, -4), slice(4, -4))
    assert farthest(ours[inside], theirs[inside]) < {0.5: 1e-5, 0.75: 1e-3, 1.0: 1e-2}[sigma]


@pytest.mark.parametrize("edge", [3, 5])
def test_the_median_is_monais_to_the_last_digit(monai, edge):
    assert torch.equal(median(pictures(), edge), each(monai.MedianSmooth(radius=edge // 2), pictures()))


def test_noise_has_the_deviation_of_monais_for_the_same_draws(monai):
    noise, images = torch.randn(5, 1, 32, 32, generator=torch.Generator().manual_seed(3)), pictures()
    ours = intensity._noise(images, torch.full((5,), 0.5), torch.Generator().manual_seed(3))
    add = monai.RandGaussianNoise(prob=1.0, mean=0.0, std=1.0, sample_std=False)
    for image, mine, drawn in zip(images, ours, noise, strict=True):
        add.noise = (drawn * 0.05 * image.std()).numpy()
        assert farthest(mine, add(image, randomize=False)) < 1e-6


def test_low_resolution_is_monais_two_resizes_within_the_range_of_the_small_image(monai):
    ours = intensity._low_resolution(pictures(), torch.full((5,), 0.5), torch.Generator())
    small = each(monai.Resize((24, 24), mode="nearest-exact"), pictures())
    large = each(monai.Resize((32, 32), mode="bicubic", align_corners=False), small)
    assert farthest(ours, large.clamp(small.amin((1, 2, 3), True), small.amax((1, 2, 3), True))) < 1e-6


@pytest.mark.parametrize("window", [(40.0, 80.0), None], ids=["CT", "MR"])
def test_grey_values_are_monais_scaling_of_the_range(monai, window):
    """For MR the range comes from the non-zero voxels, which MONAI's scaling by percentiles cannot take alone."""
    volume = np.random.default_rng(0).normal(60, 30, (8, 9, 10)).astype(np.float32)
    volume[:2] = 0
    low, high = (0.0, 80.0) if window else np.percentile(volume[volume != 0], ROBUST_PERCENTILES)
    theirs = monai.ScaleIntensityRange(low, high, 0, 1, clip=True)(torch.from_numpy(volume))
    assert farthest(volumes.scale(volume, window), theirs) < 1e-6


def test_a_window_is_monais_scaling_of_the_range_in_whole_grey_values(monai):
    hu = np.random.default_rng(0).integers(-1000, 1000, (64, 64)).astype(np.int16)
    theirs = monai.ScaleIntensityRange(0, 80, 0, 255, clip=True)(hu.astype(np.float32))
    assert np.array_equal(apply_window(hu, 40, 80), (np.asarray(theirs) + 0.5).astype(np.uint8))


def test_masks_are_resized_as_by_monai(monai):
    masks = np.random.default_rng(0).random((3, 37, 50)) < 0.3
    theirs = monai.Resize((24, 24), mode="nearest-exact")(torch.from_numpy(masks.astype(np.float32)))
    assert farthest(volumes.resize_masks(masks, (24, 24)), theirs) == 0


def test_a_volume_in_other_axes_is_read_as_by_monai(monai, tmp_path):
    file = tmp_path / "scan.nii.gz"
    write_nifti(file, voxels(0, (4, 6, 8)), ZYX)
    read = monai.Compose(
        [monai.LoadImage(image_only=True, ensure_channel_first=True), monai.Orientation(axcodes="RAS", labels=None)]
    )
    theirs = read(str(file))[0]
    image, stored = volumes.load_nifti(file, "scan")
    assert nibabel.aff2axcodes(image.affine) != ("R", "A", "S")
    assert farthest(volumes.oriented(stored, image.affine), theirs) == 0
    assert farthest(readers.nifti_volume(file, 0), theirs) == 0


def test_pixels_of_a_dicom_file_are_those_of_monais_reader(tmp_path):
    from monai.data import PydicomReader

    file, reader = tmp_path / "slice.dcm", PydicomReader()
    make_dicom(file, np.arange(48).reshape(6, 8), RescaleSlope=2, RescaleIntercept=-1024)
    theirs, _ = reader.get_data(reader.read(str(file)))
    assert np.array_equal(readers.read_raw(file, (40, 80)).values, np.squeeze(theirs).T)


def test_a_datalist_names_the_files_that_monai_finds(monai, tmp_path):
    from monai.data import load_decathlon_datalist

    folder = make_volume_site(tmp_path / "site")
    card = load_card(folder, "site-1")
    ours = load_datalist(card, "datalist.json", "train")
    theirs = load_decathlon_datalist(folder / "datalist.json", True, "training", base_dir=card.image_root)
    assert [str(item.image) for item in ours] == [item["image"] for item in theirs]
    assert len(ours) == 2


def test_the_soft_dice_loss_is_monais_to_the_last_digit_of_the_gradient():
    from monai.losses import DiceLoss

    random = torch.Generator().manual_seed(0)
    target = (torch.rand(4, 16, 16, generator=random) < torch.tensor([0.0, 0.1, 0.5, 1.0]).view(4, 1, 1)).float()
    ours, theirs = (torch.rand(4, 16, 16, generator=random.manual_seed(1)).requires_grad_() for _ in range(2))
    losses = soft_dice_loss(ours, target), DiceLoss(smooth_nr=0, smooth_dr=1e-4)(theirs[:, None], target[:, None])
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_the_dice_of_the_counts_is_monais_mean_over_slices_and_volumes_with_lesion(monai):
    from monai.metrics import DiceMetric

    random = np.random.default_rng(0)
    truth, found = (random.random((6, 16, 16)) < share for share in (0.2, 0.3))
    found &= random.random((6, 16, 16)) < 0.5
    truth[2] = False  # a slice without lesion
    case = np.array([0, 0, 0, 1, 1, 1])
    metric = DiceMetric(include_background=True, ignore_empty=True)
    slices = metric(torch.from_numpy(found[:, None]), torch.from_numpy(truth[:, None]))
    whole = metric(*(torch.from_numpy(masks.reshape(2, 1, 3, 16, 16)) for masks in (found, truth)))
    sums = [masks.sum((1, 2)) for masks in (found & truth, found, truth)]
    ours = segmentation_metrics(segmentation_counts(*sums, case))["macro"]
    assert ours["dice"] == pytest.approx(float(slices.nanmean()), abs=1e-6)
    assert ours["volume_dice"] == pytest.approx(float(whole.nanmean()), abs=1e-6)
