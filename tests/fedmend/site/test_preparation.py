from dataclasses import replace

import numpy as np
import torch
from factories import refused
from result_factories import PREPARED

from fedmend.data.card import SiteCard
from fedmend.data.inputs import Inputs
from fedmend.data.site import Split
from fedmend.data.slices import VolumeSplit
from fedmend.labels import SEGMENTATION
from fedmend.method import LocalMethod
from fedmend.methods.condist import ConDist
from fedmend.methods.fedia import FedIA
from fedmend.site.preparation import check_preparation, preprocessing_of

CPU = torch.device("cpu")


def card(folder, **given):
    place = {"folder": folder, "image_root": folder, "splits": {"train": "train.csv"}}
    return SiteCard("site-1", **{"kind": "multilabel", "classes": ("a",), **place, **given})


def test_a_site_tells_window_colour_size_and_scaling(tmp_path):
    images = np.zeros((1, 32, 32), np.uint8)
    split = Split(images, None, CPU, (0.5,), (0.25,))
    assert (
        preprocessing_of(card(tmp_path, window=(40.0, 80.0), modality="CT"), split, Inputs(image_size=32)) == PREPARED
    )
    colored = preprocessing_of(
        card(tmp_path, color=True, modality="Bellevue"),
        replace(split, mean=(0.1, 0.2, 0.3)),
        Inputs(image_size=64, study_slices=8),
    )
    assert (colored.color, colored.image_size, colored.pixel_mean) == (True, 64, (0.1, 0.2, 0.3))
    assert colored.study_slices == 8
    assert colored.modality == ""  # a word of the hospital's own stays there


def test_volumes_are_not_scaled(tmp_path):
    split = VolumeSplit("list.json", (), *np.zeros((4, 0)), CPU)
    found = preprocessing_of(card(tmp_path), split, Inputs(image_size=32))
    assert (found.window, found.pixel_mean, found.pixel_deviation) == (None, (0.0,) * 3, (1.0,) * 3)


def test_slices_of_studies_need_a_network_for_studies_and_no_other_data_do(tmp_path):
    words = "job variables network, study_slices: expected slices for a network behind study/ and for no other, got"
    with refused(f"site-1: {words} resnet_narrow and 4"):
        check_preparation(
            card(tmp_path, sample="study"),
            "resnet_narrow",
            ((), ()),
            Inputs(image_size=32, study_slices=4),
            LocalMethod,
        )
    with refused(f"site-1: {words} study/resnet_narrow and 0"):
        check_preparation(card(tmp_path), "study/resnet_narrow", ((), ()), Inputs(image_size=32), LocalMethod)
    check_preparation(
        card(tmp_path, sample="study"),
        "study/resnet_narrow",
        ((), ()),
        Inputs(image_size=32, study_slices=4),
        LocalMethod,
    )


def test_a_method_for_one_class_of_masks_refuses_several_structures(tmp_path):
    organs = card(tmp_path, kind=SEGMENTATION, classes=("liver", "spleen"))
    words = "site.json, field classes: expected one class of masks for the method of this job, got 2"
    with refused(f"site-1: {words}"):
        check_preparation(organs, "unet_narrow", ((), ()), Inputs(image_size=32), FedIA)
    check_preparation(organs, "unet_narrow", ((), ()), Inputs(image_size=32), ConDist)
