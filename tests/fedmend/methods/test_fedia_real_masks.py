"""Lesion removal and completeness on thirty real masks (Lesjak et al., 2018), with a model that finds every lesion."""

import math
import os
from pathlib import Path

import nibabel
import numpy as np
import pytest
from scipy import ndimage

from fedmend.datasets.imperfections import remove_lesions
from fedmend.methods.shared.completeness import completeness
from fedmend.methods.shared.lesions import count_components

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA"),
]
SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1)
LESIONS, COMPONENTS = 3115, 22225  # 26-connected in the volumes, 8-connected in their slices
PUBLISHED = {
    0.1: 0.106,
    0.2: 0.202,
    0.4: 0.339,
    0.6: 0.594,
    0.8: 0.840,
    1: 1.0,
}  # the estimate on slices in another draw
DRAWS = 200


def planes(mask):
    return np.moveaxis(mask, 2, 0) > 0


@pytest.fixture(scope="module")
def masks():
    found = []
    for file in sorted((Path(os.environ["FEDMEND_REAL_DATA"]) / "ms_flair/masks").glob("*.nii.gz")):
        mask = (np.asarray(nibabel.load(file).dataobj) > 0).astype(np.uint8)
        found.append(mask[ndimage.find_objects(mask)[0]])
    return found


@pytest.fixture(scope="module")
def counted(masks):
    """Share → lesions kept and all, components of slices annotated and all, over all masks."""
    counts = {share: np.zeros(4, dtype=np.int64) for share in SHARES}
    for number, mask in enumerate(masks):
        for share, total in counts.items():
            kept, lesions = remove_lesions(mask, share, seed=number)
            slices = [count_components(planes(m)) for m in (kept, mask)]
            total += [lesions.kept_lesions, lesions.lesions, *slices]
    return counts


def test_the_share_of_kept_lesions_is_the_one_asked_for(counted):
    realised = {share: kept / total for share, (kept, total, _, _) in counted.items()}
    assert realised == pytest.approx({0.1: 0.1, 0.2: 0.199, 0.4: 0.4, 0.6: 0.6, 0.8: 0.801, 1: 1}, abs=0.01)


def test_lesions_and_components_are_as_many_as_published(counted):
    assert {tuple(total[[1, 3]]) for total in counted.values()} == {(LESIONS, COMPONENTS)}


def test_the_estimate_on_slices_is_near_the_completeness_whichever_lesions_are_kept(counted):
    # A lesion of many slices counts as often, so that the estimate depends on which ones are drawn; rounding on none.
    estimate = {share: completeness(total[2:]) for share, total in counted.items()}
    assert estimate == pytest.approx({share: share for share in SHARES}, abs=0.06)
    assert estimate[1] == 1


@pytest.fixture(scope="module")
def slices_of_lesions(masks):
    """For each mask, how many components of slices each of its lesions is."""
    planar, whole = np.zeros((3, 3, 3), dtype=bool), np.ones((3, 3, 3))
    planar[:, :, 1] = True  # 8 neighbours on the slice
    numbers = []
    for mask in masks:
        lesions, _ = ndimage.label(mask, whole)
        components, count = ndimage.label(mask, planar)
        owner = ndimage.maximum(lesions, components, np.arange(1, count + 1)).astype(
            int
        )  # the same in a whole component
        numbers.append(np.bincount(owner)[1:])
    assert (sum(map(len, numbers)), sum(n.sum() for n in numbers)) == (LESIONS, COMPONENTS)
    return numbers


def test_over_many_draws_the_estimate_is_the_completeness_and_the_published_draw_is_one_of_them(slices_of_lesions):
    for share in SHARES:
        keep = [max(1, math.floor(share * len(n) + 0.5)) for n in slices_of_lesions]
        mean = sum(k * n.mean() for k, n in zip(keep, slices_of_lesions, strict=True)) / COMPONENTS
        assert mean == pytest.approx(share, abs=0.01)
        draws = [
            sum(
                np.random.default_rng(d).choice(n, k, replace=False).sum()
                for k, n in zip(keep, slices_of_lesions, strict=True)
            )
            for d in range(DRAWS)
        ]
        spread = np.std(draws) / COMPONENTS
        assert abs(PUBLISHED[share] - mean) <= 3 * spread + 1e-9, share
