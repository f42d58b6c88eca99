"""MedMNIST v2 (2-D sets, 28 to 224 pixels) → sites that each annotate some classes (FedMLP; FedLSM where an image has
several), sites of which some are noisy (FedNoRo), or sites that each identify some of the classes (FedLSM).

The set's own splits are kept; those of its images that are used are written as PNG files beside the site folders. No
image names its patient. The result depends on the file and the arguments alone.
"""

import math
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.files import whole_folder
from fedmend.basics.words import say
from fedmend.datasets import command_line
from fedmend.datasets.checks import need
from fedmend.datasets.imperfections import identified_classes
from fedmend.datasets.medmnist_files import CITATION, SPLITS, MedMNIST, read_medmnist
from fedmend.datasets.noisy_sites import NoiseProtocol, write_noisy_sites
from fedmend.datasets.samples import Samples, Say, Share
from fedmend.datasets.site_folders import check_empty, write_sites

IMAGES, NAME = "images", "{}-{:06d}.png"
Chosen = Mapping[str, np.ndarray]  # split → numbers of the images that are used


def prepare(
    source: Path,
    out: Path,
    *,
    sites: int = 5,
    classes_per_site: int | None = None,
    train_per_site: int | None = None,
    label_sets: bool = False,
    seed: int = 1037,
    progress: Say | None = None,
) -> None:
    """Writes ``out/site-1`` .. ``out/site-S``, which each know some classes, and ``out/images``.

    Each split is shuffled and dealt evenly. ``train.csv`` and ``val.csv`` have the labels of the site's own classes,
    ``test.csv`` and ``truth/train.csv`` all.

    Args:
        source: file of MedMNIST.
        out: folder that is not there yet, or empty.
        sites: number of sites S.
        classes_per_site: classes that each site knows; None: as few as reach all, with ``label_sets`` at least 2.
        train_per_site: most training images of a site; None: all.
        label_sets: single-label data, in which an image of another class is blank; otherwise multi-label data with a
            column for each own class, where an image of one class has 0 in the other columns.
        seed: of the deal and of the classes, 0 or more.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument or file, ``out`` is taken, or a site would learn nothing from its labels.
    """
    say, data = progress or (lambda line: None), read_medmnist(Path(source))
    _check_arguments(sites, train_per_site, seed)
    if label_sets:
        _need_one_class(data)
    count = len(data.classes)
    least = max(math.ceil(count / sites), 2 if label_sets else 1)
    own = identified_classes(sites, count, least if classes_per_site is None else classes_per_site, seed=seed)
    arguments = {"sites": sites, "classes_per_site": int(own[0].sum()), "train_per_site": train_per_site, "seed": seed}
    deals = {split: _deal(data, split, sites, train_per_site, seed) for split in SPLITS}
    everything = {split: np.arange(len(data.labels[split])) for split in SPLITS}
    before = dict(zip(SPLITS, np.cumsum([0, *map(len, everything.values())]).tolist(), strict=False))
    shares = [
        Share(
            parts={split: deal[s] + before[split] for split, deal in deals.items()},
            known=known,
            about={"classes": [data.classes[c] for c in np.flatnonzero(known)]},
        )
        for s, known in enumerate(own)
    ]
    with _whole(Path(out)) as folder:
        samples = _samples(data, everything, folder, single=label_sets)
        write_sites(folder, samples, shares, {**_provenance(data), "arguments": arguments})
        _write_images(data, {k: np.concatenate(deal) for k, deal in deals.items()}, folder / IMAGES, say)
    say(f"{sites} site folders written")


def prepare_single_label(
    source: Path,
    out: Path,
    *,
    protocol: NoiseProtocol,
    train_per_site: int | None = None,
    soft_labels: Path | None = None,
    progress: Say | None = None,
) -> None:
    """A set with one class an image → sites of which some are noisy; the set's own test split, no validation split.

    Args:
        source: see :func:`prepare`.
        out: see :func:`prepare`.
        protocol: partition and noise, see :mod:`fedmend.datasets.noisy_sites`.
        train_per_site: most training images of a site, on average; None: all.
        soft_labels: see :func:`fedmend.datasets.noisy_sites.write_noisy_sites`; images are called ``train-000007``.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a wrong argument or file, ``out`` is taken, or a site would get no samples.
    """
    say, data = progress or (lambda line: None), read_medmnist(Path(source))
    _check_arguments(protocol.sites, train_per_site, protocol.partition_seed)
    _need_one_class(data)
    most = None if train_per_site is None else train_per_site * protocol.sites
    drawn = np.random.default_rng([protocol.partition_seed, 2]).permutation(len(data.labels["train"]))[:most]
    chosen = {"train": np.sort(drawn), "test": np.arange(len(data.labels["test"]))}
    about = _provenance(data)
    with _whole(Path(out)) as folder:
        _write_images(data, chosen, folder / IMAGES, say)
        samples = _samples(data, chosen, folder, single=True)
        test = np.arange(len(samples.images)) >= len(drawn)
        write_noisy_sites(folder, samples, test, protocol, ", ".join(about.values()), soft_labels, say)


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """The folder that becomes ``out`` when everything in it is complete."""
    check_empty(out, "medmnist, ")
    with whole_folder(out.resolve(), synced=False) as folder:
        yield folder


def _check_arguments(sites: int, train_per_site: int | None, seed: int) -> None:
    good = sites >= 1 and seed >= 0 and (train_per_site is None or train_per_site >= 2)
    words = "at least 1, at least 2 or None, and at least 0"
    need(good, "medmnist, arguments sites, train_per_site and seed", words, f"{sites}, {train_per_site} and {seed}")


def _need_one_class(data: MedMNIST) -> None:
    got = "one with several; fedmend prepare medmnist takes both"
    need(not data.multilabel, "medmnist, argument source", "a set with one class an image", got)


def _deal(data: MedMNIST, split: str, sites: int, train_per_site: int | None, seed: int) -> list[np.ndarray]:
    """Sorted image numbers of each site."""
    shuffled = np.random.default_rng([seed, SPLITS.index(split)]).permutation(len(data.labels[split]))
    need(len(shuffled) >= sites, "medmnist", f"at least {sites} images in the split {split}", len(shuffled))
    most = train_per_site if split == "train" else None
    return [np.sort(shuffled[s::sites][:most]) for s in range(sites)]


def _samples(data: MedMNIST, chosen: Chosen, folder: Path, *, single: bool) -> Samples:
    """The chosen images of the splits, one split after the other."""
    labels = [(data.labels[split] if single else data.hot(split))[index] for split, index in chosen.items()]
    return Samples(
        images=[NAME.format(split, i) for split, index in chosen.items() for i in index],
        labels=np.concatenate(labels),
        classes=data.classes,
        image_root=folder / IMAGES,
        modality=data.known.modality if data.known else "",
        color=data.color,
    )


def _write_images(data: MedMNIST, chosen: Chosen, folder: Path, say: Say) -> None:
    from PIL import Image

    total = sum(map(len, chosen.values()))
    size, free = total * math.prod(data.shapes["train"][1:]), shutil.disk_usage(folder.parent).free
    need(size <= free, "medmnist", f"{size // 10**6 + 1} MB of free space for the images", "less")
    folder.mkdir()
    done = 0
    for split, index in chosen.items():
        used = set(index.tolist())
        for number, image in enumerate(data.images(split)):
            if number in used:
                Image.fromarray(image).save(folder / NAME.format(split, number))
                done += 1
                if done * 10 // total > (done - 1) * 10 // total:
                    say(f"{done} of {total} images written")


def _provenance(data: MedMNIST) -> dict[str, str]:
    if (known := data.known) is None:
        return {"source": f"{data.name} in MedMNIST's format"}
    source = f"MedMNIST v2, {data.name} of {known.source}"
    return {"source": source, "licence": known.licence, "citation": CITATION}


def _source_and_out(parser: ArgumentParser) -> None:
    command_line.source_and_out(parser, "file of MedMNIST, e.g. bloodmnist_64.npz")
    parser.add_argument("--train-per-site", type=int, help="cap of each site's training images (default: all)")


def _add_arguments(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--classes-per-site", type=int, help="default: as few as reach all classes")
    parser.add_argument("--seed", type=int, default=1037)


def _run(args: Namespace, *, label_sets: bool = False) -> None:
    given = command_line.given(args, "sites", "classes_per_site", "train_per_site", "seed")
    prepare(args.source, args.out, **given, label_sets=label_sets, progress=say)
    say(f"{args.sites} site folders are in {args.out}")


def _add_arguments_single(parser: ArgumentParser) -> None:
    _source_and_out(parser)
    command_line.noise_arguments(parser)
    command_line.soft_labels_argument(parser)


def _run_single(args: Namespace) -> None:
    given = command_line.given(args, "train_per_site", "soft_labels")
    protocol = command_line.made(NoiseProtocol, args)
    prepare_single_label(args.source, args.out, protocol=protocol, **given, progress=say)


COMMANDS = (
    Command("medmnist", "a file of MedMNIST, 2-D: classes missing per site", _add_arguments, _run),
    Command(
        "medmnist-single", "the same with one class an image, some sites noisy", _add_arguments_single, _run_single
    ),
    Command(
        "medmnist-sets",
        "the same with one class an image, some classes blank per site",
        _add_arguments,
        partial(_run, label_sets=True),
    ),
)
