"""The phantom with missing organs: CT volumes of the abdomen of which each site marks some organs."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.samples import Say
from fedmend.phantoms import sites
from fedmend.phantoms.sites import SOURCE, PhantomSpec


@dataclass(frozen=True, kw_only=True)
class MissingOrganPhantom(PhantomSpec):
    """CT volumes of the abdomen; ``images`` counts volumes, which are dealt to the sites at random.

    Attributes:
        depth: slices of a volume.
        val_share: share of a site's volumes outside the test split that is held out for choosing the best model.
        annotated_per_site: organs that the masks of training and validation show at each site; those of the test split
            show all.
        rule: how they are chosen, see :func:`fedmend.datasets.imperfections.annotated_classes`.
    """

    dataset: str = "organs"
    images: int = 24
    sites: int = 3
    test_share: float = 0.4
    val_share: float = 0.2
    pixels: int = 48
    depth: int = 16
    annotated_per_site: int = 1
    rule: str = "one_each"

    @property
    def bytes_needed(self) -> int:
        """About what images and masks take on disk."""
        return self.images * self.pixels**2 * self.depth * 3

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.datasets.organ_sites import OrganProtocol, write_organ_sites
        from fedmend.phantoms import organs

        download = out / "download"
        organs.write_organs(download, cases=self.images, seed=self.seed, size=self.pixels, depth=self.depth)
        protocol = command_line.made(OrganProtocol, self)
        write_organ_sites(download, out, organs.ORGANS, protocol, source_name=SOURCE, modality="CT", window=(50, 350))


PHANTOMS = {"organs": MissingOrganPhantom}


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    for name, words in (("images", "number of volumes"), ("sites", "number of sites"), ("depth", "slices of a volume")):
        default = getattr(MissingOrganPhantom, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{words} (default {default})")
    parser.add_argument("--pixels", type=int, default=48, help="rows and columns of a slice (default 48)")
    words = "organs that each site marks (default 1)"
    parser.add_argument("--annotated-per-site", type=int, default=1, help=words)
    parser.add_argument("--seed", type=int, default=1037, help="of volumes and splits")


def _run(args: Namespace) -> None:
    sites.make_and_tell(args.out, command_line.made(MissingOrganPhantom, args, dataset="organs"), "volumes")


ABOUT = "CT volumes of the abdomen in the Decathlon layout, and sites that mark some organs"
COMMANDS = (Command("organs", ABOUT, _add_arguments, _run),)
