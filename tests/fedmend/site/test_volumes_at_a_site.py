"""Networks in three dimensions at a site: training, counts, packages and what is refused."""

import itertools
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch
from factories import refused
from nifti_factories import lesion, make_volume_site
from package_factories import make_package
from torch import nn

from fedmend.baselines.nr_dice import NRDice
from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.inputs import Inputs
from fedmend.data.slices import load_volumes
from fedmend.kinds import kind_of
from fedmend.labels import SEGMENTATION
from fedmend.learning.inference import infer_masks
from fedmend.learning.networks import build_network
from fedmend.learning.training import LocalTrainer
from fedmend.method import LocalMethod, RoundTask, Site
from fedmend.methods.condist import ConDist
from fedmend.methods.fedia import FedIA
from fedmend.preprocessing import as_told, is_told
from fedmend.site.limits import step_bytes
from fedmend.site.preparation import check_preparation, preprocessing_of
from fedmend.worth.home import open_home

CPU = torch.device("cpu")
NETWORK = "volume/monai/SegResNet(init_filters=8, blocks_down=[1, 1], blocks_up=[1])"
INPUTS = Inputs(image_size=16, spacing=(1.0, 1.0, 1.0), patch=(8, 8, 4))
THICK = np.diag([1.0, 1.0, 2.0, 1.0])


def site_of(folder, classes=("lesion",), **how):
    path = make_volume_site(folder / "site", affine=THICK, classes=classes, **how)
    data = load_volumes(load_card(path, "site-1"), classes, INPUTS.opening(folder / "cache", CPU))
    ledger = kind_of(SEGMENTATION).open_ledger(folder / "ledger.sqlite", load_card(path, "site-1"), data)
    return Site("site-1", CPU, data, ledger, StateStore(folder / "state"), 2)


class Bright(nn.Module):
    """Says lesion where a patch is bright."""

    def forward(self, patches):
        assert patches.shape[1:] == (1, 4, 8, 8)
        logits = 100 * (patches - 0.5)
        return patches, torch.cat([-logits, logits], 1)


@pytest.mark.parametrize("method", [FedIA(), NRDice(), ConDist(first_weight=0.5)])
def test_every_method_for_volumes_trains_on_patches_and_the_same_again(tmp_path, method):
    losses = []
    for turn in range(2):
        classes = ("lesion", "other") if method.STRUCTURES else ("lesion",)
        site = site_of(
            tmp_path / str(turn), classes, **({"annotated": {"train": ["lesion"]}} if len(classes) > 1 else {})
        )
        torch.manual_seed(0)
        model = build_network(NETWORK, len(classes))
        work = method.start(model, RoundTask("warmup", 0, 3, seed=5), site)
        places = []
        for epoch in (0, 1, 0):
            first = [index.tolist() for index in work.batches(epoch)]
            places.append(work._patches._places)
        assert places[0] == places[2] != places[1]  # in each epoch others
        assert sorted(itertools.chain(*first)) == [*range(2 * 2)]  # of each at most 7 x 8 x 8 voxels of tissue
        images, marks = work.batch(torch.tensor(first[0]))
        assert (images.shape[1:], marks.shape[1:]) == ((1, 4, 8, 8), (4, 8, 8))
        losses.append(LocalTrainer(learning_rate=0.01).train(work))
    assert losses[0] == losses[1]


def test_a_volume_is_asked_window_by_window_and_counted_slice_by_slice(tmp_path):
    site = site_of(tmp_path)
    test = site.data.evaluation["test"]
    found = list(infer_masks(Bright(), test, site))
    assert [index.tolist() for index, _ in found] == [[*range(7)]]
    bright = test.images.astype(np.float32) > 0.5
    assert ((found[0][1] > 0.5) == bright)[:, 4:12, 4:12].all()
    counts = kind_of(SEGMENTATION).evaluate(Bright(), test, site)
    assert counts[0, 4] == (bright & (test.masks > 0)).sum()


def test_a_correction_of_volumes_is_in_the_ledger_slice_by_slice(tmp_path):
    site = site_of(tmp_path)
    method = FedIA(threshold=0.9)
    assert method.correct_masks(Bright(), RoundTask("correction", 1, 3), site, None)
    train = site.data.train
    assert site.ledger.added().any()
    bright = train.images.astype(np.float32)[:, 4:12, 4:12] > 0.6
    assert (site.ledger.added()[:, 4:12, 4:12] >= (bright & (train.masks[:, 4:12, 4:12] == 0))).all()


def test_what_a_site_tells_of_its_volumes_comes_back_from_a_message(tmp_path):
    site = site_of(tmp_path)
    card = load_card(tmp_path / "site", "site-1")
    told = preprocessing_of(card, site.data.train, INPUTS)
    assert (told.spacing, told.patch) == ((1.0, 1.0, 1.0), (8, 8, 4))
    assert as_told(told.told()) == told
    assert as_told(replace(told, spacing=(), patch=()).told()).spacing == ()
    assert not is_told({**told.told(), "spacing": np.array([1.0, 0.0, 1.0])})
    assert not is_told({**told.told(), "patch": np.zeros(3, np.int64)})


def test_a_predicted_mask_lies_on_the_grid_of_the_file(tmp_path, monkeypatch):
    prepared = {"image_size": 16, "window": None, "spacing": (1.0, 1.0, 1.0), "patch": (8, 8, 4), "modality": "MR"}
    package = make_package(tmp_path, SEGMENTATION, NETWORK, ["lesion"], **prepared)
    monkeypatch.setattr(type(package), "network", lambda self: Bright())
    voxels = np.zeros((8, 9, 5), np.float32)
    voxels[2:5, 3:6, 1:3] = 100
    voxels += np.random.default_rng(0).random(voxels.shape).astype(np.float32)
    flipped = np.diag([-1.0, 1.0, 2.0, 1.0])
    (tmp_path / "in").mkdir()
    nibabel.save(nibabel.Nifti1Image(voxels, flipped), tmp_path / "in" / "a.nii.gz")
    package.predict(tmp_path / "in", tmp_path / "out", device="cpu")
    found = nibabel.load(tmp_path / "out" / "masks" / "a.nii.gz")
    assert np.allclose(found.affine, flipped)
    assert (np.asarray(found.dataobj) == (voxels > 50)).all()


def test_an_evaluation_measures_surfaces_at_the_spacing(tmp_path):
    site = make_volume_site(tmp_path / "site-1", test=[lesion(), lesion()], affine=THICK)
    prepared = {"image_size": 16, "window": None, "spacing": (1.0, 1.0, 1.0), "patch": (8, 8, 4)}
    package = make_package(tmp_path, SEGMENTATION, NETWORK, ["lesion"], **prepared)
    results = package.evaluate(site, device="cpu").results
    assert results["samples"] == 14
    with refused("export: expected a model of slices, got one of volumes"):
        package.export(monai=tmp_path / "bundle")
    with refused("site-1: expected a model of slices, got one of volumes"):
        open_home(package, site, None, work=tmp_path / "work", batch_size=1, device="cpu")


@pytest.mark.parametrize(
    ("network", "inputs", "method", "sentence"),
    [
        (
            "unet_narrow",
            INPUTS,
            FedIA,
            "variables network, spacing: expected a spacing for a network behind volume/ and",
        ),
        (NETWORK, Inputs(image_size=16), FedIA, "variables network, spacing: expected a spacing for a network behind"),
        (
            NETWORK,
            INPUTS,
            LocalMethod,
            "variable spacing: expected a method for masks that takes volumes, got Local",
        ),
    ],
)
def test_a_job_whose_parts_do_not_fit_is_one_sentence(tmp_path, network, inputs, method, sentence):
    card = load_card(make_volume_site(tmp_path / "site"), "site-1")
    with pytest.raises(Exception, match=f"site-1: job {sentence}"):
        check_preparation(card, network, ((), ()), inputs, method)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"spacing": [1, 1]}, "spacing: expected no number or 3, from 0.1 to 100 mm"),
        ({"spacing": [1, 1, 0.01], "patch": [8, 8, 8]}, "spacing: expected no number or 3, from 0.1 to 100 mm"),
        ({"spacing": [1, 1, 1], "patch": [64, 8, 8]}, "patch: expected as many whole numbers as spacing, at most 32"),
        ({"spacing": [1, 1, 1], "patch": [512] * 3, "image_size": 512}, "their product at most 16777216"),
        ({"spacing": [1, 1, 1], "patch": [8, 8, 1.5]}, "patch: expected as many whole numbers as spacing, at most 32"),
    ],
)
def test_numbers_that_cannot_be_are_one_sentence(fields, sentence):
    with pytest.raises(Exception, match=sentence):
        Inputs(**{"image_size": 32, **fields})


def test_networks_for_labels_and_others_are_refused():
    words = "expected behind volume/ a network of MONAI that learns masks, such as monai/SegResNet, got 'unet'"
    with refused(f"job variable network: {words}"):
        build_network("volume/unet", 1)
    masks = ["AttentionUnet", "BasicUNet", "DynUNet", "FlexibleUNet", "SegResNet"]
    with refused(f"job variable network: expected for volumes monai/ and one of {masks}, got DenseNet121"):
        build_network("volume/monai/DenseNet121", 1)


def test_memory_of_a_step_grows_with_the_patch():
    small, large = (step_bytes(NETWORK, 1, 2, (depth, 16, 16)) for depth in (8, 16))
    assert 1.5 * small < large < 2.5 * small
