"""Brain tumour MRI slices (S. Bhuvaji et al., "Brain Tumor Classification (MRI)") → sites that each annotate some
tumours (FedMLP), sites with all four diagnoses of which some are noisy (FedNoRo), or sites that each identify some of
the four (FedLSM).

The source folder holds ``labels.csv`` with the columns image, diagnosis (glioma, meningioma, pituitary, no_tumor) and
split (train, test), and the PNG slices that it names. As multi-label data the three tumours become three binary labels
and no_tumor is all-negative; as single-label data the four diagnoses are the classes. The set has no patient
identifiers, so slices of one patient may be at several sites and in both splits.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.data.csv_files import read_csv
from fedmend.data.identity import one_path
from fedmend.datasets import command_line
from fedmend.datasets.checks import SHARES, need, need_part
from fedmend.datasets.imperfections import annotated_classes, identified_classes
from fedmend.datasets.noisy_sites import NoiseProtocol, write_noisy_sites
from fedmend.datasets.samples import Samples, Say, Share, class_by_class, of_known
from fedmend.datasets.site_folders import check_out, write_sites
from fedmend.datasets.swapped_labels import NO_NOISE, SwapNoise, missing_and_noisy

WHERE = "brain-mri"
CLASSES = ("glioma", "meningioma", "pituitary")
HEALTHY = "no_tumor"
DIAGNOSES = (*CLASSES, HEALTHY)
TABLE, COLUMNS = "labels.csv", ("image", "diagnosis", "split")
SOURCE = "Brain Tumor Classification (MRI), Bhuvaji et al."


def _read(source: Path, *, single: bool) -> tuple[Samples, np.ndarray]:
    """All slices, those for training first, and (N,) bool, True in the set's test split."""
    need_part((source / TABLE).is_file(), WHERE, TABLE)
    found: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    rows: dict[str, int] = {}
    header, records = read_csv(source / TABLE, f"{WHERE}, {TABLE}")
    missing = [c for c in COLUMNS if c not in header]
    need(not missing, f"{WHERE}, {TABLE} row 1", f"a header with {list(COLUMNS)}", f"one without {missing}")
    for row, record in records:
        image, diagnosis, split = ((record[c] or "").strip() for c in COLUMNS)
        where, image = f"{WHERE}, {TABLE} row {row}", one_path(image)
        need(diagnosis in DIAGNOSES, f"{where}, column diagnosis", f"one of {list(DIAGNOSES)}", "another value")
        need(split in found, f"{where}, column split", "train or test", "another value")
        # One that is there twice could be in training and test.
        need(image not in rows, f"{where}, column image", "each image once", f"the one of row {rows.get(image)}")
        there = image and (source / image).is_file()
        need(there, f"{where}, column image", "the path of a file below the source", "another one")
        rows[image] = row
        found[split].append((image, DIAGNOSES.index(diagnosis)))
    both = found["train"] + found["test"]
    numbers = np.array([number for _, number in both], dtype=np.int64)
    samples = Samples(
        images=[image for image, _ in both],
        labels=numbers if single else (numbers[:, None] == np.arange(len(CLASSES))).astype(np.int8),
        classes=DIAGNOSES if single else CLASSES,
        image_root=source,
        modality="MR",
    )
    return samples, np.arange(len(both)) >= len(found["train"])


def _parts(
    labels: np.ndarray, test: np.ndarray, identified: np.ndarray, val_share: float, seed: int
) -> list[dict[str, np.ndarray]]:
    """For each site: split → numbers of its slices; the set's own two splits are dealt evenly. Of the training slices
    ``val_share`` is held out, class by class of those that the site labels, ``identified`` (S, C)."""
    sites = len(identified)
    first = int((~test).sum())
    training = np.random.default_rng([seed, 0]).permutation(first)
    testing = first + np.random.default_rng([seed, 1]).permutation(len(test) - first)
    parts = []
    for s in range(sites):
        own = training[s::sites]
        held = round(val_share * len(own))
        drawn = {"train": own[held:], "val": own[:held], "test": testing[s::sites]}
        positives = of_known(labels, identified[s])
        parts.append(class_by_class(drawn, np.arange(len(test)), positives, seed=seed))
    return parts


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
    source, out = Path(source), Path(out)
    check_out(out, WHERE)
    good, words = SHARES["train_per_site"]
    need(good(train_per_site), f"{WHERE}, argument train_per_site", words, f"{train_per_site}")
    samples, test = _read(source, single=False)
    annotated = annotated_classes(sites, len(CLASSES), annotated_per_site, rule="one_each", seed=seed)
    parts = _parts(samples.labels, test, annotated, val_share, seed)
    own = [np.concatenate([part["val"], part["train"]]) for part in parts]
    shown, rates = missing_and_noisy(samples.labels, own, annotated, noise=noise, seed=seed)
    shares = [
        Share(parts={**part, "train": part["train"][:train_per_site]}, known=known, about={"noise_rate": rate})
        for part, known, rate in zip(parts, annotated, rates, strict=True)
    ]
    provenance = {"source": SOURCE, "seed": seed, "val_share": val_share, "noise": asdict(noise)}
    write_sites(out, samples, shares, provenance, shown=shown)


def prepare_single_label(
    source: Path,
    out: Path,
    *,
    protocol: NoiseProtocol,
    soft_labels: Path | None = None,
    progress: Say | None = None,
) -> None:
    """All slices with their diagnosis → sites of which some are noisy; the set's own test split.

    Args:
        source: see :func:`prepare`.
        out: see :func:`prepare`.
        protocol: partition and noise, see :mod:`fedmend.datasets.noisy_sites`.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: the source does not look as described, ``out`` is taken, or a site would get no samples.
    """
    samples, test = _read(Path(source), single=True)
    write_noisy_sites(out, samples, test, protocol, SOURCE, soft_labels, progress)


def prepare_label_sets(
    source: Path, out: Path, *, sites: int = 4, classes_per_site: int = 2, val_share: float = 0.1, seed: int = 1037
) -> None:
    """All slices as single-label data; a site labels those of its own diagnoses and leaves the others blank (FedLSM).

    Training and test slices of the set are dealt evenly to the sites; ``test.csv`` and ``truth/train.csv`` have all
    labels.

    Args:
        source: see :func:`prepare`.
        out: see :func:`prepare`.
        sites: see :func:`prepare`.
        val_share: see :func:`prepare`.
        classes_per_site: diagnoses that each site identifies, 2..4, see
            :func:`fedmend.datasets.imperfections.identified_classes`.
        seed: of partition and diagnoses.

    Raises:
        FedMendError: the source does not look as described, ``out`` is taken, a number is out of its range, or a site
            would have training labels of fewer than 2 diagnoses.
    """
    source, out = Path(source), Path(out)
    check_out(out, WHERE)
    good = 0 <= val_share < 1 and classes_per_site >= 2
    words = "0 or a number below 1 and at least 2"
    need(good, f"{WHERE}, arguments val_share and classes_per_site", words, f"{val_share} and {classes_per_site}")
    samples, test = _read(source, single=True)
    identified = identified_classes(sites, len(DIAGNOSES), classes_per_site, seed=seed)
    parts = _parts(samples.labels, test, identified, val_share, seed)
    shares = [
        Share(parts=part, known=known, about={"identified": [DIAGNOSES[c] for c in np.flatnonzero(known)]})
        for part, known in zip(parts, identified, strict=True)
    ]
    arguments = {"sites": sites, "classes_per_site": classes_per_site, "val_share": val_share, "seed": seed}
    write_sites(out, samples, shares, {"source": SOURCE, "arguments": arguments})


def _source_and_out(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "folder with labels.csv (image, diagnosis, split) and the images")


def _add_arguments(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--annotated-per-site", type=int, default=1, help="tumours that each site annotates, 1 to 3")
    parser.add_argument("--train-per-site", type=int, help="cap of each site's training slices (default: all)")
    command_line.swap_noise_arguments(parser)
    parser.add_argument("--seed", type=int, default=1037)


def _run(args: Namespace) -> None:
    given = command_line.given(args, "sites", "annotated_per_site", "train_per_site", "seed")
    prepare(args.source, args.out, **given, noise=command_line.made(SwapNoise, args))
    say(f"{args.sites} site folders are in {args.out}")


def _add_arguments_single(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    command_line.noise_arguments(parser)
    command_line.soft_labels_argument(parser)


def _run_single(args: Namespace) -> None:
    protocol = command_line.made(NoiseProtocol, args)
    prepare_single_label(args.source, args.out, protocol=protocol, soft_labels=args.soft_labels, progress=say)


def _add_arguments_sets(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--classes-per-site", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1037)


def _run_sets(args: Namespace) -> None:
    prepare_label_sets(args.source, args.out, **command_line.given(args, "sites", "classes_per_site", "seed"))
    say(f"{args.sites} site folders are in {args.out}")


COMMANDS = (
    Command(
        "brain-mri", "brain tumour MR slices: sites that each annotate some of three tumours", _add_arguments, _run
    ),
    Command(
        "brain-mri-single", "the same slices with four diagnoses, some sites noisy", _add_arguments_single, _run_single
    ),
    Command("brain-mri-sets", "the same four diagnoses, some of them missing per site", _add_arguments_sets, _run_sets),
)
