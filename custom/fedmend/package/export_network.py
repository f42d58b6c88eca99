"""A package's network in the words of a MONAI configuration: built by its library, without FedMend.

A classifier that reads all stages, or random sums over them, is in no library. It is said in a line of PyTorch around
the library's network: hooks keep deviation and mean of each stage's map (:mod:`fedmend.learning.stage_features`).
"""

from typing import Any

from fedmend.errors import FedMendError
from fedmend.learning.bundles import head_name, plain_name
from fedmend.learning.monai_networks import MONAI, monai_arguments
from fedmend.learning.network_names import PROJECTED, STAGES
from fedmend.learning.networks import CHANNELS_PER_GROUP, TIMM, build_network

_NARROW = {"conv1_t_size": 3, "conv1_t_stride": 2, "no_max_pool": True, "bias_downsample": False}
_RESNET = {"block": "basic", "layers": [1] * 4, "block_inplanes": [16, 32, 64, 128], "n_input_channels": 3, **_NARROW}
_UNET = {"act": ["relu", {"inplace": True}], "norm": "batch", "bias": False, "upsample": "nontrainable"}
_WIDTHS = {"unet": [64, 128, 256, 512, 512, 64], "unet_narrow": [8, 16, 32, 64, 64, 8]}


_MAPS = "kept.append(torch.std_mean(found.float(), dim=(2, 3), correction=0))"
_STATISTICS = "for deviation, mean in kept for part in (mean, deviation)"
_READ = f"torch.cat([network.backbone(images).float(), *(part {_STATISTICS})], 1)"
_SCALED = f"torch.nn.functional.layer_norm(part, part.shape[1:]) {_STATISTICS}"
_PROJECTED = f"(network.backbone(images), torch.cat([{_SCALED}], 1).matmul(network.projection))[1]"


def network_definition(network: str, num_classes: int) -> dict[str, Any]:
    """Entries of a configuration, of which ``network_def`` is the network without weights.

    Args:
        network: see :func:`fedmend.learning.networks.build_network`.
        num_classes: C.

    Raises:
        FedMendError: a network that no library has.
    """
    if network.startswith((STAGES, PROJECTED)):
        return _reading_stages(network, num_classes)
    plain = plain_name(network)
    if plain in _WIDTHS:
        masks = {"spatial_dims": 2, "in_channels": 1, "out_channels": 1 + num_classes}
        made = {"_target_": "BasicUNet", **masks, "features": _WIDTHS[plain], **_UNET}
    elif plain == "segresnet":
        masks = {"spatial_dims": 2, "in_channels": 1, "out_channels": 1 + num_classes}
        made = {"_target_": "SegResNet", **masks, "init_filters": 8}
    elif plain == "resnet_narrow":
        made = {"_target_": "ResNet", "spatial_dims": 2, "num_classes": num_classes, **_RESNET}
    elif plain in ("resnet18", "densenet121"):
        made = {"_target_": f"torchvision.models.{plain}", "num_classes": num_classes}
    elif network.startswith(TIMM):
        name = network.removeprefix(TIMM)
        made = {"_target_": "timm.create_model", "model_name": name, "pretrained": False, "num_classes": num_classes}
    elif network.startswith(MONAI):
        name, arguments, _ = monai_arguments(network.removeprefix(MONAI), num_classes)
        # MONAI's configurations look a bare name up in all of MONAI, where some of the small ones are modules.
        made = {"_target_": f"monai.networks.nets.{name}", **arguments}
    else:
        raise FedMendError(f"export: expected a network that a library has, got {network!r:.60}")
    if not network.endswith("_gn"):
        return {"network_def": made}
    groups = f"torch.nn.GroupNorm(m.num_features // {CHANNELS_PER_GROUP}, m.num_features)"
    replaced = f"monai.networks.utils.replace_modules(network, name, {groups})"
    norms = "for name, m in list(network.named_modules()) if isinstance(m, torch.nn.BatchNorm2d)"
    return {
        "with_batch_norm": made,
        "network_def": f"$(lambda network: ([{replaced} {norms}], network)[1])(@with_batch_norm)",
    }


def _reading_stages(network: str, num_classes: int) -> dict[str, Any]:
    """The library's network, and around it the classifier on all of its stages."""
    model: Any = build_network(network, num_classes)
    plain, features = network.removeprefix(STAGES).removeprefix(PROJECTED), _READ
    projection = []
    if model.projected:
        zeros = f"torch.zeros({', '.join(map(str, model.projection.shape))})"
        features, projection = _PROJECTED, [f"network.register_buffer('projection', {zeros})"]
    backbone = network_definition(plain, num_classes)
    stages = [name for name, module in model.backbone.named_modules() if any(module is stage for stage in model.stages)]
    hooks = f"backbone.get_submodule(name).register_forward_hook(lambda module, given, found: {_MAPS})"
    steps = [
        f"backbone.set_submodule({head_name(model, plain)!r}, torch.nn.Identity())",
        "network.add_module('backbone', backbone)",
        f"network.add_module('classifier', torch.nn.Linear({model.num_features}, {num_classes}))",
        *projection,
        f"*({hooks} for name in {stages})",
        f"setattr(network, 'forward', lambda images: (kept.clear(), network.classifier({features}))[1])",
        "network",
    ]
    made = f"(lambda kept, network, backbone: [{', '.join(steps)}][-1])([], torch.nn.Module(), @backbone_def)"
    return {**backbone, "backbone_def": backbone["network_def"], "network_def": f"${made}"}
