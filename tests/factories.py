"""Tiny site folders and image files; no torch here, so that child processes start fast."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

from fedmend.data.card import write_card
from fedmend.data.tables import write_table
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SINGLELABEL

ROOT = Path(__file__).resolve().parents[1]
CLASSES = ("edema", "fracture", "nodule")
# Six samples; edema and nodule are annotated, the third edema and the last nodule are blank.
LABELS = np.array([[1, -1, 0], [0, -1, 1], [-1, -1, 0], [0, -1, 0], [1, -1, 1], [0, -1, -1]], dtype=np.int8)


def refused(sentence):
    """Expects a FedMendError whose message is this sentence, whole."""
    return pytest.raises(FedMendError, match=f"^{re.escape(sentence)}$")


def pixels(number, size=8):
    """(size, size) uint8, different for each number."""
    return np.random.default_rng((number, size)).integers(0, 256, (size, size), dtype=np.uint8)


def color_pixels(number, size=8):
    """(size, size, 3) uint8, different for each number."""
    return np.random.default_rng((number, size, 3)).integers(0, 256, (size, size, 3), dtype=np.uint8)


def write_png(path, number=0, size=8, *, color=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(color_pixels(number, size) if color else pixels(number, size)).save(path)


def make_dicom(path, stored, **fields):
    """Writes a CT slice of (H, W) or (frames, H, W) stored int16 values; ``fields`` set or (None) delete header
    fields."""
    stored = np.asarray(stored, dtype="<i2")
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    image.SOPClassUID, image.SOPInstanceUID = CTImageStorage, "1.2.3"
    image.Rows, image.Columns = stored.shape[-2:]
    image.BitsAllocated = image.BitsStored = 16
    image.HighBit, image.PixelRepresentation, image.SamplesPerPixel = 15, 1, 1
    image.PhotometricInterpretation = "MONOCHROME2"
    image.RescaleSlope, image.RescaleIntercept = 1, 0
    for name, value in fields.items():
        if value is None:
            delattr(image, name)
        else:
            setattr(image, name, value)
    image.PixelData = stored.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save_as(path, enforce_file_format=True)


def make_site_folder(
    folder,
    labels=LABELS,
    *,
    columns=None,
    splits=(),
    truth=None,
    size=8,
    window=None,
    classes=CLASSES,
    suffix=".png",
    color=False,
    studies=(),
):
    """A site folder whose ``train.csv`` names img0, img1, ...

    Args:
        folder: made here.
        labels: (N, C) of 1, 0, -1, or (N,) class numbers or -1 of single-label data.
        columns: class numbers that get a column; default: those with any label.
        splits: names of further splits, which get the same images and all columns.
        truth: (N, C) complete training labels.
        size: edge length of the PNG files.
        window: the card's window.
        classes: C names.
        suffix: ``.png``, or ``.dcm`` to write DICOM slices.
        color: PNG files and card are in colour.
        studies: N names of the study of each image, whose label it is.
    """
    labels = np.asarray(labels)
    single = labels.ndim == 1
    folder.mkdir(parents=True, exist_ok=True)
    images = [f"img{i}{suffix}" for i in range(len(labels))]
    for i, image in enumerate(images):
        if suffix == ".png":
            write_png(folder / "images" / image, i, size, color=color)
        else:
            make_dicom(folder / "images" / image, pixels(i, size).astype(np.int16))
    patients = [f"p of {study}" for study in studies] or [f"p{i}" for i in range(len(labels))]
    if single:
        write_table(folder / "train.csv", images, labels, classes, patients=patients, studies=studies)
    else:
        columns = np.flatnonzero((labels >= 0).any(0)) if columns is None else np.array(columns, dtype=int)
        names = [classes[c] for c in columns]
        write_table(folder / "train.csv", images, labels[:, columns], names, patients=patients, studies=studies)
    for split in splits:
        write_table(folder / f"{split}.csv", images, np.maximum(labels, 0), classes, studies=studies)
    if truth is not None:
        write_table(folder / "truth.csv", images, np.asarray(truth), classes, studies=studies)
    write_card(
        folder,
        task=SINGLELABEL if single else MULTILABEL,
        classes=classes,
        splits={name: f"{name}.csv" for name in ("train", *splits)},
        image_root="images",
        truth={} if truth is None else {"train": "truth.csv"},
        window=window,
        color=color,
        sample="study" if studies else "image",
    )
    return folder
