"""Simulated annotators: a small network per site that stands for a careless reader (Algorithm 1, Wu et al., IJCAI
2023).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedmend.datasets.checks import need

CHANNELS = (24, 48, 96)
GROUPS = 8
BATCH_SIZE = 16
LEARNING_RATE = 1e-3
EPOCHS = 20  # short of convergence: a network that knows its samples by heart finds none of them hard


def _build_annotator(channels_in: int, num_classes: int) -> nn.Module:
    """Three strided convolution blocks and a linear classifier, about 53,000 parameters.

    GroupNorm, because the statistics of a few batches of a small site would make BatchNorm's evaluation mode erratic.
    """
    layers: list[nn.Module] = []
    for channels in CHANNELS:
        convolution = nn.Conv2d(channels_in, channels, kernel_size=3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(GROUPS, channels), nn.ReLU()]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, num_classes))


def annotator_probabilities(
    images: np.ndarray, labels: np.ndarray, num_classes: int, *, seed: int, epochs: int = EPOCHS
) -> np.ndarray:
    """Trains the annotator f_i on a site's clean data D_i and lets it judge the same data.

    Algorithm 1, lines 3-5, Wu et al., IJCAI 2023. It runs on the CPU with one thread, so the numbers do not depend on
    the number of threads; global random state and thread settings are left as they were.

    Args:
        images: (N, H, W) or (N, H, W, 3) uint8.
        labels: (N,) true class numbers in 0..C-1.
        num_classes: C.
        seed: 0 or more; seeds the initial weights and the order of the samples.
        epochs: passes over the data, at least 1.

    Returns:
        (N, C) float32, softmax probabilities p(.|x); rows sum to 1.

    Raises:
        FedMendError: arrays that do not fit each other, or a number out of its range.
    """
    good = images.dtype == np.uint8 and (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3))
    words = "grey (N, H, W) or colour (N, H, W, 3) images of uint8"
    need(good, "annotator", words, f"{images.dtype} of shape {images.shape}")
    good = len(images) and labels.shape == (len(images),) and labels.min() >= 0 and labels.max() < num_classes
    words = f"at least one image and for each a class number in 0..{num_classes - 1}"
    need(good, "annotator", words, f"{len(images)} images and labels of shape {labels.shape}")
    need(seed >= 0 and epochs >= 1, "annotator", "seed >= 0 and epochs >= 1", f"{seed} and {epochs}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _train_and_judge(images, labels, num_classes, epochs)
    finally:
        torch.set_num_threads(threads)


def _train_and_judge(images: np.ndarray, labels: np.ndarray, num_classes: int, epochs: int) -> np.ndarray:
    pixels = torch.from_numpy(np.array(images))  # a copy: a store is read-only
    pixels = (pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)).float().div_(255)
    pixels = (pixels - pixels.mean()) / (pixels.std() + 1e-6)
    target = torch.from_numpy(labels.astype(np.int64))
    model = _build_annotator(pixels.shape[1], num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.randperm(len(target)).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(pixels[batch]), target[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return torch.cat([model(part).softmax(1) for part in pixels.split(256)]).numpy()
