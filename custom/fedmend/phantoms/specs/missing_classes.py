"""The phantom with missing classes: CT head slices of which each site annotates some kinds of hemorrhage."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.rsna_ich_parts import OF_STUDIES
from fedmend.datasets.samples import Say
from fedmend.datasets.swapped_labels import SwapNoise
from fedmend.phantoms import sites
from fedmend.phantoms.sites import AS_EVER, PhantomSpec


@dataclass(frozen=True, kw_only=True)
class MissingClassPhantom(PhantomSpec):
    """CT head slices with missing classes.

    Attributes:
        annotated_per_site: classes that each site annotates.
        rule: how they are chosen, see :func:`fedmend.datasets.imperfections.annotated_classes`.
        partition: ``iid`` deals the patients to the sites, whatever their scanner (the paper); ``station`` gives each
            site its own scanner, which then goes with the classes that the site annotates.
        val_share: share of a site's training slices held out for choosing the best model.
        slices_per_patient: about so many; the lesions do not become more, so that fewer slices show one.
        labels_of: what has a label, see :class:`fedmend.datasets.rsna_ich_parts.SliceProtocol`.
        noisy_share: share of the sites that are noisy besides, see :mod:`fedmend.datasets.swapped_labels`.
        noise_low: smallest noise rate of a noisy site.
        noise_high: largest noise rate of a noisy site.
    """

    dataset: str = "ich"
    annotated_per_site: int = 1
    rule: str = "one_each"
    partition: str = "iid"
    val_share: float = 0.1
    slices_per_patient: int = 8
    labels_of: str = "slice"
    noisy_share: float = 0.0
    noise_low: float = 0.5
    noise_high: float = 0.7

    def write(self, out: Path, progress: Say | None = None) -> None:
        """See :class:`PhantomSpec`."""
        from fedmend.datasets import rsna_ich  # pydicom and scipy, which a site with a made phantom need not load
        from fedmend.phantoms import ct_head

        drawn = {"slices": self.images, "seed": self.seed, "size": self.pixels, "scanners": self.sites}
        ct_head.write_ich(out / "download", **drawn, slices_per_patient=self.slices_per_patient)
        protocol = command_line.made(
            rsna_ich.SliceProtocol, self, healthy_share=None, noise=command_line.made(SwapNoise, self)
        )
        rsna_ich.prepare(out / "download", out, protocol, **AS_EVER, progress=progress)


PHANTOMS = {"ich": MissingClassPhantom}


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("--slices", type=int, default=2000)
    parser.add_argument("--pixels", type=int, default=128)
    command_line.missing_class_arguments(parser)
    words = "slices of each patient (default 8); the lesions stay as many"
    parser.add_argument("--slices-per-patient", type=int, default=8, help=words)
    words = "what has a label (default slice; see `fedmend prepare rsna-ich --help`)"
    parser.add_argument("--labels-of", choices=["slice", *OF_STUDIES], default="slice", help=words)


def _run(args: Namespace) -> None:
    spec = command_line.made(MissingClassPhantom, args, dataset="ich", images=args.slices)
    sites.make_and_tell(args.out, spec, "slices")


COMMANDS = (
    Command(
        "ich", "CT head slices with hemorrhage, as DICOM in the RSNA layout, and site folders", _add_arguments, _run
    ),
)
