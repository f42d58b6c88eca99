"""Synthetic dermoscopy in the layout of the public downloads, for tests and trial runs without patient data.

``write_isic2019`` and ``write_isic2018`` draw skin lesions as JPEG pictures in the layout of the ISIC 2019 training
download and of ISIC 2018 task 3 (HAM10000). Nothing in them comes from a patient. Colours come from what absorbs light
in skin: melanin near the surface looks brown, deep melanin blue-grey, blood red. The structures follow textbook
dermoscopy; they are no substitute for real pictures in any result. Once the pictures are dealt to sites, ``lay_casts``
gives each site its camera.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

from fedmend.basics.parallel import mapped
from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.samples import Say
from fedmend.phantoms import LEAST_PIXELS
from fedmend.phantoms.drawing import below, capsule, check_least, smooth_noise, write_csv

# Pictures per class in the official training sets; none is UNK.
ISIC2019_COUNTS = {"MEL": 4522, "NV": 12875, "BCC": 3323, "AK": 867, "BKL": 2624, "DF": 239, "VASC": 253, "SCC": 628}
ISIC2018_COUNTS = {"MEL": 1113, "NV": 6705, "BCC": 514, "AKIEC": 327, "BKL": 1099, "DF": 115, "VASC": 142}
SHARE_FLOOR = 0.04
PICTURES_PER_LESION = (0.7, 0.2, 0.1)  # probabilities of 1, 2 and 3
BLANK_LESION_IDS = 0.12  # share among the lesions with one picture
BODY_SITES = ("anterior torso", "head/neck", "lower extremity", "palms/soles", "posterior torso", "upper extremity")
# What a lesion without its textbook signs is taken for; a small share of lesions is drawn as a faint one of these.
LOOK_ALIKES = {"MEL": "NV", "NV": "MEL", "BCC": "SCC", "AK": "SCC", "BKL": "NV", "DF": "NV", "VASC": "BCC", "SCC": "AK"}
ISIC2018_LOOK_ALIKES = {**LOOK_ALIKES, "BCC": "AKIEC", "AKIEC": "BCC"}  # without SCC
LOOK_ALIKE_SHARE = 0.05
MALIGNANT = ("MEL", "BCC", "AKIEC")  # always confirmed by histopathology
CONFIRMATIONS = (
    *("histopathology", "serial imaging showing no change", "single image expert consensus"),
    "confocal microscopy with consensus dermoscopy",
)
MARGIN = 1.5  # edge of the drawing over edge of the picture, so that the picture can be turned
CAST = 0.04  # a camera's gain for a colour is up to this far from 1
# Optical densities for red, green and blue light.
MELANIN, DEEP_MELANIN, BLOOD = np.array([(0.6, 0.95, 1.3), (1.0, 0.72, 0.5), (0.1, 0.8, 0.7)], dtype=np.float32)


@dataclass(frozen=True)
class _Lesion:
    """Index (from 0), class and file names of its pictures."""

    index: int
    name: str
    pictures: tuple[str, ...]


@dataclass
class _Canvas:
    """Skin to draw a lesion on: (n, n) float arrays with the lesion's centre in the middle.

    ``u`` and ``v`` are -1.5..1.5, of which a picture shows about -1..1; ``edge`` is the width of one pixel in them.
    ``coarse`` and ``fine`` are smooth noise with deviation 1. ``rgb`` (n, n, 3) is the share of light that comes back.
    """

    u: np.ndarray
    v: np.ndarray
    edge: float
    coarse: np.ndarray
    fine: np.ndarray
    rgb: np.ndarray

    def absorb(self, amount: np.ndarray, pigment: np.ndarray) -> None:
        self.rgb *= np.exp(-amount[..., None] * pigment)

    def cover(self, mask: np.ndarray, colour: tuple[float, float, float]) -> None:
        self.rgb += mask[..., None] * (np.array(colour, dtype=np.float32) - self.rgb)

    def turned(self, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """``u`` and ``v`` in axes turned by an angle."""
        return self.u * np.cos(angle) + self.v * np.sin(angle), self.v * np.cos(angle) - self.u * np.sin(angle)


# ---- which lesion has what -------------------------------------------------------------------------------------------
def _counts(images: int, official: Mapping[str, int]) -> dict[str, int]:
    """Pictures per class: the official shares, raised to the floor; the largest class makes up for it."""
    total = sum(official.values())
    rare = [v for v in official.values() if v < SHARE_FLOOR * total]
    scale = images * (1 - SHARE_FLOOR * len(rare)) / (total - sum(rare))
    counts = {k: max(round(scale * v), int(np.ceil(SHARE_FLOOR * images))) for k, v in official.items()}
    counts[max(official, key=official.__getitem__)] += images - sum(counts.values())
    return counts


def _plan(images: int, official: Mapping[str, int], seed: int) -> list[_Lesion]:
    """Deals pictures to lesions, class after class."""
    rng = np.random.default_rng([seed, 0])
    # Distinct ids in no visible order: a factor coprime to 10 is a bijection modulo a power of ten.
    offset = int(rng.integers(10**7))
    names = (f"ISIC_{(offset + i * 6_180_339) % 10**7:07d}" for i in range(images))
    lesions: list[_Lesion] = []
    for name, left in _counts(images, official).items():
        while left:
            size = min(left, int(rng.choice(3, p=PICTURES_PER_LESION)) + 1)
            lesions.append(_Lesion(len(lesions), name, tuple(next(names) for _ in range(size))))
            left -= size
    return lesions


# ---- shapes ----------------------------------------------------------------------------------------------------------
def _outline(s: _Canvas, rng: np.random.Generator, radius: float, ragged: float, stretch: float = 1.3) -> np.ndarray:
    """Distance from the lesion's centre, with its border at 1."""
    x, y = s.turned(rng.uniform(0, np.pi))
    longer, angle = rng.uniform(1, stretch) ** 0.5, np.arctan2(y, x)
    waves = sum(rng.normal() / k**0.5 * np.cos(k * angle + rng.uniform(0, 2 * np.pi)) for k in range(2, 8))
    return np.hypot(x / longer, y * longer) / (radius * np.clip(1 + ragged * waves, 0.4, 1.6)) + ragged * s.coarse


def _network(s: _Canvas, rng: np.random.Generator, pitch: float, disorder: float) -> np.ndarray:
    """Lines of a honeycomb, 0..1: where three plane waves at 60 degrees to each other are low."""
    warp, first = disorder * pitch, rng.uniform(0, np.pi)
    u, v = s.u + warp * s.coarse, s.v + warp * s.coarse.T
    angles = first + np.pi / 3 * np.arange(3)
    waves = sum(np.cos(2 * np.pi / pitch * (u * np.cos(a) + v * np.sin(a))) for a in angles)
    return np.clip((-0.1 - waves) / 0.9, 0, 1)


def _spots(
    s: _Canvas, rng: np.random.Generator, count: tuple[int, int], radius: float, near: float, far: float
) -> np.ndarray:
    """Round spots of about this radius, ``near`` to ``far`` from the centre; ``count`` is the range of their number."""
    mask = np.zeros_like(s.u)
    for _ in range(rng.integers(*count)):
        angle, squared, size = rng.uniform((0, near**2, 0.6 * radius), (2 * np.pi, far**2, 1.4 * radius))
        u, v = squared**0.5 * np.cos(angle), squared**0.5 * np.sin(angle)
        np.maximum(mask, below(np.hypot(s.u - u, s.v - v), size, 1.5 * s.edge), out=mask)
    return mask


def _vessel(
    s: _Canvas, rng: np.random.Generator, start: np.ndarray, heading: float, length: float, width: float
) -> np.ndarray:
    """A vessel that branches like a tree until it is too thin to see."""
    end = start + length * np.array([np.cos(heading), np.sin(heading)])
    mask = below(capsule(s.u + 0.02 * s.fine, s.v + 0.03 * s.coarse, start, end), width, 1.5 * s.edge)
    if width > 0.012:
        for turn in (rng.uniform(0.3, 0.9), -rng.uniform(0.3, 0.9)):
            np.maximum(mask, _vessel(s, rng, end, heading + turn, 0.75 * length, 0.75 * width), out=mask)
    return mask


def _side(s: _Canvas, rng: np.random.Generator, shift: float = 0.0) -> np.ndarray:
    """1 on one side of a wavy line at this distance from the centre, 0 on the other."""
    return below(shift - s.turned(rng.uniform(0, 2 * np.pi))[0] + 0.12 * s.coarse, 0.0, 0.2)


# ---- lesions ---------------------------------------------------------------------------------------------------------
# Each takes skin, a generator and how typical the lesion is (0..1): the signs of its class fade, the rest does not.
def _nevus(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Round, symmetric, brown; an even network that ends softly, or globules, or neither."""
    radius = rng.uniform(0.35, 0.72)
    q = _outline(s, rng, radius, 0.015 + 0.06 * (1 - typical))
    body = below(q, 1.0, rng.uniform(0.1, 0.4))
    s.absorb(rng.uniform(0.15, 0.95) * body * (0.75 + rng.uniform(-0.15, 0.35) * below(q, 0.6, 0.6)), MELANIN)
    s.absorb(rng.uniform(0, 0.35) * body, BLOOD)
    pattern = rng.random()
    if pattern < 0.6:
        even = _network(s, rng, rng.uniform(0.075, 0.115), 0.2 + 0.4 * (1 - typical))
        s.absorb(rng.uniform(0.3, 0.8) * even * below(q, 0.95, 0.4), MELANIN)
    elif pattern < 0.8:
        s.absorb(0.8 * _spots(s, rng, (20, 40), 0.035, 0.0, 0.85 * radius), MELANIN)


def _melanoma(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Asymmetric, irregular border, streaks, wild network, browns, black, blue-grey veil, red and white."""
    radius = rng.uniform(0.42, 0.78)
    q = _outline(s, rng, radius, 0.05 + 0.09 * typical, 1.6)
    streaks = np.cos(rng.integers(18, 30) * np.arctan2(s.v, s.u) + 2 * s.coarse).clip(0) * _side(s, rng, 0.1)
    body = below(q - rng.choice([0, 0.12]) * typical * streaks, 1.0, rng.uniform(0.08, 0.25))
    s.absorb(rng.uniform(0.4, 0.8) * body * (1 + 0.2 * s.coarse), MELANIN)
    s.absorb(rng.uniform(0.3, 0.9) * typical * body * _side(s, rng), MELANIN)
    s.absorb(rng.uniform(0.3, 1.3) * typical * below(q, 0.8, 0.2) * _side(s, rng, 0.1), MELANIN)
    network, veil, red, scar, dots = rng.random(5) < (0.6, 0.65, 0.45, 0.35, 0.5)
    if network:
        wild = _network(s, rng, rng.uniform(0.1, 0.15), 0.6)
        s.absorb(rng.uniform(0.5, 1.0) * wild * body * _side(s, rng), MELANIN)
    if veil:
        where = below(q, 0.8, 0.3) * _side(s, rng, 0.12)
        s.cover(rng.uniform(0.4, 0.9) * typical * where, (0.4, 0.46, 0.58))
    if red:
        s.absorb(rng.uniform(0.4, 0.9) * typical * body * _side(s, rng, 0.12), BLOOD)
    if scar:
        s.cover(0.7 * typical * below(q, 0.85, 0.2) * _side(s, rng, 0.22), (0.88, 0.8, 0.76))
    if dots:
        where = _spots(s, rng, (8, 20), 0.025, 0.5 * radius, radius) * _side(s, rng)
        s.absorb(1.2 * typical * body * where, MELANIN)


def _basal_cell(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Pearly pink, sharp branching vessels, blue-grey ovoid nests, sometimes small ulcers."""
    radius = rng.uniform(0.4, 0.75)
    body = below(_outline(s, rng, radius, 0.06), 1.0, rng.uniform(0.2, 0.5))
    s.absorb(rng.uniform(0.25, 0.65) * body, BLOOD)
    s.cover(rng.uniform(0.1, 0.4) * body * below(-s.coarse, 0.3, 1.5), (0.96, 0.87, 0.86))
    nests, vessels, ulcers = rng.random(3) < (0.7, 0.85, 0.3)
    if nests:
        where = _spots(s, rng, (2, 8), rng.uniform(0.06, 0.13), 0.2 * radius, 0.85 * radius)
        s.absorb(1.1 * typical * gaussian_filter(where, 0.015 / s.edge), DEEP_MELANIN)
    if vessels:
        for angle in rng.uniform(0, 2 * np.pi, rng.integers(2, 5)):
            start = radius * np.array([np.cos(angle), np.sin(angle)])
            tree = _vessel(s, rng, start, angle + np.pi + rng.uniform(-0.5, 0.5), 0.5 * radius, 0.024)
            s.absorb(1.3 * typical * tree, BLOOD)
    if ulcers:
        s.cover(typical * _spots(s, rng, (1, 4), 0.09, 0.0, 0.5 * radius), (0.62, 0.25, 0.12))


def _actinic(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Diffuse pink without a border, a red net around pale follicles ("strawberry"), white-yellow scale on top."""
    body = below(_outline(s, rng, rng.uniform(0.55, 0.95), 0.12, 1.6), 1.0, rng.uniform(0.5, 0.9))
    s.absorb(rng.uniform(0.25, 0.6) * body * (1 + 0.25 * s.coarse), BLOOD)
    s.absorb(rng.uniform(0, 0.3) * body, MELANIN)
    if rng.random() < 0.7:
        net = _network(s, rng, rng.uniform(0.13, 0.18), 0.2)
        s.absorb(0.5 * typical * net * body, BLOOD)
        s.cover(0.4 * typical * below(net, 0.03, 0.05) * body, (0.95, 0.85, 0.72))
    scale = below(0.7 - 0.6 * typical - s.fine, 0.0, 0.5) * below(-s.coarse, 0.4, 0.6)
    s.cover(rng.uniform(0.5, 1.0) * typical * scale * body, (0.96, 0.93, 0.84))


def _keratosis(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Stuck-on, sharp border, waxy tan to brown; milia-like cysts, comedo-like openings, fissures."""
    radius = rng.uniform(0.42, 0.78)
    q = _outline(s, rng, radius, 0.05)
    body = below(q, 1.0, 0.05 + 0.15 * (1 - typical))
    s.absorb(rng.uniform(0.3, 0.85) * body * (1 + 0.12 * s.coarse), MELANIN)
    s.cover(rng.uniform(0.05, 0.3) * body, (0.74, 0.6, 0.46))
    cysts, openings, fissures = rng.random(3) < (0.8, 0.65, 0.5)
    if fissures:
        s.absorb(0.9 * typical * below(np.abs(s.fine), 0.12, 0.25) * below(q, 0.95, 0.1), MELANIN)
    if openings:
        s.absorb(1.4 * typical * _spots(s, rng, (4, 14), 0.04, 0.0, 0.85 * radius), MELANIN)
    if cysts:
        s.cover(0.9 * typical * _spots(s, rng, (5, 18), 0.035, 0.0, 0.85 * radius), (0.97, 0.92, 0.78))


def _dermatofibroma(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Round, a white scar in the centre and a delicate light-brown network around it."""
    q = _outline(s, rng, rng.uniform(0.4, 0.7), 0.03)
    body = below(q, 1.0, rng.uniform(0.35, 0.6))
    s.absorb(rng.uniform(0.2, 0.5) * body, MELANIN)
    s.absorb(rng.uniform(0.05, 0.35) * body, BLOOD)
    delicate = _network(s, rng, rng.uniform(0.08, 0.12), 0.3) * body * below(-q, -0.45, 0.3)
    s.absorb(rng.uniform(0.3, 0.7) * (0.3 + 0.7 * typical) * delicate, MELANIN)
    scar = below(q + 0.06 * s.fine, rng.uniform(0.3, 0.55), 0.3)
    s.cover(0.85 * typical * scar, (0.95, 0.88, 0.84))


def _vascular(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """Haemangioma: sharply bounded red to purple, sometimes blue-black lagoons with pale walls between them."""
    radius = rng.uniform(0.3, 0.65)
    q = _outline(s, rng, radius, 0.05)
    s.absorb(rng.uniform(0.3, 0.7) * below(q, 1.05, 0.3), BLOOD)
    lagoons = typical * _spots(s, rng, (6, 18), rng.uniform(0.1, 0.18), 0.0, 0.85 * radius)
    s.absorb(1.6 * lagoons, BLOOD)
    s.absorb(rng.uniform(0.0, 1.0) * lagoons, DEEP_MELANIN)
    if rng.random() < 0.5:
        s.cover(0.35 * below(np.abs(s.coarse), 0.12, 0.3) * below(q, 1.0, 0.3), (0.9, 0.78, 0.8))


def _squamous(s: _Canvas, rng: np.random.Generator, typical: float) -> None:
    """A white-yellow mass of keratin in a red rim with looped vessels; blood spots in the keratin."""
    radius, core = rng.uniform(0.45, 0.8), rng.uniform(0.35, 0.65)
    q = _outline(s, rng, radius, 0.07, 1.5)
    s.absorb(rng.uniform(0.3, 0.8) * below(q, 1.0, rng.uniform(0.2, 0.5)), BLOOD)
    s.absorb(1.2 * typical * _spots(s, rng, (8, 22), 0.03, core * radius, 0.95 * radius), BLOOD)
    keratin = below(q + 0.08 * s.fine + 0.06 * s.coarse, core, 0.15)
    s.cover(0.9 * typical * keratin, (0.93, 0.86, rng.uniform(0.58, 0.8)))
    if rng.random() < 0.5:
        s.cover(typical * _spots(s, rng, (2, 6), 0.05, 0.0, 0.6 * core * radius), (0.5, 0.16, 0.12))


_CLASSES = (_melanoma, _nevus, _basal_cell, _actinic, _keratosis, _dermatofibroma, _vascular, _squamous)
_DRAW = dict(zip(ISIC2019_COUNTS, _CLASSES, strict=True)) | {"AKIEC": _actinic}


# ---- skin and camera -------------------------------------------------------------------------------------------------
def _skin(rng: np.random.Generator, size: int) -> _Canvas:
    n = round(MARGIN * size)
    axis = (((np.arange(n) + 0.5) / n * 2 - 1) * MARGIN).astype(np.float32)
    v, u = np.meshgrid(axis, axis, indexing="ij")
    coarse, fine, tone, flush, lines = (smooth_noise(rng, n, sigma) for sigma in (0.05, 0.016, 0.1, 0.07, 0.008))
    s = _Canvas(u, v, 2 / size, coarse, fine, np.full((n, n, 3), (0.93, 0.83, 0.77), dtype=np.float32))
    s.absorb(rng.uniform(0.0, 0.3) * (1 + 0.12 * tone) + 0.04 * np.abs(lines), MELANIN)
    s.absorb(rng.uniform(0.02, 0.3) * np.clip(1 + 0.3 * flush, 0, None), BLOOD)
    return s


def _hair(s: _Canvas, rng: np.random.Generator) -> None:
    """Hairs across every second lesion: parabolas, whose distance has a closed form."""
    count, tone, heading = rng.choice([0, int(rng.integers(1, 11))]), rng.uniform(0.6, 2.5), rng.uniform(0, np.pi)
    for _ in range(count):
        x, y = s.turned(heading + rng.normal(0, 0.35))
        bend, shift = rng.normal(0, 0.25), rng.uniform(-1.4, 1.4)
        far = np.abs(y - shift - bend * x * x) / np.hypot(1, 2 * bend * x)
        s.absorb(tone * below(far, rng.uniform(0.002, 0.012), 1.5 * s.edge), MELANIN)


def _draw(lesion: _Lesion, look_alikes: Mapping[str, str], seed: int, size: int) -> np.ndarray:
    """The lesion on its skin, before it is photographed: (1.5 size, 1.5 size, 3) float32."""
    rng = np.random.default_rng([seed, 1, lesion.index])
    s = _skin(rng, size)
    if rng.random() < LOOK_ALIKE_SHARE:
        _DRAW[look_alikes[lesion.name]](s, rng, rng.uniform(0.0, 0.4))
    else:
        _DRAW[lesion.name](s, rng, rng.uniform(0.15, 1.0))
    _hair(s, rng)
    return s.rgb


def _axes(size: int) -> tuple[np.ndarray, np.ndarray]:
    """y and x of a picture's pixels, both (size, size) in -1..1."""
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    y, x = np.meshgrid(axis, axis, indexing="ij")
    return y, x


def _photograph(rgb: np.ndarray, rng: np.random.Generator, size: int) -> np.ndarray:
    """A picture of it without colour cast, turned and shifted at random: (size, size, 3) uint8."""
    blur, zoom, grain, light = rng.uniform((0.2, 0.88, 0.004, 0.93), (0.9, 1.25, 0.016, 1.05))
    turn, shift = rng.uniform(0, 2 * np.pi), rng.normal(0, 0.08, 2)
    y, x = _axes(size)
    v, u = (y * np.cos(turn) - x * np.sin(turn)) / zoom, (x * np.cos(turn) + y * np.sin(turn)) / zoom
    where = [(w + shift[i] + MARGIN) * size / 2 - 0.5 for i, w in enumerate((v, u))]
    seen = np.stack([map_coordinates(rgb[..., c], where, order=1, mode="reflect") for c in range(3)], axis=-1)
    seen = gaussian_filter(seen, (blur * size / 96, blur * size / 96, 0))
    seen = seen * light + grain * rng.standard_normal(seen.shape)
    return (seen.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _cast(picture: np.ndarray, hue: float, camera: np.random.Generator) -> np.ndarray:
    """A (size, size, 3) uint8 picture as a camera has it whose cast has this hue: 0 is red, 1/3 green, 2/3 blue."""
    gain = 1 + CAST * np.cos(2 * np.pi * (hue - np.arange(3) / 3))
    exposure, gamma, shade, field = camera.uniform((0.95, 0.96, 0.05, 1.3), (1.03, 1.06, 0.25, 1.8))
    far = np.hypot(*_axes(len(picture)))[..., None]
    seen = (picture / 255 * gain * exposure * (1 - shade * far**2 / 2)).clip(0, 1) ** gamma
    return (seen * below(far, field, 0.06) * 255 + 0.5).astype(np.uint8)


def _save(picture: np.ndarray, file: Path) -> None:
    Image.fromarray(picture).save(file, quality=92, subsampling=0, comment=b"synthetic phantom")


# ---- the download ----------------------------------------------------------------------------------------------------
def _write_lesion(lesion: _Lesion, *, folder: Path, look_alikes: Mapping[str, str], seed: int, size: int) -> None:
    rgb = _draw(lesion, look_alikes, seed, size)
    for k, name in enumerate(lesion.pictures):
        _save(_photograph(rgb, np.random.default_rng([seed, 3, lesion.index, k]), size), folder / f"{name}.jpg")


def _write_pictures(
    folder: Path, isic2019: bool, images: int, seed: int, size: int, processes: int | None
) -> list[_Lesion]:
    """Checks the arguments, plans and writes all pictures."""
    check_least(
        images=(images, round(1 / SHARE_FLOOR)), seed=(seed, 0), size=(size, LEAST_PIXELS), processes=(processes, 1)
    )
    official = ISIC2019_COUNTS if isic2019 else ISIC2018_COUNTS
    look_alikes = LOOK_ALIKES if isic2019 else ISIC2018_LOOK_ALIKES
    lesions = _plan(images, official, seed)
    folder.mkdir(parents=True, exist_ok=True)
    write = partial(_write_lesion, folder=folder, look_alikes=look_alikes, seed=seed, size=size)
    list(mapped(write, lesions, processes=processes))
    return lesions


def write_isic2019(out: Path, *, images: int, seed: int = 0, size: int = 96, processes: int | None = None) -> None:
    """Writes a synthetic ISIC 2019 training download.

    ``out/ISIC_2019_Training_Input/ISIC_<7 digits>.jpg`` are dermoscopic pictures,
    ``out/ISIC_2019_Training_GroundTruth.csv`` has one row for each with 1.0 in the column of its class,
    ``out/ISIC_2019_Training_Metadata.csv`` has age, body site, lesion and sex. A lesion has one to three pictures; some
    lesions with one picture have a blank ``lesion_id``.

    The eight classes have their shares in the official set, but never less than 4 % of the pictures, so that the rare
    ones can be learnt from a small phantom; NV gives way. Pictures differ in zoom, sharpness, noise and light, but have
    no colour cast: see :func:`lay_casts`. The same arguments give the same bytes, whatever ``processes`` is.

    Args:
        out: folder to write into; made where missing.
        images: number of pictures, at least 25, so that each class has one.
        seed: seed of everything that is random, at least 0.
        size: rows and columns of a picture in pixels, at least 32.
        processes: number of worker processes; None: see :func:`fedmend.basics.parallel.mapped`.

    Raises:
        FedMendError: an argument below its least value.
    """
    out = Path(out)
    folder = out / "ISIC_2019_Training_Input"
    lesions = _write_pictures(folder, True, images, seed, size, processes)
    rng = np.random.default_rng([seed, 4])
    truth, metadata, columns = [], [], (*ISIC2019_COUNTS, "UNK")
    for lesion, number in zip(lesions, rng.permutation(len(lesions)), strict=True):
        blank = len(lesion.pictures) == 1 and rng.random() < BLANK_LESION_IDS
        lesion_id = "" if blank else f"PHANTOM_{number:07d}"
        age, site, sex = 5 * rng.integers(4, 18), rng.choice(BODY_SITES), rng.choice(["female", "male"])
        truth += [[picture, *(float(c == lesion.name) for c in columns)] for picture in lesion.pictures]
        metadata += [[picture, age, site, lesion_id, sex] for picture in lesion.pictures]
    write_csv(out / "ISIC_2019_Training_GroundTruth.csv", ["image", *columns], sorted(truth))
    header = ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"]
    write_csv(out / "ISIC_2019_Training_Metadata.csv", header, sorted(metadata))


def write_isic2018(out: Path, *, images: int, seed: int = 0, size: int = 96, processes: int | None = None) -> None:
    """Writes a synthetic ISIC 2018 task 3 (HAM10000) training download.

    ``out/ISIC2018_Task3_Training_Input/ISIC_<7 digits>.jpg`` are dermoscopic pictures; the table in
    ``out/ISIC2018_Task3_Training_GroundTruth`` has one row for each with 1.0 in the column of its class;
    ``out/ISIC2018_Task3_Training_LesionGroupings.csv`` has lesion and kind of confirmation. A lesion has one to three
    pictures. AKIEC is drawn as actinic keratosis.

    Shares of the seven classes, pictures, determinism and arguments are as in :func:`write_isic2019`.

    Raises:
        FedMendError: an argument below its least value.
    """
    out, name = Path(out), "ISIC2018_Task3_Training"
    folder = out / f"{name}_Input"
    lesions = _write_pictures(folder, False, images, seed, size, processes)
    rng = np.random.default_rng([seed, 4])
    truth, groups = [], []
    for lesion, number in zip(lesions, rng.permutation(len(lesions)), strict=True):
        confirmed = CONFIRMATIONS[0] if lesion.name in MALIGNANT else rng.choice(CONFIRMATIONS)
        truth += [[picture, *(float(c == lesion.name) for c in ISIC2018_COUNTS)] for picture in lesion.pictures]
        groups += [[picture, f"PHANTOM_{number:07d}", confirmed] for picture in lesion.pictures]
    table = out / f"{name}_GroundTruth" / f"{name}_GroundTruth.csv"
    table.parent.mkdir(exist_ok=True)
    write_csv(table, ["image", *ISIC2018_COUNTS], sorted(truth))
    header = ["image", "lesion_id", "diagnosis_confirm_type"]
    write_csv(out / f"{name}_LesionGroupings.csv", header, sorted(groups))


def lay_casts(out: Path, *, sites: int, seed: int = 0, progress: Say | None = None) -> None:
    """Gives each site its own camera: lays one colour cast over all pictures of a site, in place.

    The hues of the casts are spread evenly over the sites, so that no two are alike; exposure, contrast and vignette
    are drawn. The same pictures and arguments give the same bytes. A second call would lay a second cast over the
    first.

    Args:
        out: folder of ``site-1`` .. ``site-<sites>``, whose tables name phantom pictures, each in one table alone.
        sites: number of sites.
        seed: seed of what is drawn, at least 0.
        progress: called with one line of text for each site.

    Raises:
        FedMendError: a site folder that cannot be read.
    """
    for s in range(sites):
        name = f"site-{s + 1}"
        card = load_card(Path(out) / name, name)
        tables = [load_table(card, file, card.classes) for file in card.splits.values()]
        files = [card.image_root / image for table in tables for image in table.images]
        if progress:
            progress(f"{name}: its camera's colour cast for {len(files)} pictures")
        for file in files:
            with Image.open(file) as picture:
                pixels = np.asarray(picture)
            _save(_cast(pixels, s / sites, np.random.default_rng([seed, 2, s])), file)
