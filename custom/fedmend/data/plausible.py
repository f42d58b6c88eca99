"""Whether images look like images, once they are as the network sees them: shares that a person would want to see, and
a contact sheet, because people look rather than read. Both stay at the hospital.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FEW_LEVELS = 8  # grey values; a picture of a body has more
MOST_WHITE = 0.5  # share of an image
LOOKED_AT = 2000  # images
SHOWN, ACROSS, EDGE, GAP = 24, 6, 160, 4  # images of a contact sheet, in a row; pixels


@dataclass(frozen=True)
class Shares:
    """What a split's images are like.

    Attributes:
        number: N images.
        levels: (N,) grey values that each image uses.
        black: (N,) share of pixels at the lower end.
        white: (N,) share of pixels at the upper end.
    """

    number: int
    levels: np.ndarray
    black: np.ndarray
    white: np.ndarray

    def line(self) -> str:
        """The usual image, in words; nothing of it is about one image."""
        return (
            f"grey values in use {np.median(self.levels):.0f} (median of {self.number} images), black"
            f" {self.black.mean():.0%} of the pixels, white {self.white.mean():.0%}"
        )

    def warnings(self) -> list[str]:
        """What cannot be right, in words that begin with a number of images."""
        found = {
            "have one grey value": self.levels == 1,
            f"have fewer than {FEW_LEVELS} grey values": (self.levels > 1) & (self.levels < FEW_LEVELS),
            f"are white in more than {MOST_WHITE:.0%} of their pixels": self.white > MOST_WHITE,
        }
        return [f"{which.sum()} of {self.number} images {words}" for words, which in found.items() if which.any()]


def spread(number: int, most: int) -> list[int]:
    """At most so many places in a list, evenly spread."""
    return np.unique(np.linspace(0, number - 1, min(most, number)).astype(int)).tolist()


def shares_of(images: np.ndarray) -> Shares:
    """Counts grey values image by image, of at most 2,000 images that are evenly spread.

    Args:
        images: (N, H, W) or (N, H, W, 3) uint8, or (N, H, W) floating numbers in 0..1; N at least 1.
    """
    levels, black, white = [], [], []
    for place in spread(len(images), LOOKED_AT):
        image = images[place]
        top = 255 if image.dtype == np.uint8 else 1
        levels.append(len(np.unique(image)))
        black.append(float((image == 0).mean()))
        white.append(float((image == top).mean()))
    return Shares(len(levels), np.array(levels), np.array(black), np.array(white))


def contact_sheet(images: Sequence[np.ndarray], file: Path) -> None:
    """Writes some images, evenly spread over those given, as one PNG file.

    Args:
        images: each (H, W) or (H, W, 3) uint8, or (H, W) floating numbers in 0..1.
        file: to write.
    """
    from PIL import Image

    places = spread(len(images), SHOWN)
    rows, step = -(-len(places) // ACROSS), EDGE + GAP
    sheet = Image.new("RGB", (ACROSS * step + GAP, rows * step + GAP), "#404040")
    for number, place in enumerate(places):
        image = np.asarray(images[place])
        grey = image if image.dtype == np.uint8 else (np.asarray(image, dtype=np.float32) * 255 + 0.5).astype(np.uint8)
        tile = Image.fromarray(np.ascontiguousarray(grey)).convert("RGB").resize((EDGE, EDGE), Image.Resampling.NEAREST)
        sheet.paste(tile, (GAP + number % ACROSS * step, GAP + number // ACROSS * step))
    sheet.save(file, "PNG")
