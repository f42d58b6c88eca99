"""What converters of volumes with lesions share: :func:`prepare` and the command of a data set that says where its
files lie.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmend.basics.discovery import Command
from fedmend.datasets import command_line
from fedmend.datasets.imperfections import completeness_settings
from fedmend.datasets.lesion_sites import LesionCase, write_lesion_sites
from fedmend.errors import FedMendError


@dataclass(frozen=True, kw_only=True)
class LesionDataset:
    """A public data set of volumes with lesions.

    Attributes:
        name: its word in commands and messages and in :func:`completeness_settings`.
        help: one line about it.
        source_help: what the folder of the download holds.
        levels: levels of incompleteness, for people.
        source_name: what the cards name as source.
        modality: DICOM modality word, for people.
        window: a name of ``fedmend.data.card.WINDOWS`` for CT; None for MR.
        find: finds the cases in the folder of the download; may say what it leaves out.
    """

    name: str
    help: str
    source_help: str
    levels: str
    source_name: str
    modality: str
    window: str | None = None
    find: Callable[[Path, Callable[[str], object]], list[LesionCase]]

    def prepare(
        self,
        source: Path,
        out: Path,
        *,
        sites: int = 4,
        m: int = 0,
        completeness: Sequence[float] | None = None,
        test_share: float = 0.2,
        val_share: float = 0.0,
        test_patients: Sequence[str] = (),
        seed: int = 1037,
        source_name: str = "",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Writes ``out/site-1`` .. ``out/site-S``, see :func:`fedmend.datasets.lesion_sites.write_lesion_sites`.

        Args:
            source: folder of the download.
            out: folder for the site folders; made when missing.
            sites: S in 1..4.
            m: level of incompleteness, see :func:`fedmend.datasets.imperfections.completeness_settings`.
            completeness: share of lesions in (0, 1] that each site keeps; given, it takes the place of ``sites`` and
                ``m``.
            test_share: share of the patients in the test split, in (0, 1).
            val_share: share of the other patients in the validation split, in [0, 1); 0 writes none.
            test_patients: given, these are the test split instead.
            seed: of split, partition and lesion removal.
            source_name: what the cards name as source instead; synthetic data says so here.
            progress: called with one line of text at a time.

        Raises:
            FedMendError: no volumes, or what the shared writer refuses.
        """
        source = Path(source)
        write_lesion_sites(
            out,
            self.find(source, progress or (lambda line: None)),
            dataset=self.name,
            image_root=source,
            completeness=completeness_settings(self.name, m, sites) if completeness is None else completeness,
            test_share=test_share,
            val_share=val_share,
            test_patients=test_patients,
            seed=seed,
            modality=self.modality,
            window=self.window,
            source_name=source_name or self.source_name,
            progress=progress,
        )

    def command(self) -> Command:
        """``fedmend prepare`` of this data set."""
        return Command(name=self.name, help=self.help, add_arguments=self._add_arguments, run=self._run)

    def _add_arguments(self, parser: ArgumentParser) -> None:
        command_line.source_and_out(parser, self.source_help)
        command_line.lesion_arguments(parser, levels=self.levels)

    def _run(self, args: Namespace) -> None:
        optional = command_line.given(args, "sites", "m", "completeness", "test_share")
        given = {k: v for k, v in optional.items() if v is not None}
        if "completeness" in given and {"sites", "m"} & set(given):
            raise FedMendError(f"prepare {self.name}: expected --completeness or --sites and --m, got both")
        if "test_share" in given and args.test_patients:
            raise FedMendError(f"prepare {self.name}: expected --test-share or --test-patients, got both")
        given |= command_line.given(args, "val_share", "test_patients", "seed")
        self.prepare(args.source, args.out, **given, progress=print)
