"""Networks of MONAI by name: ``monai/DenseNet121``, ``monai/DynUNet(kernel_size=[3, 3], strides=[1, 2], ...)``.

Those are listed whose last layer is a linear one on features, because methods average its rows by class: MONAI's UNet
ends with a transposed convolution or a sum, and others return lists.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from fedmend.errors import FedMendError

MONAI = "monai/"
LONGEST = 500  # characters of a name with its arguments
LARGEST = 4096  # a number among the arguments; networks of the literature have up to 2,048 channels
# A site builds a network before it asks how much memory that takes, and each block takes some, without weights too.
MOST_BLOCKS, DEPTHS = 500, ("layers", "block_config", "blocks_down", "blocks_up")
_FORM = re.compile(r"(\w+)(\(.*\))?", re.ASCII)
_WORD = re.compile(r"[\w-]{1,40}", re.ASCII)
_OURS = {"spatial_dims", "in_channels", "out_channels", "num_classes", "n_input_channels", "pretrained", "progress"}


class Family(NamedTuple):
    """How some networks are built.

    Attributes:
        head: name of the last layer in the network.
        channels: of an image: 3 where images have labels, 1 where masks are learnt.
        inputs: MONAI's argument for them.
        outputs: MONAI's argument for the number of outputs.
        pretrained: whether it has an argument that must say that nothing is downloaded.
    """

    head: str
    channels: int = 3
    inputs: str = "in_channels"
    outputs: str = "out_channels"
    pretrained: bool = False


_DENSE = Family("class_layers.out", pretrained=True)
_SQUEEZE = Family("last_linear", outputs="num_classes")
_RES = Family("fc", inputs="n_input_channels", outputs="num_classes")
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("DenseNet121", "DenseNet169", "DenseNet201", "DenseNet264"), _DENSE),
    "EfficientNetBN": Family("_fc", outputs="num_classes", pretrained=True),
    **dict.fromkeys(("SENet154", "SEResNet50", "SEResNet101", "SEResNet152", "SEResNext50", "SEResNext101"), _SQUEEZE),
    "ResNet": _RES,
    **dict.fromkeys(("resnet10", "resnet18", "resnet34", "resnet50", "resnet101"), _RES._replace(pretrained=True)),
    "AttentionUnet": Family("model.2.conv", channels=1),
    "BasicUNet": Family("final_conv", channels=1),
    "DynUNet": Family("output_block.conv.conv", channels=1),
    "FlexibleUNet": Family("segmentation_head.0", channels=1, pretrained=True),
    "SegResNet": Family("conv_final.2.conv", channels=1),
}


def monai_arguments(words: str, num_classes: int, dimensions: int = 2) -> tuple[str, dict[str, Any], Family]:
    """What a network of MONAI is built from.

    Args:
        words: name and, in brackets, MONAI's own arguments: numbers, words, truth values, and lists of them.
        num_classes: C; a network for masks has 1 + C outputs.
        dimensions: 2 or 3, where masks are learnt.

    Returns:
        Its name in ``monai.networks.nets``, its arguments, and how it is built.

    Raises:
        FedMendError: another network, or arguments that are not written so or ask for too many blocks.
    """
    found = _FORM.fullmatch(words) if len(words) <= LONGEST else None
    if found is None or found[1] not in FAMILIES:
        raise FedMendError(
            f"job variable network: expected {MONAI} and one of {sorted(FAMILIES)}, with or without arguments in"
            f" brackets, got {words!r:.60}"
        )
    name, family = found[1], FAMILIES[found[1]]
    if dimensions > 2 and family.channels > 1:
        masks = sorted(name for name, family in FAMILIES.items() if family.channels == 1)
        raise FedMendError(f"job variable network: expected for volumes {MONAI} and one of {masks}, got {name}")
    given = _arguments(name, found[2] or "()")
    fixed: dict[str, Any] = {"spatial_dims": dimensions, family.inputs: family.channels}
    fixed[family.outputs] = num_classes if family.channels > 1 else 1 + num_classes
    fixed |= {"pretrained": False} if family.pretrained else {}
    return name, {**fixed, **given}, family


def monai_network(words: str, num_classes: int, dimensions: int = 2) -> tuple[nn.Module, nn.Module, Family]:
    """An untrained network of MONAI, taken apart before its last layer.

    Args:
        words: as of :func:`monai_arguments`.
        num_classes: C.
        dimensions: see there.

    Returns:
        The network without its last layer, that layer, and how they are built.

    Raises:
        FedMendError: another network, or arguments that MONAI does not take.
    """
    name, arguments, family = monai_arguments(words, num_classes, dimensions)
    from monai.networks import nets

    try:
        network: nn.Module = getattr(nets, name)(**arguments)
    except Exception as e:  # MONAI raises many types for arguments that do not go together
        said = " ".join(f"{type(e).__name__}: {e}".split())
        raise FedMendError(
            f"job variable network: expected arguments that MONAI's {name} takes, got {said:.200}"
        ) from None
    place, _, last = family.head.rpartition(".")
    head = network.get_submodule(family.head)
    setattr(network.get_submodule(place), last, nn.Identity())
    return network, head, family


def _arguments(name: str, text: str) -> dict[str, Any]:
    """``(a=1, b=[2, 3])`` → {"a": 1, "b": [2, 3]}; nothing of it is run."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        good = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        pairs = [(k.arg, ast.literal_eval(k.value)) for k in call.keywords] if isinstance(call, ast.Call) else []
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        good, pairs = False, []
    found = {key: value for key, value in pairs if key is not None}
    if not good or len(found) != len(pairs) or not all(map(_plain, found.values())):
        raise FedMendError(
            f"job variable network: expected arguments of {name} as NAME=VALUE, values numbers up to {LARGEST}, words,"
            f" truth values or lists of them, got {ascii(text)[1:-1]:.60}"
        )
    if own := sorted(_OURS & set(found)):
        raise FedMendError(f"job variable network: expected no argument that follows from the job, got {own}")
    for key in DEPTHS:
        blocks = found.get(key, ())
        if isinstance(blocks, list | tuple) and sum(n for n in blocks if isinstance(n, int) and n > 0) > MOST_BLOCKS:
            raise FedMendError(
                f"job variable network: expected at most {MOST_BLOCKS} blocks as {key} of {name}, got {blocks!s:.60}"
            )
    return found


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return value is None or (isinstance(value, bool | int | float) and abs(value) <= LARGEST)
