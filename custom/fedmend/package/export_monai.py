"""A package as a MONAI bundle in directory form, which MONAI runs without FedMend."""

import importlib.metadata
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedmend
from fedmend.basics.files import make_folder, whole_folder, write_text
from fedmend.basics.state import torch_bytes
from fedmend.basics.words import markdown, printable
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.learning.bundles import METADATA, MODEL, as_library
from fedmend.package.export_inference import inference
from fedmend.package.opened import OpenedPackage
from fedmend.package.probabilities import facts

INFERENCE, SCHEMA, README, LICENSE = (
    "configs/inference.json",
    "configs/metadata.schema.json",
    "docs/README.md",
    "LICENSE",
)
# MONAI's own, which `monai.bundle verify_metadata` downloads where no file is given.
SCHEMA_URL = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
NOT_CLINICAL = "Not for clinical use: the model has no approval as a medical device."
# What MONAI's configurations run, look up or build: $code, @id, %macro, keys such as _target_, relative ids anywhere.
_SIGNS = re.compile(r"[$@%]|_\w+_$|.*[@%](#|::)")
_TENSOR = ("type", "format", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data", "channel_def")
_TEXTS = ("version", "monai_version", "pytorch_version", "numpy_version", "task", "description", "authors", "copyright")


def write_bundle(package: OpenedPackage, out: Path) -> None:
    """Writes the bundle.

    Args:
        package: the model.
        out: a new folder.

    Raises:
        FedMendError: MONAI cannot do what the package needs, or it would take a name or another
            text of the package for code.
    """
    network, about = package.info["network"]["name"], metadata(package)
    _check_texts(about, f"package {package.folder.name}")
    content = {
        METADATA: _json(about),
        INFERENCE: _json(inference(package)),
        SCHEMA: _json(schema()),
        README: _readme(package),
        LICENSE: _LICENSE,
    }
    make_folder(out.parent)
    with whole_folder(out) as temporary:
        for name, text in content.items():
            make_folder((temporary / name).parent)
            write_text(temporary / name, text)
        make_folder((temporary / MODEL).parent)
        (temporary / MODEL).write_bytes(torch_bytes(as_library(package.network(), network)))


def _check_texts(content: object, where: str) -> None:
    """Refuses texts, whoever made the package, that MONAI would not take for texts."""
    if isinstance(content, Mapping):
        content = [*content, *content.values()]
    if isinstance(content, list):
        for part in content:
            _check_texts(part, where)
    elif isinstance(content, str) and (_SIGNS.match(content) or printable(content) != content):
        raise FedMendError(
            f"{where}: expected for a MONAI bundle printable names and texts without the signs of MONAI's"
            f" configurations ($, @ or % in front, @# or %# inside, _word_), got {content!a:.60}"
        )


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=4) + "\n"


def metadata(package: OpenedPackage) -> dict[str, Any]:
    """The content of ``configs/metadata.json``, with what the package knows beyond it under ``fedmend``.

    Args:
        package: the model.
    """
    version = importlib.metadata.version
    phantom = "Trained on synthetic images. " if package.phantom else ""
    packages = ["pytorch-ignite", "nibabel", "pillow", "pydicom", "fire"]
    needed = [name for name in ("torchvision", "timm") if _target(package).startswith(name)]
    return {
        "schema": SCHEMA_URL,
        "version": "1.0.0",
        "changelog": {"1.0.0": f"exported by FedMend {fedmend.__version__}"},
        "monai_version": version("monai"),
        "pytorch_version": version("torch"),
        "numpy_version": version("numpy"),
        "required_packages_version": {name: _version(name) for name in [*packages, *needed]},
        "name": package.name,
        "task": f"{package.kind} model for {', '.join(package.classes)}",
        "description": f"{phantom}Trained by federated learning with FedMend.",
        "authors": "see the package that this bundle was made from",
        "copyright": "see LICENSE",
        "intended_use": NOT_CLINICAL,
        "network_data_format": {"inputs": {"image": _input(package)}, "outputs": {"pred": _output(package)}},
        "fedmend": {"package": package.digest, **facts(package)},
    }


def _target(package: OpenedPackage) -> str:
    content = inference(package)
    made = (content.get(name) for name in ("with_batch_norm", "backbone_def", "network_def"))
    return next(str(network["_target_"]) for network in made if isinstance(network, dict))


def _version(name: str) -> str:
    """Installed, or none: a bundle can be written without what runs it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "any"


def _input(package: OpenedPackage) -> dict[str, Any]:
    prepared, masks = package.preprocessing, package.kind == SEGMENTATION
    channels = {"0": "grey"} if masks else {"0": "red", "1": "green", "2": "blue"}
    return {
        "type": "image",
        "format": "magnitude",
        "modality": prepared.modality or "n/a",
        "num_channels": len(channels),
        "spatial_shape": [prepared.image_size] * 2,
        "dtype": "float32",
        "value_range": [0, 1] if masks else [],
        "is_patch_data": False,
        "channel_def": channels if prepared.color or masks else dict.fromkeys(channels, "grey, three times"),
    }


def _output(package: OpenedPackage) -> dict[str, Any]:
    masks = package.kind == SEGMENTATION
    names = ["background", *package.classes] if masks else list(package.classes)
    return {
        "type": "image" if masks else "probabilities",
        "format": "segmentation" if masks else "classes",
        "num_channels": len(names),
        "spatial_shape": [package.preprocessing.image_size] * 2 if masks else [],
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": {str(number): name for number, name in enumerate(names)},
    }


def schema() -> dict[str, Any]:
    """A JSON schema of what MONAI's specification of bundles asks for in ``metadata.json``, for a machine that cannot
    download MONAI's own."""
    tensor = {
        "type": "object",
        "required": list(_TENSOR),
        "properties": {
            "num_channels": {"type": "integer", "minimum": 1},
            "spatial_shape": {"type": "array", "items": {"type": ["integer", "string"]}},
            "value_range": {"type": "array", "items": {"type": "number"}},
            "is_patch_data": {"type": "boolean"},
            "channel_def": {"type": "object", "additionalProperties": {"type": "string"}},
            **{name: {"type": "string"} for name in ("type", "format", "modality", "dtype")},
        },
    }
    tensors = {"type": "object", "minProperties": 1, "additionalProperties": tensor}
    sides = ("inputs", "outputs")
    packages = ("required_packages_version", "changelog")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "metadata.json of a MONAI bundle, as MONAI's specification describes it",
        "type": "object",
        "required": [*_TEXTS, "network_data_format"],
        "properties": {
            **{name: {"type": "string"} for name in _TEXTS},
            **{name: {"type": "object", "additionalProperties": {"type": "string"}} for name in packages},
            "network_data_format": {
                "type": "object",
                "required": list(sides),
                "properties": dict.fromkeys(sides, tensors),
            },
        },
    }


_LICENSE = """No licence was chosen for this model when the bundle was written: ask those who trained it.
FedMend, which wrote the bundle, and MONAI, which runs it, are under the Apache License, Version 2.0.
"""


def _readme(package: OpenedPackage) -> str:
    prepared, masks = package.preprocessing, package.kind == SEGMENTATION
    title = f"# {'PHANTOM: ' if package.phantom else ''}{markdown(package.name)}"
    window = "the 0.5 and 99.5 percentiles of the values that are not 0" if prepared.window is None else prepared.window
    results = (
        "a NIfTI mask of each volume, on the grid of its file"
        if masks
        else "`predictions.csv`, a row per image: its name, then the probability of each class in the order above"
    )
    names, reasons = [*map(markdown, package.classes)], map(markdown, package.not_fitted)
    cuts = [*zip(names, package.thresholds, reasons, strict=True)] * (package.kind == MULTILABEL)
    more = " timm" if _target(package).startswith("timm") else ""
    decides = "".join(f"- {name}: {f'n/a: {why}' if why else f'{cut:.6g}'}\n" for name, cut, why in cuts)
    return f"""{title}

{"Trained on **synthetic** images, which says nothing about patients. " if package.phantom else ""}**{NOT_CLINICAL}**

Classes: {", ".join(names)}. Kind of labels: {package.kind}. Modality: {prepared.modality or "not known"}.
Grey values: {window}. Edge length: {prepared.image_size} pixels.

## Run

```
pip install "monai[fire,ignite,jsonschema,nibabel,pillow,pydicom]" torchvision{more}
python -m monai.bundle run --bundle_root . --config_file {INFERENCE} --dataset_dir IMAGES --output_dir OUT
```

It writes {results}. It takes {_taken(package)}.
{
        ""
        if not cuts
        else f'''
A class is decided by its own threshold:

{decides}'''
    }
## Verify

`python -m monai.bundle verify_metadata --meta_file {METADATA} --filepath {SCHEMA}` checks the metadata without a
network. Name a new file as `--filepath` to download MONAI's own schema instead.
"""


def _taken(package: OpenedPackage) -> str:
    if package.kind == SEGMENTATION:
        return "NIfTI volumes"
    if package.preprocessing.color:
        return "8-bit pictures in colour (PNG, JPEG)"
    plain = "plain grey DICOM slices (`.dcm`; others are refused), " if package.preprocessing.window else ""
    return f"{plain}8-bit pictures (PNG, JPEG) and NIfTI volumes, of which every axial slice is an image"
