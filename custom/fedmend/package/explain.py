"""Where a model looked: Grad-CAM (Selvaraju et al., ICCV 2017) by MONAI, for models of labels.

A map is weak evidence. It is as coarse as the layer that it is made from, says which part of the image raised a score
and not why, and looks as sure for a wrong finding as for a right one. Where the classifier reads all stages, what the
stages before that layer saw is not in the map.
"""

import copy
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.basics.files import make_folder
from fedmend.data.augment import to_network
from fedmend.data.store import decode
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.learning.inference import chosen_device
from fedmend.package.opened import OpenedPackage
from fedmend.package.rows import IMAGES, file_name, read_rows

MAPS = "maps"  # folder
EDGE = 7  # fewest pixels along an edge of the layer that a map is made from, as ResNet has them at 224 pixels
SHOWN = 512  # pixels along an edge of a picture, about
RED, OPACITY = (230, 60, 0), 0.6


class _Logits(nn.Module):
    """The network without its features, as MONAI wants it; nothing is computed in place, which hooks cannot follow."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = copy.deepcopy(network).eval().requires_grad_(True)  # a backbone may be frozen
        for module in self.network.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]  # of activations alone
        names = {module: name for name, module in self.named_modules()}
        stages = [names[stage] for stage in getattr(self.network, "stages", ())]
        self.layers = [f"{name}.0" for name in stages]  # a map is made from one of them; empty: from any layer
        self._read = [nn.Sequential(self.get_submodule(name), nn.Identity()) for name in stages]
        for name, read in zip(stages, self._read, strict=True):
            self.set_submodule(name, read)  # so that the statistics come after what MONAI's hooks see of a stage

    def forward(self, images: Tensor) -> Tensor:
        """(B, C) logits."""
        network: Any = self.network
        if not self.layers:
            return cast(Tensor, network(images)[1])
        # A solved classifier has its evidence in the stages, through which training lets no gradient.
        features = network.read(network.prepared(images), self._read, detached=False)
        return nn.functional.linear(features, network.classifier.weight, network.classifier.bias)


class Explainer:
    """Maps of a network for labels.

    Args:
        network: on the device that is used.
        edge: pixels along an edge of its images.

    Raises:
        FedMendError: no layer keeps places apart.
    """

    def __init__(self, network: nn.Module, edge: int):
        from monai.visualize import GradCAM

        model = _Logits(network)
        self._device = next(model.parameters()).device
        channels: Any = network.channels
        images = torch.zeros(1, channels, edge, edge, device=self._device)
        self._cam = GradCAM(nn_module=model, target_layers=_last_layer(model, images), postprocessing=lambda x: x)

    def map(self, image: Tensor, label_class: int) -> np.ndarray:
        """Where the score of a class comes from.

        Args:
            image: (1, channels, H, W) network input.
            label_class: class number.

        Returns:
            (H, W) float32 from 0 to 1; 0 everywhere where nothing speaks for the class.
        """
        found = self._cam(x=image.to(self._device), class_idx=label_class)
        values = np.asarray(torch.as_tensor(found).detach().cpu(), dtype=np.float32)[0, 0]
        return values / values.max() if values.max() > 0 else np.zeros_like(values)


@torch.no_grad()
def _last_layer(model: _Logits, images: Tensor) -> str:
    """Name of the last part, or stage, whose output still is an image of :data:`EDGE` pixels or more."""
    ended: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def note(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            able = name in (model.layers or [name])
            if name and able and torch.is_tensor(output) and output.dim() == 4 and min(output.shape[2:]) >= EDGE:
                ended.append(name)

        handles.append(module.register_forward_hook(note))
    model(images)
    for handle in handles:
        handle.remove()
    if not ended:
        raise FedMendError(f"map: expected a network with a layer of {EDGE} x {EDGE} pixels, got a coarser one")
    return ended[-1]


def heat_png(heat: np.ndarray) -> bytes:
    """A map (H, W) from 0 to 1 as a PNG file to lay over its image, transparent where nothing is."""
    pixels = np.zeros((*heat.shape, 4), dtype=np.uint8)
    pixels[..., :3] = RED
    pixels[..., 3] = np.rint(255 * OPACITY * heat)
    return _png(pixels)


def overlay_png(image: np.ndarray, heat: np.ndarray) -> bytes:
    """An image (H, W) or (H, W, 3) uint8 with its map (H, W) over it, as a PNG file of about :data:`SHOWN` pixels."""
    grey = image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
    share = OPACITY * heat[..., None]
    mixed = np.rint(grey * (1 - share) + np.array(RED) * share).astype(np.uint8)
    times = max(1, SHOWN // max(heat.shape))
    return _png(mixed.repeat(times, axis=0).repeat(times, axis=1))


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def check_has_maps(package: OpenedPackage) -> None:
    """Refuses a model that :func:`explain` cannot ask.

    Raises:
        FedMendError: a model of masks or of studies.
    """
    if package.kind == SEGMENTATION:
        raise FedMendError("--explain: expected a model of labels, got one of masks, which says itself what it marks")
    if package.preprocessing.study_slices:
        raise FedMendError("--explain: expected a model of images, got one of whole studies")


def explain(package: OpenedPackage, source: Path, out: Path, *, most: int, device: str = "") -> int:
    """Writes overlays of the most probable findings of a finished call of ``predict``, into ``out/maps``.

    Args:
        package: the model.
        source: images that were predicted.
        out: folder of the predictions.
        most: pictures at most.
        device: PyTorch's word; empty: a GPU where there is one.

    Returns:
        Number of pictures.

    Raises:
        FedMendError: a model of masks or of studies, or an image that has gone meanwhile.
    """
    check_has_maps(package)
    prepared, place = package.preprocessing, chosen_device(device)
    explainer = Explainer(package.network().to(place), prepared.image_size)
    shape = (prepared.image_size,) * 2 + (3,) * prepared.color
    root = source if source.is_dir() else source.parent
    make_folder(out / MAPS)
    found = _findings(out / IMAGES, package)[:most]
    for name, label_class in found:
        image = decode([root / name], window=prepared.window, shape=shape)[0][0]
        if not isinstance(image, np.ndarray):
            raise FedMendError("--explain: expected the images as they were predicted, one cannot be read any more")
        heat = explainer.map(network_input(package, image), label_class)
        file = file_name(f"{name}-{package.classes[label_class]}", ".png")
        (out / MAPS / file).write_bytes(overlay_png(image, heat))
    return len(found)


def network_input(package: OpenedPackage, image: np.ndarray) -> Tensor:
    """(1, 3, H, W) of an image (H, W) or (H, W, 3) uint8, as the package's network takes it."""
    pixels = torch.from_numpy(np.array(image)).float().div(255)
    pixels = pixels[None] if image.ndim == 2 else pixels.permute(2, 0, 1)
    return to_network(pixels[None], package.preprocessing.pixel_mean, package.preprocessing.pixel_deviation)


def _findings(file: Path, package: OpenedPackage) -> list[tuple[str, int]]:
    """Image and class of each positive decision, the most probable first."""
    found = []
    for row in read_rows(file):
        for number, name in enumerate(package.classes):
            single = package.kind != MULTILABEL
            if (row["decision"] == name) if single else (row[f"{name}_decision"] == "1"):
                found.append((-float(row[f"{name}_probability"]), row["image"], number))
    return [(image, number) for _, image, number in sorted(found)]
