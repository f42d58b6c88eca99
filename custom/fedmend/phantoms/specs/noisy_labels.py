"""Phantoms with noisy labels: CT head slices or dermoscopic pictures that some sites label wrongly."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.samples import Say
from fedmend.phantoms import sites
from fedmend.phantoms.sites import SOURCE, PhantomSpec


@dataclass(frozen=True, kw_only=True)
class NoisyLabelPhantom(NoiseProtocol, PhantomSpec):
    """Single-label CT slices or dermoscopic pictures, dealt to sites of which some are noisy.

    With dermoscopic pictures, each site has its own camera.
    """

    dataset: str = "ich_single"
    sites: int = 8

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`. ``images`` counts CT slices before those with exactly one subtype are chosen."""
        common = {"protocol": command_line.made(NoiseProtocol, self), "source_name": SOURCE, "progress": progress}
        _WRITERS[self.dataset](self, out, {**common, "test_share": self.test_share, "seed": self.seed})


def _write_ich(spec: NoisyLabelPhantom, out: Path, common: Mapping) -> None:
    from fedmend.datasets import rsna_ich  # pydicom and scipy, which a site with a made phantom need not load
    from fedmend.phantoms import ct_head

    ct_head.write_ich(out / "download", slices=spec.images, seed=spec.seed, size=spec.pixels, scanners=spec.sites)
    rsna_ich.prepare_single_label(out / "download", out, **common)


def _write_isic(spec: NoisyLabelPhantom, out: Path, common: Mapping) -> None:
    from fedmend.datasets import isic2019
    from fedmend.phantoms import dermoscopy

    dermoscopy.write_isic2019(out / "download", images=spec.images, seed=spec.seed, size=spec.pixels)
    isic2019.prepare(out / "download", out, **common)
    dermoscopy.lay_casts(out, sites=spec.sites, seed=spec.seed, progress=common["progress"])


_WRITERS = {"ich_single": _write_ich, "isic2019": _write_isic}
PHANTOMS = dict.fromkeys(_WRITERS, NoisyLabelPhantom)


def _add_arguments(parser: ArgumentParser, *, images: int, pixels: int, **noise: Any) -> None:
    command_line.noise_arguments(parser, **noise)
    sites.add_arguments(parser, images=images, pixels=pixels)


def _run(args: Namespace, *, dataset: str) -> None:
    sites.make_and_tell(args.out, command_line.made(NoisyLabelPhantom, args, dataset=dataset), "images")


COMMANDS = (
    Command(
        "ich-single",
        "CT head slices as of ich; sites get those with one subtype, some are noisy",
        partial(_add_arguments, images=9600, pixels=64, sites=8),
        partial(_run, dataset="ich_single"),
    ),
    Command(
        "isic2019",
        "dermoscopic pictures in the ISIC 2019 layout, and sites, some noisy",
        partial(_add_arguments, images=3000, pixels=96, sites=8, alpha=1.5, presence=0.99),
        partial(_run, dataset="isic2019"),
    ),
)
