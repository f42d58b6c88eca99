"""What the network of a job sees of a sample at a site: an image, slices of a study, or a patch of a volume."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from fedmend.data.site import Opening
from fedmend.errors import check_variables

# What a job may ask a site to hold; no honest job comes near it, and more would fill memory or disk.
LARGEST_IMAGE = 2048
LARGEST_BATCH = 2**28  # pixels
MOST_SLICES = 512  # of a study
AXES = 3
FINEST, COARSEST = 0.1, 100.0  # mm between voxels
LARGEST_PATCH = 2**24  # voxels


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The job's settings of what a network sees.

    Attributes:
        image_size: edge length in pixels that every image is resized to; of volumes at one spacing, that their slices
            fit into.
        study_slices: slices of each study that the network sees, evenly spread; 0: samples are images.
        spacing: mm between voxels along X, Y, Z that volumes are resampled to, for a network in three dimensions;
            empty: it sees slices.
        patch: rows, columns and slices that such a network sees at once.

    Raises:
        FedMendError, ValueError: numbers that cannot be.
    """

    image_size: int
    study_slices: int = 0
    spacing: Sequence[float] = ()
    patch: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_variables(0 <= self.study_slices <= MOST_SLICES, f"0 to {MOST_SLICES}", study_slices=self.study_slices)
        good = _numbers(self.spacing, len(self.patch)) and len(self.spacing) in (0, AXES)
        good = good and all(FINEST <= mm <= COARSEST for mm in self.spacing)
        check_variables(good, f"no number or 3, from {FINEST:g} to {COARSEST:g} mm", spacing=self.spacing)
        whole = all(type(n) is int for n in self.patch) if _numbers(self.patch, len(self.spacing)) else False
        good = whole and max(self.patch, default=0) <= self.image_size and math.prod(self.patch) <= LARGEST_PATCH
        words = f"as many whole numbers as spacing, at most {self.image_size}, their product at most {LARGEST_PATCH}"
        check_variables(good, words, patch=self.patch)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Inputs":
        """Those among a job's settings of the sites, or among the fields of a package's preprocessing."""
        return cls(**{f.name: settings[f.name] for f in fields(cls) if f.name in settings})

    @property
    def window(self) -> tuple[int, ...]:
        """Slices, rows and columns of a patch; empty: there are none."""
        return tuple(self.patch[-1:]) + tuple(self.patch[:-1])

    def opening(self, cache_dir: Path, device: torch.device, **how: Any) -> Opening:
        """How data are opened; ``how``: further fields of :class:`Opening`."""
        how |= {"study_slices": self.study_slices, "spacing": tuple(map(float, self.spacing)), "patch": self.window}
        return Opening(cache_dir, self.image_size, device, **how)

    def step(self, batch_size: int) -> tuple[int, tuple[int, ...]]:
        """Images, slices or patches that a network sees in a training step, and the shape of each."""
        shape = self.window or (self.image_size, self.image_size)
        return batch_size * max(1, self.study_slices), shape

    def check_batch(self, batch_size: int) -> None:
        """Refuses a step that no site could hold.

        Raises:
            ValueError: names the numbers.
        """
        images, shape = self.step(batch_size)
        if self.image_size <= LARGEST_IMAGE and images * math.prod(shape) <= LARGEST_BATCH:
            return
        several = " * study_slices" if self.study_slices else ""
        size = "patch" if self.patch else "image_size^2"
        raise ValueError(
            f"expected image_size <= {LARGEST_IMAGE} and batch_size{several} * {size} <= {LARGEST_BATCH}, got"
            f" image_size {self.image_size} and batch_size {batch_size}"
        )


def _numbers(values: Any, count: int) -> bool:
    """Whether it is a list of ``count`` numbers above 0."""
    listed = isinstance(values, Sequence) and not isinstance(values, str) and len(values) == count
    return listed and all(type(v) in (int, float) and math.isfinite(v) and v > 0 for v in values)
