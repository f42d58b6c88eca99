"""Reads the official NIH download of ChestX-ray14: ``Data_Entry_2017.csv`` (of its columns, image, findings, patient
and view are read), ``train_val_list.txt``, ``test_list.txt`` and the films in ``images/`` or, as the archives unpack,
in ``images_001/images/`` and so on.

Reference: Wang et al., CVPR 2017.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from fedmend.data.csv_files import read_csv, read_text
from fedmend.datasets.checks import need, need_part
from fedmend.errors import FedMendError

CLASSES = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
HEALTHY = "No Finding"
TABLES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")  # NIH has offered the labels under both names
TRAIN_LIST, TEST_LIST = "train_val_list.txt", "test_list.txt"
COLUMNS = ("Image Index", "Finding Labels", "Patient ID", "View Position")


@dataclass(frozen=True)
class Films:
    """N films sorted by name: (N,) str names, patients and views, (N,) rows in the table, (N, 14) int8 labels."""

    images: np.ndarray
    patients: np.ndarray
    views: np.ndarray
    rows: np.ndarray
    labels: np.ndarray

    def take(self, index: np.ndarray) -> "Films":
        """The films with these indices, in this order."""
        return Films(*(getattr(self, f.name)[index] for f in fields(self)))


def find_table(source: Path) -> str:
    """Name of the table of findings.

    Raises:
        FedMendError: there is none.
    """
    found = [name for name in TABLES if (source / name).is_file()]
    need_part(found, "cxr14", TABLES[0])
    return found[0]


def read_films(source: Path, table: str) -> Films:
    """All films of the table.

    Raises:
        FedMendError: columns that lack, a blank, an image twice or an unknown finding.
    """
    found: dict[str, tuple[str, str, str, int, list[int]]] = {}
    header, records = read_csv(source / table, table)
    missing = [c for c in COLUMNS if c not in header]
    need(not missing, f"{table} row 1", f"a header with {list(COLUMNS)}", f"one without {missing}")
    for row, record in records:
        image, findings, patient, view = ((record[c] or "").strip() for c in COLUMNS)
        where = f"{table} row {row}"
        need(image and patient, where, "an image and a patient", "a blank")
        if image in found:
            raise FedMendError(f"{where}: expected each image once, got the one of row {found[image][3]}")
        found[image] = image, patient, view, row, _parse_findings(findings, where)
    images, patients, views, rows, labels = zip(*found.values(), strict=True) if found else [()] * 5
    films = Films(
        images=np.array(images, dtype=str),
        patients=np.array(patients, dtype=str),
        views=np.array(views, dtype=str),
        rows=np.array(rows, dtype=np.int64),
        labels=np.array(labels, dtype=np.int8).reshape(-1, len(CLASSES)),
    )
    return films.take(np.argsort(films.images))


def _parse_findings(text: str, where: str) -> list[int]:
    names = [] if text == HEALTHY else [name.strip() for name in text.split("|")]
    for name in names:
        if name not in CLASSES:
            # Of a column that slipped, anything could stand here.
            got = repr(name) if name.replace("_", "").replace(" ", "").isalpha() else f"text of {len(name)} characters"
            raise FedMendError(
                f"{where}, column Finding Labels: expected {HEALTHY!r} alone or names out of {list(CLASSES)}, got {got}"
            )
    return [int(c in names) for c in CLASSES]


def read_lists(source: Path, films: Films, table: str) -> np.ndarray:
    """(N,) bool, True for the films of the official test list.

    Raises:
        FedMendError: no lists, one in another encoding, a film in none or both of them, or a patient in both.
    """
    for name in (TRAIN_LIST, TEST_LIST):
        need_part((source / name).is_file(), "cxr14", name, " for split 'official'")
    train, test = (
        np.isin(films.images, np.array(read_text(source / name, name).split(), dtype=str))
        for name in (TRAIN_LIST, TEST_LIST)
    )
    if len(wrong := np.flatnonzero(train == test)):
        raise FedMendError(
            f"{table} row {films.rows[wrong].min()}: expected the image in one of {TRAIN_LIST} and {TEST_LIST}, found"
            f" it in {'both' if test[wrong[films.rows[wrong].argmin()]] else 'neither'}"
        )
    if len(both := np.flatnonzero(test & np.isin(films.patients, films.patients[train]))):
        raise FedMendError(
            f"{table} row {films.rows[both].min()}: expected all images of a patient in one of {TRAIN_LIST} and"
            f" {TEST_LIST}, found them in both"
        )
    return test


def find_files(source: Path, films: Films, table: str) -> list[str]:
    """Path of each film below the download.

    Raises:
        FedMendError: no folder of films, or films without a file.
    """
    folders = [folder for folder in (source / "images", *sorted(source.glob("images_*/images"))) if folder.is_dir()]
    need_part(bool(folders), "cxr14", "images/ or images_001/images/ and so on")
    paths = {
        e.name: f"{folder.relative_to(source).as_posix()}/{e.name}" for folder in folders for e in os.scandir(folder)
    }
    missing = films.rows[[name not in paths for name in films.images]]
    if len(missing):
        raise FedMendError(
            f"{table}: expected a file for each of {len(films.images)} images, got none for {len(missing)}, the first"
            f" in row {missing.min()}"
        )
    return [paths[name] for name in films.images]
