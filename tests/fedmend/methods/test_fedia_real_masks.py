"""Lesion removal and completeness on thirty real masks (Lesjak et al., 2018), with a model that finds every lesion."""

import os
from pathlib import Path

import nibabel
import numpy as np
import pytest
from scipy import ndimage

from fedmend.imperfections import remove_lesions
from fedmend.methods.fedia import completeness, count_components

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA"),
]
SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1)
LESIONS, COMPONENTS = 3115, 22225  # 26-connected in the volumes, 8-connected in their slices


def planes(mask):
    return np.moveaxis(mask, 2, 0) > 0


@pytest.fixture(scope="module")
def counted():
    """Share → lesions kept and all, components of slices annotated and all, over all masks."""
    counts = {share: np.zeros(4, dtype=np.int64) for share in SHARES}
    for number, file in enumerate(sorted((Path(os.environ["FEDMEND_REAL_DATA"]) / "ms_flair/masks").glob("*.nii.gz"))):
        mask = (np.asarray(nibabel.load(file).dataobj) > 0).astype(np.uint8)
        mask = mask[ndimage.find_objects(mask)[0]]
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
    # A lesion of many slices counts as often, so that the estimate depends on which ones are drawn; rounding depends on none.
    estimate = {share: completeness(total[2:]) for share, total in counted.items()}
    assert estimate == pytest.approx({share: share for share in SHARES}, abs=0.06)
    assert estimate[1] == 1
