"""Synthetic CT head slices in the layout of the RSNA download, for tests and trial runs without patient data.

``write_ich`` draws axial CT head slices with intracranial hemorrhage as DICOM files in the layout of the RSNA 2019
Intracranial Hemorrhage download. Nothing in them comes from a patient. The shapes follow textbook anatomy closely
enough that the five classes differ as they do in real scans; they are no substitute for real scans in any result.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.ndimage import gaussian_filter

from fedmend.basics.parallel import mapped
from fedmend.phantoms import LEAST_PIXELS
from fedmend.phantoms.drawing import below, capsule, check_least, smooth_noise, write_csv

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

ICH_CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
ICH_LABELS = (*ICH_CLASSES, "any")
# Positive slices per class among the 185,051 slices of the RSNA subset that the papers use.
ICH_RATES = np.array([2761, 32564, 23766, 32122, 42496]) / 185_051
RATE_FLOOR = 0.05
SLICES_PER_PATIENT = 8
# Shortest and longest run of neighbouring slices that one lesion covers, per class.
RUNS = ((2, 4), (2, 6), (2, 5), (3, 7), (3, 7))
# Highest level that a lesion reaches, per class (1 = vertex): the ventricles end below the vertex.
TOPS = (1.0, 1.0, 0.8, 1.0, 1.0)
STORED_WINDOWS = ((40, 80), (35, 100), (40, 120), (30, 80), (36, 90))
FIELD_OF_VIEW, HEAD_HEIGHT = 230.0, 130.0  # mm


@dataclass(frozen=True)
class _Patient:
    """Index and scanner (from 0), number of the first slice, and labels (n, 5) bool from skull base to vertex."""

    index: int
    scanner: int
    first: int
    labels: np.ndarray


@dataclass(frozen=True)
class _Scanner:
    """Magnification, kernel width (pixels of a 128-pixel slice), noise (HU), and what turns true HU into shown HU."""

    zoom: float
    blur: float
    noise: float
    offset: float
    gain: float


@dataclass
class _Slice:
    """One slice of a head without lesions; every array is (size, size) float.

    ``u`` (left to right) and ``v`` (front to back) are -1..1 over the inner skull, ``q`` is the distance from the
    centre with the inner skull at 1, ``angle`` goes with it. ``brain``, ``ventricle`` and ``sulci`` are masks 0..1,
    ``coarse`` is smooth noise with deviation 1, ``edge`` is the width of one pixel in ``q``.
    """

    level: float
    u: np.ndarray
    v: np.ndarray
    q: np.ndarray
    angle: np.ndarray
    brain: np.ndarray
    ventricle: np.ndarray
    sulci: np.ndarray
    coarse: np.ndarray
    edge: float
    hu: np.ndarray

    def paint(self, mask: np.ndarray, hu: np.ndarray | float) -> None:
        self.hu += mask * self.brain * (hu - self.hu)


# ---- which patient has what ------------------------------------------------------------------------------------------
def _plan(slices: int, seed: int, scanners: int, per_patient: int = SLICES_PER_PATIENT) -> list[_Patient]:
    """Deals lesions out to patients until each class has exactly its number of positive slices."""
    rng = np.random.default_rng([seed, 0])
    count = max(1, round(slices / per_patient))
    sizes = [len(part) for part in np.array_split(np.arange(slices), count)]
    labels = [np.zeros((n, len(ICH_CLASSES)), dtype=bool) for n in sizes]
    for c, rate in enumerate(ICH_RATES):
        share = slices * SLICES_PER_PATIENT / per_patient  # thinner slices show no more patients with a lesion
        left = max(round(rate * share), int(np.ceil(RATE_FLOOR * share)))
        # The next patient always comes from the next scanner, so that no scanner is left without a rare class.
        scores, rank = rng.random(count), np.empty(count)
        for s in range(scanners):
            rank[s::scanners] = scores[s::scanners].argsort().argsort()
        for p in np.lexsort((rng.random(count), rank)):
            if left == 0:
                break
            highest = max(1, int(TOPS[c] * sizes[p]))
            run = min(left, highest, int(rng.integers(RUNS[c][0], RUNS[c][1] + 1)))
            start = int(rng.integers(highest - run + 1))
            labels[p][start : start + run, c] = True
            left -= run
    first = np.cumsum([0, *sizes])
    return [_Patient(p, p % scanners, int(first[p]), labels[p]) for p in range(count)]


def _names(slices: int, seed: int) -> list[str]:
    """Distinct ids in no visible order: an odd factor is a bijection modulo a power of two."""
    offset = int(np.random.default_rng([seed, 1]).integers(16**9))
    return [f"ID_{(offset + i * 0x9E3779B1D) % 16**9:09x}" for i in range(slices)]


# ---- the head --------------------------------------------------------------------------------------------------------
def _ventricle_distance(u: np.ndarray, v: np.ndarray, level: float, width: float) -> np.ndarray:
    """Distance to the ventricles' surface, negative inside: fourth, third and lateral ventricles by level."""
    if level < 0.22:
        return capsule(u, v, (0.0, 0.42), (0.0, 0.5)) - 0.9 * width
    up = np.clip((level - 0.35) / 0.3, 0.0, 1.0)  # horns below, bodies above
    side = np.abs(u)
    front = capsule(side, v, (0.06 + 0.05 * up, -0.05), (0.15 + 0.02 * up, -0.36 + 0.08 * up)) - width
    back = capsule(side, v, (0.1 + 0.02 * up, 0.0), (0.3 - 0.1 * up, 0.46 - 0.1 * up)) - width * (1.1 - 0.2 * up)
    third = capsule(u, v, (0.0, -0.02), (0.0, 0.16)) - 0.4 * width * (1.0 - up)
    closing = 1.5 * width * max(0.0, level - 0.8) / 0.2
    return np.minimum(np.minimum(front, back), third) + closing


def _sulci(u: np.ndarray, v: np.ndarray, q: np.ndarray, level: float, fine: np.ndarray, width: float) -> np.ndarray:
    """CSF spaces outside the ventricles, 0..1: sulci, fissures and, low down, the basal cisterns."""
    gyri = np.clip(1.35 - np.abs(fine) / width, 0.0, 1.0) * np.clip((q - 0.62) / 0.1, 0.0, 1.0)
    midline = below(np.abs(u + 0.015 * fine), 0.03, 0.04) * np.clip((np.abs(v) - 0.5 + 0.4 * level) / 0.1, 0.0, 1.0)
    spaces = np.maximum(gyri, midline)
    if level < 0.65:
        sylvian = capsule(np.abs(u), v, (0.92, -0.12), (0.5, 0.02)) + 0.01 * fine
        spaces = np.maximum(spaces, below(sylvian, 0.05 * (1 - 0.6 * level), 0.05))
    if level < 0.32:
        cistern = np.abs(np.hypot(u, (v - 0.08) * 1.2) - 0.2 + 0.015 * fine)
        spaces = np.maximum(spaces, below(cistern, 0.045, 0.05))
    return spaces


def _head(rng: np.random.Generator, level: float, zoom: float, size: int, noise: list[np.ndarray]) -> _Slice:
    """Draws a head slice without lesions; the same generator state gives the same head at every level."""
    turn, shift = rng.normal(0, np.deg2rad(5)), rng.normal(0, 0.02, size=2)
    half, aspect = rng.uniform(0.68, 0.74), rng.uniform(1.14, 1.26)
    bumps, phases = rng.normal(0, 0.012, size=3), rng.uniform(0, 2 * np.pi, size=3)
    skull, scalp = rng.uniform(0.06, 0.11), rng.uniform(0.03, 0.06)
    ventricle, atrophy = rng.uniform(0.05, 0.1), rng.uniform(0.1, 0.3)
    grey, contrast, drift = rng.normal(37, 1.5), rng.uniform(4, 8), rng.uniform(1, 2.5)

    axis = ((np.arange(size) + 0.5) / size * 2 - 1).astype(np.float32) / zoom
    x, y = axis[None, :] - shift[0], axis[:, None] - shift[1]
    half *= np.sqrt(1 - ((level - 0.4) / 0.85) ** 2)
    u, v = (x * np.cos(turn) + y * np.sin(turn)) / half, (y * np.cos(turn) - x * np.sin(turn)) / (half * aspect)
    angle = np.arctan2(v, u)
    shape = 1 + sum(b * np.cos(k * angle + p) for k, b, p in zip((2, 3, 4), bumps, phases, strict=True))
    inner = 1 - scalp - skull
    u, v = u / shape / inner, v / shape / inner
    q = np.hypot(u, v)
    edge = 2 / (size * zoom * half * inner)

    tilt = 0.9 * level
    fine = np.cos(tilt) * noise[0] + np.sin(tilt) * noise[1]
    coarse = np.cos(tilt) * noise[2] + np.sin(tilt) * noise[3]
    white = np.clip((0.78 - q + 0.06 * fine + 0.04 * coarse) / 0.1, 0.0, 1.0)
    hu = np.full((size, size), -1000.0, dtype=np.float32)
    hu += below(q, 1 / inner, edge) * (1000.0 + rng.uniform(-20, 30))
    bone = below(q, (1 - scalp) / inner, edge) * (1 + 0.12 * noise[0])
    hu += bone * (rng.uniform(850, 1150) - hu)
    brain = below(q, 1.0, edge)
    hu += brain * (grey - contrast * white + drift * coarse - hu)
    ventricles = below(_ventricle_distance(u, v, level, ventricle) + 0.008 * coarse, 0.0, edge)
    sulci = _sulci(u, v, q, level, fine, atrophy) * (1 - ventricles)
    out = _Slice(level, u, v, q, angle, brain, ventricles, sulci, coarse, edge, hu)
    out.paint(np.maximum(0.7 * sulci, below(np.abs(q - 1), 0.02, edge)), 12.0)
    out.paint(ventricles, 7.0)
    return out


def _distract(s: _Slice, rng: np.random.Generator) -> None:
    """Adds what is bright without being blood, and an old infarct; each at the levels where it belongs."""
    has = rng.random(7) < (0.35, 0.35, 0.3, 0.3, 0.3, 0.4, 0.15)
    spots, sizes, heights = rng.uniform(-0.6, 0.6, (3, 2)), rng.uniform(0.02, 0.045, 3), rng.uniform(0.1, 0.9, 3)
    bright, arc, depth = rng.uniform(55, 68, 3), rng.uniform(-np.pi, np.pi), rng.uniform(0.025, 0.06)
    if has[0] and 0.3 < s.level < 0.7:  # calcified choroid plexus, both sides
        s.paint(below(capsule(np.abs(s.u), s.v, (0.2, 0.3), (0.22, 0.34)), sizes[0], s.edge), 160.0)
    if has[1]:  # calcified spots in the parenchyma
        for (u, v), radius, height in zip(spots, sizes, heights, strict=True):
            if abs(height - s.level) < 0.12:
                s.paint(below(np.hypot(s.u - u, s.v - v), radius, s.edge), 140.0)
    if has[2] and s.level > 0.3:  # dense falx
        s.paint(below(np.abs(s.u), 0.012, s.edge) * (np.abs(s.v) > 0.45), bright[0])
    if has[3]:  # venous sinus at the back
        s.paint(below(np.hypot(s.u * 1.2, s.v - 0.97), 0.07, s.edge), bright[1])
    if has[4] and s.level > 0.55:  # skull partly in the slice
        near = np.exp(-((np.angle(np.exp(1j * (s.angle - arc))) / 0.9) ** 2))
        s.paint(below(1 - s.q, depth * near, s.edge), bright[2])
    if has[5] and s.level < 0.3:  # beam hardening between the petrous bones
        s.hu += s.brain * 10 * np.sin(14 * s.v + arc) * np.exp(-(((s.v - 0.2) / 0.25) ** 2))
    if has[6] and abs(s.level - heights[0]) < 0.25:  # old infarct
        s.paint(below(np.hypot(s.u - spots[0, 0], s.v - spots[0, 1]), 0.16 + 0.03 * s.coarse, 0.05), 16.0)


# ---- hemorrhage ------------------------------------------------------------------------------------------------------
# Each takes a slice, a generator that is in the same state for all slices of the patient, and how much of its full size
# the lesion has here (0..1), and paints the blood.
def _offset(s: _Slice, centre: float) -> np.ndarray:
    return np.angle(np.exp(1j * (s.angle - centre)))


def _epidural(s: _Slice, rng: np.random.Generator, grow: float) -> None:
    centre = rng.choice([0.0, np.pi]) + rng.uniform(-1.0, 1.0)
    arc, depth, blood = rng.uniform(0.42, 0.66) * grow**0.5, rng.uniform(0.28, 0.46) * grow, rng.uniform(66, 80)
    lens = depth * (1 - (_offset(s, centre) / arc) ** 2)
    s.paint(below(1 - s.q, lens, 1.5 * s.edge), blood)


def _subdural(s: _Slice, rng: np.random.Generator, grow: float) -> None:
    centre = rng.choice([0.0, np.pi]) + rng.uniform(-0.3, 0.3)
    arc, depth, blood = rng.uniform(0.9, 1.35), rng.uniform(0.1, 0.19) * grow, rng.uniform(58, 76)
    crescent = depth * np.sqrt(np.clip(1 - (_offset(s, centre) / arc) ** 4, 0.0, 1.0)) * (1 + 0.12 * s.coarse)
    s.paint(below(1 - s.q, crescent, 1.5 * s.edge) * (crescent > 0), blood)


def _subarachnoid(s: _Slice, rng: np.random.Generator, grow: float) -> None:
    centre, reach = rng.uniform(-np.pi, np.pi), rng.uniform(1.0, 2.4)
    blood = rng.uniform(62, 76)
    local = np.exp(-((_offset(s, centre) / (reach * (0.6 + 0.4 * grow))) ** 2))
    s.paint(np.clip(2.4 * s.sulci * np.clip(1.8 * local, 0.0, 1.0), 0.0, 1.0), blood)


def _intraparenchymal(s: _Slice, rng: np.random.Generator, grow: float) -> None:
    side, centre = rng.choice([-1, 1]), (rng.uniform(0.3, 0.6), rng.uniform(-0.5, 0.5))
    radius, squeeze = rng.uniform(0.15, 0.3) * grow, rng.uniform(0.75, 1.3)
    blood, oedema = rng.uniform(60, 78), rng.random() < 0.5
    far = np.hypot((s.u * side - centre[0]) * squeeze, (s.v - centre[1]) / squeeze) - 0.25 * radius * s.coarse
    if oedema:
        s.paint(below(far, 1.4 * radius, 2 * s.edge), 21.0)
    s.paint(below(far, radius, 2 * s.edge), blood)


def _intraventricular(s: _Slice, rng: np.random.Generator, grow: float) -> None:
    cast, side, blood = rng.random() < 0.3, rng.choice([-1, 1]), rng.uniform(58, 75)
    level = rng.uniform(0.0, 0.3) + 0.1 * (1 - grow)
    filled = below(-s.u * side, 0.06, s.edge) if cast else below(level - s.v, 0.0, 2 * s.edge)
    s.paint(s.ventricle * filled, blood)


_BLEED = (_epidural, _intraparenchymal, _intraventricular, _subarachnoid, _subdural)
# Later ones paint over earlier ones: blood in the sulci first, the compact collections last.
_ORDER = (3, 1, 2, 4, 0)


# ---- the scan --------------------------------------------------------------------------------------------------------
def _scanner(patient: _Patient, seed: int) -> _Scanner:
    rng = np.random.default_rng([seed, 3, patient.scanner])
    return _Scanner(*rng.uniform((0.94, 0.3, 1.5, -5.0, 0.96), (1.09, 0.9, 4.5, 5.0, 1.04)))


def _level(patient: _Patient, k: int) -> float:
    """Height of slice k between skull base (0) and vertex (1)."""
    return (k + 0.5) / len(patient.labels)


def _grow(run: np.ndarray, k: int) -> float:
    """Share of its full size that a lesion has in slice k of its run: 1 in the middle, less at the ends."""
    inside = np.flatnonzero(run)
    return float(0.55 + 0.45 * np.sqrt(1 - ((k - inside.mean()) / (len(inside) / 2 + 0.5)) ** 2))


def _render(patient: _Patient, seed: int, size: int) -> np.ndarray:
    """Draws all slices of a patient: (n, size, size) float32 in HU, as that patient's scanner shows them."""
    key = [seed, 2, patient.index]
    scanner = _scanner(patient, seed)
    blur = scanner.blur * size / 128
    texture = np.random.default_rng([*key, 0])
    fields = [smooth_noise(texture, size, sigma) for sigma in (0.022, 0.022, 0.07, 0.07)]
    out = np.empty((len(patient.labels), size, size), dtype=np.float32)
    for k, labels in enumerate(patient.labels):
        s = _head(np.random.default_rng([*key, 1]), _level(patient, k), scanner.zoom, size, fields)
        _distract(s, np.random.default_rng([*key, 2]))
        for c in _ORDER:
            if labels[c]:
                _BLEED[c](s, np.random.default_rng([*key, 3, c]), _grow(patient.labels[:, c], k))
        # White noise that goes through the kernel with the image comes out with the scanner's grain, but weaker.
        grain = np.random.default_rng([*key, 4, k]).standard_normal((size, size)).astype(np.float32)
        raw = s.hu * scanner.gain + scanner.offset + scanner.noise * (1 + 2.5 * blur) * grain
        out[k] = gaussian_filter(raw, blur)
    return out


def _dataset(patient: _Patient, k: int, hu: np.ndarray, seed: int) -> "Dataset":
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import UID, CTImageStorage, ExplicitVRLittleEndian, generate_uid

    def uid(*what: object) -> UID:
        return generate_uid(entropy_srcs=["fedmend phantom", str(seed), *map(str, what)])

    size = len(hu)
    spacing = round(FIELD_OF_VIEW / size / _scanner(patient, seed).zoom, 6)
    corner = round(-spacing * (size - 1) / 2, 4)
    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID = CTImageStorage
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID = uid("slice", patient.index, k)
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds.file_meta.ImplementationClassUID = uid("implementation")
    ds.Modality, ds.StationName = "CT", f"scanner-{patient.scanner + 1}"
    ds.PatientID = f"ID_{np.random.default_rng([seed, 5]).integers(2**32) ^ patient.index:08x}"
    ds.StudyInstanceUID, ds.SeriesInstanceUID = uid("study", patient.index), uid("series", patient.index)
    ds.InstanceNumber, ds.ImageComments = k + 1, "synthetic phantom"
    ds.ImagePositionPatient = [corner, corner, round(HEAD_HEIGHT * _level(patient, k), 4)]
    ds.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
    ds.Rows = ds.Columns = size
    ds.PixelSpacing = [spacing, spacing]
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 16, 15, 1
    ds.WindowCenter, ds.WindowWidth = STORED_WINDOWS[patient.scanner % len(STORED_WINDOWS)]
    ds.RescaleIntercept, ds.RescaleSlope = -1024, 1
    ds.PixelData = np.clip(np.rint(hu + 1024), -1024, 3071).astype("<i2").tobytes()
    return ds


def _write_patient(patient: _Patient, *, names: list[str], folder: Path, seed: int, size: int) -> None:
    for k, hu in enumerate(_render(patient, seed, size)):
        _dataset(patient, k, hu, seed).save_as(folder / f"{names[patient.first + k]}.dcm", enforce_file_format=True)


def write_ich(
    out: Path,
    *,
    slices: int,
    seed: int = 0,
    size: int = 128,
    scanners: int = 5,
    slices_per_patient: int = SLICES_PER_PATIENT,
    processes: int | None = None,
) -> None:
    """Writes a synthetic RSNA 2019 Intracranial Hemorrhage download.

    ``out/stage_2_train/ID_<9 hex>.dcm`` are CT slices (16 bit signed, HU = stored - 1024), about eight of each
    patient from skull base to vertex. ``out/stage_2_train.csv`` has the official rows ``ID,Label``, six for each slice:
    ``ID_<9 hex>_<class>,0``. The lesions run over neighbouring slices of a patient.

    Each class has its share of positive slices in the RSNA subset of 185,051 slices, but never less than 5 % of the
    slices, so that epidural hemorrhage (1.5 % there) can be learnt from a small phantom. With more slices of each
    patient, lesions cover as many slices and as many patients have them, so that a smaller share of slices shows one.
    ``StationName`` (``scanner-1`` ...) says which scanner a patient was on; scanners differ in field of view,
    sharpness, noise, HU offset and gain, and the stored window. The same arguments give the same bytes, whatever
    ``processes`` is.

    Args:
        out: folder to write into; made where missing.
        slices: number of slices, at least 1.
        seed: seed of everything that is random, at least 0.
        size: rows and columns of a slice in pixels, at least 32.
        scanners: number of scanners, at least 1; patients are spread evenly over them.
        slices_per_patient: about so many, at least 8.
        processes: number of worker processes; None: see :func:`fedmend.basics.parallel.mapped`.

    Raises:
        FedMendError: an argument below its least value.
    """
    check_least(
        slices=(slices, 1), seed=(seed, 0), size=(size, LEAST_PIXELS), scanners=(scanners, 1), processes=(processes, 1)
    )
    check_least(slices_per_patient=(slices_per_patient, SLICES_PER_PATIENT))
    out = Path(out)
    folder = out / "stage_2_train"
    folder.mkdir(parents=True, exist_ok=True)
    names, patients = _names(slices, seed), _plan(slices, seed, scanners, slices_per_patient)
    write = partial(_write_patient, names=names, folder=folder, seed=seed, size=size)
    list(mapped(write, patients, processes=processes))
    rows = []
    labels = np.concatenate([p.labels for p in patients])
    for name, own in sorted(zip(names, labels, strict=True), key=lambda row: row[0]):
        rows += [[f"{name}_{c}", int(v)] for c, v in zip(ICH_LABELS, (*own, own.any()), strict=True)]
    write_csv(out / "stage_2_train.csv", ["ID", "Label"], rows)
