"""Tiny NIfTI files and segmentation site folders."""

import json

import nibabel
import numpy as np
import torch

from fedmend.data.card import load_card, write_card
from fedmend.data.site import Opening
from fedmend.data.slices import load_volumes
from fedmend.labels import SEGMENTATION

IDENTITY = np.eye(4)
GREY = (500.0, 1000.0)  # window in which a voxel v becomes v / 1000
SHAPE = (6, 8, 4)
RAS = np.diag([1.0, 1.0, 2.0, 1.0])
# The same grid stored from superior to anterior to left: axes z, y, x; y and x run backwards.
ZYX = np.array([[0.0, 0, -1, 5], [0, -1, 0, 7], [2, 0, 0, 0], [0, 0, 0, 1]])


def write_nifti(path, array, affine=IDENTITY):
    """Writes ``array`` in its own data type (bool as uint8) and makes the folders above it."""
    array = np.asarray(array)
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.astype(np.uint8) if array.dtype == bool else array, affine), path)


def voxels(number, shape=(8, 8, 4)):
    """int16 grey values from 1 to 1000, different for each number."""
    return np.random.default_rng((number, *shape)).integers(1, 1001, shape, dtype=np.int16)


def lesion(*boxes, shape=(8, 8, 4)):
    """bool mask with boxes ((x, x), (y, y), (z, z)); by default one of 2 x 3 voxels on slices 1 and 2."""
    mask = np.zeros(shape, dtype=bool)
    for box in boxes or (((2, 4), (3, 6), (1, 3)),):
        mask[tuple(slice(*ends) for ends in box)] = True
    return mask


def make_volume_site(
    folder,
    train=None,
    *,
    test=None,
    complete=None,
    slices=None,
    affine=IDENTITY,
    window=None,
    foreground=1,
    classes=("lesion",),
    **card,
):
    """A segmentation site folder with ``datalist.json``; volumes are ``images/case-1.nii.gz``, case-2, ...

    Args:
        folder: made here.
        train: training masks (X, Y, Z), 0 and 1, in the order of the axes that ``affine`` says; default: two
            :func:`lesion`.
        test: test masks; default: one :func:`lesion`; () for no test split.
        complete: complete training masks, which become the truth.
        slices: axial slices listed for each training volume.
        affine: of all files.
        window: the card's window.
        foreground: value of the lesion in all label files.
        classes: C names; with several the masks hold their values.
        card: further fields of the card.
    """
    train = [lesion(), lesion(((5, 7), (1, 3), (2, 4)))] if train is None else train
    test = [lesion()] if test is None else test

    def write(masks, labels, first):
        items = []
        for i, mask in enumerate(masks, first):
            mask = np.asarray(mask)
            image, label = f"case-{i + 1}.nii.gz", f"{labels}/case-{i + 1}.nii.gz"
            write_nifti(folder / "images" / image, voxels(i, mask.shape), affine)
            write_nifti(folder / label, (mask * foreground).astype(np.uint8), affine)
            items.append({"image": image, "label": label})
        return items

    sections = {"training": write(train, "labels", 0), "test": write(test, "labels", len(train))}
    if slices is not None:
        for item, listed in zip(sections["training"], slices, strict=True):
            item["slices"] = listed
    write_datalist(folder, {name: items for name, items in sections.items() if items})
    if complete is not None:
        write_datalist(folder, {"training": write(complete, "truth/labels", 0)}, "truth/datalist.json")
    write_card(
        folder,
        task=SEGMENTATION,
        classes=classes,
        splits={"train": "datalist.json"} | ({"test": "datalist.json"} if len(test) else {}),
        truth={} if complete is None else {"train": "truth/datalist.json"},
        image_root="images",
        window=window,
        foreground=foreground,
        **card,
    )
    return folder


def write_datalist(folder, sections, file="datalist.json"):
    """Writes a datalist of section → items."""
    (folder / file).write_text(json.dumps(sections), encoding="utf-8")


def read_datalist(folder, file="datalist.json"):
    """Section → items."""
    return json.loads((folder / file).read_text(encoding="utf-8"))


def as_zyx(array):
    """Voxels of the grid ``RAS`` in the axes of ``ZYX``."""
    return array[::-1, ::-1].transpose(2, 1, 0)


def save_scaled(path, mask):
    """A mask of floating numbers saved as whole ones, which nibabel scales to the whole range of the data type."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    nibabel.save(nibabel.Nifti1Image(mask.astype(np.float64), IDENTITY, header), path)


def open_volumes(folder, *, size=8, **options):
    """The data of a segmentation site folder; the store lies beside the folder."""
    opening = Opening(folder.parent / "cache", size, torch.device("cpu"), **options)
    return load_volumes(load_card(folder, "site-1"), ["lesion"], opening)


def with_card(folder, **fields):
    """Changes fields of ``site.json``."""
    card = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps(card | fields))
    return folder


def with_item(folder, *, number=0, section="training", **fields):
    """Changes one item of the datalist."""
    sections = read_datalist(folder)
    sections[section][number] |= fields
    write_datalist(folder, sections)
    return folder
