"""How converters write site folders: aside, and moved into place when all are complete."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path

import numpy as np

from fedmend.data.card import write_card
from fedmend.data.tables import write_table
from fedmend.datasets.checks import need
from fedmend.datasets.samples import Samples, Share, check_trainable, shown_labels
from fedmend.labels import SINGLELABEL


def check_out(out: Path, where: str) -> None:
    """Refuses a folder that has site folders.

    Args:
        out: folder for the site folders.
        where: the data set.

    Raises:
        FedMendError: ``out`` is taken.
    """
    taken = out.exists() and (not out.is_dir() or any(out.glob("site-*")))
    need(not taken, f"{where}, argument out", "a folder without site folders", "one that has them or a file")


def check_empty(out: Path, where: str = "") -> None:
    """Refuses a folder that holds something; makes the folder above.

    Args:
        out: folder that is not there yet, or empty.
        where: what the message starts with.

    Raises:
        FedMendError: ``out`` is taken.
    """
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    need(not taken, f"{where}argument out", "a folder that is empty or not there", "another")
    out.parent.mkdir(parents=True, exist_ok=True)


def root_in_card(images: Path, site: Path, tree: Path) -> str:
    """What a card says as ``image_root``: in one tree images and site can be moved together, if the path is relative.

    Args:
        images: absolute folder of the images.
        site: absolute site folder.
        tree: absolute folder above the latter.
    """
    return Path(os.path.relpath(images, site)).as_posix() if images.is_relative_to(tree) else str(images)


@contextmanager
def site_folders(out: Path, count: int, images: Path) -> Iterator[tuple[list[Path], str]]:
    """Makes ``out/site-1`` .. ``out/site-<count>``, all of them or, when the block fails, none.

    Args:
        out: folder for the site folders; made when missing.
        count: S, at least 1.
        images: folder of the images, which stay where they are.

    Yields:
        the S folders to write into, each with a folder ``truth``, and what their cards say as ``image_root``.
    """
    images, out = images.resolve(), out.resolve()
    image_root = root_in_card(images, out / "site-1", out.parent)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=out) as partial:
        folders = [Path(partial) / f"site-{s + 1}" for s in range(count)]
        for folder in folders:
            (folder / "truth").mkdir(parents=True)
        yield folders, image_root
        for folder in folders:
            os.rename(folder, out / folder.name)


def write_sites(
    out: Path, samples: Samples, shares: Sequence[Share], provenance: Mapping, *, shown: np.ndarray | None = None
) -> None:
    """Writes ``out/site-1`` .. ``out/site-S``: the one way in which labelled samples become site folders.

    ``train.csv`` and ``val.csv`` have the labels of the classes that the site knows: columns of multi-label data, rows
    of single-label data, where those of other classes are blank. ``test.csv`` has all labels, ``truth/train.csv`` the
    complete ones of ``train.csv``.

    Args:
        out: folder for the site folders; made when missing.
        samples: all samples.
        shares: what each of the S sites gets.
        provenance: what all cards say of how the folders were made.
        shown: (N, C) or (N,) labels of ``train.csv`` and ``val.csv`` where some are wrong, as ``samples.labels``; None:
            the true ones.

    Raises:
        FedMendError: a site with training labels that it could not learn from.
    """
    shown = samples.labels if shown is None else shown
    everything = np.ones(len(samples.classes), dtype=bool)
    for s, share in enumerate(shares, start=1):
        check_trainable(f"site-{s}: train.csv", samples.classes, shown[share.parts["train"]], share.known)
    with site_folders(out, len(shares), samples.image_root) as (folders, image_root):
        for folder, share in zip(folders, shares, strict=True):
            for name, index in share.parts.items():
                labels, known = (samples.labels, everything) if name == "test" else (shown, share.known)
                write_split(folder / f"{name}.csv", samples, index, labels, known)
            write_split(folder / "truth" / "train.csv", samples, share.parts["train"], samples.labels, everything)
            write_card(
                folder,
                task=samples.kind,
                classes=samples.classes,
                splits={name: f"{name}.csv" for name in share.parts},
                truth={"train": "truth/train.csv"},
                image_root=image_root,
                modality=samples.modality,
                window=samples.window,
                color=samples.color,
                sample=samples.sample,
                provenance={**provenance, "site": share.about},
            )


def write_split(file: Path, samples: Samples, index: np.ndarray, labels: np.ndarray, known: np.ndarray) -> None:
    """Writes the table of a split.

    Args:
        file: the CSV.
        samples: all samples.
        index: numbers of those in the split.
        labels: labels of all samples, in the form of ``samples.labels``.
        known: (C,) bool, the classes whose labels are shown.
    """
    if samples.kind == SINGLELABEL:
        cells, columns = shown_labels(labels[index], known), samples.classes
    else:
        cells, columns = labels[index][:, known], list(compress(samples.classes, known))
    patients, studies = ([keys[i] for i in index] if len(keys) else () for keys in (samples.patients, samples.studies))
    write_table(file, [samples.images[i] for i in index], cells, columns, patients=patients, studies=studies)
