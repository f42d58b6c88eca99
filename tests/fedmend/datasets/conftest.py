"""Tiny downloads, one of each data set; tests that change one take a copy."""

import csv
import shutil

import cxr14_factories
import pytest
import rsna_ich_factories
from factories import write_png
from isic_rows import ISIC_2018, ISIC_2019
from medmnist_factories import make_medmnist

from fedmend.datasets import brain_mri, isic2018, isic2019


@pytest.fixture(scope="session")
def rsna_ich(tmp_path_factory):
    return rsna_ich_factories.write_download(tmp_path_factory.mktemp("rsna_ich"))


@pytest.fixture(scope="session")
def cxr14(tmp_path_factory):
    return cxr14_factories.write_download(tmp_path_factory.mktemp("cxr14"))


@pytest.fixture(scope="session")
def brain(tmp_path_factory):
    """Sixty slices of four diagnoses in turn, the last twelve for the test."""
    source = tmp_path_factory.mktemp("brain")
    names = [f"images/{i}.png,{brain_mri.DIAGNOSES[i % 4]},{'test' if i >= 48 else 'train'}" for i in range(60)]
    (source / "labels.csv").write_text("\n".join(["image,diagnosis,split", *names]) + "\n")
    for i in range(60):
        write_png(source / f"images/{i}.png", i)
    return source


@pytest.fixture(scope="session")
def medmnist(tmp_path_factory):
    return make_medmnist(tmp_path_factory.mktemp("medmnist") / "x.npz")


def write_isic(source, module, rows, lesions, blank):
    """Writes an ISIC download.

    Args:
        source: its folder.
        module: the converter, which says where the pictures and the table of classes lie.
        rows: image, class and lesion of each picture.
        lesions: path of the table of lesions.
        blank: classes that have a column besides those of the converter.
    """
    columns = [*module.CLASSES, *blank]
    (source / module.FOLDER).mkdir(parents=True, exist_ok=True)
    for image, _, _ in rows:
        (source / module.FOLDER / f"{image}.jpg").touch()
    truth = [[image, *(str(float(c == name)) for c in columns)] for image, name, _ in rows]
    tables = {
        module.TABLE: [["image", *columns], *truth],
        lesions: [["image", "lesion_id", "other"], *([image, lesion, "x"] for image, _, lesion in rows)],
    }
    for file, content in tables.items():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        with open(source / file, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(content)
    return source


@pytest.fixture
def write_isic2018():
    """Folder and rows (image, class, lesion) → a download."""
    return lambda source, rows=ISIC_2018: write_isic(source, isic2018, rows, isic2018.LESIONS, ())


@pytest.fixture
def write_isic2019():
    """Folder and rows (image, class, lesion) → a download."""
    return lambda source, rows=ISIC_2019: write_isic(source, isic2019, rows, isic2019.METADATA, ["UNK"])


@pytest.fixture(scope="session")
def isic2018_download(tmp_path_factory):
    return write_isic(tmp_path_factory.mktemp("isic2018"), isic2018, ISIC_2018, isic2018.LESIONS, ())


@pytest.fixture(scope="session")
def isic2019_download(tmp_path_factory):
    """Pictures of every class, of which two in three share their lesion."""
    rows = [(f"ISIC_{i:07d}", isic2019.CLASSES[i // 3 % 8], f"HAM_{i // 3}" if i % 3 else "") for i in range(240)]
    return write_isic(tmp_path_factory.mktemp("isic2019"), isic2019, rows, isic2019.METADATA, ["UNK"])


@pytest.fixture
def own_copy(request, tmp_path):
    """A copy of the download that the module names as ``DOWNLOAD``."""
    return shutil.copytree(request.getfixturevalue(request.module.DOWNLOAD), tmp_path / "download")
