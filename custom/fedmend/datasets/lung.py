"""COVID-19 lesions in chest CT: the COVID-19-20 challenge → segmentation sites that annotate a part of the lesions
(FedIA, Xiang et al., MICCAI 2024).

Download: ``Train/volume-covid19-A-0003_ct.nii.gz`` beside ``Train/volume-covid19-A-0003_seg.nii.gz``, and so on;
``.nii`` is read too. Reference: Roth et al., Medical Image Analysis 82:102605, 2022.
"""

from pathlib import Path

from fedmend.datasets.lesion_sites import LesionCase, LesionDataset, nifti_file
from fedmend.datasets.samples import Say


def _find(source: Path, say: Say) -> list[LesionCase]:
    names = {image: image.name.split("_ct.nii")[0] for image in source.glob("**/Train/volume-covid19-A-*_ct.nii*")}
    return [
        LesionCase(image=image, mask=nifti_file(image.parent, f"{name}_seg"), name=name, patient=name)
        for image, name in names.items()
    ]


LUNG = LesionDataset(
    name="lung",
    help="COVID-19-20 lung lesions in CT, only part of the lesions annotated",
    source_help="folder with Train/",
    levels="0..2",
    source_name="COVID-19-20 lung CT lesion segmentation challenge, training set",
    modality="CT",
    window="lung",
    find=_find,
)
prepare = LUNG.prepare
COMMANDS = (LUNG.command(),)
