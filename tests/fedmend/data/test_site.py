from dataclasses import replace

import numpy as np
import pytest
import torch
from factories import CLASSES, LABELS, color_pixels, make_site_folder, pixels, refused
from torch_factories import CPU, make_split

from fedmend.data.augment import IMAGENET_MEAN, IMAGENET_STD, draw_views
from fedmend.data.card import load_card
from fedmend.data.site import Opening, load_site, load_truth, spread_slices
from fedmend.data.tables import write_table

TRUTH = np.where(LABELS < 0, 1, LABELS)
IDENTITY = torch.tensor([[1.0, 0, 0], [0, 1, 0]])


def opened(folder, *, classes=CLASSES, **options):
    return load_site(load_card(folder, "site-1"), classes, Opening(folder / "cache", 8, CPU, **options))


def test_a_site_folder_becomes_images_and_labels(tmp_path):
    data = opened(make_site_folder(tmp_path / "s"))
    assert data.classes == CLASSES
    assert data.annotated.tolist() == [True, False, True]
    assert len(data.train) == 6
    assert np.array_equal(data.train.labels, LABELS)
    assert all(np.array_equal(data.train.images[i], pixels(i)) for i in range(6))
    assert data.evaluation == {}
    assert data.kind == "multilabel"


def test_a_single_label_site_annotates_all_classes_of_the_job(tmp_path):
    data = opened(make_site_folder(tmp_path / "s", [0, 2, -1, 0], splits=("test",)))
    assert data.kind == "singlelabel"
    assert data.annotated.tolist() == [True, True, True]  # fracture has no sample, but could have had
    assert data.train.labels.tolist() == [[1, 0, 0], [0, 0, 1], [-1, -1, -1], [1, 0, 0]]
    assert data.evaluation["test"].labels.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]]


def test_the_truth_of_a_single_label_site_is_read_beside_its_labels(tmp_path):
    folder = make_site_folder(tmp_path / "s", [0, 1, 0], truth=[0, 1, 2])
    assert load_truth(load_card(folder, "site-1"), CLASSES, ["img2.png", "img0.png"]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert opened(folder).train.labels[2].tolist() == [1, 0, 0]
    assert opened(folder, all_labels=True).train.labels[2].tolist() == [0, 0, 1]


def test_a_site_in_colour_keeps_its_colours(tmp_path):
    train = opened(make_site_folder(tmp_path / "s", [0, 1, 2], color=True)).train
    assert train.images.shape == (3, 8, 8, 3)
    assert all(np.array_equal(train.images[i], color_pixels(i)) for i in range(3))
    assert opened(make_site_folder(tmp_path / "grey", [0, 1, 2])).train.images.shape == (3, 8, 8)


def test_the_jobs_class_order_leads(tmp_path):
    data = opened(make_site_folder(tmp_path / "s"), classes=CLASSES[::-1])
    assert data.annotated.tolist() == [True, False, True]
    assert np.array_equal(data.train.labels, LABELS[:, ::-1])


def test_val_and_test_are_opened_with_their_own_labels_and_other_splits_are_not(tmp_path):
    data = opened(make_site_folder(tmp_path / "s", splits=("val", "test", "extra")))
    assert sorted(data.evaluation) == ["test", "val"]
    assert np.array_equal(data.evaluation["val"].labels, np.maximum(LABELS, 0))
    assert data.annotated.tolist() == [True, False, True]  # training columns, whatever the test split shows


def test_an_empty_evaluation_split_is_left_out(tmp_path):
    folder = make_site_folder(tmp_path / "s", splits=("val", "test"))
    write_table(folder / "val.csv", [], np.zeros((0, 3)), CLASSES)
    assert list(opened(folder).evaluation) == ["test"]


def test_an_evaluation_split_may_have_one_label_value_only(tmp_path):
    folder = make_site_folder(tmp_path / "s", splits=("test",))
    write_table(folder / "test.csv", ["img0.png"], np.zeros((1, 3)), CLASSES)
    assert opened(folder).evaluation["test"].labels.tolist() == [[0, 0, 0]]


def test_unreadable_images_are_left_out_with_their_labels_rows_and_patients(tmp_path):
    folder = make_site_folder(tmp_path / "s")
    (folder / "images" / "img2.png").write_bytes(b"")
    with refused(
        "site-1: train.csv row 4: expected a PNG or JPEG picture, got a corrupt or truncated file"
        " (UnidentifiedImageError) (max_unreadable allows 0, got 1)"
    ):
        opened(folder)
    train = opened(folder, max_unreadable=1).train
    assert len(train) == 5
    assert np.array_equal(train.labels, np.delete(LABELS, 2, 0))
    assert not train.labels.flags.writeable
    assert train.table.rows.tolist() == [2, 3, 5, 6, 7]
    assert train.table.patients == ("p0", "p1", "p3", "p4", "p5")
    assert train.table.images == tuple(f"img{i}.png" for i in (0, 1, 3, 4, 5))
    assert np.array_equal(train.images[2], pixels(3))


def test_all_labels_trains_on_the_truth(tmp_path):
    truth = TRUTH.copy()
    truth[0, 1] = 0
    data = opened(make_site_folder(tmp_path / "s", truth=truth), all_labels=True)
    assert np.array_equal(data.train.labels, truth)
    assert data.annotated.all()


def test_all_labels_without_truth_is_refused(tmp_path):
    with refused("site-1: site.json, field truth: expected a complete label table for all_labels, got none"):
        opened(make_site_folder(tmp_path / "s"), all_labels=True)


def test_the_truth_is_given_in_the_order_of_the_images_asked_for(tmp_path):
    folder = make_site_folder(tmp_path / "s", truth=TRUTH)
    truth = load_truth(load_card(folder, "site-1"), CLASSES, ["img4.png", "unknown.png", "img0.png"])
    assert truth.tolist() == [TRUTH[4].tolist(), [-1, -1, -1], TRUTH[0].tolist()]


def test_a_site_without_truth_table_has_no_truth(tmp_path):
    assert load_truth(load_card(make_site_folder(tmp_path / "s"), "site-1"), CLASSES, ["img0.png"]) is None


def test_a_plain_view_is_the_normalised_image():
    split = make_split([[0]] * 3)
    view = split.view(torch.tensor([2, 0]))
    assert (view.shape, view.dtype) == ((2, 3, 8, 8), torch.float32)
    for channel in range(3):
        expected = (split.images[[2, 0]] / 255 - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
        assert np.allclose(view[:, channel].numpy(), expected, atol=1e-5)


def test_a_plain_view_in_colour_is_the_normalised_image_with_channels_first():
    split = make_split([[0]] * 3, color=True)
    view = split.view(torch.tensor([2, 0]))
    assert (view.shape, view.dtype) == ((2, 3, 8, 8), torch.float32)
    for channel in range(3):
        expected = (split.images[[2, 0], :, :, channel] / 255 - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
        assert np.allclose(view[:, channel].numpy(), expected, atol=1e-5)


def test_a_pixel_in_colour_by_hand():
    split = make_split([[0]], color=True)
    split.images[0, 5, 2] = (255, 51, 0)
    seen = split.view(torch.tensor([0]))[0, :, 5, 2]
    assert seen.tolist() == pytest.approx([(1 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, -0.406 / 0.225], abs=1e-5)


def test_training_and_evaluation_are_scaled_by_other_numbers_when_asked(tmp_path):
    before = opened(make_site_folder(tmp_path / "s", splits=("test",)))
    seen = before.scaled((0.4,), (0.2,))
    for old, new in ((before.train, seen.train), (before.evaluation["test"], seen.evaluation["test"])):
        expected = np.broadcast_to((old.images[0] / 255 - 0.4) / 0.2, (3, 8, 8))
        assert np.allclose(new.view(torch.tensor([0]))[0], expected, atol=1e-6)
        assert new.table is old.table


def test_each_colour_has_its_own_mean_and_deviation():
    split = replace(make_split([[0]], color=True), mean=(0.5, 0.2, 0), deviation=(0.5, 1, 0.25))
    split.images[0, 5, 2] = (255, 51, 51)
    assert split.view(torch.tensor([0]))[0, :, 5, 2].tolist() == pytest.approx([1, 0, 0.8])


def test_an_augmented_view_in_colour_moves_all_channels_alike():
    split = make_split([[0]] * 2, color=True)
    matrices = IDENTITY.repeat(2, 1, 1)
    matrices[1, 0, 0] = -1
    view, plain = split.view(torch.tensor([0, 1]), matrices), split.view(torch.tensor([0, 1]))
    assert torch.allclose(view[0], plain[0], atol=1e-5)
    assert torch.allclose(view[1], plain[1].flip(2), atol=1e-5)


def test_a_view_through_the_identity_is_the_plain_view():
    split, index = make_split([[0]] * 5), torch.tensor([3, 1, 4])
    assert torch.allclose(split.view(index, IDENTITY.expand(5, 2, 3)), split.view(index), atol=1e-5)


def test_each_sample_is_seen_through_its_own_map():
    split = make_split([[0]] * 4)
    matrices = IDENTITY.repeat(4, 1, 1)
    matrices[2, 0, 0] = -1
    view, plain = split.view(torch.tensor([1, 2]), matrices), split.view(torch.tensor([1, 2]))
    assert torch.allclose(view[0], plain[0], atol=1e-5)
    assert torch.allclose(view[1], plain[1].flip(2), atol=1e-5)


def test_a_view_can_be_made_again_in_any_batch():
    split = make_split([[0]] * 6)
    matrices = draw_views(6, 1, torch.Generator().manual_seed(1))[0]
    whole = split.view(torch.arange(6), matrices)
    parts = torch.cat([split.view(torch.tensor([5]), matrices), split.view(torch.tensor([0, 1]), matrices)])
    assert torch.allclose(parts, whole[[5, 0, 1]], atol=1e-6)
    assert torch.equal(split.view(torch.arange(6), matrices), whole)


def test_pixels_are_the_images_in_0_to_1_channels_first():
    index = torch.tensor([2, 0])
    grey, color = make_split([[0]] * 3), make_split([[0]] * 3, color=True)
    seen = grey.pixels(index)
    assert (seen.shape, seen.dtype) == ((2, 1, 8, 8), torch.float32)
    assert np.allclose(seen[:, 0].numpy(), grey.images[[2, 0]] / 255, atol=1e-7)
    seen = color.pixels(index)
    assert (seen.shape, seen.dtype) == ((2, 3, 8, 8), torch.float32)
    assert np.allclose(seen.numpy(), color.images[[2, 0]].transpose(0, 3, 1, 2) / 255, atol=1e-7)
    assert seen.min() >= 0
    assert 0.9 < seen.max() <= 1


def test_changed_pixels_leave_the_image_store_alone():
    split = make_split([[0]] * 3)
    before = split.images.copy()
    split.pixels(torch.arange(3)).mul_(0)
    assert np.array_equal(split.images, before)


# ---- studies --------------------------------------------------------------------------------------------------------
STUDIES = ["s1", "s1", "s2", "s2", "s2", "s3"]
OF_STUDIES = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_some_slices_of_each_study_are_opened_evenly_spread(tmp_path):
    folder = make_site_folder(tmp_path / "s", OF_STUDIES, studies=STUDIES, splits=("test",))
    data = opened(folder, study_slices=2)
    assert (len(data.train), data.train.images.shape) == (3, (3, 2, 8, 8))
    assert data.train.table.images == ("s1", "s2", "s3")
    assert data.train.labels.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    chosen = [[0, 1], [2, 4], [5, 5]]  # the only slice of s3 twice
    expected = [[pixels(n) for n in own] for own in chosen]
    assert np.array_equal(data.train.images, expected)
    assert data.train.table.patients == ("p of s1", "p of s2", "p of s3")
    assert len(data.evaluation["test"]) == 3


def test_slices_are_spread_from_the_first_to_the_last():
    assert spread_slices(9, 5).tolist() == [0, 2, 4, 6, 8]
    assert spread_slices(34, 4).tolist() == [0, 11, 22, 33]
    assert spread_slices(2, 5).tolist() == [0, 0, 0, 1, 1]


def test_the_network_gets_slice_after_slice_scaled_like_images(tmp_path):
    train = opened(make_site_folder(tmp_path / "s", OF_STUDIES, studies=STUDIES), study_slices=3).train
    index = torch.tensor([1, 0])
    assert torch.equal(train.pixels(index)[0], torch.stack([torch.tensor(pixels(n)) for n in (2, 3, 4)]) / 255)
    view = train.view(index)
    assert view.shape == (2, 9, 8, 8)
    plain = opened(make_site_folder(tmp_path / "plain", OF_STUDIES)).train
    assert torch.equal(view[0], plain.view(torch.tensor([2, 3, 4])).flatten(0, 1))


def test_all_slices_of_a_study_move_together(tmp_path):
    train = opened(make_site_folder(tmp_path / "s", OF_STUDIES, studies=STUDIES), study_slices=2).train
    views = draw_views(3, 1, torch.Generator().manual_seed(0))[0]
    found = train.view(torch.tensor([1]), views)
    plain = opened(make_site_folder(tmp_path / "plain", OF_STUDIES)).train
    each = [plain.view(torch.tensor([n]), views[[1]].expand(6, 2, 3)) for n in (2, 4)]
    assert torch.allclose(found[0], torch.cat(each).flatten(0, 1), atol=1e-6)


def test_a_study_with_an_unreadable_slice_is_left_out(tmp_path):
    folder = make_site_folder(tmp_path / "s", OF_STUDIES, studies=STUDIES)
    (folder / "images" / "img4.png").write_bytes(b"no image")
    train = opened(folder, study_slices=2, max_unreadable=1).train
    assert (train.table.images, train.table.slices[1]) == (("s1", "s3"), ("img5.png",))
    assert np.array_equal(train.images[1, 0], pixels(5))
    words = "expected a PNG or JPEG picture, got a corrupt or truncated file (UnidentifiedImageError)"
    with refused(f"site-1: train.csv study that begins in row 4: {words} (max_unreadable allows 0, got 1)"):
        opened(folder, study_slices=2)


def test_the_truth_of_studies_is_read_study_by_study(tmp_path):
    folder = make_site_folder(tmp_path / "s", OF_STUDIES, studies=STUDIES, truth=[[1, 1, 1]] * 2 + [[0, 0, 0]] * 4)
    train = opened(folder, study_slices=2).train
    truth = load_truth(load_card(folder, "site-1"), CLASSES, train.table.images)
    assert truth.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]


def test_samples_must_be_those_of_the_job(tmp_path):
    studies, images = make_site_folder(tmp_path / "s", OF_STUDIES, studies=STUDIES), make_site_folder(tmp_path / "i")
    with refused("site-1: site.json, field sample: expected 'image' for a job without study_slices, got 'study'"):
        opened(studies)
    with refused("site-1: site.json, field sample: expected 'study' for a job with study_slices, got 'image'"):
        opened(images, study_slices=4)
    colour = make_site_folder(tmp_path / "c", OF_STUDIES, studies=STUDIES, color=True)
    with refused("site-1: site.json, field color: expected false for studies, whose slices are grey"):
        opened(colour, study_slices=4)
