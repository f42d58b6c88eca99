"""Whether images look like images, once they are as the network sees them: shares that a person would want to see, and
a contact sheet, because people look rather than read. Both stay at the hospital.

``fedmend prepare``, ``init`` and ``sitecheck`` ask the same function, the first two of a sample of the images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmend.data.card import SiteCard
from fedmend.data.datalist import SECTIONS, load_datalist
from fedmend.data.dicom_kinds import LOCALIZER, QUANTITY, SECONDARY
from fedmend.data.look import AIR as NO_MR
from fedmend.data.look import (
    BOTH_DIFFER,
    FROM_THE_HEAD,
    NO_MATRIX,
    OTHER_PLANE,
    Look,
    look_at,
    look_at_volumes,
    some_of,
    spread,
)
from fedmend.data.readers import NIFTI_SUFFIXES
from fedmend.data.store import decode
from fedmend.data.tables import load_table
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION

FEW_LEVELS = 8  # grey values; a picture of a body has more
MOST_WHITE = 0.5  # share of an image
LOOKED_AT = 2000  # images
OPENED, OPENED_VOLUMES = 200, 10  # of which the files are looked into; a volume is read as a whole
AIR, LOWEST, HIGHEST = -900, -1100, 4000  # HU: air is below; no tissue, and hardly a metal, is beyond
# Shares of a body and of all pixels: a lesion or an organ takes less, and all around it more. Of a window that shows
# bones alone, these are all that is not black, but they take few pixels.
MOST_MARKED, LEAST_MARKED = 2 / 3, 0.15
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


@dataclass(frozen=True)
class Findings:
    """Whether the training images of a site look like images.

    Attributes:
        lines: what they are like.
        warnings: what a person should look at.
        impossible: why nothing can be learned from them; empty where something can.
    """

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    impossible: str = ""


def findings(card: SiteCard, names: Sequence[str], pictures: np.ndarray) -> Findings:
    """Looks at training images, at what the network sees of them and into some of their files.

    Args:
        card: the site's card.
        names: of all training images or volumes, below the card's ``image_root``.
        pictures: (N, S, S) or (N, S, S, 3) uint8, or (N, S, S) floating numbers in 0..1, all of them or some.
    """
    if not len(pictures):
        return Findings((), (), "expected images that can be read, got none")
    shares = shares_of(pictures)
    volumes = any(name.partition("#")[0].lower().endswith(NIFTI_SUFFIXES) for name in names)
    seen = look_at(card.image_root, some_of(names, OPENED_VOLUMES if volumes else OPENED))
    total = sum(seen.formats.values())
    notes = [f"{n} of {total} images: {note}" for note, n in seen.words.get("put right", {}).items()]
    several = [
        f"images of several kinds of {name}: " + ", ".join(f"{word:.40} ({n})" for word, n in words.most_common(5))
        for name, words in seen.words.items()
        if name in ("modality", "photometric", "plane") and len(words) > 1
    ]
    some = pictures[spread(len(pictures), LOOKED_AT)]
    return Findings(
        (shares.line(), *notes),
        (*shares.warnings(), *_kinds(seen), *_hounsfield(card, seen), *several, *_stored(card, names)),
        "expected images that differ, got one grey value in all of them" if some.min() == some.max() else "",
    )


def _kinds(seen: Look) -> list[str]:
    """What a label of a study is not about: a table may name it all the same. Where no file holds anything else, as of
    photographs in secondary captures, it is what the labels are about."""
    kinds: Mapping[str, int] = seen.words.get("kind", {})
    words = {
        "are localizers or scouts": LOCALIZER,
        "are secondary captures": SECONDARY,
        "are for processing, of MR phase, or of CT in another unit than HU": QUANTITY,
    }
    found = [(kinds[kind], text) for text, kind in words.items() if kind in kinds and len(kinds) > 1]
    return [f"{count} of {seen.formats['DICOM']} DICOM images {text}" for count, text in found]


def _hounsfield(card: SiteCard, seen: Look) -> list[str]:
    """What no values in HU are like. NIfTI files do not name their modality: a window in HU says what it is."""
    if not seen.values:
        return []
    (low, high), unknown = np.array(seen.values).T, "modality" not in seen.words
    if unknown and card.window is None:
        count = int((low < NO_MR).sum())
        words = "of NIfTI have values as CT in HU has, but site.json has no window"
        return [f"{count} of {len(low)} images {words}"] if count else []
    if seen.most("modality") != "CT" and not (unknown and isinstance(card.window, tuple)):
        return []
    found = {
        "have no air near -1000 HU": low > AIR,
        f"have values beyond {LOWEST} to {HIGHEST} HU": (low < LOWEST) | (high > HIGHEST),
    }
    return [f"{which.sum()} of {len(low)} images of CT {words}" for words, which in found.items() if which.any()]


def _stored(card: SiteCard, names: Sequence[str]) -> list[str]:
    """How volumes are stored otherwise than people may think."""
    seen = look_at_volumes(card.image_root, names)
    words = {
        "are stored from the head down or in another plane: '#k' and 'slices' count axial slices from the feet, not as"
        " the file does": seen[FROM_THE_HEAD] + seen[OTHER_PLANE],
        "have an sform and a qform of other directions: the sform counts": seen[BOTH_DIFFER],
        "have neither sform nor qform: which side is the left is a guess": seen[NO_MATRIX],
    }
    return [f"{count} of {seen['NIfTI']} volumes {text}" for text, count in words.items() if count]


def marks_most(images: np.ndarray, masks: np.ndarray) -> bool:
    """Whether one class takes most of the body in a volume: background and lesion are then exchanged, or a value of the
    masks means another thing than people think.

    Args:
        images: (n, S, S) floating numbers in 0..1, the slices of the volume that are used.
        masks: (n, S, S) numbers of classes, 0 = none of them.
    """
    inside = masks[images > 0]
    most = np.bincount(inside, minlength=1)[1:].max(initial=0)
    return bool(most > MOST_MARKED * len(inside) and most > LEAST_MARKED * masks.size)


def most_marked(count: int, volumes: int) -> list[str]:
    """What people are told of volumes of which :func:`marks_most` is true; nothing where there are none."""
    words = "more than two thirds of the body are marked as one class: are background and lesion exchanged?"
    return [f"in {count} of {volumes} volumes {words}"] if count else []


def training_pictures(card: SiteCard, size: int) -> tuple[Sequence[str], np.ndarray, list[str], list[str]]:
    """Some training images as the network will see them, made as for a job.

    Args:
        card: the site's card.
        size: edge length S in pixels.

    Returns:
        names of all training images or volumes; (N, S, S), in colour (N, S, S, 3), of some of them, uint8 or, of
        volumes, float16 in 0..1; a sentence for each of those that cannot be read; and warnings about their masks.

    Raises:
        FedMendError: a table or datalist that cannot be used.
    """
    file, made, refused = card.splits["train"], [], []
    if card.kind == SEGMENTATION:
        from fedmend.data.slices import axial_slices, volume_window

        items = load_datalist(card, file, "train")
        window, values, odd = volume_window(card), card.label_values("train", card.classes), 0
        for i in spread(len(items), OPENED_VOLUMES):
            try:
                where = f"{file}, {SECTIONS['train']} item {i + 1}"
                seen = axial_slices(items[i], where, window=window, size=size, values=values)
                made.append(seen[0])
                odd += marks_most(*seen[:2])
            except FedMendError as e:
                refused.append(str(e))
        images = np.concatenate(made) if made else np.zeros((0, size, size))
        return [item.name for item in items], images, refused, most_marked(odd, len(made))
    table, shape = load_table(card, file, card.classes), (size, size, 3) if card.color else (size, size)
    places = spread(len(table.images), OPENED)
    decoded, _ = decode([card.image_root / table.middle(i) for i in places], card.window, shape)
    for i, image in zip(places, decoded, strict=True):
        if isinstance(image, np.ndarray):
            made.append(image)
        else:
            refused.append(f"{file} row {table.rows[i]}: {image or 'expected a file, not found'}")
    names = [table.middle(i) for i in range(len(table.images))]
    return names, np.stack(made) if made else np.zeros((0, *shape), dtype=np.uint8), refused, []


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


def contact_sheet(images: Sequence[np.ndarray] | np.ndarray, file: Path) -> None:
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
