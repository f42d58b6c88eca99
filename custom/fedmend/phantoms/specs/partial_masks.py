"""Phantoms with partial masks: volumes with lesions, of which each site annotates a part."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.samples import Say
from fedmend.errors import FedMendError
from fedmend.phantoms import sites
from fedmend.phantoms.sites import SOURCE, PhantomSpec

REAL_LESIONS = "PHANTOM: synthetic heads with the lesion masks of patients"


@dataclass(frozen=True, kw_only=True)
class PartlyAnnotatedPhantom(PhantomSpec):
    """Volumes with lesions, of which each site annotates a part.

    Attributes:
        depth: slices of a volume; ``images`` counts volumes.
        val_share: share of the volumes outside the test split that is held out for choosing the best model.
        m: level of incompleteness, see :func:`fedmend.datasets.imperfections.completeness_settings`.
    """

    dataset: str = "ms"
    images: int = 16
    sites: int = 4
    test_share: float = 0.38
    val_share: float = 0.2
    pixels: int = 48
    depth: int = 24
    m: int = 0

    @property
    def bytes_needed(self) -> int:
        """About what images and masks take on disk: at most 32 bits per voxel, compressed."""
        return self.images * self.pixels**2 * self.depth * 4

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.phantoms import volumes

        draw = {"ms": volumes.write_ms, "lung": volumes.write_lung}[self.dataset]
        draw(out / "download", cases=self.images, seed=self.seed, size=self.pixels, depth=self.depth)
        self.prepare(out, SOURCE, progress)

    def prepare(self, out: Path, source_name: str, progress: Say | None = None) -> None:
        """Makes site folders of ``out/download``; ``source_name`` is what their cards name as source.

        Raises:
            FedMendError: as :meth:`write`.
        """
        from fedmend.datasets import lung, ms
        from fedmend.datasets.imperfections import completeness_settings
        from fedmend.datasets.lesion_sites import LesionProtocol

        prepare = {"ms": ms.prepare, "lung": lung.prepare}[self.dataset]
        completeness = completeness_settings(self.dataset, self.m, self.sites)
        protocol = command_line.made(LesionProtocol, self, completeness=completeness)
        prepare(out / "download", out, protocol, source_name=source_name, progress=progress)


@dataclass(frozen=True, kw_only=True)
class RealLesionsPhantom(PartlyAnnotatedPhantom):
    """Heads that are drawn, with the lesions of patients. No job has it: a server names no files of a site.

    Attributes:
        masks: folder of the masks, NIfTI files of 0 and 1 in MNI space.
    """

    masks: Path

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.phantoms import volumes

        masks = sorted(Path(self.masks).glob("*.nii*"))
        if not masks:
            raise FedMendError(f"argument masks: expected a folder with NIfTI files, got none in {self.masks}")
        size = {"cases": self.images, "seed": self.seed, "size": self.pixels, "depth": self.depth}
        volumes.write_ms(out / "download", **size, masks=masks)
        self.prepare(out, REAL_LESIONS, progress)


PHANTOMS = dict.fromkeys(("lung", "ms"), PartlyAnnotatedPhantom)


def _add_arguments(parser: ArgumentParser, *, m: int, hardest: int) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=16, help="number of volumes (default 16)")
    parser.add_argument("--sites", type=int, default=4, help="number of sites, 1..4 (default 4)")
    parser.add_argument("--pixels", type=int, default=48, help="rows and columns of a slice (default 48)")
    parser.add_argument("--depth", type=int, default=24, help="slices of a volume (default 24)")
    words = f"level of incompleteness, 0..{hardest} (default {m}, as in the job)"
    parser.add_argument("--m", type=int, default=m, help=words)
    parser.add_argument("--test-share", type=float, default=0.38, help="share of the volumes (default 0.38)")
    parser.add_argument("--val-share", type=float, default=0.2, help="share of the others (default 0.2)")
    parser.add_argument("--seed", type=int, default=1037, help="of volumes, test split and lesion removal")


def _add_ms_arguments(parser: ArgumentParser) -> None:
    _add_arguments(parser, m=3, hardest=3)
    parser.add_argument(
        "--masks", type=Path, help="folder of real lesion masks (NIfTI, MNI space) to draw, one a volume"
    )


def _run(args: Namespace, *, dataset: str) -> None:
    kind = RealLesionsPhantom if getattr(args, "masks", None) else PartlyAnnotatedPhantom
    sites.make_and_tell(args.out, command_line.made(kind, args, dataset=dataset), "volumes")


COMMANDS = (
    Command(
        "ms",
        "FLAIR head volumes with MS lesions in the MSSEG-1 layout, and sites that annotate a part of them",
        _add_ms_arguments,
        partial(_run, dataset="ms"),
    ),
    Command(
        "lung",
        "CT thorax volumes with ground-glass patches in the COVID-19-20 layout, and sites that annotate a part of them",
        partial(_add_arguments, m=1, hardest=2),
        partial(_run, dataset="lung"),
    ),
)
