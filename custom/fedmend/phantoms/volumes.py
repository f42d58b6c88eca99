"""Synthetic volumes with lesions in the layout of public segmentation challenges, for tests and trial runs.

``write_ms`` draws FLAIR head volumes with multiple sclerosis lesions in the layout of MSSEG-1, ``write_lung`` CT thorax
volumes with ground-glass patches in that of COVID-19-20. Nothing in them comes from a patient, but for the lesion masks
that ``write_ms`` may be given. Shapes and brightness follow textbook anatomy, and number and size of the head lesions
what is known of real masks; they are no substitute for real scans in any result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from nibabel.affines import apply_affine, voxel_sizes
from scipy.ndimage import binary_dilation, gaussian_filter, label

from fedmend.data.volumes import load_nifti
from fedmend.errors import FedMendError
from fedmend.phantoms import LEAST_DEPTH, LEAST_PIXELS
from fedmend.phantoms.drawing import below, check_least
from fedmend.phantoms.volume_drawing import (
    Grid,
    cover,
    depth_in,
    from_segment,
    make_grid,
    posed,
    save_volume,
    texture,
)

LEAST_LESION = 4  # voxels
# Lesions per patient and their sizes (mm³) in the masks of 30 patients (Lesjak et al., Neuroinformatics 2018).
PATIENTS, LESIONS = (0, 0.25, 0.5, 0.75, 1), (17, 31, 79, 116, 392)
SHARE, SIZES = (0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.983, 1), (1, 1, 6, 17, 46, 127, 261, 1000, 46_870)
LOAD = 52_000  # mm³ of lesions in the worst patient
# A phantom has a quarter as many lesions, four times as large, and so many at least and at most.
MERGED, FEWEST, MOST = 4, 8, 40
MS_CENTRES = (1, 7, 8)
# Where the origin of MNI space lies in a phantom head (mm right, front, up). Chosen so that the 30 masks lie in white
# matter by the ventricles: in one head 99.7 % of their voxels are in the brain, three quarters in white matter.
MNI_ORIGIN = np.array([0, 18, -6])
CT_CENTRES = 4
HEAD_FIELD, HEAD_HEIGHT = 182.0, 140.0  # mm
CHEST_FIELD, CHEST_HEIGHT = 360.0, 290.0
CONNECTED = np.ones((3, 3, 3), dtype=bool)


# ---- lesions ---------------------------------------------------------------------------------------------------------
def _lesions(
    rng: np.random.Generator, grid: Grid, sizes: np.ndarray, likely: np.ndarray, wall: np.ndarray, rough: float
) -> np.ndarray:
    """Grows lesions that do not touch each other.

    Args:
        rng: gives their places.
        grid: of the volume.
        sizes: wanted voxels of each.
        likely: (X, Y, Z), how likely a lesion starts in a voxel; 0 where none may reach.
        wall: (X, Y, Z), distance (mm) from what lesions lie along.
        rough: how ragged their edges are.

    Returns:
        (X, Y, Z) int32: 0 or the number of the lesion, from 1. One that finds no place is left out, and one that finds
        too little room stays smaller, but never under ``LEAST_LESION`` voxels.
    """
    out, free, shape = np.zeros(grid.shape, dtype=np.int32), likely > 0, np.array(grid.shape)
    ragged, starts = texture(rng, grid, float(grid.spacing.mean())), np.cumsum(likely, dtype=np.float64)
    count = 0
    for size in np.sort(sizes)[::-1]:  # the large ones need the room
        radius = (size * grid.spacing.prod() * 0.75 / np.pi) ** (1 / 3)
        reach = np.ceil(2.5 * radius / grid.spacing).astype(int) + 1
        stretch = rng.uniform(0.7, 1.4, 3)
        for start in np.searchsorted(starts, rng.random(20) * starts[-1], side="right"):
            seed = np.array(np.unravel_index(start, grid.shape))
            if not free[tuple(seed)]:
                continue
            low, high = np.maximum(seed - reach, 0), np.minimum(seed + reach + 1, shape)
            box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
            steps = [np.arange(a, b) - s for a, b, s in zip(low, high, seed, strict=True)]
            away = np.meshgrid(*steps, indexing="ij", sparse=True)
            far = np.sqrt(sum((a * mm * s) ** 2 for a, mm, s in zip(away, grid.spacing, stretch, strict=True)))
            cost = np.where(free[box], far + 0.5 * wall[box] + rough * radius * ragged[box], np.inf)
            cost[tuple(seed - low)] = -np.inf
            limit = np.sort(cost, axis=None)[min(size, cost.size) - 1]
            parts = label((cost <= limit) & free[box], CONNECTED)[0]
            lesion = parts == parts[tuple(seed - low)]
            if lesion.sum() >= LEAST_LESION:
                count += 1
                out[box][lesion] = count
                around = tuple(slice(max(a - 1, 0), b + 1) for a, b in zip(low, high, strict=True))
                free[around] &= ~binary_dilation(out[around] == count, CONNECTED)
                break
    return out


def _in_voxels(volumes: np.ndarray, grid: Grid) -> np.ndarray:
    """Lesion sizes in voxels from mm³; the least lesion is added, so that few have just its size."""
    return LEAST_LESION + np.rint(volumes / grid.spacing.prod()).astype(int)


# ---- head ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Head:
    """A head without lesions; (X, Y, Z) float32 each.

    ``signal`` is 1 in white matter, ``brain`` a mask 0..1, ``likely`` how likely a lesion starts, ``ventricles`` the
    distance (mm) from the ventricles, negative inside.
    """

    signal: np.ndarray
    brain: np.ndarray
    likely: np.ndarray
    ventricles: np.ndarray


def _head(rng: np.random.Generator, grid: Grid) -> _Head:
    at = posed(rng, grid.place, 4, 2, 0.03)
    wide, atrophy, grey = rng.uniform(4.0, 8.5), rng.uniform(0.08, 0.25), rng.uniform(1.12, 1.28)
    fine, coarse = texture(rng, grid, 5.5), texture(rng, grid, 18)
    edge = float(grid.spacing[0])
    pair = np.stack([np.abs(at[0]), at[1], at[2]])  # both sides alike

    cerebrum, temporal = depth_in(at, (0, 2, 2), (63, 80, 60)), depth_in(pair, (36, 10, -24), (24, 36, 22))
    hind = np.maximum(depth_in(pair, (18, -46, -38), (34, 32, 23)), 15 - from_segment(at, (0, -14, -10), (0, -26, -62)))
    inside = np.maximum.reduce([np.minimum(cerebrum, at[2] + 28), temporal, hind]) + 1.2 * coarse
    brain = below(-inside, 0, edge)
    near = np.clip((20 - np.maximum(cerebrum, temporal)) / 8, 0, 1) * (hind < 3)
    sulci = np.clip(1.2 - np.abs(fine) / atrophy, 0, 1) * near
    midline = below(pair[0] + 0.8 * fine, 2.0, 3) * np.clip((np.hypot(at[1], at[2] - 12) - 34) / 8, 0, 1)
    midline *= at[2] > -15
    cortex = np.maximum(below(inside, 5, 3), np.clip(1.7 - np.abs(fine) / 0.4, 0, 1) * near)
    cortex = np.maximum(cortex, below(pair[0], 6, 3) * (midline > 0))
    ganglia = np.maximum(depth_in(pair, (24, 6, 4), (8, 20, 11)), depth_in(pair, (11, -14, 6), (9, 13, 9)))

    horns = (
        *(((13, 34, 6), (8, 14, 14), 0.9), ((8, 14, 14), (15, -22, 20), 0.8)),
        *(((15, -22, 20), (27, -44, 8), 1.1), ((27, -38, 2), (32, -8, -18), 0.45)),
    )
    lateral = [from_segment(pair, start, end) - thick * wide for start, end, thick in horns]
    middle = np.minimum(from_segment(at, (0, 6, -4), (0, -14, 4)) - 0.3 * wide, -depth_in(at, (0, -34, -32), (6, 5, 8)))
    ventricles = np.minimum(np.minimum.reduce(lateral), middle)
    # The septum between the frontal horns is as bright as a lesion, and so are caps on the horns of most people.
    septum = below(pair[0], 1.5, edge) * (np.abs(at[1] - 12) < 18) * (np.abs(at[2] - 13) < 9)
    caps = np.minimum(from_segment(pair, (14, 37, 6), (14, 40, 6)), from_segment(pair, (28, -48, 7), (29, -53, 6)))
    caps = rng.uniform(0.1, 0.45) * below(caps, 0.6 * wide, edge)

    signal = 1 + 0.03 * coarse + 0.06 * np.exp(-np.clip(ventricles, 0, None) / 5)
    cover(signal, cortex, grey * (1 + 0.1 * texture(rng, grid, 9)))
    cover(signal, 0.8 * below(-ganglia, 0, 3), 0.5 + 0.5 * grey)
    signal += caps
    cover(signal, np.maximum(0.75 * sulci, 0.7 * midline), 0.35)
    cover(signal, below(ventricles, 0, edge), rng.uniform(0.15, 0.3))
    cover(signal, 0.8 * septum * below(ventricles, 2, edge), rng.uniform(1.1, 1.5))
    white = (brain > 0.95) & (cortex < 0.35) & (ganglia < 0) & (ventricles > 0.5) & (sulci < 0.2) & (at[2] > -45)
    likely = white * (np.exp(-np.clip(ventricles, 0, None) / 10) + 0.1) * np.where(at[2] < -22, 0.3, 1.0)
    return _Head(signal, brain, likely, ventricles)


def _masked(grid: Grid, mask: Path) -> np.ndarray:
    """(X, Y, Z) int32 lesions of a mask in MNI space, numbered from 1: voxels of which it covers at least half, or most
    where it covers half of none.

    Raises:
        FedMendError: unreadable, not in MNI space, coarser than the grid, or other voxels than 0 and 1.
    """
    where = f"argument masks, file {mask.name}"
    image, voxels = load_nifti(mask, where)
    if (values := np.unique(voxels)).tolist() != [0, 1]:
        raise FedMendError(f"{where}: expected voxels 0 and 1, some of each, got {values[:4].tolist()}")
    size = np.abs(np.linalg.det(image.affine[:3, :3]))
    if (voxel_sizes(image.affine) > grid.spacing.min() * 1.001).any():
        got = " x ".join(f"{mm:.3g}" for mm in voxel_sizes(image.affine))
        raise FedMendError(f"{where}: expected voxels of at most {grid.spacing.min():.3g} mm, got {got} mm")
    lesion = apply_affine(image.affine, np.argwhere(voxels > 0)) + MNI_ORIGIN
    at = np.rint(apply_affine(np.linalg.inv(grid.affine), lesion)).astype(int)
    inside = ((at >= 0) & (at < grid.shape)).all(axis=1)
    if inside.mean() < 0.9:
        raise FedMendError(f"{where}: expected lesions in a head in MNI space (mm), got them elsewhere")
    covered = np.zeros(grid.shape)
    np.add.at(covered, tuple(at[inside].T), size / grid.spacing.prod())
    return label(covered >= min(0.5, covered.max()), CONNECTED)[0].astype(np.int32)


def _drawn(rng: np.random.Generator, grid: Grid, head: "_Head") -> np.ndarray:
    """(X, Y, Z) int32 lesions that are grown in white matter, numbered from 1."""
    count = round(np.clip(np.interp(rng.random(), PATIENTS, LESIONS) / MERGED, FEWEST, MOST))
    sizes = np.minimum(MERGED * np.exp(np.interp(rng.random(count), SHARE, np.log(SIZES))), SIZES[-1])
    sizes *= min(1, LOAD / sizes.sum())
    return _lesions(rng, grid, _in_voxels(sizes, grid), head.likely, head.ventricles, 0.25)


def _ms_case(case: int, seed: int, grid: Grid, mask: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """(X, Y, Z) float32 FLAIR and bool mask of case 0, 1, ...; with lesions of ``mask`` if there is one."""
    rng = np.random.default_rng([seed, 0, case])
    centre = np.random.default_rng([seed, 1, case % len(MS_CENTRES)])
    head = _head(rng, grid)
    number = _masked(grid, mask) if mask else _drawn(rng, grid, head)
    if mask:  # its lesions count where this head has brain; its ventricles and sulci give way to them
        number *= head.brain > 0.5
        cover(head.signal, number > 0, np.maximum(head.signal, 1))
    lesion = number > 0
    brighter = np.concatenate([[0.0], rng.normal(0.47, 0.14, number.max()).clip(0.22, 0.9)])
    spread = gaussian_filter(brighter[number].astype(np.float32), 0.35) * (1 + 0.1 * texture(rng, grid, 4))
    signal = head.signal + spread

    noise, blur, gamma = centre.uniform((0.025, 0.2, 0.85), (0.06, 0.45, 1.15))
    slope, bend = rng.normal(0, 0.06, 3), rng.normal(0, 0.04, 3)
    x, y, z = grid.place / (HEAD_FIELD / 2)
    bias = 1 + slope[0] * x + slope[1] * y + slope[2] * z + bend[0] * x * x + bend[1] * y * y + bend[2] * z * z
    signal = gaussian_filter(signal * head.brain, (blur, blur, 0.5 * blur)).clip(0) ** gamma * bias
    signal += noise * rng.standard_normal(grid.shape, dtype=np.float32)
    image = (rng.uniform(55, 110) * signal.clip(0)).astype(np.float32)
    # Resampling after the skull was taken away undershoots here and there beside the brain.
    image[head.brain < 0.4] = 0
    rim = (head.brain < 0.4) & (head.brain > 0.1) & (rng.random(grid.shape) < 0.3)
    image[rim] = -rng.uniform(0, 20, int(rim.sum()))
    return image, lesion


# ---- thorax ----------------------------------------------------------------------------------------------------------
def _chest(rng: np.random.Generator, grid: Grid, contrast: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A thorax without lesions: HU, the lungs as a mask 0..1, and the depth (mm) below the pleura."""
    at = posed(rng, grid.place, 3, 4, 0.04)
    pair = np.stack([np.abs(at[0]), at[1], at[2]])
    fat, dome, breath = rng.uniform(8, 25), rng.uniform(35, 50), rng.uniform(-890, -820)
    edge, fine, coarse = float(grid.spacing[0]), texture(rng, grid, 9), texture(rng, grid, 30)
    apex = np.sqrt(np.clip(1 - ((at[2] + 40) / 175) ** 2, 0.02, 1))
    taper = apex * (at[2] > -40) + (at[2] <= -40)
    shell = np.hypot(at[0] / (138 * taper), (at[1] + 4) / (98 * np.sqrt(taper)))  # 1 at the inside of the ribs
    wall = (1 - shell) * 98 * taper
    body = depth_in(at[:2], (0, 0), (162, 112)) + 3 * coarse

    hu = np.full(grid.shape, -1000.0, dtype=np.float32)
    cover(hu, below(-body, 0, edge), -100)
    cover(hu, below(fat, body + 4 * coarse, 2 * edge), 45 + 8 * coarse)
    heart = depth_in(at, (-24, 24, -45), (54, 48, 55)) + 2 * coarse
    middle = 28 - 0.05 * at[2] + 0.1 * at[1] + 5 * coarse - pair[0]
    mediastinum = np.maximum(np.maximum(heart, middle), 26 - np.hypot(at[0], at[1] + 66))
    base = at[2] + 120 - dome * np.cos(np.clip(np.hypot(pair[0] - 70, at[1]) / 70, 0, np.pi / 2)) - 8 * (at[0] > 0)
    pleura = np.minimum(np.minimum(wall, -mediastinum), base)
    lungs = below(-pleura, 0, edge)

    ribs = below(np.abs((at[2] + 0.45 * at[1] - 12 * (at[1] > 40)) / 26 % 1 - 0.5), 0.22, 0.25)
    cover(hu, ribs * below(np.abs(wall + 7), 5, edge) * (np.abs(at[0]) > 30), rng.uniform(350, 600))
    cover(hu, below(np.hypot(at[0], at[1] + 68), 19, edge), rng.uniform(180, 300))
    cover(hu, below(np.hypot(at[0], at[1] + 94), 8, edge), 30)
    cover(hu, below(np.hypot(at[0] / 2, at[1] - 90), 8, edge), 200)
    blood = np.maximum(heart - 8, 13 - np.hypot(at[0] + 22, at[1] + 46))
    cover(hu, below(-blood, 0, edge), 40 + contrast)
    cover(hu, below(base, 0, 2 * edge) * below(-wall, 0, edge), np.where(at[0] > -10, 60, 20) + 0.3 * contrast)

    # Thin tubes where two smooth fields are both near 0; fewer and thinner towards the pleura.
    tubes = np.hypot(fine, texture(rng, grid, 9)) / np.clip(pleura / 60, 0.15, 0.6)
    ends = ((70, -30, -55), (65, 25, -20), (60, -10, 50))
    hila = np.minimum.reduce([from_segment(pair, (34, -4, -6), end) - 5 for end in ends])
    vessels = np.maximum(np.clip(1.3 - tubes, 0, 1), below(hila, 0, 2 * edge)) * lungs
    tissue = breath - 0.35 * (at[1] + 10) + 18 * coarse + 10 * fine  # denser where it lies
    cover(hu, lungs, tissue)
    cover(hu, 0.75 * vessels, 40 + 0.5 * contrast)
    fissure = np.abs(at[1] * 0.8 + at[2] + 35 + 6 * coarse + 12 * (at[0] > 0))
    cover(hu, lungs * np.clip(1.4 - fissure / edge, 0, 1) * 0.16, 0.0)
    # Lung that its own weight presses together at the back is as dense as ground glass, but no lesion.
    pressed = np.clip(1.3 - np.where(at[1] < -40, pleura, 99) / 7, 0, 1) * np.clip(0.4 + coarse, 0, 1)
    cover(hu, lungs * pressed * rng.uniform(0.15, 0.5), -350)
    for start, end, wide in (((0, -2, 150), (0, -6, 22), 9), ((0, -6, 22), (34, -12, -8), 6)):
        cover(hu, below(from_segment(pair, start, end), wide, edge), -960)
    return hu, lungs, pleura


def _lung_case(case: int, seed: int, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """(X, Y, Z) int16 CT in HU and bool mask of case 0, 1, ..."""
    rng = np.random.default_rng([seed, 2, case])
    centre = np.random.default_rng([seed, 3, case % CT_CENTRES])
    noise, blur, contrast, offset = centre.uniform((12, 0.2, -10, -8), (40, 0.5, 120, 8))
    hu, lungs, pleura = _chest(rng, grid, contrast)
    low = np.where(grid.place[2] < -10, 1.0, 0.5) * np.where(grid.place[1] < 0, 1.0, 0.5)
    likely = (lungs > 0.9) * low * (np.exp(-np.clip(pleura, 0, None) / 18) + 0.08)
    sizes = np.exp(rng.normal(np.log(3000), 1.15, rng.integers(8, 26))).clip(max=250_000)
    number = _lesions(rng, grid, _in_voxels(sizes, grid), likely, np.clip(pleura, 0, None), 0.35)
    lesion = number > 0

    count = int(number.max()) + 1
    target, solid = rng.uniform(-620, -400, count)[number], (rng.random(count) < 0.35)[number]
    grain = texture(rng, grid, 7)
    soft = gaussian_filter(lesion.astype(np.float32), 0.35) * lungs
    cover(hu, np.clip(1.15 * soft, 0, 1) * lesion + soft * ~lesion, np.maximum(hu, target + 45 * grain))
    core = solid * np.clip(grain - 0.4, 0, 1) * np.clip((soft - 0.6) / 0.3, 0, 1)
    cover(hu, core, 20.0)
    hu = gaussian_filter(hu, (blur, blur, 0.3 * blur)) + offset
    hu += noise * rng.standard_normal(grid.shape, dtype=np.float32) * (1 + 0.5 * (hu > -300))
    return np.rint(hu.clip(-1024, 3071)).astype(np.int16), lesion


# ---- files -----------------------------------------------------------------------------------------------------------
def write_ms(
    out: Path, *, cases: int, seed: int = 0, size: int = 64, depth: int = 24, masks: Sequence[Path] = ()
) -> None:
    """Writes synthetic FLAIR volumes with multiple sclerosis lesions as an MSSEG-1 download.

    ``out/Training/Center_CC/Patient_NN/`` has ``Preprocessed_Data/FLAIR_preprocessed.nii.gz``, float32 and brain
    extracted (0 outside, a few small negative values at the rim), and ``Masks/Consensus.nii.gz``, uint8 0 or 1 with the
    affine of the image. Axes run to the left, the front and the top. The centres are 01, 07 and 08 in turn, patients
    count from 01 over all of them. Centres differ in noise, sharpness and contrast, patients in the scale of intensity,
    bias field and anatomy.

    A voxel of 64 x 64 x 24 is 47 mm³, as large as three quarters of the real lesions. So a patient has a quarter as
    many lesions as one of the 30 real masks, but 8 to 40 (26-connected), and a lesion four times the size of a real one
    plus 4 voxels, at most 47 ml: the total is 2 to 60 ml (really 0.3 to 52), and one confluent lesion may hold most of
    it. They lie in white matter, mostly near the ventricles, and shine about 1.4 times as bright. Cortex, septum and
    caps of the ventricles are as bright as the fainter ones.

    With ``masks`` shapes, places and number of the lesions are those of real patients, each in one case; the tissue
    stays synthetic, and brighter lesions lie in what is ventricle or sulcus in this head. A voxel is lesion where the
    mask covers half of it, so lesions smaller than half a voxel are lost.

    The same arguments give the same bytes, and a case does not depend on how many others are made.

    Args:
        out: folder to write into; made where missing.
        cases: number of volumes, at least 1.
        seed: seed of everything that is random, at least 0.
        size: voxels from left to right and from back to front over 182 mm, at least 32.
        depth: slices over 140 mm, at least 12.
        masks: NIfTI files of 0 and 1 in MNI space (mm), at least ``cases``, voxels no larger than those written. They
            are dealt to the cases in an order that depends on the seed.

    Raises:
        FedMendError: an argument below its least value, fewer masks than cases, or a mask that cannot be used.
    """
    check_least(cases=(cases, 1), seed=(seed, 0), size=(size, LEAST_PIXELS), depth=(depth, LEAST_DEPTH))
    if masks and len(masks) < cases:
        raise FedMendError(f"argument masks: expected at least {cases}, one for each volume, got {len(masks)}")
    grid = make_grid(size, depth, HEAD_FIELD, HEAD_HEIGHT, (-1, 1, 1))
    order = np.random.default_rng([seed, 4]).permutation(len(masks))
    for case in range(cases):
        image, lesion = _ms_case(case, seed, grid, masks[order[case]] if masks else None)
        centre = MS_CENTRES[case % len(MS_CENTRES)]
        folder = Path(out) / "Training" / f"Center_{centre:02d}" / f"Patient_{case + 1:02d}"
        save_volume(folder / "Preprocessed_Data" / "FLAIR_preprocessed.nii.gz", image, grid)
        save_volume(folder / "Masks" / "Consensus.nii.gz", lesion.astype(np.uint8), grid)


def write_lung(out: Path, *, cases: int, seed: int = 0, size: int = 64, depth: int = 24) -> None:
    """Writes synthetic CT volumes with ground-glass patches as a COVID-19-20 download.

    ``out/Train/volume-covid19-A-XXXX_ct.nii.gz`` are int16 HU (-1024..3071), ``..._seg.nii.gz`` uint8 masks 0 or 1 with
    the affine of the image; XXXX counts from 0001. Axes run to the left, the back and the top.

    A case has up to 25 patches (26-connected), mostly below the pleura, at the back and at the bases, of 3 ml in the
    median (at least 4 voxels, at most 250 ml), -620 to -400 HU, ragged, a third of them partly consolidated. Vessels,
    fissures, lung that lies pressed at the back, and the rim of the diaphragm reach the same HU and are no lesions.
    Four scanners in turn differ in noise, sharpness, HU offset and contrast agent.

    Arguments and determinism are as in :func:`write_ms`, but for these.

    Args:
        size: voxels from right to left and from front to back over 360 mm, at least 32.
        depth: slices over 290 mm, at least 12.

    Raises:
        FedMendError: an argument below its least value.
    """
    check_least(cases=(cases, 1), seed=(seed, 0), size=(size, LEAST_PIXELS), depth=(depth, LEAST_DEPTH))
    grid = make_grid(size, depth, CHEST_FIELD, CHEST_HEIGHT, (-1, -1, 1))
    for case in range(cases):
        image, lesion = _lung_case(case, seed, grid)
        name = f"volume-covid19-A-{case + 1:04d}"
        save_volume(Path(out) / "Train" / f"{name}_ct.nii.gz", image, grid)
        save_volume(Path(out) / "Train" / f"{name}_seg.nii.gz", lesion.astype(np.uint8), grid)
