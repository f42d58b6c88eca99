"""Lesions of multiple sclerosis in FLAIR volumes: public downloads → segmentation sites that annotate a part of the
lesions (FedIA, Xiang et al., MICCAI 2024).

One source folder holds one or both of

- the MSSEG-1 challenge: ``Training/Center_*/Patient_*/Preprocessed_Data/FLAIR_preprocessed.nii.gz`` and, in the
  patient's folder, ``Masks/Consensus.nii.gz`` (Commowick et al., Scientific Reports 8:13650, 2018);
- one of the variants of the Lesjak set in the open_ms_data repository: ``cross_sectional/*/patient*/FLAIR.nii.gz``
  beside ``consensus_gt.nii.gz`` (Lesjak et al., Neuroinformatics 16:51-63, 2018)

or a flat copy of the Lesjak set: ``p07_flair.nii.gz`` and ``masks/p07.nii.gz``. The files may be ``.nii`` too.
"""

from pathlib import Path

from fedmend.datasets.lesion_sites import LesionCase, LesionDataset, nifti_file
from fedmend.datasets.samples import Say


def _find(source: Path, say: Say) -> list[LesionCase]:
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


MS = LesionDataset(
    name="ms",
    help="MS lesions in FLAIR (MSSEG-1, open_ms_data), only part of the lesions annotated",
    source_help="folder with one or both downloads",
    levels="0..3",
    source_name="MSSEG-1 (Commowick et al.) and 3D MR image database of Lesjak et al.",
    modality="MR",
    find=_find,
)
prepare = MS.prepare
COMMANDS = (MS.command(),)
