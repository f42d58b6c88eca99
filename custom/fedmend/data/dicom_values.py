"""From the numbers that a DICOM file stores to values with a unit, and from these to grey values.

What pydicom's own functions leave to their caller is here: bits above and below those stored, padding, a slope
that the header lacks, CT values that were stored modulo a power of two, and a grey value for every VOI function or
table, whatever numbers it gives.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmend.data.raw import UnreadableImage, apply_window, is_window

if TYPE_CHECKING:
    from pydicom import Dataset

CT_CLASSES = {"1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.2.2"}
UNWRAPPED = "CT values that were stored modulo a power of two were put right"
TAKEN_FOR_METAL = "CT values near the highest possible one do not look like air, and were taken for metal"
NO_SLOPE = "a rescale without slope or intercept was taken to have slope 1 and intercept 0"
DEEPEST = 1024  # CT values reach down to about -1000 HU
FEWEST_BITS, HIGHEST_INTERCEPT = 12, -100.0  # of CT values without a sign that have no room for air
LEAST_AIR = 0.05  # share of an image or of its border; metal has less


def is_ct(dataset: "Dataset") -> bool:
    """Whether a file says that its values are those of CT."""
    modality = str(dataset.get("Modality") or "").strip().upper()
    return modality == "CT" if modality else dataset.get("SOPClassUID") in CT_CLASSES


@dataclass(frozen=True)
class Values:
    """One frame after the modality transformation.

    Attributes:
        values: (H, W) numbers, in HU for CT.
        padding: (H, W) bool, pixels that the scanner did not measure; None: there are none.
        notes: what was put right.
    """

    values: np.ndarray
    padding: np.ndarray | None
    notes: tuple[str, ...]


def cut_to_bits(stored: np.ndarray, dataset: "Dataset") -> np.ndarray:
    """Stored values without what stands above (or below) their bits: overlays, text, signs that were not extended.

    Args:
        stored: (H, W) as decoded, with all bits allocated.
        dataset: says how many bits a value has, where they end, and whether the highest one is a sign.

    Returns:
        whole numbers of the same shape and size; floating numbers as they are.
    """
    width, bits = stored.dtype.itemsize * 8, int(dataset.get("BitsStored") or 0)
    if stored.dtype.kind == "f" or not 0 < bits < width:
        return stored
    high = dataset.get("HighBit")
    below = max(int(high) + 1 - bits, 0) if high is not None and _keeps_places(dataset) else 0
    if dataset.get("PixelRepresentation"):
        return stored.astype(f"i{stored.dtype.itemsize}") << (width - bits - below) >> (width - bits)
    return (stored.astype(f"u{stored.dtype.itemsize}") >> below) & ((1 << bits) - 1)


def _keeps_places(dataset: "Dataset") -> bool:
    """Whether bits stay where HighBit says: codecs but RLE, which knows bytes alone, move a value to the lowest."""
    from pydicom.uid import RLELossless

    syntax = dataset.file_meta.TransferSyntaxUID
    return syntax == RLELossless or not syntax.is_encapsulated


def padding_of(stored: np.ndarray, dataset: "Dataset") -> np.ndarray | None:
    """The pixels that PixelPaddingValue and its range name, or None where there are none.

    Args:
        stored: (H, W) whole numbers.
        dataset: the file.

    Returns:
        (H, W) bool.
    """
    first = dataset.get("PixelPaddingValue")
    if first is None or stored.dtype.kind == "f":
        return None
    bits = stored.dtype.itemsize * 8
    limits = [header_number(v, "PixelPaddingValue") for v in (first, dataset.get("PixelPaddingRangeLimit", first))]
    if stored.dtype.kind == "i":  # some write the value as if it had no sign
        limits = [v - 2**bits if v >= 2 ** (bits - 1) else v for v in limits]
    else:
        limits = [v + 2**bits if v < 0 else v for v in limits]
    found = (stored >= min(limits)) & (stored <= max(limits))
    return found if found.any() else None


def modality_values(stored: np.ndarray, dataset: "Dataset", group: "Dataset", *, in_hu: bool) -> Values:
    """Applies the modality transformation.

    Args:
        stored: (H, W) as decoded, with all bits allocated.
        dataset: the file.
        group: where the frame's rescale is: the file itself, or a functional group of an enhanced one.
        in_hu: whether the site sees the image through a window in HU.

    Raises:
        UnreadableImage: a CT image without a rescale for a window in HU, or one that makes all values the same.
    """
    whole, stored = stored, cut_to_bits(stored, dataset)
    # Some write the value of padding with bits above those stored.
    found = [one for one in (padding_of(whole, dataset), padding_of(stored, dataset)) if one is not None]
    padding = np.logical_or.reduce(found) if found else None
    if "ModalityLUTSequence" in group:
        from pydicom.pixels import apply_modality_lut

        return Values(apply_modality_lut(stored, group), padding, ())
    slope, intercept = (
        None if (given := group.get(name)) in (None, "") else header_number(given, name)
        for name in ("RescaleSlope", "RescaleIntercept")
    )
    ct = is_ct(dataset)
    if ct and in_hu and slope is None and intercept is None:
        raise UnreadableImage("expected a rescale in the DICOM header for a window in HU, got none")
    if slope is None and intercept is None:
        return Values(stored, padding, ())
    notes: tuple[str, ...] = (NO_SLOPE,) if slope is None or intercept is None else ()
    slope, intercept = 1.0 if slope is None else slope, intercept or 0.0
    if slope == 0 and np.ptp(stored) > 0:  # of an empty slice of PET it may be 0
        raise UnreadableImage("expected a RescaleSlope other than 0 in the DICOM header, got 0")
    if ct and stored.dtype.kind != "f" and slope == 1:
        stored, note = _unwrapped(stored, padding, dataset, intercept)
        notes += note
    # As pydicom's apply_rescale, whose numbers are those of a header, and may have decimal commas or lack the slope.
    return Values(stored.astype(np.float64) * slope + intercept, padding, notes)


def _unwrapped(
    stored: np.ndarray, padding: np.ndarray | None, dataset: "Dataset", intercept: float
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Whole numbers below 0 again where a file without a sign and without room for -1000 HU holds them modulo 2^bits,
    as a part of the RSNA challenge of 2019 does; and what was done, in words. Dental CT that is cut off at 0 has no
    room either, but its largest values are metal: there is little of it, and more of 0."""
    bits = int(dataset.get("BitsStored") or 0)
    if dataset.get("PixelRepresentation") or bits < FEWEST_BITS or intercept <= HIGHEST_INTERCEPT:
        return stored, ()
    measured = True if padding is None else ~padding
    wrapped = (stored + intercept >= 2**bits - DEEPEST) & measured
    if not wrapped.any():
        return stored, ()
    border = np.concatenate([edge.ravel() for edge in (wrapped[0], wrapped[-1], wrapped[:, 0], wrapped[:, -1])])
    if max(wrapped.mean(), border.mean()) < LEAST_AIR or wrapped.sum() < ((stored == 0) & measured).sum():
        return stored, (TAKEN_FOR_METAL,)
    return np.where(wrapped, stored.astype(np.int64) - 2**bits, stored), (UNWRAPPED,)


def header_number(value: object, name: str) -> float:
    """A number of a header, also where somebody wrote it with a decimal comma.

    Args:
        value: what the header says.
        name: of the field.

    Raises:
        UnreadableImage: it is no number.
    """
    if isinstance(value, float):  # pydicom has read it
        return float(value)
    try:
        return float(str(value).strip().replace(",", "."))
    except ValueError:
        raise UnreadableImage(f"expected a number as {name} in the DICOM header, got something else") from None


# ---- grey values -----------------------------------------------------------------------------------------------------
FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")
Voi = Callable[[np.ndarray], np.ndarray]  # (H, W) values → (H, W) uint8


def own_voi(group: "Dataset", *, wanted: bool) -> tuple[tuple[float, float], Voi] | None:
    """The first window or table of a header: the span of values that it shows, and the way to grey values.

    Args:
        group: where the frame's fields are.
        wanted: whether the site sees its images by it; otherwise a damaged one counts as none.

    Returns:
        (centre, width), and values → grey values; None: the header has neither.

    Raises:
        UnreadableImage: it is wanted, and there is none, or one that shows nothing.
    """
    from pydicom.multival import MultiValue

    try:
        if group.get("VOILUTSequence"):
            return _table(group.VOILUTSequence[0])
        centre, width = group.get("WindowCenter"), group.get("WindowWidth")
        if centre is None or width is None:
            if wanted:
                raise UnreadableImage("expected a window in the DICOM header (site.json says window: file), got none")
            return None
        centre, width = (header_number(v[0] if isinstance(v, MultiValue) else v, "window") for v in (centre, width))
        function = str(group.get("VOILUTFunction") or "LINEAR").strip().upper()
        if function not in FUNCTIONS:
            words = "expected LINEAR, LINEAR_EXACT or SIGMOID as VOILUTFunction in the DICOM header"
            raise UnreadableImage(f"{words} (site.json says window: file), got another")
        if (
            function == "LINEAR" and width < 1
        ):  # the standard's formula needs 1 at least; values of such files are small
            function = "LINEAR_EXACT"
        if not is_window(centre, width):
            raise UnreadableImage("expected a window of the DICOM header that shows something, got none that does")
        return (centre, width), functools.partial(_by_function, centre=centre, width=width, function=function)
    except Exception:
        if wanted:
            raise
        return None


def _by_function(values: np.ndarray, *, centre: float, width: float, function: str) -> np.ndarray:
    """Grey values by VOILUTFunction, PS3.3 C.11.2.1.2 and C.11.2.1.3."""
    from pydicom.dataset import Dataset
    from pydicom.pixels import apply_windowing

    if function == "LINEAR_EXACT":
        return apply_window(values, centre, width)
    if function == "LINEAR":
        return apply_window(values, centre - 0.5, max(width - 1, 1e-6))
    window = Dataset()
    window.PhotometricInterpretation, window.BitsStored, window.PixelRepresentation = "MONOCHROME2", 8, 0
    window.WindowCenter, window.WindowWidth, window.VOILUTFunction = centre, width, function
    return (apply_windowing(values, window) + 0.5).astype(np.uint8)


def _in_order(words: bytes) -> bytes:
    """Words of a big endian file as a little endian one has them, two entries of 8 bits in each or one of 16."""
    return np.frombuffer(words, dtype=">u2").astype("<u2").tobytes()


def palette_in_order(dataset: "Dataset") -> None:
    """Puts the tables of colours of a big endian file in the order in which pydicom takes them."""
    if dataset.original_encoding[1] is not False:
        return
    for name in ("Red", "Green", "Blue", "Alpha"):
        if words := dataset.get(table := f"{name}PaletteColorLookupTableData"):
            setattr(dataset, table, _in_order(words))


def _table(item: "Dataset") -> tuple[tuple[float, float], Voi]:
    """A VOI LUT, PS3.3 C.11.2.1.1; pydicom's own counts its 8-bit tables modulo 256 and takes whole numbers alone."""
    number, first, bits = (int(v) for v in item.LUTDescriptor)
    number = number or 2**16
    if first + number > 2**16:  # of values below 0; a file with implicit types of fields does not say the sign
        first -= 2**16
    data = item.LUTData
    if isinstance(data, bytes):
        data = _in_order(data) if item.original_encoding[1] is False else data
        data = np.frombuffer(data, dtype="<u2" if len(data) >= 2 * number else "u1")
    grey = np.asarray(data, dtype=np.float64)[:number] / (2**bits - 1)
    if len(grey) < number:
        raise UnreadableImage("expected a VOI table of the length that the DICOM header says, got a shorter one")
    table = (np.clip(grey, 0, 1) * 255 + 0.5).astype(np.uint8)

    def seen(values: np.ndarray) -> np.ndarray:
        return table[np.clip(np.rint(values) - first, 0, number - 1).astype(np.int64)]

    return (first + number / 2, float(number)), seen
