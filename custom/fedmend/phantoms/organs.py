"""Synthetic CT volumes of the abdomen with masks of three organs, for tests and trial runs.

Nothing in them comes from a patient. Place, size and brightness of the organs follow textbook anatomy, so that they
differ as they do in real scans; they are no substitute for real scans in any result.
"""

from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

from fedmend.phantoms import LEAST_DEPTH, LEAST_PIXELS
from fedmend.phantoms.drawing import below, check_least
from fedmend.phantoms.volume_drawing import Grid, cover, depth_in, from_segment, make_grid, posed, save_volume, texture

ORGANS = ("liver", "spleen", "kidneys")
FIELD, HEIGHT = 380.0, 200.0  # mm
SCANNERS = 4


def _organs(rng: np.random.Generator, at: np.ndarray, coarse: np.ndarray) -> list[np.ndarray]:
    """How deep (mm) inside liver, spleen and kidneys each voxel lies; the patient's right has positive x."""
    liver = np.maximum(
        depth_in(at, (72, 8, 25), (70, 72, 72)) + 4 * coarse, depth_in(at, (8, 42, 40), (62, 38, 30)) + 3 * coarse
    )
    spleen = depth_in(at, (-104, -38, 40), (24, 42, 48)) + 3 * coarse
    kidneys = []
    for side, low in ((1, -28), (-1, -14)):
        tilt, size = rng.normal(0, 4, 2), rng.uniform(0.9, 1.1)
        body = depth_in(at, (side * 66 + tilt[0], -52 + tilt[1], low), (24 * size, 26 * size, 52 * size))
        pelvis = depth_in(at, (side * 48 + tilt[0], -48 + tilt[1], low), (16, 12, 24))  # fat and urine in the middle
        kidneys.append(np.minimum(body, -pelvis) + 1.5 * coarse)
    return [liver, np.minimum(spleen, -liver), np.minimum(np.maximum(*kidneys), -np.maximum(liver, spleen))]


def _case(case: int, seed: int, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """(X, Y, Z) int16 CT in HU, and uint8 numbers of organs, from 1, of case 0, 1, ..."""
    rng = np.random.default_rng([seed, 5, case])
    scanner = np.random.default_rng([seed, 6, case % SCANNERS])
    noise, blur, contrast, offset = scanner.uniform((10, 0.2, 0, -6), (28, 0.6, 90, 6))
    at, edge = posed(rng, grid.place, 4, 5, 0.06), float(grid.spacing[0])
    fine, coarse = texture(rng, grid, 9), texture(rng, grid, 28)
    body = depth_in(at[:2], (0, -4), (168, 118)) + 3 * coarse
    hu = np.full(grid.shape, -1000.0, dtype=np.float32)
    cover(hu, below(-body, 0, edge), -100)
    cover(hu, below(rng.uniform(8, 28), body + 4 * coarse, 2 * edge), -60 + 90 * (fine > 0.2) + 8 * coarse)
    # Stomach, bowel and muscles have the brightness of the organs.
    loops = np.clip(1.4 - np.abs(fine) / 0.4, 0, 1) * (at[1] > -40) * (at[2] < 30)
    cover(hu, loops * below(-body, -20, edge), 35 + 0.2 * contrast)
    cover(hu, below(-depth_in(at, (-52, 38, 45), (44, 30, 34)) - 3 * coarse, 0, edge), rng.uniform(0, 45))
    for side in (-1, 1):
        cover(hu, below(from_segment(at, (side * 38, -58, -110), (side * 30, -64, 110)), 20, edge), 55 + 0.1 * contrast)
    cover(hu, below(np.hypot(at[0], at[1] + 62), 22, edge), rng.uniform(150, 280))
    cover(hu, below(np.hypot(at[0] + 8, at[1] + 30), 10, edge), 40 + 1.6 * contrast)
    organs = _organs(rng, at, coarse)
    number = np.zeros(grid.shape, dtype=np.uint8)
    values = (58 + 0.5 * contrast, 48 + 0.7 * contrast, 34 + 1.1 * contrast)
    for organ, (inside, value) in enumerate(zip(organs, values, strict=True), 1):
        cover(hu, below(-inside, 0, edge), value + rng.normal(0, 6) + 5 * fine)
        number[(inside > 0) & (body > 10)] = organ
    vessels = np.clip(1.2 - np.hypot(fine, texture(rng, grid, 9)) / 0.3, 0, 1) * (organs[0] > 3)
    cover(hu, 0.7 * vessels, 40 + contrast)
    hu = gaussian_filter(hu, (blur, blur, 0.3 * blur)) + offset
    hu += noise * rng.standard_normal(grid.shape, dtype=np.float32)
    return np.rint(hu.clip(-1024, 3071)).astype(np.int16), number


def write_organs(out: Path, *, cases: int, seed: int = 0, size: int = 64, depth: int = 24) -> None:
    """Writes synthetic CT volumes of the abdomen in the layout of a Medical Segmentation Decathlon task.

    ``out/imagesTr/case_XXX.nii.gz`` are int16 HU (-1024..3071), ``out/labelsTr/case_XXX.nii.gz`` uint8 numbers of
    organs: 1 liver, 2 spleen, 3 kidneys, 0 none of them, with the affine of the image; XXX counts from 001. Axes run to
    the left, the back and the top. Four scanners in turn differ in noise, sharpness, HU offset and contrast agent.
    Stomach, bowel, muscles and vessels reach the same HU and are no organs.

    The same arguments give the same bytes, and a case does not depend on how many others are made.

    Args:
        out: folder to write into; made where missing.
        cases: number of volumes, at least 1.
        seed: seed of everything that is random, at least 0.
        size: voxels from right to left and from front to back over 380 mm, at least 32.
        depth: slices over 200 mm, at least 12.

    Raises:
        FedMendError: an argument below its least value.
    """
    check_least(cases=(cases, 1), seed=(seed, 0), size=(size, LEAST_PIXELS), depth=(depth, LEAST_DEPTH))
    grid = make_grid(size, depth, FIELD, HEIGHT, (-1, -1, 1))
    for case in range(cases):
        image, organs = _case(case, seed, grid)
        for folder, voxels in (("imagesTr", image), ("labelsTr", organs)):
            save_volume(Path(out) / folder / f"case_{case + 1:03d}.nii.gz", voxels, grid)
