"""Federations of phantom sites: synthetic images in the official layout, converted like the real download, made once.

Each kind of phantom is a module of :mod:`fedmend.phantoms.specs`, found by itself.
"""

import functools
import hashlib
import json
import logging
import shutil
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedmend.basics.discovery import modules_of
from fedmend.basics.files import disk_errors, locked, sweep, whole_folder
from fedmend.basics.words import say
from fedmend.errors import FedMendError
from fedmend.phantoms import LEAST_DEPTH, LEAST_PIXELS

PHANTOM_FORMAT = 6  # raise it when a generator or a converter changes what it writes
MOST_IMAGES, MOST_BYTES = 200_000, 20_000_000_000  # no phantom needs as many; a job must not keep a site busy for days
LARGEST_SEED = 2**32 - 1  # of NumPy's older generators, which draw partitions and label errors
LEAST = {"seed": 0, "images": 1, "sites": 1, "pixels": LEAST_PIXELS, "depth": LEAST_DEPTH, "slices_per_patient": 1}
SOURCE = "PHANTOM: synthetic images, no patient was examined"
# Training splits of a phantom stay as they are: a validation split that is drawn by class would change them.
AS_EVER: Mapping[str, Any] = {"stratified": False, "source_name": SOURCE}
LOG = logging.getLogger("fedmend.phantom")


@dataclass(frozen=True, kw_only=True)
class PhantomSpec(ABC):
    """Which phantom a job runs on.

    Attributes:
        dataset: a key of :func:`phantoms`.
        images: images of the whole federation.
        sites: S sites, ``site-1`` to ``site-S``, and as many scanners or cameras.
        test_share: share of the images in the test split, whose labels are complete and right.
        pixels: edge length of the image files.
        seed: seed of images and split.
    """

    dataset: str
    images: int = 2000
    sites: int = 5
    test_share: float = 0.3
    pixels: int = 128
    seed: int = 1037

    @property
    def bytes_needed(self) -> int:
        """About what the image files take on disk: 16 bits per pixel."""
        return self.images * self.pixels**2 * 2

    @abstractmethod
    def write(self, out: Path, progress: Callable[[str], object] | None = None) -> None:
        """Writes ``out/download`` (official layout) and ``out/site-1`` … (site folders).

        Args:
            out: folder; made when missing.
            progress: called with a line of text now and then.

        Raises:
            FedMendError: these numbers give no phantom, e.g. too few images for so many sites.
        """


@functools.cache
def phantoms() -> Mapping[str, type[PhantomSpec]]:
    """Every phantom by the word that a job has for it: what the modules of the specs list as ``PHANTOMS``."""
    found: dict[str, type[PhantomSpec]] = {}
    for module in modules_of("fedmend.phantoms.specs"):
        found |= getattr(module, "PHANTOMS", {})
    return dict(sorted(found.items()))


def phantom_spec(given: Mapping[str, Any]) -> PhantomSpec:
    """The phantom that a job variable describes; fields that it leaves out keep their default.

    Raises:
        FedMendError: unknown data set or field, or larger than any phantom needs to be.
    """
    if not isinstance(given, Mapping):
        raise FedMendError(f"job variable phantom: expected a mapping, got {given!r:.40}")
    dataset = given.get("dataset")
    if not isinstance(dataset, str) or dataset not in phantoms():
        known = list(phantoms())
        raise FedMendError(f"job variable phantom, field dataset: expected one of {known}, got {dataset!r:.40}")
    takes = {f.name for f in fields(phantoms()[dataset])}
    if unknown := sorted(set(given) - takes):
        raise FedMendError(f"job variable phantom: expected the fields {sorted(takes)}, got {unknown[0]!r:.40}")
    spec = phantoms()[dataset](**given)
    _check(spec, "job variable phantom")
    return spec


def _check(spec: PhantomSpec, what: str) -> None:
    """Refuses numbers that no phantom has; ``what`` gave them."""
    for name, least in LEAST.items():
        value = getattr(spec, name, least)
        if type(value) is not int:
            raise FedMendError(f"{what}.{name}: expected a whole number, got {value!r:.40}")
        if value < least:
            raise FedMendError(f"{what}.{name}: expected at least {least}, got {value!r:.40}")
    if spec.seed > LARGEST_SEED:
        raise FedMendError(f"{what}.seed: expected at most {LARGEST_SEED}, got {spec.seed!r:.40}")
    if max(spec.images, spec.sites) > MOST_IMAGES or spec.bytes_needed > MOST_BYTES:
        raise FedMendError(f"{what}: expected at most {MOST_IMAGES} images and {MOST_BYTES // 10**9} GB, got more")


def add_arguments(parser: ArgumentParser, *, images: int, pixels: int) -> None:
    """Adds the arguments of every phantom of pictures; the numbers are defaults."""
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=images, help=f"default {images}")
    parser.add_argument("--pixels", type=int, default=pixels, help=f"default {pixels}")
    parser.add_argument("--seed", type=int, default=1037, help="of images and test split")


def make_phantom(out: Path, spec: PhantomSpec, progress: Callable[[str], object] | None = None) -> None:
    """:meth:`PhantomSpec.write`, whole or not at all, with errors that say that they are about the phantom.

    Raises:
        FedMendError: as :meth:`PhantomSpec.write`, or ``out`` has a phantom, or a part of one.
    """
    if _written(out):  # what is there would be mixed with the new pictures
        words = "a folder without download and site folders, got one that has them"
        raise FedMendError(f"phantom: argument out: expected {words}")
    _check(spec, "phantom")
    try:
        spec.write(out, progress)
    except BaseException as e:
        for folder in _written(out):
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(e, FedMendError):  # it may name a site of the phantom, which is not the site that asks
            raise FedMendError(f"phantom: {e}") from None
        raise


def _written(out: Path) -> list[Path]:
    """What is there of a phantom."""
    return [*Path(out).glob("download"), *Path(out).glob("site-*")]


def make_and_tell(out: Path, spec: PhantomSpec, what: str) -> None:
    """:func:`make_phantom` for the person at the command line; ``what`` the images are.

    Raises:
        FedMendError: as :func:`make_phantom`.
    """
    make_phantom(out, spec, progress=say)
    place = f"{out / 'download'}, {spec.sites} site folders in {out}"
    say(f"PHANTOM: {spec.images} synthetic {what} in {place}")


def ensure_phantom(cache_dir: Path, spec: PhantomSpec) -> Path:
    """The folder of the phantom's site folders below ``cache_dir``; made by the first process that asks, once.

    Args:
        cache_dir: where phantoms are kept.
        spec: what to make.

    Raises:
        FedMendError: as :func:`make_phantom`, or ``cache_dir`` is full or read-only.
    """
    key = hashlib.sha256(json.dumps([PHANTOM_FORMAT, asdict(spec)]).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / "phantoms" / f"{spec.dataset}-{key}"
    if not folder.is_dir():
        with disk_errors("phantom", spec.bytes_needed, folder), locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                LOG.info("PHANTOM: making %d synthetic images for %d sites (once)", spec.images, spec.sites)
                sweep(folder.parent, folder.name)
                with whole_folder(folder, synced=False) as temporary:
                    make_phantom(temporary, spec)
    return folder
