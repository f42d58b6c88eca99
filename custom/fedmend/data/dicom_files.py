"""One frame of a DICOM file: its transfer syntax, its values in the unit of the file, and the window of its header; of
a file in colour (dermoscopy, photographs, ultrasound) its RGB picture, which has no window.

Read with pydicom itself and not through MONAI's reader: windowing, MONOCHROME1 and single frames need header fields
that MONAI's does not hand on; the pixels are those of MONAI's, transposed. pydicom decodes RLE itself, and with Pillow,
which FedMend needs anyway, JPEG in 8 bits and JPEG 2000; other kinds need the packages of the extra ``dicom``.
"""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.data.dicom_deflated import check_inflated
from fedmend.data.dicom_groups import PALETTE, groups_in, is_colored
from fedmend.data.dicom_kinds import kind_of
from fedmend.data.dicom_values import Values, header_number, is_ct, modality_values, own_voi, palette_in_order
from fedmend.data.raw import WIDEST, RawImage, UnreadableImage, Window, as_picture, check_pixels, grey_range, is_window

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset

EXTRA = "pip install 'fedmend[dicom]'"
OF_12_BITS = "pip install pylibjpeg pylibjpeg-libjpeg"  # for JPEG with losses in 12 bits, which the extra cannot decode
MOST_FRAMES, FEWEST_BYTES = 100_000, 8  # of a file; of a frame: a compressed one has as many before it begins
GE_PRIVATE = "1.2.840.113619.5.2"  # a transfer syntax: implicit VR little endian, but pixels of 16 bits big endian
# Of images that people have and nobody reads here.
OTHER_FORMATS = {".tif", ".tiff", ".bmp", ".gif", ".webp", ".svs", ".nrrd", ".mha", ".mhd", ".mgz", ".npy"}
_BARE_STARTS = {b"\2\0", b"\x08\0", b"\0\x08"}  # the group that a file without preamble begins with
_JPEG_STARTS, _PNG_STARTS, _J2K_STARTS = b"\xff\xd8", b"\x89PNG\r\n", b"\xff\x4f\xff\x51"
_JP2_STARTS = b"\0\0\0\x0cjP"
_COLORS = {PALETTE, "RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
# Without these a decoder would have to guess; floating numbers have no bits to be named.
_NEEDED = ("Rows", "Columns", "BitsAllocated", "SamplesPerPixel", "PhotometricInterpretation")
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_NEEDED_OF_WHOLE = ("BitsStored", "PixelRepresentation")
_NO_FRAME_HEADER = {0xC4, 0xC8, 0xCC}  # of the markers C0..CF: tables, and one that is reserved


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Without those of pydicom, which quote what a header says of a patient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@no_warnings()
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
        dataset = dicom_file(path, path.stat().st_mtime_ns) if index else dicom_file.__wrapped__(path, 0)
        number, frames = _frame_number(dataset, index)
        if is_colored(dataset):
            turn = as_radiologists_see(groups_in(dataset, number)("PlaneOrientationSequence"))
            seen = np.ascontiguousarray(turn(_rgb(dataset, number, frames)))
            return RawImage(as_picture(Image.fromarray(seen), color=color))
        if color:
            raise UnreadableImage("expected a DICOM file in colour (site.json says color: true), got a grey one")
        values, groups = _frame(dataset, number, frames, in_hu=window not in ("file", None))
        shown = groups("FrameVOILUTSequence")
        voi = own_voi(shown, wanted=True) if window == "file" else None
        inverted = dataset.get("PhotometricInterpretation") == "MONOCHROME1"
    except (UnreadableImage, OSError):
        raise
    except InvalidDicomError:
        raise UnreadableImage(_what_else(path)) from None
    except Exception as e:  # pydicom raises many types for a damaged file, some only when a field is looked at
        raise UnreadableImage(
            f"expected readable DICOM pixels, got a corrupt or truncated file ({type(e).__name__})"
        ) from None
    asked, by_header = voi or (None if isinstance(window, str) else window, None)
    if asked is None and not is_ct(dataset):
        asked = series_window(path, dataset, number)
    if asked is None or not is_window(*asked):
        raise UnreadableImage(
            "expected a window in site.json for DICOM ('file', a name or [centre, width] in HU), got none"
        )
    if values.values.ndim != 2:  # more pixel data than one frame needs
        raise UnreadableImage(f"expected one frame, got {len(values.values)}")
    if not (values.values.min() >= -WIDEST and values.values.max() <= WIDEST):  # False of NaN, too
        raise UnreadableImage("expected values of which a window can be taken, got NaN, infinity or over 10^9")
    own = functools.partial(_own_window, shown)
    return RawImage(values.values, asked, own, inverted, padding=values.padding, own_grey=by_header, notes=values.notes)


def _what_else(path: Path) -> str:
    """What to say of a file that is no DICOM."""
    if (ending := path.suffix.lower()) in OTHER_FORMATS:
        return f"expected DICOM, PNG, JPEG or NIfTI, got a file in {ending}"
    with open(path, "rb") as stream:
        start = stream.read(len(_PNG_STARTS))
    if start.startswith((_PNG_STARTS, _JPEG_STARTS)):
        return "expected the ending .png, .jpg or .jpeg for a picture, got another"
    return "expected a DICOM file, got something else"


@no_warnings()
def _own_window(group: "Dataset") -> tuple[float, float] | None:
    """(centre, width) of a header, read when somebody asks: a store of small images took 5 % longer with it."""
    voi = own_voi(group, wanted=False)
    return voi and voi[0]


@functools.lru_cache(maxsize=1)  # a manifest names the frames of one file one after the other
def dicom_file(path: Path, modified_ns: int) -> "FileDataset":
    """A DICOM file with its pixel data; the last one is kept, as long as its time stamp stays the same."""
    return open_dicom(path)


def open_dicom(path: Path, **how: Any) -> "FileDataset":
    """Reads a DICOM file, also one of an old archive without preamble or transfer syntax, or of GE's private one.

    Args:
        path: the file.
        how: as ``pydicom.dcmread`` takes it.

    Raises:
        InvalidDicomError: it is no DICOM file.
        UnreadableImage: what is compressed in it would fill the memory.
    """
    import pydicom
    from pydicom.errors import InvalidDicomError
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    if (log := logging.getLogger("pydicom")).level != logging.ERROR:  # its warnings quote what a header says
        log.setLevel(logging.ERROR)
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE  # warns when a field is looked at, later
    check_inflated(path)
    try:
        dataset = pydicom.dcmread(path, **how)
    except InvalidDicomError:
        with open(path, "rb") as stream:
            if stream.read(2) not in _BARE_STARTS:
                raise
        dataset = pydicom.dcmread(path, force=True, **how)
        if not any(name in dataset for name in ("SOPClassUID", "Modality", "Rows")):  # anything reads by force
            raise
    meta = dataset.file_meta
    if "TransferSyntaxUID" not in meta:
        implicit, little = dataset.original_encoding
        explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else explicit
    elif meta.TransferSyntaxUID == GE_PRIVATE:
        if "PixelData" in dataset and dataset.get("BitsAllocated") == 16:
            dataset.PixelData = np.frombuffer(dataset.PixelData, dtype=">u2").astype("<u2").tobytes()
        meta.TransferSyntaxUID = ImplicitVRLittleEndian
    word = dataset.get("PhotometricInterpretation")
    if isinstance(word, str) and word != word.strip().upper():
        dataset.PhotometricInterpretation = word.strip().upper()
    palette_in_order(dataset)
    return dataset


def frames_of(dataset: "Dataset", path: Path) -> int:
    """How many frames a file has, by its header.

    Args:
        dataset: the file, or its header.
        path: where it lies.

    Raises:
        UnreadableImage: the file cannot hold as many.
    """
    frames = int(dataset.get("NumberOfFrames") or 1)
    if not 1 <= frames <= max(1, min(MOST_FRAMES, path.stat().st_size // FEWEST_BYTES)):
        raise UnreadableImage("expected as many DICOM frames as the file can hold, got another number in its header")
    return frames


@functools.lru_cache(maxsize=1)
def _series_of_folder(folder: Path, modified_ns: int) -> dict[str, list[Path]]:
    """Series → the files of it in a folder, by name."""
    found: dict[str, list[Path]] = {}
    for file in sorted(f for f in folder.iterdir() if f.is_file()):
        with contextlib.suppress(Exception):  # what is no DICOM file is of no series
            header = open_dicom(file, stop_before_pixels=True, specific_tags=["SeriesInstanceUID", "SOPClassUID"])
            found.setdefault(str(header.get("SeriesInstanceUID", "")), []).append(file)
    return found


def series_window(path: Path, dataset: "Dataset", number: int) -> tuple[float, float]:
    """(centre, width) of the 0.5 and 99.5 percentiles of the series that a frame is of, as of a volume in NIfTI; of its
    frames that show the same kind of thing: the phase of MR has other values, and scanners put it in one series.

    Args:
        path: the file; the others of its series are those beside it.
        dataset: its content.
        number: of the frame, from 0.
    """
    folder, series = path.parent, dataset.get("SeriesInstanceUID")
    files = _series_of_folder(folder, folder.stat().st_mtime_ns).get(str(series), [path]) if series else [path]
    return _window_of(tuple(files), tuple(f.stat().st_mtime_ns for f in files), _kind(dataset, number))


@functools.lru_cache(maxsize=64)
def _window_of(files: tuple[Path, ...], modified_ns: tuple[int, ...], kind: str) -> tuple[float, float]:
    values = []
    for file in files:
        with contextlib.suppress(Exception):  # a damaged file has its own sentence where it is asked for
            dataset = dicom_file.__wrapped__(file, 0)
            for asked in range(int(dataset.get("NumberOfFrames") or 1)):
                if _kind(dataset, asked) != kind:
                    continue
                frame, _ = _frame(dataset, *_frame_number(dataset, str(asked)), in_hu=False)
                values.append(RawImage(frame.values, padding=frame.padding).measured().astype(np.float32))
    low, width = grey_range(np.concatenate(values) if values else np.zeros(0), None)
    return float(low + width / 2), float(width)


def _kind(dataset: "Dataset", number: int) -> str:
    with contextlib.suppress(Exception):  # pydicom raises many types for a damaged field
        return kind_of(dataset, number)[0]
    return ""


def _frame_number(dataset: "Dataset", index: str) -> tuple[int, int]:
    """The frame that a name asks for, of a size that can be held, and how many the file has."""
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames > 1 and not index:
        raise UnreadableImage(f"expected 'file#frame' for a multi-frame DICOM file, got no frame of {frames}")
    if index and not (index.isdecimal() and int(index) < frames):
        raise UnreadableImage(f"expected a frame number below {frames} behind '#', got something else")
    needed = (*_NEEDED, *(_NEEDED_OF_WHOLE if "PixelData" in dataset else ()))
    if lacking := [name for name in needed if dataset.get(name) in (None, "")]:
        raise UnreadableImage(f"expected {lacking[0]} in the DICOM header, got none")
    check_pixels(int(dataset.Rows) * int(dataset.Columns))
    _check_syntax(dataset, int(index or 0), frames)
    return int(index or 0), frames


def _frame(dataset: "Dataset", number: int, frames: int, *, in_hu: bool) -> tuple[Values, Callable[[str], "Dataset"]]:
    """One frame after the modality transformation, and where its other fields are."""
    found, groups = _stored_so(dataset, number, frames, in_hu=in_hu), groups_in(dataset, number)
    turn = as_radiologists_see(groups("PlaneOrientationSequence"))
    padding = None if found.padding is None else turn(found.padding)
    return replace(found, values=turn(found.values), padding=padding), groups


def _stored_so(dataset: "Dataset", number: int, frames: int, *, in_hu: bool) -> Values:
    """One frame after the modality transformation, with rows and columns as the file has them."""
    from pydicom.pixels import pixel_array

    # pydicom would take the lowest bits, where an old file may have nothing; cut_to_bits knows HighBit.
    stored = pixel_array(dataset, index=number if frames > 1 else None, correct_unused_bits=False)
    group = groups_in(dataset, number)("PixelValueTransformationSequence")
    return modality_values(stored, dataset, group, in_hu=in_hu)


def frame_values(dataset: "Dataset", number: int, *, in_hu: bool) -> Values:
    """One grey frame in the unit of the file, with rows and columns as the file has them.

    Args:
        dataset: the file.
        number: of the frame, from 0.
        in_hu: whether a window in HU is going to be applied.

    Raises:
        UnreadableImage: the frame cannot be used.
    """
    frames = int(dataset.get("NumberOfFrames") or 1)
    _check_syntax(dataset, number, frames)
    if is_colored(dataset):
        raise UnreadableImage("expected a DICOM file in grey, got one in colour")
    return _stored_so(dataset, number, frames, in_hu=in_hu)


def as_radiologists_see(group: "Dataset") -> Callable[[np.ndarray], np.ndarray]:
    """How a frame is turned: the patient's right is on the left, front or head are up; of a sagittal frame the front is
    on the left. Scanners mostly store it so; a frame of which nothing is known stays as it is.

    Args:
        group: where the frame's ImageOrientationPatient is.

    Returns:
        (H, W, ...) array → the same, turned.
    """
    given = group.get("ImageOrientationPatient")
    if given is None or len(given) != 6:
        return lambda frame: frame
    right, down = directions = np.array([header_number(v, "ImageOrientationPatient") for v in given]).reshape(2, 3)
    axes = np.abs(directions).argmax(axis=1).tolist()  # 0, x: left; 1, y: back; 2, z: head
    across = {0, 1, 2} - set(axes)
    if len(across) != 1:
        return lambda frame: frame
    if swap := axes[0] > axes[1]:
        right, down = down, right
    first, second = sorted(axes)
    flips = [(down[second] > 0) == (second == 2), right[first] < 0]

    def turn(frame: np.ndarray) -> np.ndarray:
        frame = frame.swapaxes(0, 1) if swap else frame
        return np.flip(frame, tuple(axis for axis, flip in enumerate(flips) if flip))

    return turn


def _rgb(dataset: "Dataset", number: int, frames: int) -> np.ndarray:
    """(H, W, 3) uint8 of one frame; pydicom turns every kind of YBR into RGB."""
    from pydicom.pixels import apply_color_lut, pixel_array

    if dataset.get("PhotometricInterpretation") not in _COLORS:
        raise UnreadableImage("expected RGB, YBR or a palette in a DICOM file in colour, got another interpretation")
    stored = pixel_array(dataset, index=number if frames > 1 else None)
    if stored.ndim > 3 - (dataset.PhotometricInterpretation == PALETTE):  # more pixel data than one frame needs
        raise UnreadableImage(f"expected one frame, got {len(stored)}")
    if dataset.PhotometricInterpretation == PALETTE:
        stored = apply_color_lut(stored, dataset)[..., :3]  # a fourth channel is how opaque it is
        if stored.dtype == np.uint16:  # tables have 16 bits where scanners show 8; some fill the lower ones alone
            stored = (stored >> (8 if _deepest_color(dataset) > 255 else 0)).astype(np.uint8)
    if stored.dtype != np.uint8 or stored.shape != (dataset.Rows, dataset.Columns, 3):
        raise UnreadableImage("expected three channels of 8 bits in a DICOM file in colour, got others")
    return stored


def _deepest_color(dataset: "Dataset") -> int:
    tables = (dataset.get(f"{color}PaletteColorLookupTableData") for color in ("Red", "Green", "Blue"))
    return max((int(np.frombuffer(table, dtype="<u2").max()) for table in tables if table), default=2**16 - 1)


def _check_syntax(dataset: "Dataset", number: int, frames: int) -> None:
    """Whether there are pixels, and compressed ones can be decoded here and have the size that the header says."""
    if not any(dataset.get(name) for name in _PIXELS):
        raise UnreadableImage("expected pixels in the DICOM file, got none")
    syntax = dataset.file_meta.TransferSyntaxUID
    if syntax.is_private and syntax.is_valid:
        raise UnreadableImage("expected a transfer syntax of the standard, got a private one")
    if not syntax.is_encapsulated:
        return
    from pydicom.encaps import get_frame

    try:
        lacking = lacking_decoder(dataset)
    except NotImplementedError:
        raise UnreadableImage("expected a transfer syntax for still images, got another") from None
    if lacking:
        words = f"expected a decoder for the transfer syntax {syntax.name} ({lacking})"
        raise UnreadableImage(f"{words}, got none installed")
    size = coded_size(get_frame(dataset.PixelData, number, number_of_frames=frames))
    if size is not None and size != (dataset.Rows, dataset.Columns):
        raise UnreadableImage("expected compressed pixels of the size in the DICOM header, got others")


def lacking_decoder(dataset: "Dataset") -> str:
    """What brings a decoder for the compressed pixels of a file where none is installed; nothing where one is.

    Args:
        dataset: the file, or its header read with BitsStored.

    Raises:
        NotImplementedError: there is none for its transfer syntax, as for films.
    """
    from pydicom.pixels import get_decoder
    from pydicom.uid import JPEGExtended12Bit

    decoder = get_decoder(syntax := dataset.file_meta.TransferSyntaxUID)
    if syntax == JPEGExtended12Bit and int(dataset.get("BitsStored") or 8) > 8:
        return "" if "pylibjpeg" in decoder.available_plugins else OF_12_BITS
    return "" if decoder.is_available else EXTRA


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
            rows, columns = (int.from_bytes(frame[i : i + 2], "big") for i in (place + 5, place + 7))
            return rows, columns
        filling = marker == 0xFF
        place += 1 if filling else 2 + int.from_bytes(frame[place + 2 : place + 4], "big")
    return None
