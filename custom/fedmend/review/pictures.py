"""What a reviewer sees: one image at full resolution from the site's own files, in memory only.

Images and slices of volumes are turned as radiologists see them: the patient's right is on the left, the front is up.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmend.basics.words import natural
from fedmend.data.card import WINDOWS, SiteCard, stays_below
from fedmend.data.datalist import VolumeItem
from fedmend.data.raw import RawImage, UnreadableImage, grey_range, is_window
from fedmend.data.readers import PICTURE_SUFFIXES, read_raw
from fedmend.data.tables import LabelTable
from fedmend.errors import FedMendError

SITE_WINDOW, FILE_WINDOW = "site", "file"
FAST = 1  # compression of PNG files that go no further than this machine
OUTLINED = 1024  # an outline is drawn at about this many pixels, so that it hides nothing of a small lesion


@dataclass(frozen=True)
class SiteImage:
    """One image of a site.

    Attributes:
        image: its values.
        windows: name → (centre, width) of the windows through which it can be seen, first ``site``, the one through
            which models see it; then those of :data:`fedmend.data.card.WINDOWS` where values have a unit, and
            ``file``, the DICOM header's own. Empty for PNG and JPEG.
    """

    image: RawImage
    windows: Mapping[str, tuple[float, float]]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.image.values.shape[:2]


@dataclass(frozen=True)
class SliceImage(SiteImage):
    """One axial slice of a volume.

    Attributes:
        mask: (H, W) bool, the site's own annotation at full resolution, in the order of ``image.values``.
        planes: number of slices of the volume.
    """

    mask: np.ndarray
    planes: int


def open_picture(card: SiteCard, image: str) -> SiteImage:
    """Reads the image of a sample; colour is kept, also where models see grey.

    Args:
        card: the site's card.
        image: path below the card's ``image_root``, with ``#slice`` behind a NIfTI volume.

    Raises:
        OSError: the file cannot be opened; FileNotFoundError where there is none.
        UnreadableImage: the path leaves the root, or the file cannot be used.
    """
    if not stays_below(image):
        raise UnreadableImage("expected a path below image_root, got another")
    color = card.color or image.lower().endswith(PICTURE_SUFFIXES)
    raw = read_raw(card.image_root / image, card.window, color=color)
    return SiteImage(raw, {} if raw.window is None else _windows(raw, has_unit=card.window is not None))


def open_slice(card: SiteCard, item: VolumeItem, plane: int) -> SliceImage:
    """Reads an axial slice of a volume; the volume is kept for its neighbours, until another one is asked for.

    Args:
        card: the site's card.
        item: the case.
        plane: number of the slice in RAS, from 0 at the feet.

    Raises:
        FedMendError: image or label cannot be used.
        UnreadableImage: the volume has no such slice.
    """
    from fedmend.data.slices import volume_window
    from fedmend.data.store import file_stamp
    from fedmend.data.volumes import axial_plane

    stamps = (file_stamp(item.image), file_stamp(item.label))
    window = volume_window(card)
    voxels, mask, seen = _volume(item, stamps, window, tuple(card.label_values("train", card.classes).items()))
    planes = voxels.shape[2]
    if not 0 <= plane < planes:
        raise UnreadableImage(f"expected a slice number below {planes}, got another")
    raw = RawImage(axial_plane(voxels, plane), seen, ras=True)
    return SliceImage(raw, _windows(raw, has_unit=window is not None), axial_plane(mask, plane), planes)


@functools.lru_cache(maxsize=1)
def _volume(
    item: VolumeItem, stamps: tuple, window: tuple[float, float] | None, values: tuple[tuple[int, int], ...]
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Voxels and mask of a case in RAS, and the window through which models see it; read again when a file changes."""
    from fedmend.data.volumes import read_pair

    voxels, mask = read_pair(item, "this case", dict(values))
    low, width = grey_range(voxels, window)
    return voxels, mask > 0, (float(low + width / 2), float(width))


def _windows(raw: RawImage, *, has_unit: bool) -> dict[str, tuple[float, float]]:
    named = {SITE_WINDOW: raw.window, **(WINDOWS if has_unit else {}), FILE_WINDOW: raw.own_window}
    return {name: window for name, window in named.items() if window is not None}


def png(picture: SiteImage, centre: float | None = None, width: float | None = None) -> bytes:
    """The image as a PNG file, grey or in colour.

    Args:
        picture: the image.
        centre: of the window, in the unit of the values; default: of the window ``site``. PNG and JPEG have none.
        width: of the window, > 0; likewise.

    Raises:
        UnreadableImage: no image can be seen through such a window.
    """
    from fedmend.repairs.gallery import png_bytes

    raw = picture.image
    window = raw.window
    if window is not None:
        window = (window[0] if centre is None else centre, window[1] if width is None else width)
        if not is_window(*window):
            raise UnreadableImage("expected a window with a width above 0 and numbers up to 10^9, got another")
    seen = raw.seen(window)
    return png_bytes(seen[:, ::-1] if raw.ras else seen, FAST)


def overlay_png(mask: np.ndarray, color: tuple[int, int, int], *, filled: bool = False) -> bytes:
    """A mask to lay over the picture of its slice, stretched to the same place.

    Args:
        mask: (H, W) bool, in the order of :attr:`SliceImage.mask`.
        color: of the outline, which runs along the inside.
        filled: tint what is inside too.

    Returns:
        a PNG file, transparent elsewhere; a whole number of times as large as the mask, for fine lines.
    """
    from fedmend.repairs.gallery import TINT, edge, png_bytes

    times = max(1, OUTLINED // max(mask.shape))
    large = mask[:, ::-1].repeat(times, axis=0).repeat(times, axis=1)
    pixels = np.zeros((*large.shape, 4), dtype=np.uint8)
    if filled:
        pixels[large] = (*color, round(255 * TINT))
    pixels[edge(large, inner=True)] = (*color, 255)
    return png_bytes(pixels, FAST)


class Slices:
    """The pictures of a table of studies, which are numbered through: the slices of the first one, of the second, ...

    Args:
        table: N studies.

    Attributes:
        count: of all pictures.
    """

    def __init__(self, table: LabelTable):
        self._paths = [path for own in table.slices for path in own]
        self._starts = np.cumsum([0, *map(len, table.slices)]).tolist()
        self.count = len(self._paths)

    def of(self, sample: int) -> tuple[list[int], int]:
        """The pictures of a study, and the place among them at which people begin to look: the middle."""
        numbers = list(range(self._starts[sample], self._starts[sample + 1]))
        return numbers, len(numbers) // 2

    def path(self, picture: int) -> str:
        """Of a picture, below the image root."""
        return self._paths[picture]


class Neighbours:
    """The pictures of a table of images, which have the numbers of their samples, and whose patient they are of.

    Args:
        table: N samples; a patient without a key is unknown, and such a sample has no neighbours.

    Attributes:
        count: N.
    """

    def __init__(self, table: LabelTable):
        self._patients = table.patients
        self._samples: dict[str, list[int]] = {}
        for sample, patient in enumerate(table.patients):
            if patient:
                self._samples.setdefault(patient, []).append(sample)
        self._images, self.count = table.images, len(table.images)

    def of(self, sample: int) -> tuple[list[int], int]:
        """The samples of the same patient, as people would sort their names: 2 before 10; and the place of this one."""
        samples = self._samples.get(self._patients[sample], [sample])
        found = sorted(samples, key=lambda other: natural(self._images[other]))
        return found, found.index(sample)

    def path(self, picture: int) -> str:
        """Of a picture, below the image root."""
        return self._images[picture]


def picture_problem(error: UnreadableImage | FedMendError | OSError) -> str:
    """Why an image cannot be shown: one sentence, which names no file."""
    if isinstance(error, FileNotFoundError):
        return "expected a file below image_root, not found: it was moved or deleted, or its folder is not mounted"
    if isinstance(error, OSError):
        return f"expected a file that can be opened, got an error ({type(error).__name__})"
    return str(error)
