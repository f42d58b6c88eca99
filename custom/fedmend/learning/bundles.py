"""Weights under the names of the library that a network comes from: those of a MONAI bundle, written and read.

A network whose classifier reads all stages is in no library: its weights keep our names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.learning import network_names

MODEL, METADATA = "models/model.pt", "configs/metadata.json"  # of a bundle
TWIN = "_twin"
_HEADS = {"resnet_narrow": "fc", "unet": "final_conv", "unet_narrow": "final_conv", "segresnet": "conv_final.2.conv"}
_COUNTER = "num_batches_tracked"


def plain_name(network: str) -> str:
    """The name of a network without what changes its layers and not their names: GroupNorm, or a second network."""
    return network.removesuffix(TWIN).removesuffix("_gn")


def head_name(model: nn.Module, network: str) -> str:
    """The name of the classifier in the library's network.

    Args:
        model: of :func:`fedmend.learning.networks.build_network`.
        network: its name.
    """
    heads = cast(tuple[str, ...], model.library_heads)  # of each of our networks; a Module says nothing of it
    return heads[0].removesuffix(".") if heads else _HEADS[plain_name(network_names.plain_name(network))]


def library_names(model: nn.Module, network: str) -> dict[str, str]:
    """Name of each tensor in our state dict → its name in that of the library's network, classifier included.

    Of two networks that teach each other, those of the first, which is the one that is asked.

    Args:
        model: of :func:`fedmend.learning.networks.build_network`.
        network: its name.
    """
    first = "first." if network.endswith(TWIN) else ""
    backbone, classifier = f"{first}backbone.", f"{first}classifier."
    if getattr(model, "stages", ()):
        return {name: name for name in model.state_dict()}
    names = [name for name in model.state_dict() if name.startswith((backbone, classifier))]
    head = f"{head_name(model, network)}."
    return {
        n: head + n.removeprefix(classifier) if n.startswith(classifier) else n.removeprefix(backbone) for n in names
    }


def as_library(model: nn.Module, network: str) -> dict[str, Tensor]:
    """The weights of a network for the library that it comes from; see :func:`library_names`."""
    state = model.state_dict()
    return {theirs: state[ours].contiguous().clone() for ours, theirs in library_names(model, network).items()}


def is_bundle(weights: str) -> bool:
    """Whether a path is the folder of a MONAI bundle."""
    return (Path(weights) / METADATA).is_file()


def file_of(weights: str) -> Path:
    """The file with the tensors: of a MONAI bundle its model, else what is named."""
    return Path(weights) / MODEL if is_bundle(weights) else Path(weights)


def from_library(model: nn.Module, network: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a bundle under our names, where they are those of this network, classifier included.

    Args:
        model: of :func:`fedmend.learning.networks.build_network`.
        network: its name.
        state: content of the bundle's ``models/model.pt``.

    Raises:
        FedMendError: a network of two, or a tensor that is missing or of another network.
    """
    if network.endswith(TWIN):
        raise FedMendError(f"weights file: expected one network to start from a MONAI bundle, got {network}")
    names = library_names(model, network)
    needed = {theirs for theirs in names.values() if not theirs.endswith(_COUNTER)}
    if wrong := sorted(needed - set(state)) or sorted(set(state) - set(names.values())):
        word = "lacks" if wrong[0] in needed else "has also"
        raise FedMendError(
            f"weights file: expected a MONAI bundle with the weights of {network} and nothing else, got one that {word}"
            f" {wrong[:3]}"
        )
    return {ours: state[theirs] for ours, theirs in names.items() if theirs in state}
