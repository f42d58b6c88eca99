import numpy as np
import pytest
import torch
from factories import refused

from fedmend.datasets.annotators import annotator_probabilities


def make_easy(count=48, size=16, color=False):
    """Class 0: bright left half, class 1: bright right half, class 2: neither; with noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    images = rng.integers(0, 90, (count, size, size), dtype=np.uint8)
    images[labels == 0, :, : size // 2] += 100
    images[labels == 1, :, size // 2 :] += 100
    return np.stack([images] * 3, axis=-1) if color else images, labels


@pytest.mark.parametrize("color", [False, True])
def test_the_annotator_learns_its_own_data_without_being_sure_of_it(color):
    images, labels = make_easy(color=color)
    probabilities = annotator_probabilities(images, labels, 4, seed=1)
    assert (probabilities.dtype, probabilities.shape) == (np.float32, (48, 4))
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    own = probabilities[np.arange(48), labels]
    assert (probabilities.argmax(axis=1) == labels).mean() > 0.9
    assert own.min() < 0.999


def test_more_epochs_make_the_annotator_surer():
    images, labels = make_easy()
    few, many = (annotator_probabilities(images, labels, 3, seed=1, epochs=e) for e in (1, 12))
    assert many[np.arange(48), labels].mean() > few[np.arange(48), labels].mean() + 0.1


def test_the_seed_alone_decides_whatever_the_number_of_threads():
    images, labels = make_easy()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    try:
        first = annotator_probabilities(images, labels, 3, seed=1, epochs=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert annotator_probabilities(images, labels, 3, seed=1, epochs=2).tobytes() == first.tobytes()
    assert annotator_probabilities(images, labels, 3, seed=2, epochs=2).tobytes() != first.tobytes()


def test_an_image_store_is_read_only_and_stays_so():
    images, labels = make_easy(count=6)
    images.setflags(write=False)
    before = images.copy()
    annotator_probabilities(images, labels, 3, seed=0, epochs=1)
    assert np.array_equal(images, before)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 8), "uint8"), ((2, 8, 8, 4), "uint8"), ((2, 8, 8), "float32")])
def test_other_arrays_than_images_are_refused(shape, dtype):
    with refused(
        f"annotator: expected grey (N, H, W) or colour (N, H, W, 3) images of uint8, got {dtype} of shape {shape}"
    ):
        annotator_probabilities(np.zeros(shape, dtype=dtype), np.array([0, 1]), 2, seed=0)


@pytest.mark.parametrize(("count", "labels"), [(0, []), (2, [0]), (2, [0, 2]), (2, [-1, 0]), (2, [[0], [1]])])
def test_labels_that_do_not_fit_the_images_are_refused(count, labels):
    labels = np.array(labels, dtype=int)
    with refused(
        "annotator: expected at least one image and for each a class number in 0..1, got"
        f" {count} images and labels of shape {labels.shape}"
    ):
        annotator_probabilities(np.zeros((count, 8, 8), dtype=np.uint8), labels, 2, seed=0)


@pytest.mark.parametrize(("seed", "epochs"), [(-1, 1), (0, 0)])
def test_a_seed_or_a_number_of_epochs_out_of_range_is_refused(seed, epochs):
    with refused(f"annotator: expected seed >= 0 and epochs >= 1, got {seed} and {epochs}"):
        annotator_probabilities(np.zeros((2, 8, 8), dtype=np.uint8), np.array([0, 1]), 2, seed=seed, epochs=epochs)
