"""``configs/inference.json`` of a MONAI bundle: reading, preprocessing, network and results on MONAI's components.

What FedMend's readers do is said in MONAI's words; where MONAI has another filter or other percentiles, by a line of
PyTorch, NumPy or Pillow. A bundle takes the plain cases: 8-bit pictures, NIfTI volumes, and DICOM slices in grey as
scanners mostly write them; it refuses the others, of which ``fedmend predict`` takes more.
"""

from typing import Any

import torch

from fedmend.data.readers import LARGEST_VOXEL, NIFTI_SUFFIXES, PICTURE_SUFFIXES
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.learning.networks import TimmNetwork
from fedmend.package.export_network import network_definition
from fedmend.package.opened import OpenedPackage

BATCH, SLICES = 16, 16
_FINITE, _TISSUE = "expected finite voxels, got NaN or infinity", "expected tissue, got voxels of one value"
_LABELS = [["L", "R"], ["P", "A"], ["I", "S"]]
# Axes of slices as a radiologist sees them (rows to the back, columns to the left), and of volumes for masks.
SEEN, AXIAL = "PLS", "PRS"
_ON_BLACK = "Image.alpha_composite(Image.new('RGBA', image.size, (0, 0, 0, 255)), image.convert('RGBA'))"
_REFUSE = "(_ for _ in ()).throw(ValueError({}))"
_NONE = _REFUSE.format("'dataset_dir: expected files that end in ' + ', '.join(@suffixes) + ', got none'")
_PLAIN_DICOM = " and ".join(
    (
        "h.get('PhotometricInterpretation') == 'MONOCHROME2'",
        "int(h.get('NumberOfFrames') or 1) == 1",
        "'PixelPaddingValue' not in h",
        "int(h.HighBit) == int(h.BitsStored) - 1",  # MONAI takes the lowest bits
        "'ModalityLUTSequence' not in h",
        "None not in (h.get('RescaleSlope'), h.get('RescaleIntercept'))",
        # Values below 0 of a file that has no room for them are stored modulo a power of two.
        "(h.get('PixelRepresentation') or h.get('Modality') != 'CT' or float(h.RescaleIntercept) <= -100)",
        "(h.get('ImageOrientationPatient') is None or [round(float(v)) for v in h.ImageOrientationPatient]"
        " in ([1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, -1], [0, 1, 0, 0, 0, -1]))",
    )
)


def inference(package: OpenedPackage) -> dict[str, Any]:
    """The content of ``configs/inference.json``.

    Args:
        package: the model.

    Raises:
        FedMendError: images are seen through the windows of their own headers, which MONAI does not read; or a network
            that no library has.
    """
    if isinstance(package.preprocessing.window, str):
        raise FedMendError(
            f"package {package.name}: expected a window in numbers, or none, for a MONAI bundle, got"
            f" {package.preprocessing.window!r:.20}: MONAI does not read the windows of DICOM headers"
        )
    return {
        "imports": [
            *(f"$import {name}" for name in ("functools", "glob", "os", "monai", "pydicom", "torch")),
            *("$import numpy as np", "$from PIL import Image", "$from PIL import ImageOps"),
        ],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/eval'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        **network_definition(package.info["network"]["name"], len(package.classes)),
        "network": f"$@network_def.to(@device{_memory(package)})",
        "files": "$sorted(f for f in glob.glob(os.path.join(glob.escape(@dataset_dir), '**'), recursive=True)"
        f" if os.path.isfile(f) and f.lower().endswith(tuple(@suffixes))) or {_NONE}",
        **(_of_masks(package) if package.kind == SEGMENTATION else _of_labels(package)),
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "val_handlers": "@handlers",
            "decollate": True,
        },
        "run": ["$@evaluator.run()"],
    }


def _memory(package: OpenedPackage) -> str:
    """Channels last where the package's own network has them so: the same sums in the same order."""
    weights = (p for p in package.network().parameters() if p.dim() == 4 and min(p.shape) > 1)
    last = all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    return ", memory_format=torch.channels_last" if last else ""


def _named(target: str, **arguments: object) -> dict[str, Any]:
    return {"_target_": target, **arguments}


def _image(target: str, **arguments: object) -> dict[str, Any]:
    return _named(target, keys="image", **arguments)


def _chain(*transforms: object) -> dict[str, Any]:
    return _named("Compose", transforms=list(transforms))


def _loader(dataset: str) -> dict[str, Any]:
    return _named("DataLoader", dataset=dataset, batch_size=BATCH if dataset == "@slices" else 1, num_workers=0)


_WEIGHTS = _named("CheckpointLoader", load_path="$@bundle_root + '/models/model.pt'", load_dict={"model": "@network"})


def _need(good: str, sentence: str) -> dict[str, Any]:
    """Refuses a volume that prediction refuses: NaN would be black, and NaN or one value a mask without a lesion."""
    func = f"$lambda image: image if bool({good}) else {_REFUSE.format(repr(sentence))}"
    return _image("Lambdad", func=func, inv_func="$lambda image: image")


def _loaded() -> list[dict[str, Any]]:
    """A NIfTI volume without further dimensions of length 1, as of one time."""
    func = "$lambda image: image.reshape(image.shape[:3]) if image.shape[3:].numel() == 1 else image"
    reader = _image("LoadImaged", reader="NibabelReader", image_only=True)
    return [reader, _image("Lambdad", func=func, inv_func="$lambda image: image")]


def _window(package: OpenedPackage) -> str:
    """Values → 0..1 by the package's window; without one, by percentiles of those that are not 0."""
    if isinstance(package.preprocessing.window, tuple):
        centre, width = package.preprocessing.window
        return f"$lambda image: ((image.float() - {centre - width / 2!r}) / {width!r}).clip(0, 1)"
    scaled = "((image.float() - float(low)) / max(float(high) - float(low), 1e-6)).clip(0, 1)"
    tissue = "(lambda v: np.percentile(v, (0.5, 99.5)) if len(v) else (0.0, 1.0))"
    return f"$lambda image: (lambda low, high: {scaled})(*{tissue}((lambda v: v[v != 0])(np.asarray(image))))"


# ---- labels ----------------------------------------------------------------------------------------------------------
def _of_labels(package: OpenedPackage) -> dict[str, Any]:
    prepared, multilabel = package.preprocessing, package.kind == MULTILABEL
    dicom = isinstance(prepared.window, tuple) and not prepared.color
    suffixes = [*PICTURE_SUFFIXES, *(() if prepared.color else NIFTI_SUFFIXES), *((".dcm",) if dicom else ())]
    chains = {"pictures": _pictures(color=prepared.color)}
    chosen = "pictures"
    if not prepared.color:
        chains["volumes"] = _volumes(package)
        chosen = "volumes if d['image'].lower().endswith(('.nii', '.nii.gz')) else pictures"
    if dicom:
        chains["dicom"] = _dicom(package)
        chosen = f"dicom if d['image'].lower().endswith('.dcm') else {chosen}"
    names, given = ", ".join(chains), ", ".join(f"@{name}" for name in chains)
    classes = [f"{c}_probability" for c in package.classes]
    saver = _named(
        "ClassificationSaver",
        output_dir="@output_dir",
        filename="predictions.csv",
        batch_transform="$lambda batch: [{'filename_or_obj': d['name']} for d in batch]",
        output_transform="$monai.handlers.from_engine('pred')",
    )
    return {
        "suffixes": suffixes,
        "columns": ["image", *classes],
        **chains,
        "preprocessing": f"$functools.partial(lambda {names}, d: ({chosen})(d), {given})",
        "dataset_data": "$[{'image': f, 'name': os.path.relpath(f, @dataset_dir)} for f in @files]",
        "dataset": _named("Dataset", data="@dataset_data", transform="@preprocessing"),
        "slices": _named(
            "GridPatchDataset",
            data="@dataset",
            patch_iter=_named("PatchIterd", keys="image", patch_size=[0, 0, 1], mode=None),
            transform=_slices(package),
            with_coordinates=False,
        ),
        "dataloader": _loader("@slices"),
        "inferer": _named("SimpleInferer"),
        "postprocessing": _chain(
            _named("Lambdad", keys="pred", func=f"$lambda z: z / z.new_tensor({list(package.temperatures)})"),
            _named("Activationsd", keys="pred", **({"sigmoid": True} if multilabel else {"softmax": True})),
        ),
        "handlers": [_WEIGHTS, saver],
    }


def _pictures(*, color: bool) -> dict[str, Any]:
    """8-bit pictures upright, before black: (C, H, W, 1) in 0..255."""
    deep = "image.mode not in ('1', 'L', 'LA', 'P', 'RGB', 'RGBA')"
    refused = _REFUSE.format("'expected a picture of 8 bits in grey or RGB'")
    shown = f"(lambda image: {_ON_BLACK}.convert('{'RGB' if color else 'L'}'))(ImageOps.exif_transpose(image))"
    reader = _named("PILReader", converter=f"$lambda image: {refused} if {deep} else {shown}", reverse_indexing=False)
    return _chain(
        _image("LoadImaged", reader=reader, image_only=True),
        _image("EnsureChannelFirstd", channel_dim=-1 if color else "no_channel"),
        _image("ToTensord", track_meta=False),
        _image("Lambdad", func="$lambda image: image[..., None].float()", track_meta=False),
    )


def _volumes(package: OpenedPackage) -> dict[str, Any]:
    """Axial slices of a NIfTI volume as a radiologist sees them: (1, H, W, D) in 0..255."""
    return _chain(
        *_loaded(),
        _need(f"(image.abs() <= {LARGEST_VOXEL!r}).all()", _FINITE),
        _image("EnsureChannelFirstd", channel_dim="no_channel"),
        _image("Orientationd", axcodes=SEEN, labels=_LABELS),
        _image("ToTensord", track_meta=False),
        _image("Lambdad", func=_window(package), track_meta=False),
        _image("Lambdad", func="$lambda image: (image * 255 + 0.5).floor()", track_meta=False),
    )


def _dicom(package: OpenedPackage) -> dict[str, Any]:
    """One grey slice of DICOM through a window: (1, H, W, 1) in 0..255; what would need more is refused."""
    refused = _REFUSE.format("'expected a plain DICOM slice; fedmend predict takes others'")
    header = "pydicom.dcmread(d['image'], stop_before_pixels=True)"
    return _chain(
        f"$lambda d: (lambda h: d if {_PLAIN_DICOM} else {refused})({header})",
        _image("LoadImaged", reader=_named("PydicomReader", swap_ij=False), image_only=True),
        _image("EnsureChannelFirstd", channel_dim="no_channel"),
        _image("ToTensord", track_meta=False),
        _image("Lambdad", func="$lambda image: image.reshape(1, *image.shape[1:3], 1)", track_meta=False),
        _image("Lambdad", func=_window(package), track_meta=False),
        _image("Lambdad", func="$lambda image: (image * 255 + 0.5).floor()", track_meta=False),
    )


def _slices(package: OpenedPackage) -> dict[str, Any]:
    """(C, H, W, 1) in 0..255 → the network's input (3, S, S), resized by Pillow."""
    prepared, size = package.preprocessing, package.preprocessing.image_size
    resized = f"np.asarray(Image.fromarray(plane).resize(({size}, {size}), Image.Resampling.BILINEAR))"
    planes = "np.asarray(image, dtype=np.uint8)[..., 0]"
    mean, deviation = list(prepared.pixel_mean), list(prepared.pixel_deviation)
    more = []
    if isinstance(network := package.network(), TimmNetwork):  # which was trained with its own mean and deviation
        scale, shift = (value.flatten().tolist() for value in (network._scale, network._shift))
        more = [
            _image(
                "NormalizeIntensityd",
                subtrahend=[-b / a for a, b in zip(scale, shift, strict=True)],
                divisor=[1 / a for a in scale],
                channel_wise=True,
            )
        ]
    return _chain(
        _image(
            "Lambdad",
            func=f"$lambda image: torch.from_numpy(np.stack([{resized} for plane in np.ascontiguousarray({planes})]))",
            track_meta=False,
        ),
        *([] if prepared.color else [_image("RepeatChanneld", repeats=3)]),
        _image("Lambdad", func="$lambda image: image.float() / 255", track_meta=False),
        _image("NormalizeIntensityd", subtrahend=mean, divisor=deviation, channel_wise=True),
        *more,
        # chr(35) is the sign in front of a slice's number, which MONAI's configurations take for one of their own.
        "$lambda d: {'image': d['image'], 'name': d['name'] if d['original_spatial_shape'][-1] == 1"
        " else d['name'] + chr(35) + str(int(d['patch_coords'][-1][0]))}",
    )


# ---- masks -----------------------------------------------------------------------------------------------------------
def _of_masks(package: OpenedPackage) -> dict[str, Any]:
    size = package.preprocessing.image_size
    planes = f"torch.nn.functional.interpolate(v, ({size}, {size}), mode='bilinear', antialias=True).half().float()"
    asked = f"torch.cat([network(part) for part in ({planes} if v.shape[-2:] != ({size}, {size}) else"
    asked += f" v.half().float()).split({SLICES})])"
    back = f"torch.nn.functional.interpolate({asked}, v.shape[-2:], mode='nearest-exact')"
    # A slice without tissue is background, whatever the network makes of it.
    blank = "(v.amax((1, 2, 3), keepdim=True) > v.amin((1, 2, 3), keepdim=True))"
    scores = [30.0, *[-30.0] * len(package.classes)]
    background = f"torch.tensor({scores}, device=v.device).view(1, -1, 1, 1)"
    whole = f"torch.where({blank}, {back}, {background}).movedim(0, -1)[None]"
    slices = "(torch.as_tensor(volume)[0].movedim(-1, 0).as_subclass(torch.Tensor).contiguous())"
    return {
        "suffixes": list(NIFTI_SUFFIXES),
        "preprocessing": _chain(
            *_loaded(),
            _need("torch.isfinite(image).all()", _FINITE),
            _image("EnsureChannelFirstd", channel_dim="no_channel"),
            _image("Orientationd", axcodes=AXIAL, labels=_LABELS),
            _image("Lambdad", func=_window(package), inv_func="$lambda image: image"),
            _need("(image.amax((0, 1, 2)) > image.amin((0, 1, 2))).any()", _TISSUE),  # in one slice at least
        ),
        "dataset_data": "$[{'image': f} for f in @files]",
        "dataset": _named("Dataset", data="@dataset_data", transform="@preprocessing"),
        "dataloader": _loader("@dataset"),
        "inferer": f"$lambda volume, network: (lambda v: {whole}){slices}",
        "postprocessing": _chain(
            _named("Activationsd", keys="pred", softmax=True),
            _named("AsDiscreted", keys="pred", argmax=True),
            _named("Invertd", keys="pred", transform="@preprocessing", orig_keys="image", nearest_interp=True),
            _named(
                "SaveImaged",
                keys="pred",
                output_dir="@output_dir",
                output_postfix="mask",
                output_dtype="$np.uint8",
                resample=False,
                separate_folder=False,
                data_root_dir="@dataset_dir",
            ),
        ),
        "handlers": [_WEIGHTS],
    }
