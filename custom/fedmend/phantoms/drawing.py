"""What all phantoms share: soft shapes and noise, and how many pictures are drawn at once."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

from fedmend.errors import FedMendError

Point = Sequence[float] | np.ndarray


def below(x: np.ndarray | float, limit: np.ndarray | float, width: float) -> np.ndarray:
    """1 where x < limit, 0 where x > limit, a ramp of the given width between; any shape."""
    return np.clip((limit - x) / width + 0.5, 0.0, 1.0)


def capsule(u: np.ndarray, v: np.ndarray, start: Point, end: Point) -> np.ndarray:
    """Distance of every pixel to a line segment; coordinates and result of any shape."""
    du, dv = end[0] - start[0], end[1] - start[1]
    along = np.clip(((u - start[0]) * du + (v - start[1]) * dv) / (du * du + dv * dv), 0.0, 1.0)
    return np.hypot(u - start[0] - along * du, v - start[1] - along * dv)


def smooth_noise(rng: np.random.Generator, size: int, sigma: float) -> np.ndarray:
    """(size, size) float32 noise with standard deviation 1, smooth over ``sigma`` times the size; its edges fit."""
    field = gaussian_filter(rng.standard_normal((size, size)).astype(np.float32), sigma * size, mode="wrap")
    return field / field.std()


def check_least(**given: tuple[int | None, int]) -> None:
    """Refuses an argument below its least value.

    Args:
        given: name of an argument → its value, or None, which is good, and the least one.

    Raises:
        FedMendError: names the first such argument.
    """
    for name, (value, least) in given.items():
        if value is not None and value < least:
            raise FedMendError(f"phantom, argument {name}: expected at least {least}, got {value}")


def write_csv(file: Path, header: Iterable[str], rows: Iterable[Sequence]) -> None:
    """Writes a table with the line ends of the downloads."""
    with open(file, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])
