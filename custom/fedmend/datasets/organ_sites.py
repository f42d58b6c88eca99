"""Volumes with masks of several structures → site folders whose masks show some of them.

The download has the layout of a Medical Segmentation Decathlon task: ``imagesTr/NAME.nii.gz`` and, under the same name,
``labelsTr/NAME.nii.gz`` with the numbers of the structures.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.card import write_card
from fedmend.datasets.checks import need
from fedmend.datasets.imperfections import annotated_classes
from fedmend.datasets.site_folders import check_out, site_folders
from fedmend.labels import SEGMENTATION

SECTION = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class OrganProtocol:
    """Which site has which volumes, and which structures its masks show.

    Attributes:
        sites: S.
        annotated_per_site: structures that the masks of training and validation show at each site.
        rule: how they are chosen, see :func:`fedmend.datasets.imperfections.annotated_classes`.
        test_share: share of each site's volumes in the test split, whose masks show all structures.
        val_share: share of the others in the validation split.
        seed: 0 or more.
    """

    sites: int
    annotated_per_site: int
    rule: str = "one_each"
    test_share: float = 0.4
    val_share: float = 0.2
    seed: int = 1037


def write_organ_sites(
    source: Path, out: Path, classes: Sequence[str], protocol: OrganProtocol, *, source_name: str, **card: Any
) -> None:
    """Writes ``out/site-1`` .. ``out/site-S``; the images stay where they are.

    Args:
        source: folder of the download.
        out: folder for the site folders.
        classes: C names of the structures, in the order of their numbers in the masks, from 1.
        protocol: see there.
        source_name: what the cards name as source.
        card: further fields of the cards, such as ``modality`` and ``window``.

    Raises:
        FedMendError: site folders in ``out`` already, or too few volumes for so many sites.
    """
    check_out(out, "organs")
    names = sorted(file.name for file in (source / "imagesTr").glob("*.nii.gz"))
    annotated = annotated_classes(
        protocol.sites, len(classes), protocol.annotated_per_site, rule=protocol.rule, seed=protocol.seed
    )
    order = np.random.default_rng([protocol.seed, 7]).permutation(len(names))
    with site_folders(out, protocol.sites, source / "imagesTr") as (folders, image_root):
        for s, folder in enumerate(folders):
            own = [names[i] for i in order[s :: protocol.sites]]
            test = max(1, round(protocol.test_share * len(own)))
            val = max(1, round(protocol.val_share * (len(own) - test)))
            need(len(own) >= test + val + 1, f"site-{s + 1}", f"at least {test + val + 1} volumes", len(own))
            parts = {"test": own[:test], "val": own[test : test + val], "train": own[test + val :]}
            shown = [name for name, flag in zip(classes, annotated[s], strict=True) if flag]
            for split, cases in parts.items():
                kept = np.ones(len(classes), dtype=bool) if split == "test" else annotated[s]
                for name in cases:
                    _write_mask(source / "labelsTr" / name, folder / "labels" / name, kept)
            for name in parts["train"]:
                _write_mask(source / "labelsTr" / name, folder / "truth" / name, np.ones(len(classes), dtype=bool))
            _write_list(folder / "datalist.json", {k: [(n, f"labels/{n}") for n in v] for k, v in parts.items()})
            _write_list(folder / "truth.json", {"train": [(n, f"truth/{n}") for n in parts["train"]]})
            write_card(
                folder,
                task=SEGMENTATION,
                classes=classes,
                splits=dict.fromkeys(("train", "val", "test"), "datalist.json"),
                truth={"train": "truth.json"},
                image_root=image_root,
                annotated=dict.fromkeys(("train", "val"), shown),
                provenance={"source": source_name, "arguments": asdict(protocol)},
                **card,
            )


def _write_mask(source: Path, out: Path, kept: np.ndarray) -> None:
    """Copies a mask without the structures that are not ``kept``, (C,) bool."""
    import nibabel

    label: Any = nibabel.load(source)
    numbers = np.asarray(label.dataobj, dtype=np.uint8)
    out.parent.mkdir(parents=True, exist_ok=True)
    shown = np.concatenate([[True], kept])[numbers] * numbers
    nibabel.save(nibabel.Nifti1Image(shown.astype(np.uint8), label.affine, label.header), out)


def _write_list(file: Path, parts: dict[str, list[tuple[str, str]]]) -> None:
    listed = {SECTION[name]: [{"image": i, "label": k} for i, k in cases] for name, cases in parts.items()}
    file.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
