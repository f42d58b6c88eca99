"""A federation of phantom sites: synthetic slices in the official layout, converted like the real download, made once."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmend.data.store import disk_errors, exclusive
from fedmend.errors import FedMendError

PHANTOM_FORMAT = 2  # raise it when the generator or the converter changes what it writes
LOG = logging.getLogger("fedmend.phantom")


@dataclass(frozen=True, kw_only=True)
class PhantomSpec:
    """Which phantom a job runs on.

    Attributes:
        dataset: ``ich``.
        slices: CT slices of the whole federation.
        sites: S sites, ``site-1`` to ``site-S``; each has its own scanner.
        annotated_per_site: classes that each site annotates.
        rule: how they are chosen, see :func:`fedmend.imperfections.annotated_classes`.
        test_share: share of each site's slices in the fully labelled test split.
        val_share: share of a site's training slices held out for choosing the best model.
        pixels: edge length of the DICOM files.
        seed: seed of images, split and missing classes.
    """

    dataset: str = "ich"
    slices: int = 2000
    sites: int = 5
    annotated_per_site: int = 1
    rule: str = "one_each"
    test_share: float = 0.3
    val_share: float = 0.1
    pixels: int = 128
    seed: int = 1037

    def __post_init__(self):
        if self.dataset != "ich":
            raise FedMendError(f"job variable phantom, field dataset: expected 'ich', got {self.dataset!r}")


def make_phantom(out: Path, spec: PhantomSpec, progress: Callable[[str], None] | None = None) -> None:
    """Writes ``out/download`` (official layout) and ``out/site-1`` … (site folders).

    Args:
        out: folder; made when missing.
        spec: what to make.
        progress: called with a line of text now and then.

    Raises:
        FedMendError: these numbers give no phantom, e.g. too few slices for so many sites.
    """
    from fedmend.datasets import phantoms, rsna_ich  # scipy and pydicom, which a site with a made phantom need not load

    download = out / "download"
    phantoms.write_ich(download, slices=spec.slices, seed=spec.seed, size=spec.pixels, scanners=spec.sites)
    try:
        rsna_ich.prepare(
            download,
            out,
            sites=spec.sites,
            annotated_per_site=spec.annotated_per_site,
            rule=spec.rule,
            partition="station",
            test_share=spec.test_share,
            val_share=spec.val_share,
            healthy_share=None,
            seed=spec.seed,
            source_name="PHANTOM: synthetic slices, no patient was examined",
            progress=progress,
        )
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
        need = spec.slices * spec.pixels**2 * 2  # 16 bits per pixel
        with disk_errors("phantom", need), exclusive(folder.with_suffix(".lock")):
            if not folder.is_dir():
                LOG.info("PHANTOM: making %d synthetic slices for %d sites (once)", spec.slices, spec.sites)
                temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
                try:
                    make_phantom(temporary, spec)
                    temporary.chmod(0o755)
                    os.replace(temporary, folder)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    return folder
