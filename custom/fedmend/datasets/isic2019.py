"""ISIC 2019, dermoscopy with eight diagnoses: the official training download → sites of which some label wrongly
(FedNoRo).

Download: ``ISIC_2019_Training_Input/ISIC_0000000.jpg``, ``ISIC_2019_Training_GroundTruth.csv`` (image and one column
per class, one of them 1.0) and ``ISIC_2019_Training_Metadata.csv`` (of its columns, image and lesion_id are read).
References: Tschandl et al., Scientific Data 5:180161, 2018; Codella et al., ISBI 2018; Hernández-Pérez et al.,
Scientific Data 11:641, 2024.
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.data.csv_files import read_csv
from fedmend.data.identity import is_missing
from fedmend.datasets import command_line
from fedmend.datasets.checks import need, need_part, one_of
from fedmend.datasets.noisy_sites import NoiseProtocol, write_noisy_sites
from fedmend.datasets.samples import Samples, Say, hold_out
from fedmend.errors import FedMendError

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
UNKNOWN = "UNK"
SOURCE = "ISIC 2019 challenge, training set"
TABLE, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
FOLDER = "ISIC_2019_Training_Input"

_VALUES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


def read(
    source: Path, *, test_share: float = 0.3, split: str = "lesion", seed: int = 1037
) -> tuple[Samples, np.ndarray, int]:
    """Reads the official download and splits it into training and test; the order of rows does not matter.

    Args:
        source: folder that holds the two tables and the folder of pictures.
        test_share: share of the lesions (or pictures) in the test split, in (0, 1).
        split: ``lesion`` keeps the pictures of a lesion on one side; ``image`` splits picture by picture, as the paper
            does (70/30), so that lesions are on both sides.
        seed: seed of the split, 0 or more.

    Returns:
        The pictures, sorted by image id, their lesions as patients; (N,) bool, True in the test split; number of
        pictures left out because they are UNK.

    Raises:
        FedMendError: a wrong argument, a download that is incomplete or contradicts itself, or fewer than two lesions.
    """
    source = Path(source)
    good, expected = one_of("lesion", "image")
    need(good(split), "isic2019, argument split", expected, repr(split))
    for name, found in ((TABLE, Path.is_file), (METADATA, Path.is_file), (FOLDER, Path.is_dir)):
        need_part(found(source / name), "isic2019", name)
    ids, labels, lesions = read_tables(source / FOLDER, source / TABLE, source / METADATA, (*CLASSES, UNKNOWN))
    known = np.flatnonzero(labels < len(CLASSES))
    samples = Samples(
        images=[f"{FOLDER}/{ids[i]}.jpg" for i in known],
        labels=labels[known],
        classes=CLASSES,
        image_root=source,
        modality="dermoscopy",
        color=True,
        patients=[lesions[i] for i in known],
    )
    units = lesions if split == "lesion" else ids
    return samples, hold_out([units[i] for i in known], test_share, seed=seed), len(labels) - len(known)


def read_tables(
    pictures: Path, table: Path, metadata: Path, columns: Sequence[str]
) -> tuple[list[str], np.ndarray, list[str]]:
    """Reads the two tables of an ISIC download; the order of rows does not matter.

    Args:
        pictures: folder of ``<image id>.jpg``.
        table: CSV with the columns image and ``columns``, one of which is 1.0 and the others 0.0.
        metadata: CSV with, among others, the columns image and lesion_id.
        columns: C names.

    Returns:
        N image ids, sorted; labels (N,) int64, indices into ``columns``; N lesion ids, where a picture that has none is
        a lesion of its own and gets its image id.

    Raises:
        FedMendError: another header, a row that is not one-hot, lacks its picture or its metadata, or contradicts an
            earlier row.
    """
    lesion_of = _read_lesions(metadata)
    label_of = _read_labels(pictures, table, metadata.name, lesion_of.keys(), columns)
    ids = sorted(label_of)
    return ids, np.array([label_of[i] for i in ids], dtype=np.int64), [lesion_of[i] or i for i in ids]


def _read_lesions(file: Path) -> dict[str, str]:
    """Image id → lesion id, blank where there is none."""
    lesions: dict[str, str] = {}
    header, records = read_csv(file, file.name)
    good, words = {"image", "lesion_id"} <= set(header), "a header with image and lesion_id"
    need(good, f"{file.name} row 1", words, "another one")
    for row, record in records:
        lesion = (record["lesion_id"] or "").strip()
        lesion = "" if is_missing(lesion) else lesion  # R writes NA
        same = lesions.setdefault(record["image"], lesion) == lesion
        need(same, f"{file.name} row {row}", "the lesion_id that an earlier row gives", "another one")
    return lesions


def _read_labels(pictures: Path, file: Path, metadata: str, known: Set[str], columns: Sequence[str]) -> dict[str, int]:
    """Image id → index into ``columns``."""
    files = {entry.name for entry in os.scandir(pictures)}
    labels: dict[str, int] = {}
    header, records = read_csv(file, file.name)
    need(header == ["image", *columns], f"{file.name} row 1", f"the header image,{','.join(columns)}", "another one")
    for row, record in records:
        where, image = f"{file.name} row {row}", record["image"]
        values = [_VALUES.get(record[c]) for c in columns]
        one = None not in record and sorted(values, key=str) == [0] * (len(columns) - 1) + [1]
        need(one, where, "1.0 in one column and 0.0 in the others", "another form")
        if f"{image}.jpg" not in files:
            raise FedMendError(f"{where}: expected the picture of this row in {pictures.name}, not found")
        if image not in known:
            raise FedMendError(f"{where}: expected a row for this picture in {metadata}, found none")
        same = labels.setdefault(image, values.index(1)) == values.index(1)
        need(same, where, "the class that an earlier row gives", "another one")
    return labels


def prepare(
    source: Path,
    out: Path,
    *,
    protocol: NoiseProtocol,
    test_share: float = 0.3,
    split: str = "lesion",
    seed: int = 1037,
    source_name: str = SOURCE,
    soft_labels: Path | None = None,
    progress: Say | None = None,
) -> None:
    """Turns the official download into site folders of which some have noisy labels; the pictures stay where they are.

    Args:
        source: folder of the download.
        out: folder for the site folders; made when missing.
        protocol: how pictures are dealt to sites and labels made noisy; the paper has 20 sites, ``alpha=1.5`` and
            ``presence=0.99`` (Sec. 3.1, Wu et al., IJCAI 2023).
        test_share: see :func:`read`.
        split: see :func:`read`.
        seed: see :func:`read`.
        source_name: what the cards name as source; synthetic data says so here.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: as :func:`read` and :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
    """
    samples, test, unknown = read(source, test_share=test_share, split=split, seed=seed)
    if progress:
        found = f"{len(samples.images)} pictures of {len(set(samples.patients))} lesions"
        progress(f"{found}, {test.sum()} of them for the test; {unknown} of class {UNKNOWN} left out")
    write_noisy_sites(out, samples, test, protocol, source_name, soft_labels, progress)


def _add_arguments(parser: ArgumentParser) -> None:
    words = "folder with ISIC_2019_Training_Input/, ..._GroundTruth.csv and ..._Metadata.csv"
    command_line.source_and_out(parser, words)
    command_line.noise_arguments(parser, alpha=1.5, presence=0.99)
    words = "image is the paper's split, which leaks lesions"
    parser.add_argument("--split", choices=["lesion", "image"], default="lesion", help=words)
    parser.add_argument("--test-share", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1037, help="of the test split")
    command_line.soft_labels_argument(parser)


def _run(args: Namespace) -> None:
    given = command_line.given(args, "split", "test_share", "seed", "soft_labels")
    prepare(args.source, args.out, protocol=command_line.made(NoiseProtocol, args), **given, progress=say)


COMMANDS = (Command("isic2019", "ISIC 2019 dermoscopy, some sites noisy", _add_arguments, _run),)
