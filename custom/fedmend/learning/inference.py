"""Inference: one pass of a model over a split, the same for every method."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.data.site import Split
from fedmend.data.slices import VolumeSplit
from fedmend.data.spaced import slide
from fedmend.errors import FedMendError
from fedmend.method import Site

# A server that hears it from most sites goes back to an earlier model.
NOT_FINITE = "expected finite scores of the received model, got NaN or infinity"


def chosen_device(word: str) -> torch.device:
    """The device that a person has chosen.

    Args:
        word: PyTorch's; empty: a GPU where there is one.

    Raises:
        FedMendError: another word, or a GPU that is not there.
    """
    try:
        device = torch.device(word or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):  # PyTorch raises all of them
        got = f"{word!r:.40}, with {torch.cuda.device_count()} GPUs here"
        raise FedMendError(f"--device: expected cpu, cuda or cuda:NUMBER of a GPU of this machine, got {got}") from None
    return device


class Stopped(Exception):
    """The job was aborted while a batch loop ran."""


def mixed_precision(site: Site) -> torch.autocast:
    """bfloat16 autocast on a GPU unless the site wants another precision, nothing on a CPU."""
    return torch.autocast(site.device.type, torch.bfloat16, enabled=site.device.type == "cuda" and site.autocast)


@torch.no_grad()
def infer(model: nn.Module, split: Split, site: Site, matrices: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One forward pass over a split in eval mode.

    Args:
        model: returns (features, logits).
        split: N samples.
        site: gives the batch size and is asked whether to stop.
        matrices: (N, 2, 3) affine view of each sample, or None for plain images.

    Returns:
        features (N, F) and logits (N, C), float32, on the CPU; the model's mode is put back.

    Raises:
        Stopped: the job was aborted.
        FedMendError: a score is NaN or infinite.
    """
    mode = model.training
    model.eval()
    features, logits = [], []
    for index in torch.arange(len(split)).split(site.inference_batch or site.batch_size):
        if site.stop():
            raise Stopped
        with mixed_precision(site):
            f, z = model(split.view(index, matrices))
        features.append(f.float())
        logits.append(z.float())
    model.train(mode)
    scores = torch.cat(logits).cpu()
    _check_scores(scores, site)
    return torch.cat(features).cpu(), scores


def _check_scores(scores: Tensor, site: Site) -> None:
    """No count may be made of scores that are none."""
    if not torch.isfinite(scores).all():
        raise FedMendError(f"{site.name}: {NOT_FINITE}")


def infer_classes(model: nn.Module, split: VolumeSplit, site: Site) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The most probable class of each pixel, batch by batch; of one class where it is more probable than not.

    Args:
        model: returns (features, logits), logits (B, 1 + C, H, W), channel 0 = background.
        split: N slices.
        site: gives the batch size and is asked whether to stop.

    Yields:
        slice numbers (B,) and numbers of classes (B, H, W) uint8, 0 = background.

    Raises:
        Stopped, FedMendError: as :func:`infer_masks`.
    """
    if len(split.annotated) == 1:
        yield from ((index, (lesion > 0.5).astype(np.uint8)) for index, lesion in infer_masks(model, split, site))
        return
    for index, logits in _mask_logits(model, split, site):
        yield index, logits.argmax(1).to(torch.uint8).cpu().numpy()


def infer_masks(model: nn.Module, split: VolumeSplit, site: Site) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One forward pass over the slices of a split in eval mode, batch by batch.

    Args:
        model: returns (features, logits), logits (B, 2, H, W) of background and lesion.
        split: N slices.
        site: gives the batch size and is asked whether to stop.

    Yields:
        slice numbers (B,) and probabilities of lesion (B, H, W) float32; the model's mode is put back at the end.

    Raises:
        Stopped: the job was aborted.
        FedMendError: a score is NaN or infinite.
    """
    yield from ((index, structures[:, 0]) for index, structures in infer_structures(model, split, site))


def infer_structures(model: nn.Module, split: VolumeSplit, site: Site) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """:func:`infer_masks` of C structures: slice numbers (B,) and probabilities (B, C, H, W) float32."""
    for index, logits in _mask_logits(model, split, site):
        yield index, logits.softmax(1)[:, 1:].cpu().numpy()


@torch.no_grad()
def _mask_logits(model: nn.Module, split: VolumeSplit, site: Site) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batches of slices, or all slices of one volume after the other."""
    mode, batch = model.training, site.inference_batch or site.batch_size
    model.eval()

    def network(images: Tensor) -> Tensor:
        if site.stop():
            raise Stopped
        with mixed_precision(site):
            return model(images)[1]

    slices = torch.arange(len(split))
    parts = [slices[split.case == c] for c in np.unique(split.case)] if split.patch else slices.split(batch)
    try:
        for index in parts:
            pixels = split.pixels(index)
            logits = slide(network, pixels[:, 0], split.patch, batch) if split.patch else network(pixels)
            _check_scores(logits, site)
            yield index.numpy(), logits.float()
    finally:
        model.train(mode)
