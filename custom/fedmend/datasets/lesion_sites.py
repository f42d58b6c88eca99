"""Volumes with complete lesion masks → segmentation sites that annotate a part of the lesions: the data protocol of
FedIA (Xiang et al., MICCAI 2024).

Patients are split into training, validation and test and dealt to the sites; then whole lesions are removed from
training masks. The result depends on the files and the arguments alone, not on the order of the cases; which lesions a
volume keeps depends on its mask, its name, the seed and its site's completeness.
"""

import argparse
import csv
import hashlib
import json
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import cast

import nibabel
import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.data.card import write_card
from fedmend.data.datalist import SECTIONS
from fedmend.data.volumes import AFFINE_TOLERANCE
from fedmend.datasets import command_line
from fedmend.datasets.checks import need
from fedmend.datasets.imperfections import LesionCounts, completeness_settings, remove_lesions
from fedmend.datasets.samples import Say, hold_out
from fedmend.datasets.site_folders import check_out, site_folders
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION

CLASSES = ("lesion",)
DATALIST = "datalist.json"


@dataclass(frozen=True, kw_only=True)
class LesionCase:
    """A volume and its complete mask.

    Attributes:
        image: NIfTI file of the volume, below the image root.
        mask: NIfTI file of 0 and 1 on the same grid; None, which the writer refuses, where there is none.
        name: the case's own name; the written masks are called after it.
        patient: key; the cases of a patient stay in one split of one site.
    """

    image: Path
    mask: Path | None
    name: str
    patient: str


def nifti_file(folder: Path, stem: str) -> Path | None:
    """``folder/stem.nii.gz`` or ``folder/stem.nii``, whichever exists."""
    return next((f for f in (folder / f"{stem}.nii.gz", folder / f"{stem}.nii") if f.is_file()), None)


@dataclass(frozen=True, kw_only=True)
class LesionProtocol:
    """How volumes get to sites and masks lose lesions; values are checked where they are used.

    Attributes:
        completeness: for each of the S sites, the share of lesions in (0, 1] that its training masks keep, see
            :func:`fedmend.datasets.imperfections.completeness_settings`.
        test_share: share of the patients in the test split, in (0, 1); few leave sites without a test split.
        val_share: share of the other patients in the validation split, in [0, 1); 0 writes none.
        test_patients: given, these are the test split instead.
        seed: of split, partition and removal, 0 or more.
    """

    completeness: Sequence[float]
    test_share: float = 0.2
    val_share: float = 0.0
    test_patients: Sequence[str] = ()
    seed: int = 1037

    def in_card(self) -> dict:
        """What the cards show of it."""
        named = {"test_patients": sorted(self.test_patients)} if self.test_patients else {"test_share": self.test_share}
        return {"completeness": list(self.completeness), **named, "val_share": self.val_share, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class LesionDataset:
    """A public data set of volumes with lesions.

    Attributes:
        name: its word in commands and messages and in :func:`fedmend.datasets.imperfections.completeness_settings`.
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
    find: Callable[[Path, Say], list[LesionCase]]

    def prepare(
        self, source: Path, out: Path, protocol: LesionProtocol, *, source_name: str = "", progress: Say | None = None
    ) -> None:
        """Writes ``out/site-1`` .. ``out/site-S``; the volumes stay where they are.

        A site gets ``datalist.json``: its training cases with the axial slices (numbered in RAS) that carry a lesion in
        the complete mask, and its other cases. ``labels`` holds the incomplete training masks and the complete other
        masks, ``truth`` the complete training masks, their ``datalist.json`` and ``completeness.csv`` with counts by
        volume.

        Args:
            source: folder of the download, from which the image paths of the datalists start.
            out: folder for the site folders; made when missing.
            protocol: how volumes get to sites and masks lose lesions.
            source_name: what the cards name as source instead; synthetic data says so here.
            progress: called with one line of text at a time.

        Raises:
            FedMendError: a wrong argument, site folders in ``out`` already, no volumes, one without mask, a case twice,
                too few patients, a file that cannot be read, a mask on another grid or with values other than 0 and 1,
                or a training mask without a lesion.
        """
        source, out, say = Path(source), Path(out), progress or (lambda line: None)
        check_out(out, self.name)
        cases = sorted(self.find(source, say), key=lambda case: case.name)
        _check(self.name, cases, protocol)
        splits = _splits(cases, protocol, self.name)
        sites = len(protocol.completeness)
        site_of = _sites_of(cases, splits, sites, self.name, protocol.seed)
        about = {"source": source_name or self.source_name, "arguments": protocol.in_card()}
        with site_folders(out, sites, source) as (folders, root):
            writers = [_Site(*place) for place in zip(folders, [source] * sites, protocol.completeness, strict=True)]
            for number, case in enumerate(cases, start=1):
                where = f"{self.name}, case {number} in the order of names"
                writers[site_of[case.patient]].add(case, where, splits[case.patient], protocol.seed)
                if number * 10 // len(cases) > (number - 1) * 10 // len(cases):
                    say(f"{number} of {len(cases)} volumes")
            for writer in writers:
                writer.finish(about, image_root=root, modality=self.modality, window=self.window)
        say(f"{sites} site folders written, {_counted(cases, splits)} volumes")

    def command(self) -> Command:
        """``fedmend prepare`` of this data set."""
        return Command(self.name, self.help, self._add_arguments, self._run)

    def _add_arguments(self, parser: ArgumentParser) -> None:
        command_line.source_and_out(parser, self.source_help)
        parser.add_argument("--sites", type=int, help="number of sites, 1..4 (default 4)")
        parser.add_argument("--m", type=int, help=f"the paper's level of incompleteness, {self.levels} (default 0)")
        words = "share of lesions that each site keeps, e.g. 0.3,0.7, instead of --sites and --m"
        parser.add_argument("--completeness", type=_shares, help=words)
        parser.add_argument("--test-share", type=float, help="share of the patients (default 0.2)")
        command_line.options(parser, LesionProtocol, val_share="share of the other patients (default 0)")
        words = "the test patients, e.g. lesjak_07, instead of --test-share"
        parser.add_argument("--test-patients", type=lambda text: tuple(text.split(",")), default=(), help=words)
        command_line.options(parser, LesionProtocol, seed="")

    def _run(self, args: Namespace) -> None:
        settings = {k: v for k, v in command_line.given(args, "m", "sites").items() if v is not None}
        if args.completeness is not None and settings:
            raise FedMendError(f"prepare {self.name}: expected --completeness or --sites and --m, got both")
        if args.test_share is not None and args.test_patients:
            raise FedMendError(f"prepare {self.name}: expected --test-share or --test-patients, got both")
        args.completeness = args.completeness or completeness_settings(self.name, **{"m": 0, **settings})
        args.test_share = LesionProtocol.test_share if args.test_share is None else args.test_share
        self.prepare(args.source, args.out, command_line.made(LesionProtocol, args), progress=say)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers like 0.3,0.7, got {text!r}") from None


def _check(dataset: str, cases: Sequence[LesionCase], protocol: LesionProtocol) -> None:
    def check(name: str, good: bool, expected: str, got: object) -> None:
        need(good, f"{dataset}, argument {name}", expected, got)

    shares = ", ".join(map(str, protocol.completeness)) or "none"
    inside = len(protocol.completeness) > 0 and all(0 < share <= 1 for share in protocol.completeness)
    check("completeness", inside, "a number above 0 and at most 1 for each site", shares)
    check("seed", protocol.seed >= 0, "at least 0", protocol.seed)
    check("source", len(cases) > 0, "volumes in the layout of the download", "none")
    lacking = sum(case.mask is None for case in cases)
    check("source", not lacking, f"a mask for each of {len(cases)} volumes", f"none for {lacking}")
    repeated = len(cases) - len({case.name for case in cases})
    check("source", not repeated, "one copy of each case", f"{repeated} more")


def _splits(cases: Sequence[LesionCase], protocol: LesionProtocol, dataset: str) -> dict[str, str]:
    """Patient → ``train``, ``val`` or ``test``."""
    chosen, val_share, seed = protocol.test_patients, protocol.val_share, protocol.seed
    patients = sorted({case.patient for case in cases})
    strange = sorted(set(chosen) - set(patients))
    need(not strange, f"{dataset}, argument test_patients", f"some of {', '.join(patients)}", ", ".join(strange))
    test = set(chosen) or set(np.compress(hold_out(patients, protocol.test_share, seed=seed), patients).tolist())
    rest = [patient for patient in patients if patient not in test]
    words = "0, or a number below 1 and two patients outside the test split"
    good = not val_share or (0 < val_share < 1 and len(rest) > 1)
    need(good, f"{dataset}, argument val_share", words, f"{val_share} and {len(rest)}")
    held = set(np.compress(hold_out(rest, val_share, seed=seed), rest).tolist()) if val_share else set()
    return {p: "test" if p in test else "val" if p in held else "train" for p in patients}


def _counted(cases: Sequence[LesionCase], splits: Mapping[str, str]) -> str:
    counts = Counter(splits[case.patient] for case in cases)
    words = [f"{counts[split]} {section}" for split, section in SECTIONS.items() if counts[split]]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _sites_of(
    cases: Sequence[LesionCase], splits: Mapping[str, str], sites: int, dataset: str, seed: int
) -> dict[str, int]:
    """Patient → index of the site; each split is dealt to all sites."""
    patients = {split: {c.patient for c in cases if splits[c.patient] == split} for split in SECTIONS}
    found = len(patients["train"])
    need(found >= sites, dataset, f"at least {sites} training patients, one for each site", found)
    deals = {"train": 1, "test": 2, "val": 3}
    return {p: site for split, n in deals.items() for p, site in _deal(patients[split], sites, (seed, n)).items()}


def _deal(patients: set[str], sites: int, seed: tuple[int, int]) -> dict[str, int]:
    """Patient → index of the site."""
    names = sorted(patients)
    return {names[i]: place % sites for place, i in enumerate(np.random.default_rng(seed).permutation(len(names)))}


class _Site:
    """One site folder while it is written."""

    def __init__(self, folder: Path, images: Path, completeness: float):
        self.folder, self.images, self.completeness = folder, images, completeness
        self.sections: dict[str, list[dict]] = {section: [] for section in SECTIONS.values()}
        self.truth: list[dict] = []
        self.counts: list[tuple[str, LesionCounts]] = []
        for name in ("labels", "truth/labels"):
            (folder / name).mkdir()

    def add(self, case: LesionCase, where: str, split: str, seed: int) -> None:
        mask, volume, slices = _read(case, where)
        image = case.image.relative_to(self.images).as_posix()
        if split != "train":
            label = self._save(f"labels/{case.name}.nii.gz", mask, volume)
            self.sections[SECTIONS[split]].append({"image": image, "label": label})
            return
        need(bool(slices), where, "a lesion in the mask of a training volume", "none")
        own = int.from_bytes(hashlib.sha256(f"{seed} {case.name}".encode()).digest()[:8])
        kept, counts = remove_lesions(mask, self.completeness, seed=own)
        for items, name, voxels in ((self.sections["training"], "labels", kept), (self.truth, "truth/labels", mask)):
            label = self._save(f"{name}/{case.name}.nii.gz", voxels, volume)
            items.append({"image": image, "label": label, "slices": slices})
        self.counts.append((image, counts))

    def _save(self, name: str, mask: np.ndarray, volume: nibabel.Nifti1Image) -> str:
        header = volume.header.copy()  # both ways of the affine as they are, to the last bit
        header.set_data_dtype(np.uint8)
        header["cal_min"] = header["cal_max"] = 0  # the volume's grey levels would hide the mask in a viewer
        nibabel.save(type(volume)(mask, volume.affine, header), self.folder / name)
        return name

    def finish(self, provenance: Mapping, *, image_root: str, modality: str, window: str | None) -> None:
        """Writes the datalists, the counts and the card."""
        sections = {name: items for name, items in self.sections.items() if items}
        for file, content in ((DATALIST, sections), (f"truth/{DATALIST}", {"training": self.truth})):
            (self.folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        with open(self.folder / "truth" / "completeness.csv", "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["image", "lesions", "kept", "voxels", "kept_voxels"])
            writer.writerows([image, *astuple(counts)] for image, counts in self.counts)
        total = LesionCounts(*np.sum([astuple(counts) for _, counts in self.counts], axis=0).tolist())
        write_card(
            self.folder,
            task=SEGMENTATION,
            classes=CLASSES,
            splits={split: DATALIST for split, section in SECTIONS.items() if section in sections},
            truth={"train": f"truth/{DATALIST}"},
            image_root=image_root,
            modality=modality,
            window=window,
            provenance={**provenance, "site": {"completeness": self.completeness, **asdict(total)}},
        )


def _read(case: LesionCase, where: str) -> tuple[np.ndarray, nibabel.Nifti1Image, list[int]]:
    """The complete mask as (X, Y, Z) uint8, the volume (its voxels stay on disk), and the slices with a lesion."""
    try:
        volume, mask = (cast(nibabel.Nifti1Image, nibabel.load(cast(Path, f))) for f in (case.image, case.mask))
        values = np.asanyarray(mask.dataobj)
    except Exception as e:  # nibabel raises many types for a damaged file
        raise FedMendError(f"{where}: expected two NIfTI files, got a damaged one ({type(e).__name__})") from None
    fits = len(volume.shape) == 3 and values.shape == volume.shape
    need(fits, where, "a 3-D volume and a mask of its shape", f"{volume.shape} and {values.shape}")
    same = np.allclose(mask.affine, volume.affine, rtol=0, atol=AFFINE_TOLERANCE)
    need(same, where, "the affine matrix of the volume in the mask's header", "another")
    orientation = nibabel.io_orientation(volume.affine)
    need(not np.isnan(orientation).any(), where, "an affine matrix with three axes", "a degenerate one")
    need(((values == 0) | (values == 1)).all(), where, "a mask of 0 and 1", "other values")
    values = values.astype(np.uint8)
    slices = np.flatnonzero(nibabel.apply_orientation(values, orientation).any(axis=(0, 1)))
    return values, volume, slices.tolist()
