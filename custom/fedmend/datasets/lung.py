"""COVID-19 lesions in chest CT: the COVID-19-20 challenge → segmentation sites that annotate a part of the lesions (FedIA, Xiang
et al., MICCAI 2024).

Download: ``Train/volume-covid19-A-0003_ct.nii.gz`` beside ``Train/volume-covid19-A-0003_seg.nii.gz``, and so on; ``.nii`` is
read too. Reference: Roth et al., Medical Image Analysis 82:102605, 2022.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedmend.datasets.lesion_sites import LesionCase, nifti_file, write_lesion_sites
from fedmend.imperfections import completeness_settings

SOURCE = "COVID-19-20 lung CT lesion segmentation challenge, training set"


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
        m: level of incompleteness, 0..2, see :func:`fedmend.imperfections.completeness_settings`.
        completeness: share of lesions in (0, 1] that each site keeps; given, it takes the place of ``sites`` and ``m``.
        test_share: share of the patients in the test split, in (0, 1).
        seed: of split, partition and lesion removal.
        source_name: what the cards name as source; synthetic data says so here.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: no volumes, or what the shared writer refuses.
    """
    source = Path(source)
    write_lesion_sites(
        out,
        _find(source),
        dataset="lung",
        image_root=source,
        completeness=completeness_settings("lung", m, sites) if completeness is None else completeness,
        test_share=test_share,
        seed=seed,
        modality="CT",
        window="lung",
        source_name=source_name,
        progress=progress,
    )


def _find(source: Path) -> list[LesionCase]:
    names = {image: image.name.split("_ct.nii")[0] for image in source.glob("**/Train/volume-covid19-A-*_ct.nii*")}
    return [
        LesionCase(image=image, mask=nifti_file(image.parent, f"{name}_seg"), name=name, patient=name)
        for image, name in names.items()
    ]
