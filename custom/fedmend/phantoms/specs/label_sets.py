"""Phantoms with different label sets: chest films or dermoscopic pictures of which each site labels some findings."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.samples import Say
from fedmend.errors import FedMendError
from fedmend.phantoms import sites
from fedmend.phantoms.sites import AS_EVER, PhantomSpec


@dataclass(frozen=True, kw_only=True)
class ChestPhantom(PhantomSpec):
    """Chest films of which each site labels some findings.

    Attributes:
        protocol: a key of :data:`fedmend.datasets.cxr14.PROTOCOLS`.
        classes_per_site: findings that each site labels; 0: those of the protocol.
        classes: these findings only; empty: those of the protocol.
        least_share: share of the films that a finding has at least; below 4 % it is hard to learn.
        most_share: share of the films that a finding has at most.
    """

    dataset: str = "cxr14"
    sites: int = 8
    pixels: int = 64
    protocol: str = "fedlsm"
    classes_per_site: int = 0
    classes: list[str] = field(default_factory=list)
    least_share: float = 0.04
    most_share: float = 1.0

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`. ``images`` counts films of both views; ``test_share`` has no meaning for FedLSM."""
        from fedmend.datasets import cxr14
        from fedmend.phantoms import chest

        if self.protocol not in cxr14.PROTOCOLS:
            known = sorted(cxr14.PROTOCOLS)
            raise FedMendError(f"field protocol: expected one of {known}, got {self.protocol!r}")
        if unknown := [c for c in self.classes if c not in cxr14.CLASSES]:
            raise FedMendError(f"field classes: expected names out of {list(cxr14.CLASSES)}, got also {unknown[0]!r}")
        given: dict[str, Any] = {"sites": self.sites, "test_share": self.test_share, "seed": self.seed}
        if self.classes_per_site:
            given["classes_per_site"] = self.classes_per_site
        if self.classes:
            given |= {"classes": self.classes, "top": None}
        drawn = {"images": self.images, "seed": self.seed, "size": self.pixels, "devices": self.sites}
        chest.write_cxr14(out / "download", **drawn, shares=(self.least_share, self.most_share))
        protocol = replace(cxr14.PROTOCOLS[self.protocol], **given)
        cxr14.prepare(out / "download", out, protocol, **AS_EVER, progress=progress)


@dataclass(frozen=True, kw_only=True)
class LabelSetPhantom(PhantomSpec):
    """Dermoscopic pictures of which each site labels some diagnoses; each site has its own camera.

    Attributes:
        classes_per_site: diagnoses that each site identifies.
    """

    dataset: str = "isic2018"
    pixels: int = 96
    classes_per_site: int = 3

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.datasets import isic2018
        from fedmend.phantoms import dermoscopy

        dermoscopy.write_isic2018(out / "download", images=self.images, seed=self.seed, size=self.pixels)
        protocol = command_line.made(isic2018.DiagnosisProtocol, self)
        isic2018.prepare(out / "download", out, protocol, **AS_EVER, progress=progress)
        dermoscopy.lay_casts(out, sites=self.sites, seed=self.seed, progress=progress)


PHANTOMS: dict[str, type[PhantomSpec]] = {"cxr14": ChestPhantom, "isic2018": LabelSetPhantom}


def _add_chest_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--sites", type=int, default=8, help="number of sites (default 8)")
    parser.add_argument("--protocol", choices=["fedlsm", "fedmlp"], default="fedlsm", help="see prepare cxr14")
    sites.add_arguments(parser, images=4800, pixels=64)


def _add_isic_arguments(parser: ArgumentParser) -> None:
    command_line.options(parser, LabelSetPhantom, sites="number of sites (default 5)", classes_per_site="")
    sites.add_arguments(parser, images=2500, pixels=96)


def _run(args: Namespace, *, dataset: str) -> None:
    sites.make_and_tell(args.out, command_line.made(PHANTOMS[dataset], args, dataset=dataset), "images")


COMMANDS = (
    Command(
        "cxr14",
        "chest films in the ChestX-ray14 layout, and sites that label some findings",
        _add_chest_arguments,
        partial(_run, dataset="cxr14"),
    ),
    Command(
        "isic2018",
        "dermoscopic pictures in the ISIC 2018 layout, and sites that label some diagnoses",
        _add_isic_arguments,
        partial(_run, dataset="isic2018"),
    ),
)
