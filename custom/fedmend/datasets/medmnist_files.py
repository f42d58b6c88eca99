"""Reads a file of MedMNIST v2, 2-D: ``chestmnist_64.npz`` with the arrays ``train_images`` (N, H, W) or (N, H, W, 3)
and ``train_labels`` (N, 1) or (N, C), both uint8, and the same of ``val`` and ``test``.

Images are read one after the other, since the larger files hold more than a computer does; nothing is unpickled.
Reference: Yang et al., Scientific Data 10:41, 2023.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fedmend.datasets.checks import need
from fedmend.errors import FedMendError

SOURCE = "medmnist, argument source"
SPLITS = ("train", "val", "test")
CITATION = "Yang et al., MedMNIST v2, Scientific Data 10:41, 2023, https://doi.org/10.1038/s41597-022-01721-8"
MOST_IMAGES, MOST_CLASSES, LARGEST_EDGE = 1_000_000, 1_000, 1_024
MOST_BYTES = 200_000_000  # of labels, which are read at once


def _names(text: str) -> tuple[str, ...]:
    """Names, of which some have commas."""
    return tuple(text.split("; "))


_ORGANS = _names(
    "bladder; femur-left; femur-right; heart; kidney-left; kidney-right; liver; lung-left; lung-right; pancreas; spleen"
)
_ABDOMEN = "LiTS (Bilic et al.) and its organ boxes (Xu et al.)"
_FINDINGS = _names(
    "atelectasis; cardiomegaly; effusion; infiltration; mass; nodule; pneumonia; pneumothorax; consolidation; edema;"
    " emphysema; fibrosis; pleural; hernia"
)


@dataclass(frozen=True)
class KnownSet:
    """What MedMNIST says of a set: class names, modality for people, where the images are from, licence."""

    classes: tuple[str, ...]
    modality: str
    source: str
    licence: str = "CC BY 4.0"


_PATHOLOGY = _names(
    "adipose; background; debris; lymphocytes; mucus; smooth muscle; normal colon mucosa; cancer-associated stroma;"
    " colorectal adenocarcinoma epithelium"
)
_SKIN = _names(
    "actinic keratoses and intraepithelial carcinoma; basal cell carcinoma; benign keratosis-like lesions;"
    " dermatofibroma; melanoma; melanocytic nevi; vascular lesions"
)
_RETINA = _names("choroidal neovascularization; diabetic macular edema; drusen; normal")
_BLOOD = _names(
    "basophil; eosinophil; erythroblast; immature granulocytes(myelocytes, metamyelocytes and promyelocytes);"
    " lymphocyte; monocyte; neutrophil; platelet"
)
_KIDNEY = _names(
    "Collecting Duct, Connecting Tubule; Distal Convoluted Tubule; Glomerular endothelial cells;"
    " Interstitial endothelial cells; Leukocytes; Podocytes; Proximal Tubule Segments; Thick Ascending Limb"
)
KNOWN: Mapping[str, KnownSet] = {
    "pathmnist": KnownSet(_PATHOLOGY, "SM", "NCT-CRC-HE (Kather et al.)"),
    "chestmnist": KnownSet(_FINDINGS, "DX", "NIH ChestX-ray14 (Wang et al.)"),
    "dermamnist": KnownSet(_SKIN, "XC", "HAM10000 (Tschandl et al.)", "CC BY-NC 4.0"),
    "octmnist": KnownSet(_RETINA, "OPT", "Kermany et al."),
    "pneumoniamnist": KnownSet(("normal", "pneumonia"), "DX", "Kermany et al."),
    "retinamnist": KnownSet(("0", "1", "2", "3", "4"), "OP", "DeepDRiD (Liu et al.)"),
    "breastmnist": KnownSet(("malignant", "normal, benign"), "US", "Al-Dhabyani et al."),
    "bloodmnist": KnownSet(_BLOOD, "SM", "Acevedo et al."),
    "tissuemnist": KnownSet(_KIDNEY, "SM", "BBBC051 (Woloshuk et al.; Ljosa et al.)"),
    "organamnist": KnownSet(_ORGANS, "CT", _ABDOMEN),
    "organcmnist": KnownSet(_ORGANS, "CT", _ABDOMEN),
    "organsmnist": KnownSet(_ORGANS, "CT", _ABDOMEN),
}


@dataclass(frozen=True)
class MedMNIST:
    """A file, its images unread.

    Attributes:
        file: the file.
        shapes: split → (N, H, W) or (N, H, W, 3) of its images.
        labels: split → (N,) int64 class numbers, or (N, C) int8 of 0 and 1 where images have several classes.
        classes: C names.
        known: what MedMNIST says of the set; None of a file of another name.
        name: its name, ``chestmnist`` of ``chestmnist_64.npz``.
    """

    file: Path
    shapes: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, np.ndarray]
    classes: tuple[str, ...]
    known: KnownSet | None
    name: str

    @property
    def multilabel(self) -> bool:
        """Whether an image may have several classes."""
        return self.labels["train"].ndim == 2

    @property
    def color(self) -> bool:
        """Whether the images are in colour."""
        return len(self.shapes["train"]) == 4

    def hot(self, split: str) -> np.ndarray:
        """(N, C) int8 of 0 and 1, also where each image has one class."""
        labels = self.labels[split]
        return labels if self.multilabel else (labels[:, None] == np.arange(len(self.classes))).astype(np.int8)

    def images(self, split: str) -> Iterator[np.ndarray]:
        """One image after the other, uint8.

        Raises:
            FedMendError: the file ends before its images do, or is damaged.
        """
        number, *shape = self.shapes[split]
        with _array(self.file, f"{split}_images") as (stream, _, _):
            for _ in range(number):
                yield np.frombuffer(_exactly(stream, int(np.prod(shape))), dtype=np.uint8).reshape(shape)


def read_medmnist(file: Path) -> MedMNIST:
    """Reads the labels of a file and checks what it says about its images.

    Args:
        file: the file; the name before ``_64.npz`` or ``.npz`` tells which set it is.

    Raises:
        FedMendError: no such file, another format, 3-D images, or arrays that do not fit each other.
    """
    shapes, labels = {}, {}
    for split in SPLITS:
        with _array(file, f"{split}_images") as (_, shape, dtype):
            _check_images(f"{split}_images", shape, dtype)
            shapes[split] = shape
        labels[split] = _labels(file, split, shape[0])
    name = re.sub(r"_\d+$", "", file.stem)
    found = {"images": {s[1:] for s in shapes.values()}, "labels": {v.shape[1:] for v in labels.values()}}
    for what, several in found.items():
        need(len(several) == 1, SOURCE, f"{what} of one shape in all splits", "several")
    known, width = KNOWN.get(name), labels["train"].shape[1]
    largest = max(int(v.max(initial=0)) for v in labels.values())
    count = width if width > 1 else largest + 1
    classes = known.classes if known else tuple(f"class_{c}" for c in range(count))
    fits = largest < 2 and width == len(classes) if width > 1 else largest < len(classes)
    words = f"the labels of {name}" if known else "labels of at least 2 classes"
    need(fits and len(classes) >= 2, SOURCE, words, "others")
    kept = {k: v.astype(np.int8) if width > 1 else v[:, 0].astype(np.int64) for k, v in labels.items()}
    return MedMNIST(file, shapes, kept, classes, known, name)


def _check_images(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    flat = len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)
    got = f"{len(shape)} dimensions; 3-D sets are not supported"
    need(flat, SOURCE, f"2-D images in {name}, (N, H, W) or (N, H, W, 3)", got)
    need(dtype == np.uint8, SOURCE, f"numbers of type uint8 in {name}", "others")
    fits = 1 <= shape[0] <= MOST_IMAGES and all(1 <= edge <= LARGEST_EDGE for edge in shape[1:3])
    need(fits, SOURCE, f"1 to {MOST_IMAGES} images of at most {LARGEST_EDGE} pixels in {name}", "others")


def _labels(file: Path, split: str, number: int) -> np.ndarray:
    """(N, C) of one split."""
    with _array(file, f"{split}_labels") as (stream, shape, dtype):
        good = dtype.kind in "iu" and len(shape) == 2 and shape[0] == number and 1 <= shape[1] <= MOST_CLASSES
        good = good and number * shape[1] * dtype.itemsize <= MOST_BYTES
        need(good, SOURCE, f"{number} rows of whole numbers in {split}_labels", "another array")
        labels = np.frombuffer(_exactly(stream, number * shape[1] * dtype.itemsize), dtype=dtype).reshape(shape)
    good = labels.min() >= 0 and labels.max() < MOST_CLASSES
    need(good, SOURCE, f"numbers from 0 to {MOST_CLASSES - 1} in {split}_labels", "others")
    return labels


@contextmanager
def _array(file: Path, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype]]:
    """A stream that has come to the values of an array, its shape and type."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, by_column, dtype = read[np.lib.format.read_magic(stream)](stream)
            need(not dtype.hasobject, SOURCE, f"numbers in {name}", "Python objects")  # pickles can run any code
            need(not by_column or len(shape) <= 1, SOURCE, f"{name} in C order", "Fortran order")
            yield stream, shape, dtype
    except FileNotFoundError:
        raise _wrong("a file", "none") from None
    except KeyError:
        raise _wrong(f"the array {name} in a format of numpy", "none") from None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as e:
        raise _wrong("an .npz file", f"a damaged one or another ({type(e).__name__})") from None


def _exactly(stream: IO[bytes], size: int) -> bytes:
    if len(content := stream.read(size)) < size:
        raise EOFError
    return content


def _wrong(expected: str, got: str) -> FedMendError:
    return FedMendError(f"{SOURCE}: expected {expected}, got {got}")
