"""One frame of a DICOM file: its transfer syntax, its values in the unit of the file, and the window of its header; of
a file in colour (dermoscopy, photographs, ultrasound) its RGB picture, which has no window.

Read with pydicom itself and not through MONAI's reader: windowing, MONOCHROME1 and single frames need header fields
that MONAI's does not hand on; the pixels are those of MONAI's, transposed. pydicom decodes RLE itself, and with Pillow,
which FedMend needs anyway, JPEG in 8 bits and JPEG 2000; all other kinds need the packages of the extra ``dicom``.
"""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmend.data.raw import WIDEST, RawImage, UnreadableImage, Window, as_picture, check_pixels, is_window

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset

EXTRA = "pip install 'fedmend[dicom]'"
_JPEG_STARTS, _J2K_STARTS, _JP2_STARTS = b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP"
_PALETTE = "PALETTE COLOR"  # one sample per pixel, a number in a table of colours
_COLORS = {_PALETTE, "RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
_NO_FRAME_HEADER = {0xC4, 0xC8, 0xCC}  # of the markers C0..CF: tables, and one that is reserved


def _is_colored(dataset: "Dataset") -> bool:
    """Whether the header of a DICOM file says that its pixels have a colour."""
    return int(dataset.get("SamplesPerPixel") or 1) != 1 or dataset.get("PhotometricInterpretation") == _PALETTE


def read_dicom(path: Path, index: str, window: Window, *, color: bool = False) -> RawImage:
    """Reads one frame; see :func:`fedmend.data.readers.read_image`.

    Args:
        path: the file.
        index: number of the frame from 0 in digits; empty for a file with one frame.
        window: see :class:`fedmend.data.card.SiteCard`; a file in colour has none and needs none.
        color: keep the colour of a file that has one; otherwise it is turned to grey.

    Raises:
        OSError: the file cannot be opened.
        UnreadableImage: it cannot be used.
    """
    from PIL import Image
    from pydicom.errors import InvalidDicomError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = dicom_file(path, path.stat().st_mtime_ns) if index else dicom_file.__wrapped__(path, 0)
            number = _frame_number(dataset, index)
            if _is_colored(dataset):
                return RawImage(as_picture(Image.fromarray(_rgb(dataset, number)), color=color))
            if color:
                raise UnreadableImage("expected a DICOM file in colour (site.json says color: true), got a grey one")
            values, groups = _frame(dataset, number)
            own = _own_window(groups("FrameVOILUTSequence"), wanted=window == "file")
            inverted = dataset.get("PhotometricInterpretation") == "MONOCHROME1"
    except (UnreadableImage, OSError):
        raise
    except InvalidDicomError:
        raise UnreadableImage("expected a DICOM file, got something else") from None
    except Exception as e:  # pydicom raises many types for a damaged file, some only when a field is looked at
        raise UnreadableImage(
            f"expected readable DICOM pixels, got a corrupt or truncated file ({type(e).__name__})"
        ) from None
    asked = own if isinstance(window, str) else window
    if asked is None or not is_window(*asked):
        raise UnreadableImage(
            "expected a window in site.json for DICOM ('file', a name or [centre, width] in HU), got none"
        )
    if values.ndim != 2:  # more pixel data than one frame needs
        raise UnreadableImage(f"expected one frame, got {len(values)}")
    if not (np.abs(values) <= WIDEST).all():
        raise UnreadableImage("expected values of which a window can be taken, got NaN, infinity or over 10^9")
    return RawImage(values, asked, own, inverted)


@functools.lru_cache(maxsize=1)  # a manifest names the frames of one file one after the other
def dicom_file(path: Path, modified_ns: int) -> "FileDataset":
    """A DICOM file with its pixel data; the last one is kept, as long as its time stamp stays the same."""
    import pydicom

    return pydicom.dcmread(path)


def _frame_number(dataset: "Dataset", index: str) -> int:
    """The frame that a name asks for, of which there is one of a size that can be held."""
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1 and not index:
        raise UnreadableImage(f"expected 'file#frame' for a multi-frame DICOM file, got no frame of {frames}")
    if index and not (index.isdecimal() and int(index) < frames):
        raise UnreadableImage(f"expected a frame number below {frames} behind '#', got something else")
    check_pixels(int(dataset.Rows) * int(dataset.Columns))
    _check_syntax(dataset, int(index or 0), frames)
    return int(index or 0)


def _frame(dataset: "Dataset", number: int) -> tuple[np.ndarray, Callable[[str], "Dataset"]]:
    """(H, W) values of one frame after the modality transformation, and where its other fields are."""
    from pydicom.pixels import apply_modality_lut, pixel_array

    frames = int(dataset.get("NumberOfFrames") or 1)
    stored = pixel_array(dataset, index=number) if frames > 1 else dataset.pixel_array
    groups = functools.partial(_group, dataset, number)
    return apply_modality_lut(stored, groups("PixelValueTransformationSequence")), groups


def _rgb(dataset: "Dataset", number: int) -> np.ndarray:
    """(H, W, 3) uint8 of one frame; pydicom turns every kind of YBR into RGB."""
    from pydicom.pixels import apply_color_lut, pixel_array

    if dataset.get("PhotometricInterpretation") not in _COLORS:
        raise UnreadableImage("expected RGB, YBR or a palette in a DICOM file in colour, got another interpretation")
    stored = pixel_array(dataset, index=number)
    if dataset.PhotometricInterpretation == _PALETTE:
        stored = apply_color_lut(stored, dataset)[..., :3]  # a fourth channel is how opaque it is
        if stored.dtype == np.uint16:  # tables have 16 bits where scanners show 8
            stored = (stored >> 8).astype(np.uint8)
    if stored.dtype != np.uint8 or stored.shape != (dataset.Rows, dataset.Columns, 3):
        raise UnreadableImage("expected three channels of 8 bits in a DICOM file in colour, got others")
    return stored


def _group(dataset: "Dataset", number: int, name: str) -> "Dataset":
    """Where a frame's fields of some kind are: in its own or the shared group of an enhanced file, or in the file."""
    own = dataset.get("PerFrameFunctionalGroupsSequence") or []
    for group in (*own[number : number + 1], *(dataset.get("SharedFunctionalGroupsSequence") or [])[:1]):
        if found := group.get(name):
            return found[0]
    return dataset


def _check_syntax(dataset: "Dataset", number: int, frames: int) -> None:
    """Whether compressed pixels can be decoded here, and have the size that the header says."""
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder

    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise UnreadableImage("expected a transfer syntax for still images, got another") from None
    if not decoder.is_available:
        raise UnreadableImage(f"expected a decoder for the transfer syntax {syntax.name} ({EXTRA}), got none installed")
    size = coded_size(get_frame(dataset.PixelData, number, number_of_frames=frames))
    if size is not None and size != (dataset.Rows, dataset.Columns):
        raise UnreadableImage("expected compressed pixels of the size in the DICOM header, got others")


def coded_size(frame: bytes) -> tuple[int, int] | None:
    """Rows and columns that a JPEG, JPEG-LS or JPEG 2000 stream says it has: decoders trust it with their memory.

    None of another stream, e.g. RLE, whose size is bounded by that of the file.
    """
    if frame.startswith(_JP2_STARTS):  # the stream lies in a box of a file
        frame = frame[max(frame.find(_J2K_STARTS), 0) :]
    if frame.startswith(_J2K_STARTS):
        right, down, left, up = (int.from_bytes(frame[i : i + 4], "big") for i in range(8, 24, 4))
        return down - up, right - left
    place = 2 if frame.startswith(_JPEG_STARTS) else len(frame)
    while place + 9 <= len(frame):
        marker = frame[place + 1]
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_HEADER):
            return int.from_bytes(frame[place + 5 : place + 7], "big"), int.from_bytes(
                frame[place + 7 : place + 9], "big"
            )
        if marker == 0xFF:  # fill bytes
            place += 1
        else:
            place += 2 + int.from_bytes(frame[place + 2 : place + 4], "big")
    return None


def _own_window(dataset: "Dataset", *, wanted: bool) -> tuple[float, float] | None:
    """The first window of a DICOM header; without ``wanted`` a damaged one counts as none."""
    from pydicom.multival import MultiValue

    try:
        centre, width = dataset.get("WindowCenter"), dataset.get("WindowWidth")
        if centre is None or width is None:
            if wanted:
                raise UnreadableImage("expected a window in the DICOM header (site.json says window: file), got none")
            return None
        first, second = (float(v[0] if isinstance(v, MultiValue) else v) for v in (centre, width))
        own = first, second
    except Exception:
        if wanted:
            raise
        return None
    return own if wanted or is_window(*own) else None
