"""Federations of phantom sites: synthetic images in the official layout, converted like the real download, made once."""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.errors import FedMendError
from fedmend.files import disk_errors, locked, whole_folder

PHANTOM_FORMAT = 6  # raise it when a generator or a converter changes what it writes
MOST_IMAGES, MOST_BYTES = 200_000, 20_000_000_000  # no phantom needs as many; a job must not keep a site busy for days
SOURCE = "PHANTOM: synthetic images, no patient was examined"
LOG = logging.getLogger("fedmend.phantom")


@dataclass(frozen=True, kw_only=True)
class PhantomSpec(ABC):
    """Which phantom a job runs on.

    Attributes:
        dataset: a key of ``SPECS``.
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
    def write(self, out: Path, progress: Callable[[str], None] | None = None) -> None:
        """Writes ``out/download`` (official layout) and ``out/site-1`` … (site folders).

        Args:
            out: folder; made when missing.
            progress: called with a line of text now and then.

        Raises:
            FedMendError: these numbers give no phantom, e.g. too few images for so many sites.
        """


@dataclass(frozen=True, kw_only=True)
class MissingClassPhantom(PhantomSpec):
    """CT head slices with missing classes; each site has its own scanner.

    Attributes:
        annotated_per_site: classes that each site annotates.
        rule: how they are chosen, see :func:`fedmend.imperfections.annotated_classes`.
        val_share: share of a site's training slices held out for choosing the best model.
    """

    dataset: str = "ich"
    annotated_per_site: int = 1
    rule: str = "one_each"
    val_share: float = 0.1

    def write(self, out: Path, progress: Callable[[str], None] | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.datasets import (
            phantoms,
            rsna_ich,
        )  # scipy and pydicom, which a site with a made phantom need not load

        phantoms.write_ich(out / "download", slices=self.images, seed=self.seed, size=self.pixels, scanners=self.sites)
        rsna_ich.prepare(
            out / "download",
            out,
            sites=self.sites,
            annotated_per_site=self.annotated_per_site,
            rule=self.rule,
            partition="station",
            test_share=self.test_share,
            val_share=self.val_share,
            healthy_share=None,
            seed=self.seed,
            source_name=SOURCE,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class NoisyLabelPhantom(NoiseProtocol, PhantomSpec):
    """Single-label CT slices or dermoscopic pictures, dealt to sites of which some are noisy.

    With dermoscopic pictures, each site has its own camera.
    """

    dataset: str = "ich_single"
    sites: int = 8

    def write(self, out: Path, progress: Callable[[str], None] | None = None) -> None:
        """See :class:`PhantomSpec`. ``images`` counts the CT slices before those with exactly one subtype are chosen."""
        protocol = NoiseProtocol(**{f.name: getattr(self, f.name) for f in fields(NoiseProtocol)})
        common = {
            "protocol": protocol,
            "test_share": self.test_share,
            "seed": self.seed,
            "source_name": SOURCE,
            "progress": progress,
        }
        if self.dataset == "ich_single":
            from fedmend.datasets import phantoms, rsna_ich

            phantoms.write_ich(
                out / "download", slices=self.images, seed=self.seed, size=self.pixels, scanners=self.sites
            )
            rsna_ich.prepare_single_label(out / "download", out, **common)
        else:
            from fedmend.datasets import dermoscopy_phantom, isic2019

            dermoscopy_phantom.write_isic2019(out / "download", images=self.images, seed=self.seed, size=self.pixels)
            isic2019.prepare(out / "download", out, **common)
            dermoscopy_phantom.lay_casts(out, sites=self.sites, seed=self.seed, progress=progress)


@dataclass(frozen=True, kw_only=True)
class ChestPhantom(PhantomSpec):
    """Chest films of which each site labels some findings.

    Attributes:
        protocol: a key of :data:`fedmend.datasets.cxr14.PROTOCOLS`.
        classes: these findings only; empty: those of the protocol.
    """

    dataset: str = "cxr14"
    sites: int = 8
    pixels: int = 64
    protocol: str = "fedlsm"
    classes: list[str] = field(default_factory=list)

    def write(self, out: Path, progress: Callable[[str], None] | None = None) -> None:
        """See :class:`PhantomSpec`. ``images`` counts the films of both views; ``test_share`` has no meaning for FedLSM."""
        from fedmend.datasets import chest_phantom, cxr14

        if self.protocol not in cxr14.PROTOCOLS:
            known = sorted(cxr14.PROTOCOLS)
            raise FedMendError(f"field protocol: expected one of {known}, got {self.protocol!r}")
        if unknown := [c for c in self.classes if c not in cxr14.CLASSES]:
            raise FedMendError(f"field classes: expected names out of {list(cxr14.CLASSES)}, got also {unknown[0]!r}")
        arguments = {**cxr14.PROTOCOLS[self.protocol], "sites": self.sites, "test_share": self.test_share}
        if self.classes:
            arguments |= {"classes": self.classes, "top": None}
        chest_phantom.write_cxr14(
            out / "download", images=self.images, seed=self.seed, size=self.pixels, devices=self.sites
        )
        cxr14.prepare(out / "download", out, **arguments, seed=self.seed, source_name=SOURCE, progress=progress)


@dataclass(frozen=True, kw_only=True)
class LabelSetPhantom(PhantomSpec):
    """Dermoscopic pictures of which each site labels some diagnoses; each site has its own camera.

    Attributes:
        classes_per_site: diagnoses that each site identifies.
    """

    dataset: str = "isic2018"
    pixels: int = 96
    classes_per_site: int = 3

    def write(self, out: Path, progress: Callable[[str], None] | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.datasets import dermoscopy_phantom, isic2018

        dermoscopy_phantom.write_isic2018(out / "download", images=self.images, seed=self.seed, size=self.pixels)
        isic2018.prepare(
            out / "download",
            out,
            sites=self.sites,
            classes_per_site=self.classes_per_site,
            test_share=self.test_share,
            seed=self.seed,
            source_name=SOURCE,
            progress=progress,
        )
        dermoscopy_phantom.lay_casts(out, sites=self.sites, seed=self.seed, progress=progress)


@dataclass(frozen=True, kw_only=True)
class PartlyAnnotatedPhantom(PhantomSpec):
    """Volumes with lesions, of which each site annotates a part.

    Attributes:
        depth: slices of a volume; ``images`` counts volumes.
        m: level of incompleteness, see :func:`fedmend.imperfections.completeness_settings`.
    """

    dataset: str = "ms"
    images: int = 20
    sites: int = 4
    test_share: float = 0.4
    pixels: int = 64
    depth: int = 24
    m: int = 0

    @property
    def bytes_needed(self) -> int:
        """About what images and masks take on disk: at most 32 bits per voxel, compressed."""
        return self.images * self.pixels**2 * self.depth * 4

    def write(self, out: Path, progress: Callable[[str], None] | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.datasets import lung, ms, volume_phantoms

        draw, prepare = {
            "ms": (volume_phantoms.write_ms, ms.prepare),
            "lung": (volume_phantoms.write_lung, lung.prepare),
        }[self.dataset]
        draw(out / "download", cases=self.images, seed=self.seed, size=self.pixels, depth=self.depth)
        prepare(
            out / "download",
            out,
            sites=self.sites,
            m=self.m,
            test_share=self.test_share,
            seed=self.seed,
            source_name=SOURCE,
            progress=progress,
        )


SPECS: Mapping[str, type[PhantomSpec]] = {
    "cxr14": ChestPhantom,
    "ich": MissingClassPhantom,
    "ich_single": NoisyLabelPhantom,
    "isic2018": LabelSetPhantom,
    "isic2019": NoisyLabelPhantom,
    "lung": PartlyAnnotatedPhantom,
    "ms": PartlyAnnotatedPhantom,
}


def phantom_spec(given: Mapping[str, object]) -> PhantomSpec:
    """The phantom that a job variable describes; fields that it leaves out keep their default.

    Raises:
        FedMendError: unknown data set or field, or larger than any phantom needs to be.
    """
    dataset = given.get("dataset")
    if not isinstance(dataset, str) or dataset not in SPECS:
        raise FedMendError(f"job variable phantom, field dataset: expected one of {sorted(SPECS)}, got {dataset!r}")
    known = {f.name for f in fields(SPECS[dataset])}
    if unknown := sorted(set(given) - known):
        raise FedMendError(f"job variable phantom: expected the fields {sorted(known)}, got {unknown[0]!r}")
    spec = SPECS[dataset](**given)
    for name in ("images", "sites", "pixels", "depth"):
        value = getattr(spec, name, 1)
        if type(value) is not int:
            raise FedMendError(f"job variable phantom.{name}: expected a whole number, got {value!r:.40}")
    if max(spec.images, spec.sites) > MOST_IMAGES or spec.bytes_needed > MOST_BYTES:
        raise FedMendError(
            f"job variable phantom: expected at most {MOST_IMAGES} images and {MOST_BYTES // 10**9} GB, got more"
        )
    return spec


def make_phantom(out: Path, spec: PhantomSpec, progress: Callable[[str], None] | None = None) -> None:
    """:meth:`PhantomSpec.write`, with errors that say that they are about the phantom.

    Raises:
        FedMendError: as :meth:`PhantomSpec.write`, or ``out`` has site folders.
    """
    try:
        if any(Path(out).glob("site-*")):  # before their pictures are overwritten
            raise FedMendError("argument out: expected a folder without site folders, got one that has them")
        spec.write(out, progress)
    except FedMendError as e:  # it may name a site of the phantom, which is not the site that asks
        raise FedMendError(f"phantom: {e}") from None


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
                with whole_folder(folder, synced=False) as temporary:
                    make_phantom(temporary, spec)
    return folder
