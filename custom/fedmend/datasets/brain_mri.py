"""Brain tumour MRI slices (S. Bhuvaji et al., "Brain Tumor Classification (MRI)") → sites that each annotate some
tumours (FedMLP), sites with all four diagnoses of which some are noisy (FedNoRo), or sites that each identify some of
the four (FedLSM).

The source folder holds ``labels.csv`` with the columns image, diagnosis (glioma, meningioma, pituitary, no_tumor) and
split (train, test), and the PNG slices that it names. As multi-label data the three tumours become three binary labels
and no_tumor is all-negative; as single-label data the four diagnoses are the classes. The set has no patient
identifiers, so slices of one patient may be at several sites and in both splits.
"""

import csv
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.data.card import write_card
from fedmend.data.tables import write_table
from fedmend.datasets import command_line
from fedmend.datasets.imperfections import annotated_classes, identified_classes
from fedmend.datasets.noisy_sites import LabelledImages, NoiseProtocol, write_noisy_sites
from fedmend.datasets.site_folders import site_folders
from fedmend.datasets.swapped_labels import NO_NOISE, SwapNoise, missing_and_noisy
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL

CLASSES = ("glioma", "meningioma", "pituitary")
HEALTHY = "no_tumor"
DIAGNOSES = (*CLASSES, HEALTHY)
TABLE = "labels.csv"
ALL = np.ones(len(CLASSES), dtype=bool)
SOURCE = "Brain Tumor Classification (MRI), Bhuvaji et al."


def _read(source: Path) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Split → images, and split → labels (N, 3) int8."""
    if not (source / TABLE).is_file():
        raise FedMendError(f"brain-mri, argument source: expected {TABLE} in it, not found")
    images: dict[str, list[str]] = {"train": [], "test": []}
    labels: dict[str, list[list[int]]] = {"train": [], "test": []}
    with open(source / TABLE, newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        for record in reader:
            where = f"brain-mri, {TABLE} row {reader.line_num}"
            if record.get("diagnosis") not in DIAGNOSES:
                raise FedMendError(f"{where}, column diagnosis: expected one of {list(DIAGNOSES)}, got another value")
            if record.get("split") not in images:
                raise FedMendError(f"{where}, column split: expected train or test, got another value")
            images[record["split"]].append(record["image"])
            labels[record["split"]].append([int(record["diagnosis"] == c) for c in CLASSES])
    return images, {k: np.array(v, dtype=np.int8).reshape(-1, len(CLASSES)) for k, v in labels.items()}


def prepare(
    source: Path,
    out: Path,
    *,
    sites: int = 3,
    annotated_per_site: int = 1,
    val_share: float = 0.1,
    train_per_site: int | None = None,
    noise: SwapNoise = NO_NOISE,
    seed: int = 1037,
) -> None:
    """Deals the slices to ``out/site-1``, ``site-2``, ...; by default these annotate glioma, meningioma and pituitary.

    Each site gets an even share of the training slices at random, ``val_share`` of them as its validation split, and an
    even share of the test slices with all labels; ``truth/train.csv`` keeps the complete labels for evaluation.

    Args:
        source: folder with ``labels.csv`` and the images.
        out: folder for the site folders; must not hold any yet.
        sites: number of sites S.
        annotated_per_site: tumours that each site annotates, 1..3, from its own on (rule ``one_each`` of
            :func:`fedmend.datasets.imperfections.annotated_classes`).
        val_share: share of a site's training slices held out, in [0, 1).
        train_per_site: cap of each site's training slices; None keeps all.
        noise: which sites are noisy besides.
        seed: of the partition and the noise.

    Raises:
        FedMendError: the source does not look as described, ``out`` is taken, or a number is out of its range.
    """
    if any(out.glob("site-*")):
        raise FedMendError("brain-mri, argument out: expected a folder without site folders, found some")
    images, labels = _read(Path(source))
    annotated = annotated_classes(sites, len(CLASSES), annotated_per_site, rule="one_each", seed=seed)
    shuffled = {k: np.random.default_rng([seed, i]).permutation(len(v)) for i, (k, v) in enumerate(images.items())}
    own = [shuffled["train"][s::sites] for s in range(sites)]
    shown, rates = missing_and_noisy(labels["train"], own, annotated, noise=noise, seed=seed)
    for s, mine in enumerate(own):
        held = round(val_share * len(mine))
        train, test = mine[held:][:train_per_site], shuffled["test"][s::sites]
        tables = {
            "val.csv": ("train", mine[:held], shown, annotated[s]),
            "train.csv": ("train", train, shown, annotated[s]),
            "truth/train.csv": ("train", train, labels["train"], ALL),
            "test.csv": ("test", test, labels["test"], ALL),
        }
        arguments = {"seed": seed, "val_share": val_share, "noise": asdict(noise)}
        provenance = {"source": SOURCE, **arguments, "site": {"noise_rate": rates[s]}}
        _write_missing_classes(Path(out) / f"site-{s + 1}", images, tables, str(Path(source).resolve()), provenance)


def _write_missing_classes(
    folder: Path,
    images: Mapping[str, list[str]],
    tables: Mapping[str, tuple[str, np.ndarray, np.ndarray, np.ndarray]],
    image_root: str,
    provenance: Mapping,
) -> None:
    """Writes a site folder; ``tables``: file → split of the set, rows, labels (N, 3) and which classes they show."""
    (folder / "truth").mkdir(parents=True)
    for file, (split, index, labels, known) in tables.items():
        names = [images[split][i] for i in index]
        write_table(folder / file, names, labels[index][:, known], np.array(CLASSES)[known].tolist())
    write_card(
        folder,
        task=MULTILABEL,
        classes=CLASSES,
        splits={k: f"{k}.csv" for k in ("train", "val", "test")},
        truth={"train": "truth/train.csv"},
        image_root=image_root,
        modality="MR",
        provenance=provenance,
    )


def prepare_single_label(
    source: Path,
    out: Path,
    *,
    protocol: NoiseProtocol,
    soft_labels: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """All slices with their diagnosis → sites of which some are noisy; the set's own test split.

    Args:
        source: folder with ``labels.csv`` and the images.
        out: folder for the site folders; must not hold any yet.
        protocol: partition and noise, see :mod:`fedmend.datasets.noisy_sites`.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: the source does not look as described, ``out`` is taken, or a site would get no samples.
    """
    images, labels = _read(Path(source))
    tumours = np.concatenate([labels["train"], labels["test"]])
    write_noisy_sites(
        out,
        LabelledImages(
            images=images["train"] + images["test"],
            labels=_diagnoses(tumours),
            classes=DIAGNOSES,
            image_root=Path(source),
            test=np.arange(len(tumours)) >= len(images["train"]),
            modality="MR",
        ),
        protocol=protocol,
        source_name=SOURCE,
        soft_labels=soft_labels,
        progress=progress,
    )


def prepare_label_sets(
    source: Path,
    out: Path,
    *,
    sites: int = 4,
    classes_per_site: int = 2,
    val_share: float = 0.1,
    seed: int = 1037,
) -> None:
    """All slices as single-label data; a site labels those of its own diagnoses and leaves the others blank (FedLSM).

    Training and test slices of the set are dealt evenly to the sites; ``test.csv`` and ``truth/train.csv`` have all
    labels.

    Args:
        source: folder with ``labels.csv`` and the images.
        out: folder for the site folders; must not hold any yet.
        sites: number of sites S.
        classes_per_site: diagnoses that each site identifies, 2..4, see
            :func:`fedmend.datasets.imperfections.identified_classes`.
        val_share: share of a site's training slices held out, in [0, 1).
        seed: of partition and diagnoses.

    Raises:
        FedMendError: the source does not look as described, ``out`` is taken, a number is out of its range, or a site
            would have training labels of fewer than 2 diagnoses.
    """
    if any(out.glob("site-*")):
        raise FedMendError("brain-mri, argument out: expected a folder without site folders, found some")
    if not 0 <= val_share < 1 or classes_per_site < 2:
        raise FedMendError(
            "brain-mri, arguments val_share and classes_per_site: expected 0 or a number below 1 and at least 2, got"
            f" {val_share} and {classes_per_site}"
        )
    images, tumours = _read(Path(source))
    labels = {k: _diagnoses(v) for k, v in tumours.items()}
    identified = identified_classes(sites, len(DIAGNOSES), classes_per_site, seed=seed)
    arguments = {"sites": sites, "classes_per_site": classes_per_site, "val_share": val_share, "seed": seed}
    shuffled = {k: np.random.default_rng([seed, i]).permutation(len(v)) for i, (k, v) in enumerate(images.items())}
    with site_folders(out, sites, Path(source)) as (folders, image_root):
        for s, (folder, own) in enumerate(zip(folders, identified, strict=True)):
            shares = {k: index[s::sites] for k, index in shuffled.items()}
            provenance = {
                "source": SOURCE,
                "arguments": arguments,
                "site": {"identified": [DIAGNOSES[c] for c in np.flatnonzero(own)]},
            }
            _write_label_sets(folder, images, labels, shares, own, image_root, provenance)


def _write_label_sets(
    folder: Path,
    images: Mapping[str, list[str]],
    labels: Mapping[str, np.ndarray],
    shares: Mapping[str, np.ndarray],
    own: np.ndarray,
    image_root: str,
    provenance: Mapping,
) -> None:
    """Writes one site; ``shares`` are its slices of the set's splits, ``own`` (C,) the diagnoses that it identifies."""
    mine = shares["train"]
    held = round(provenance["arguments"]["val_share"] * len(mine))
    known = np.where(own[labels["train"]], labels["train"], NOT_ANNOTATED)
    if len(found := set(known[mine[held:]].tolist()) - {NOT_ANNOTATED}) < 2:
        raise FedMendError(f"{folder.name}: train.csv, column label: expected at least 2 classes, got {len(found)}")
    parts = {
        "train.csv": ("train", mine[held:], known),
        "val.csv": ("train", mine[:held], known),
        "truth/train.csv": ("train", mine[held:], labels["train"]),
        "test.csv": ("test", shares["test"], labels["test"]),
    }
    for file, (split, index, shown) in parts.items():
        write_table(folder / file, [images[split][i] for i in index], shown[index], DIAGNOSES)
    write_card(
        folder,
        task=SINGLELABEL,
        classes=DIAGNOSES,
        splits={k: f"{k}.csv" for k in ("train", "val", "test")},
        truth={"train": "truth/train.csv"},
        image_root=image_root,
        modality="MR",
        provenance=provenance,
    )


def _diagnoses(tumours: np.ndarray) -> np.ndarray:
    """(N, 3) 0/1 → (N,) numbers of the four diagnoses."""
    return np.where(tumours.any(1), tumours.argmax(1), DIAGNOSES.index(HEALTHY))


def _source_and_out(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "folder with labels.csv (image, diagnosis, split) and the images")


def _add_arguments(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--annotated-per-site", type=int, default=1, help="tumours that each site annotates, 1 to 3")
    parser.add_argument(
        "--train-per-site", type=int, default=None, help="cap of each site's training slices (default: all)"
    )
    command_line.swap_noise_arguments(parser)
    parser.add_argument("--seed", type=int, default=1037)


def _run(args: Namespace) -> None:
    given = command_line.given(args, "sites", "annotated_per_site", "train_per_site", "seed")
    prepare(args.source, args.out, **given, noise=command_line.swap_noise_of(args))
    print(f"{args.sites} site folders are in {args.out}")


def _add_arguments_single(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    command_line.noise_arguments(parser)
    command_line.soft_labels_argument(parser)


def _run_single(args: Namespace) -> None:
    protocol = command_line.protocol_of(args)
    prepare_single_label(args.source, args.out, protocol=protocol, soft_labels=args.soft_labels, progress=print)


def _add_arguments_sets(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--classes-per-site", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1037)


def _run_sets(args: Namespace) -> None:
    prepare_label_sets(args.source, args.out, **command_line.given(args, "sites", "classes_per_site", "seed"))
    print(f"{args.sites} site folders are in {args.out}")


COMMANDS = (
    Command(
        name="brain-mri",
        help="brain tumour MR slices: sites that each annotate some of three tumours",
        add_arguments=_add_arguments,
        run=_run,
    ),
    Command(
        name="brain-mri-single",
        help="the same slices with four diagnoses, some sites noisy",
        add_arguments=_add_arguments_single,
        run=_run_single,
    ),
    Command(
        name="brain-mri-sets",
        help="the same four diagnoses, some of them missing per site",
        add_arguments=_add_arguments_sets,
        run=_run_sets,
    ),
)
