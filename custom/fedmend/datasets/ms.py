"""Lesions of multiple sclerosis in FLAIR volumes: public downloads → segmentation sites that annotate a part of the lesions
(FedIA, Xiang et al., MICCAI 2024).

One source folder holds one or both of

- the MSSEG-1 challenge: ``Training/Center_*/Patient_*/Preprocessed_Data/FLAIR_preprocessed.nii.gz`` and, in the patient's
  folder, ``Masks/Consensus.nii.gz`` (Commowick et al., Scientific Reports 8:13650, 2018);
- one of the variants of the Lesjak set in the open_ms_data repository: ``cross_sectional/*/patient*/FLAIR.nii.gz`` beside
  ``consensus_gt.nii.gz`` (Lesjak et al., Neuroinformatics 16:51-63, 2018)

or a flat copy of the Lesjak set: ``p07_flair.nii.gz`` and ``masks/p07.nii.gz``. The files may be ``.nii`` too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmend.datasets.lesion_sites import LesionCase, nifti_file, write_lesion_sites
from fedmend.imperfections import completeness_settings

SOURCE = "MSSEG-1 (Commowick et al.) and 3D MR image database of Lesjak et al."


def prepare(
    source: Path,
    out: Path,
    *,
    sites: int = 4,
    m: int = 0,
    completeness: Sequence[float] | None = None,
    test_share: float = 0.2,
    seed: int = 1037,
    source_name: str = SOURCE,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Writes ``out/site-1`` .. ``out/site-S``, see :func:`fedmend.datasets.lesion_sites.write_lesion_sites`.

    Args:
        source: folder of the download.
        out: folder for the site folders; made when missing.
        sites: S in 1..4.
        m: level of incompleteness, 0..3, see :func:`fedmend.imperfections.completeness_settings`.
        completeness: share of lesions in (0, 1] that each site keeps; given, it takes the place of ``sites`` and ``m``.
        test_share: share of the patients in the test split, in (0, 1).
        seed: of split, partition and lesion removal.
        source_name: what the cards name as source; synthetic data says so here.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: no volumes, or what the shared writer refuses.
    """
    source, say = Path(source), progress or (lambda line: None)
    write_lesion_sites(
        out,
        _find(source, say),
        dataset="ms",
        image_root=source,
        completeness=completeness_settings("ms", m, sites) if completeness is None else completeness,
        test_share=test_share,
        seed=seed,
        modality="MR",
        source_name=source_name,
        progress=progress,
    )


def _find(source: Path, say: Callable[[str], None]) -> list[LesionCase]:
    found: list[tuple[Path, Path | None, str]] = []
    for image in source.glob("**/Training/Center_*/Patient_*/Preprocessed_Data/FLAIR_preprocessed.nii*"):
        patient = image.parents[1]
        found.append((image, nifti_file(patient / "Masks", "Consensus"), f"msseg_{patient.parent.name}_{patient.name}"))
    for image in source.glob("**/cross_sectional/*/patient*/FLAIR.nii*"):
        number = image.parent.name.removeprefix("patient")
        found.append((image, nifti_file(image.parent, "consensus_gt"), f"lesjak_{number}"))
    flat = {image.name.split("_flair.nii")[0]: image for image in source.glob("p*_flair.nii*")}
    found += [(image, nifti_file(source / "masks", name), f"lesjak_{name[1:]}") for name, image in flat.items()]
    if unused := len({mask.name.split(".nii")[0] for mask in source.glob("masks/p*.nii*")} - set(flat)):
        say(f"{unused} masks without a volume are left out")
    return [LesionCase(image=image, mask=mask, name=name, patient=name) for image, mask, name in found]
