"""Synthetic chest films in the layout of ChestX-ray14, for tests and trial runs without patient data.

``write_cxr14`` draws frontal films as PNG files in the layout of the NIH download. Nothing in them comes from a
patient. Shadows add up, as X-ray densities do. The fourteen findings follow textbook radiology in place, shape and
texture; they are no substitute for real films in any result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from fedmend.basics.parallel import mapped
from fedmend.errors import FedMendError
from fedmend.phantoms import LEAST_PIXELS
from fedmend.phantoms.drawing import below, capsule, check_least, smooth_noise, write_csv

# Films per finding among the 112,120 of ChestX-ray14, and what the finding shares with others of its patient: fluid in
# the lung or around it, growths, and chronic disease of airways and pleura. Findings that share much occur together.
FINDINGS = {
    "Atelectasis": (11_559, (0.7, 0.0, 0.1)),
    "Cardiomegaly": (2_776, (0.6, 0.0, 0.0)),
    "Effusion": (13_317, (0.8, 0.1, 0.0)),
    "Infiltration": (19_894, (0.6, 0.1, 0.1)),
    "Mass": (5_782, (0.1, 0.8, 0.0)),
    "Nodule": (6_331, (0.0, 0.8, 0.1)),
    "Pneumonia": (1_431, (0.8, 0.0, 0.0)),
    "Pneumothorax": (5_302, (0.2, 0.1, 0.6)),
    "Consolidation": (4_667, (0.8, 0.2, 0.0)),
    "Edema": (2_303, (0.8, 0.0, 0.0)),
    "Emphysema": (2_516, (0.0, 0.0, 0.8)),
    "Fibrosis": (1_686, (0.0, 0.1, 0.7)),
    "Pleural_Thickening": (3_385, (0.1, 0.2, 0.7)),
    "Hernia": (227, (0.0, 0.0, 0.2)),
}
FILMS = 112_120
RATE_FLOOR = 0.04
SICK = 0.5  # weight of what all findings of a patient share
FILMS_PER_PATIENT = (0.5, 0.25, 0.15, 0.1)  # probabilities of 1 to 4
AP_SHARE, TEST_SHARE = 0.4, 0.228
HEADER = (
    *("Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position"),
    *("OriginalImage[Width", "Height]", "OriginalImagePixelSpacing[x", "y]"),  # official: commas without quotes
)
CLEAR = (0.6, 1.0)  # range of how clear a finding is; fainter ones are lost at the 48 pixels of the presets
LUNG, SOFT, DENSE = 0.2, 0.62, 0.78  # densities, 0 to 1
APEX, ANGLE = -0.78, 0.66  # heights of the lungs' tips and of the costophrenic angles


@dataclass(frozen=True)
class _Patient:
    """Index (from 0) and, for each film, its findings (n, 14) bool and whether it is AP (n,) bool."""

    index: int
    labels: np.ndarray
    ap: np.ndarray


@dataclass
class _Film:
    """A chest; every array is (size, size) float.

    ``u`` and ``v`` are -1..1 from left to right of the film and from top to bottom. ``across`` is 0 at the mediastinum
    and 1 at the chest wall, ``down`` is 0 at the lungs' tips and 1 at the diaphragm. ``lungs`` is a mask 0..1,
    ``width`` the lungs' widest extent in ``u``, ``coarse`` and ``fine`` are smooth noise with deviation 1, ``edge`` is
    the width of one pixel.
    """

    u: np.ndarray
    v: np.ndarray
    across: np.ndarray
    down: np.ndarray
    lungs: np.ndarray
    width: float
    coarse: np.ndarray
    fine: np.ndarray
    edge: float
    density: np.ndarray

    def add(self, amount: np.ndarray) -> None:
        self.density += amount

    def cover(self, mask: np.ndarray, density: np.ndarray | float) -> None:
        self.density += mask * (density - self.density)

    def half(self, side: int) -> np.ndarray:
        return self.lungs * (self.u * side > 0)

    def spot(self, across: float, down: float, radius: float, side: int) -> np.ndarray:
        """Distance from a place in a lung, in radii."""
        u, v = side * (0.14 + across * (self.width - 0.14)), APEX + down * (0.55 - APEX)
        return np.hypot(self.u - u, self.v - v) / radius


# ---- who has what ----------------------------------------------------------------------------------------------------
def _plan(images: int, seed: int, least: float = RATE_FLOOR, most: float = 1.0) -> list[_Patient]:
    """Each finding gets its exact number of films: those where its score is highest."""
    rng = np.random.default_rng([seed, 0])
    sizes: list[int] = []
    while (left := images - sum(sizes)) > 0:
        sizes.append(min(left, int(rng.choice(4, p=FILMS_PER_PATIENT)) + 1))
    patient = np.repeat(np.arange(len(sizes)), sizes)
    loadings = np.array([shared for _, shared in FINDINGS.values()])
    sick, shared = rng.standard_normal(len(sizes)), rng.standard_normal((len(sizes), loadings.shape[1]))
    own = shared @ loadings.T + SICK * sick[:, None] + 0.6 * rng.standard_normal((len(sizes), len(FINDINGS)))
    scores = own[patient] + 0.9 * rng.standard_normal((images, len(FINDINGS)))
    labels = np.zeros(scores.shape, dtype=bool)
    for c, (films, _) in enumerate(FINDINGS.values()):
        count = max(round(min(films / FILMS, most) * images), int(np.ceil(least * images)))
        labels[np.argsort(-scores[:, c], kind="stable")[:count], c] = True
    # The ill are filmed in bed more often.
    ap = np.zeros(images, dtype=bool)
    ap[np.argsort(-(0.2 * sick[patient] + rng.standard_normal(images)))[: round(AP_SHARE * images)]] = True
    return [_Patient(p, labels[patient == p], ap[patient == p]) for p in range(len(sizes))]


# ---- the chest -------------------------------------------------------------------------------------------------------
def _chest(
    body: np.random.Generator, pose: np.random.Generator, ap: bool, found: Mapping[str, tuple], size: int
) -> _Film:
    """Draws a chest with its enlarged or shrunken organs; ``body`` in the same state gives the same patient."""
    width, heart, tall = body.uniform((0.74, 0.26, 0.3), (0.84, 0.33, 0.36))
    medial, dome, knob = body.uniform((0.1, 0.4, 0.05), (0.15, 0.48, 0.1))
    pitch, slope, ribs, fat = body.uniform((0.15, 0.2, 0.03, 0.0), (0.19, 0.4, 0.075, 0.08))
    shift, turn, breath = pose.normal(0, 0.035, 2), pose.normal(0, 0.03), pose.uniform(-0.04, 0.04)
    large, flat = (found.get(name, (0.0, 0))[0] for name in ("Cardiomegaly", "Emphysema"))
    collapse, side = found.get("Atelectasis", (0.0, 0))
    heart *= (1.1 if ap else 1.0) * (1 + 0.65 * large - 0.12 * flat)

    axis = ((np.arange(size) + 0.5) / size * 2 - 1).astype(np.float32)
    x, y = axis[None, :] - shift[0], axis[:, None] - shift[1]
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    edge, far = 2 / size, np.abs(u)
    coarse, fine = smooth_noise(body, size, 0.07), smooth_noise(body, size, 0.018)
    top = dome + breath - 0.06 * ap + 0.1 * flat - 0.03 * (u < 0) - 0.09 * collapse * (u * side > 0)
    base = top + (0.9 - 0.6 * flat) * (far - 0.36) ** 2
    outer = medial + (width - medial) * np.sqrt(np.clip(1 - (np.clip(0.4 - v, 0, None) / (0.4 - APEX)) ** 2, 0, 1))
    across = (far - medial) / np.maximum(outer - medial, edge)
    lungs = below(medial, far, edge) * below(far, outer, 2 * edge) * below(v, base, 2 * edge) * (v > APEX)
    s = _Film(u, v, across, (v - APEX) / (base - APEX), lungs, width, coarse, fine, edge, np.zeros_like(u))

    shoulder = np.maximum(-0.98 + 0.55 * np.clip(far - 0.25, 0, None), -1.2)
    s.cover(below(far, width + 0.1 + fat, 0.06) * below(shoulder, v, 0.1), SOFT + 0.04 * coarse)
    s.cover(lungs, LUNG + fat - 0.1 * flat + 0.015 * coarse)
    _ribs(s, outer, pitch, slope, ribs)
    _vessels(s, body, 1 - 0.5 * flat)
    s.cover(below(far, medial * (0.9 + 0.5 * np.clip(v + 0.4, 0, 1)), 0.06), DENSE)
    s.cover(below(np.hypot(u - 0.14, v + 0.28), knob, 0.05), DENSE - 0.04)
    s.add(-0.14 * below(far, 0.045, 0.05) * below(v, -0.25, 0.1))  # trachea
    s.add(0.025 * np.cos(2 * np.pi * v / 0.13) * below(far, 0.07, 0.04))  # vertebrae
    rim = np.hypot((u - 0.32 * heart - 0.02) / heart, (v - 0.33 - breath) / tall) + 0.02 * coarse
    s.cover(below(rim, 1.0, 0.12), DENSE - 0.03)
    s.lungs *= 1 - 0.7 * below(rim, 1.0, 0.12)  # little shows through the heart
    s.cover(below(base, v, 2 * edge) * below(far, width + 0.1 + fat, 0.06), DENSE + 0.02 * coarse)
    return s


def _ribs(s: _Film, outer: np.ndarray, pitch: float, slope: float, amount: float) -> None:
    far, cage = np.abs(s.u), below(np.abs(s.u), outer + 0.04, 0.03) * below(s.v, 0.75, 0.2)
    for run in (s.v - slope * far, s.v + 0.5 * (slope + 0.3) * (far - 0.8) * (far > 0.2)):  # back, front
        s.add(amount * cage * below(np.abs(run / pitch % 1 - 0.5), 0.22, 2 * s.edge / pitch))
    for side in (-1, 1):  # collar bones
        s.add(1.6 * amount * below(capsule(s.u, s.v, (side * 0.1, -0.6), (side * 0.75, -0.76)), 0.035, 2 * s.edge))


def _vessels(s: _Film, rng: np.random.Generator, amount: float) -> None:
    for side in (-1, 1):
        hilum = (side * 0.19, -0.02)
        s.add(0.16 * amount * np.exp(-((np.hypot(s.u - hilum[0], (s.v - hilum[1]) / 1.5) / 0.1) ** 2)))
        for angle in rng.uniform(-1.25, 1.25, 8):
            length, thick = rng.uniform(0.25, 0.55), rng.uniform(0.008, 0.018)
            end = hilum[0] + side * length * np.cos(angle), hilum[1] + length * np.sin(angle)
            s.add(0.09 * amount * s.lungs * below(capsule(s.u, s.v, hilum, end), thick, 2 * s.edge))


def _distract(s: _Film, rng: np.random.Generator, ap: bool) -> None:
    """What is no finding: nipples, skin folds, breast shadows, a gastric bubble, wires and tubes."""
    has, place = rng.random(6) < (0.25, 0.3, 0.4, 0.6, 0.7 * ap, 0.5 * ap), rng.uniform(-0.08, 0.08, (6, 2))
    if has[0]:
        for side in (-1, 1):
            s.add(0.1 * below(np.hypot(s.u - side * 0.48 - place[0, 0], s.v - 0.33 - place[0, 1]), 0.028, 0.03))
    if has[1]:
        side, start, end = rng.choice([-1, 1]), 0.55 + place[1, 0], 0.6 + place[1, 1]
        s.add(0.07 * below(capsule(s.u, s.v, (side * start, -0.5), (side * end, 0.5)), 0.012, 2 * s.edge))
    if has[2]:
        centre = np.hypot((np.abs(s.u) - 0.48) / 0.34, (s.v - 0.25 + place[2, 1]) / 0.36)
        s.add(rng.uniform(0.02, 0.09) * below(centre, 1.0, 0.3))
    if has[3]:
        s.add(-0.3 * below(np.hypot(s.u - 0.4 - place[3, 0], s.v - 0.68), rng.uniform(0.05, 0.11), 0.04))
    if has[4]:
        for _ in range(3):
            start, end = rng.uniform(-0.8, 0.8, (2, 2))
            s.add(0.14 * below(capsule(s.u, s.v, start, end), 0.006, 2 * s.edge))
    if has[5]:
        s.add(0.2 * below(capsule(s.u, s.v, (place[5, 0], -1.0), (0.1 * place[5, 1], -0.1)), 0.014, 2 * s.edge))


# ---- findings --------------------------------------------------------------------------------------------------------
# Each takes a chest, a generator that is in the same state for all films of the patient, how clear the finding is
# (0..1) and on which side it lies (-1 or 1), and adds or takes away density. Heart size and diaphragm are part of the
# chest already.
def _atelectasis(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    for _ in range(rng.integers(1, 4)):
        start, tilt, height = rng.uniform(0.2, 0.4), rng.uniform(-0.08, 0.08), rng.uniform(0.05, 0.4)
        band = capsule(s.u, s.v, (side * start, height), (side * (start + rng.uniform(0.2, 0.4)), height + tilt))
        s.add((0.07 + 0.13 * clear) * s.half(side) * below(band, rng.uniform(0.012, 0.026), 2 * s.edge))
    s.add(0.1 * clear * s.half(side) * np.clip((s.down - 0.75) / 0.2, 0, 1))


def _cardiomegaly(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    s.add(0.04 * clear * s.lungs * np.exp(-((s.across / 0.3) ** 2)))  # wide vessels beside the large heart


def _effusion(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    sides = (-1, 1) if rng.random() < 0.3 else (side,)
    level = ANGLE - (0.08 + 0.55 * clear**1.5) * (0.35 + 0.65 * np.clip(s.across, 0, 1) ** 2)
    for each in sides:
        s.cover(s.half(each) * below(level, s.v, 0.05), SOFT + 0.08)


def _infiltration(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    for each in (-1, 1) if rng.random() < 0.4 else (side,):
        across, down, radius = rng.uniform((0.25, 0.25, 0.22), (0.75, 0.7, 0.36))
        patchy = np.clip(0.5 + 0.9 * s.fine + 0.4 * s.coarse, 0, 2)
        s.add((0.06 + 0.13 * clear) * s.half(each) * np.exp(-(s.spot(across, down, radius, each) ** 2)) * patchy)


def _mass(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    across, down, radius = rng.uniform((0.25, 0.15, 0.1), (0.8, 0.8, 0.2))
    round_ = below(s.spot(across, down, radius, side) + 0.12 * s.coarse, 1.0, 0.25)
    s.add((0.08 + 0.2 * clear) * s.half(side) * round_)


def _nodule(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    for _ in range(rng.integers(1, 4)):
        across, down, radius = rng.uniform((0.2, 0.1, 0.038), (0.9, 0.85, 0.07))
        s.add((0.1 + 0.2 * clear) * s.half(side) * below(s.spot(across, down, radius, side), 1.0, 0.5))
        side *= rng.choice([-1, 1])


def _pneumonia(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    across, radius = rng.uniform((0.15, 0.26), (0.5, 0.38))
    soft = np.exp(-((s.spot(across, 0.92, radius, side) + 0.1 * s.coarse) ** 4))
    s.add((0.1 + 0.18 * clear) * s.half(side) * soft * (1 - 0.25 * np.clip(s.fine, 0, 1)))


def _pneumothorax(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    reach = np.hypot(np.clip(s.across, 0, None), np.clip(0.75 - s.down, 0, None) / 0.75)
    rim = 0.92 - 0.4 * clear * rng.uniform(0.6, 1.0)
    s.cover(0.7 * s.half(side) * below(rim, reach, 0.04), LUNG - 0.06)
    s.add((0.06 + 0.08 * clear) * s.half(side) * below(np.abs(reach - rim), 0.02, 0.03))


def _consolidation(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    fissure = rng.uniform(0.35, 0.5) + rng.uniform(-0.1, 0.1) * (s.across - 0.5)
    lobe = below(s.down, fissure, 0.03) * np.clip((s.down - fissure + 0.4) / 0.25, 0, 1)
    bronchi = np.clip(1.1 - np.abs(s.fine) / 0.25, 0, 1)
    s.add((0.1 + 0.24 * clear) * s.half(side) * lobe * (1 - 0.4 * bronchi))


def _edema(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    wing = np.exp(-(((s.across - 0.2) / 0.4) ** 2) - ((s.down - 0.55) / 0.28) ** 2)
    s.add((0.07 + 0.18 * clear) * s.lungs * wing * np.clip(1 + 0.3 * s.coarse + 0.3 * s.fine, 0, 2))
    lines = np.clip(np.cos(2 * np.pi * s.v / rng.uniform(0.06, 0.08)), 0, 1)  # Kerley B
    s.add(0.12 * clear * s.lungs * lines * (s.across > 0.85) * (s.down > 0.6))


def _emphysema(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    for each in (-1, 1):
        across, down, radius = rng.uniform((0.3, 0.1, 0.08), (0.7, 0.35, 0.15))
        far = s.spot(across, down, radius, each)
        s.add(clear * s.half(each) * (0.07 * below(np.abs(far - 1), 0.08, 0.15) - 0.05 * below(far, 1.0, 0.1)))


def _fibrosis(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    net = np.clip(1.3 - np.abs(s.fine) / 0.4, 0, 1) - 0.15
    where = np.clip((s.down - rng.uniform(0.35, 0.6)) / 0.3, 0, 1) * np.clip(0.4 + s.across, 0, 1)
    s.add((0.06 + 0.14 * clear) * s.lungs * where * net)


def _pleural_thickening(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    depth, top, end = rng.uniform((0.025, 0.0, 0.5), (0.05, 0.3, 0.95))
    wall = below((1 - s.across) * s.width, depth * (1 + 0.3 * s.coarse + clear), 2 * s.edge)
    s.add((0.12 + 0.16 * clear) * s.half(side) * wall * below(top, s.down, 0.1) * below(s.down, end, 0.1))
    if rng.random() < 0.5:  # cap over the lung's tip
        s.add(0.2 * clear * s.half(side) * below(s.down, 0.12, 0.04))


def _hernia(s: _Film, rng: np.random.Generator, clear: float, side: int) -> None:
    u, v, radius = rng.uniform((-0.06, 0.26, 0.13), (0.12, 0.36, 0.22))
    sac = np.hypot(s.u - u, s.v - v) / radius
    s.add((0.04 + 0.07 * clear) * below(sac, 1.0, 0.15))
    s.add(-(0.05 + 0.2 * clear) * below(sac, 0.85, 0.1) * below(s.v, v + rng.uniform(-0.3, 0.2) * radius, 2 * s.edge))


_DRAW = (
    *(_atelectasis, _cardiomegaly, _effusion, _infiltration, _mass, _nodule, _pneumonia, _pneumothorax),
    *(_consolidation, _edema, _emphysema, _fibrosis, _pleural_thickening, _hernia),
)
# Air in the pleural space first: it takes the lung's markings away. Fluid last: it covers what is behind.
_ORDER = (7, 0, 1, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 2)


# ---- the film --------------------------------------------------------------------------------------------------------
def _draw(patient: _Patient, k: int, seed: int, size: int) -> np.ndarray:
    """Density of film k of a patient, before any device: (size, size) float."""
    key = [seed, 1, patient.index]
    found = {}
    for c, name in enumerate(FINDINGS):
        if patient.labels[k, c]:
            rng = np.random.default_rng([*key, 2, c])
            found[name] = (float(rng.uniform(*CLEAR)), int(rng.choice([-1, 1])))
    pose = np.random.default_rng([*key, 1, k])
    s = _chest(np.random.default_rng([*key, 0]), pose, bool(patient.ap[k]), found, size)
    names = list(FINDINGS)
    for c in _ORDER:
        if names[c] in found:
            _DRAW[c](s, np.random.default_rng([*key, 3, c]), *found[names[c]])
    _distract(s, pose, bool(patient.ap[k]))
    return s.density


def _expose(density: np.ndarray, device: np.random.Generator, film: np.random.Generator, size: int) -> np.ndarray:
    """What a device makes of it: (size, size) uint8."""
    contrast, gamma, level = device.uniform((0.8, 0.75, -0.06), (1.2, 1.35, 0.06))
    grain, blur, sharpen = device.uniform((0.008, 0.2, 0.0), (0.03, 0.8, 0.8))
    frame = device.uniform(-0.06, 0.1, 4) + film.normal(0, 0.01, 4)
    seen = gaussian_filter(density, blur * size / 96)
    seen += sharpen * (seen - gaussian_filter(seen, 3 * size / 96))
    seen = ((seen - 0.5) * contrast + 0.5 + level + film.normal(0, 0.02)).clip(0, 1) ** gamma
    seen += grain * film.standard_normal(seen.shape)
    along = np.arange(size) / size
    inside = [(along >= frame[i]) & (along < 1 - frame[i + 1]) for i in (0, 2)]
    seen *= inside[0][:, None] & inside[1][None, :]  # collimation
    return (seen.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _name(patient: _Patient, k: int) -> str:
    return f"{patient.index + 1:08d}_{k:03d}.png"


def _write_patient(patient: _Patient, *, folder: Path, seed: int, size: int, devices: int) -> None:
    for k in range(len(patient.labels)):
        device = np.random.default_rng([seed, 2, patient.index % devices])
        film = np.random.default_rng([seed, 3, patient.index, k])
        picture = _expose(_draw(patient, k, seed, size), device, film, size)
        Image.fromarray(picture).save(folder / _name(patient, k))


def write_cxr14(
    out: Path,
    *,
    images: int,
    seed: int = 0,
    size: int = 96,
    devices: int = 8,
    shares: tuple[float, float] = (RATE_FLOOR, 1.0),
    processes: int | None = None,
) -> None:
    """Writes a synthetic ChestX-ray14 download.

    ``out/images/<8 digits of the patient>_<3 digits of the film>.png`` are 8-bit grey films,
    ``out/Data_Entry_2017.csv`` has a row for each with its findings joined by ``|`` or ``No Finding``,
    ``out/train_val_list.txt`` and ``out/test_list.txt`` name the films of 77.2 % and 22.8 % of the patients. A patient
    has one to four films, 40 % of all are AP.

    Each finding has its share of the 112,120 official films, but by default never less than 4 % of the films, so that
    the rare ones can be learnt from a small phantom; findings occur together as they do there. Devices (patient index
    modulo ``devices``; no file says which) differ in contrast, gamma, noise, sharpness and collimation. The same
    arguments give the same bytes, whatever ``processes`` is.

    Args:
        out: folder to write into; made where missing.
        images: number of films, so many that each finding has one.
        seed: seed of everything that is random, at least 0.
        size: rows and columns of a film in pixels, at least 32.
        devices: number of X-ray devices, at least 1.
        shares: shares of the films that a finding has at least and at most.
        processes: number of worker processes; None: see :func:`fedmend.basics.parallel.mapped`.

    Raises:
        FedMendError: an argument below its least value, or shares that are none.
    """
    if not 0 < shares[0] <= shares[1] <= 1:
        expected = "least_share and most_share: expected the first above 0, the second from it to 1"
        raise FedMendError(f"phantom, arguments {expected}, got {shares[0]} and {shares[1]}")
    check_least(images=(images, round(1 / shares[0])), seed=(seed, 0), size=(size, LEAST_PIXELS))
    check_least(devices=(devices, 1), processes=(processes, 1))
    folder = Path(out) / "images"
    folder.mkdir(parents=True, exist_ok=True)
    patients = _plan(images, seed, *shares)
    write = partial(_write_patient, folder=folder, seed=seed, size=size, devices=devices)
    list(mapped(write, patients, processes=processes))
    _write_tables(Path(out), patients, seed, size)


def _write_tables(out: Path, patients: list[_Patient], seed: int, size: int) -> None:
    rng, rows = np.random.default_rng([seed, 4]), []
    test = rng.permutation(len(patients)) < round(TEST_SHARE * len(patients))
    lists: dict[str, list[str]] = {"train_val_list.txt": [], "test_list.txt": []}
    for patient in patients:
        age, gender = rng.integers(18, 88), rng.choice(["F", "M"])
        for k, (labels, ap) in enumerate(zip(patient.labels, patient.ap, strict=True)):
            findings = "|".join(name for name, has in zip(FINDINGS, labels, strict=True) if has) or "No Finding"
            row = [_name(patient, k), findings, k, patient.index + 1, age + k, gender, "AP" if ap else "PA"]
            rows.append([*row, size, size, 0.143, 0.143])
            lists["test_list.txt" if test[patient.index] else "train_val_list.txt"].append(_name(patient, k))
    write_csv(out / "Data_Entry_2017.csv", HEADER, rows)
    for file, names in lists.items():
        (out / file).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
