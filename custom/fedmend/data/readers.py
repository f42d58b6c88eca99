"""One image file → one 8-bit image: DICOM, PNG/JPEG and NIfTI slices in grey, pictures (of DICOM files too) in colour
where a card says so.

NIfTI is read with nibabel itself and not through MONAI's reader: the refusal of time series needs shapes that it does
not hand on. A volume comes out as by MONAI's LoadImage and Orientation, to the last bit. Importing these takes 6 s and
340 MB, which a site process would pay in every round where FLARE starts one per task.
"""

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.data.raw import (
    MOST_OF_A_BYTE,
    MOST_VOXELS,
    TOO_LARGE,
    RawImage,
    UnreadableImage,
    Window,
    as_picture,
    check_pixels,
    grey_range,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

NIFTI_SUFFIXES = (".nii", ".nii.gz")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
BITS_PER_SAMPLE = 258  # tag of TIFF
EIGHT_BITS = ("JPEG", "MPO", "GIF", "BMP", "WEBP")  # formats of pictures that have no more in a channel
LARGEST_VOXEL = 1e30  # float32 holds the difference of two
# Bytes of a volume that one byte of its file can stand for.
PACKED = {".gz": MOST_OF_A_BYTE, ".mgz": MOST_OF_A_BYTE, ".bz2": math.inf, ".zst": math.inf}
LARGEST_START = 2**26  # bytes before the voxels of a file
MILLIMETRES = {1: 1000.0, 3: 0.001}  # xyzt_units % 8 of NIfTI → mm; no unit is meant to be mm
ORIENTATION = 274  # tag of EXIF; 1 is upright


def _read_picture(path: Path, color: bool) -> RawImage:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            check_pixels(picture.width * picture.height)
            if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                got = "16 bits" if picture.mode.startswith("I;16") else f"mode {picture.mode}"
                raise UnreadableImage(f"expected a picture of 8 bits in grey or RGB, got {got}")
            if (bits := _bits(picture, path)) > 8:
                raise UnreadableImage(f"expected a picture of 8 bits in grey or RGB, got {bits} bits")
            pages = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)  # a camera adds small previews
            shown, clear = _on_black(ImageOps.exif_transpose(picture))
            said = {
                "the first page of a picture with several was taken": pages > 1,
                "the colours of a palette were taken": picture.mode == "P",
                "what is transparent became black": clear,
                "a picture was turned as its EXIF data say": picture.getexif().get(ORIENTATION, 1) != 1,
            }
            return RawImage(as_picture(shown, color=color), notes=tuple(note for note, true in said.items() if true))
    except Image.DecompressionBombError:
        raise UnreadableImage(TOO_LARGE) from None
    except UnreadableImage:
        raise
    except Exception as e:  # Pillow raises many types for a damaged file
        if isinstance(e, UnidentifiedImageError) and _is_dicom(path):
            raise UnreadableImage("expected a PNG or JPEG picture, as its name says, got a DICOM file") from None
        raise UnreadableImage(
            f"expected a PNG or JPEG picture, got a corrupt or truncated file ({type(e).__name__})"
        ) from None


def _is_dicom(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(132)[128:] == b"DICM"  # behind the preamble


def _on_black(picture: "Image") -> tuple["Image", bool]:
    """A picture before a black background, and whether any of this can be seen: what hides under transparent pixels is
    left over by some program, and differs from one to the next."""
    from PIL import Image

    if picture.mode not in ("LA", "RGBA") and "transparency" not in picture.info:
        return picture, False
    layered = picture.convert("RGBA")
    if np.asarray(layered.getchannel("A")).min() == 255:
        return picture, False
    return Image.alpha_composite(Image.new("RGBA", layered.size, (0, 0, 0, 255)), layered), True


def _bits(picture: "ImageFile", path: Path) -> int:
    """Bits of a channel as the file has them: Pillow makes 8 of 16 for all modes with more than one channel."""
    if picture.format == "PNG":
        with open(path, "rb") as stream:
            return stream.read(25)[24]  # of the header that stands first
    if picture.format == "TIFF":
        return int(np.max(picture.getexif().get(BITS_PER_SAMPLE, 1)))
    if picture.format not in EIGHT_BITS:
        raise UnreadableImage(f"expected a PNG or JPEG picture, got {picture.format}")
    return 8


def open_nifti(path: Path) -> Any:
    """A NIfTI file as a SpatialImage of nibabel, which its types do not say; no voxel has been read.

    Args:
        path: the file.

    Raises:
        UnreadableImage: its header promises more than it can hold, for which nibabel would first take the memory, or
            what would fill the memory.
        Exception: nibabel raises many types for a damaged file.
    """
    import nibabel

    _check_start(path)
    image: Any = nibabel.load(path)
    stored = image.dataobj
    count = math.prod(map(int, stored.shape))
    promised = int(stored.offset) + count * stored.dtype.itemsize
    voxels = Path(image.file_map["image"].filename)  # of a pair, not the header
    if promised > voxels.stat().st_size * PACKED.get(voxels.suffix.lower(), 1):
        raise UnreadableImage("expected a NIfTI file, got a corrupt or truncated one (too short for its header)")
    if count > MOST_VOXELS:
        raise UnreadableImage(f"expected a volume of at most {MOST_VOXELS} voxels, got more")
    if not stored.offset and "header" not in image.file_map:  # nibabel would take the header for voxels
        raise UnreadableImage("expected the voxels of a NIfTI file behind its header, got a vox_offset of 0")
    return image


def _check_start(path: Path) -> None:
    """Refuses a NIfTI file that says that much stands before its voxels: nibabel reads all of it with the header."""
    import nibabel
    from nibabel.openers import ImageOpener

    with ImageOpener(str(path)) as stream:
        start = stream.read(nibabel.Nifti2Header.sizeof_hdr)
    for kind in (nibabel.Nifti1Header, nibabel.Nifti2Header):
        if not kind.may_contain_header(start):
            continue
        if kind(start[: kind.sizeof_hdr], check=False)["vox_offset"] > LARGEST_START:
            raise UnreadableImage(f"expected the voxels of a NIfTI file within {LARGEST_START} bytes, got none there")


def affine_of(image: Any) -> np.ndarray:
    """(4, 4), voxel → mm in RAS, also of a header in metres or micrometres.

    Args:
        image: a SpatialImage of nibabel, whose own ``affine`` is in the unit of the header.
    """
    return np.diag([*[unit_of(image)] * 3, 1.0]) @ image.affine


def unit_of(image: Any) -> float:
    """Millimetres of the unit that the header of a SpatialImage of nibabel names."""
    return MILLIMETRES.get(int(image.header.get("xyzt_units", 0)) % 8, 1.0)


def voxels_of(image: Any) -> np.ndarray:
    """The (X, Y, Z) float32 voxels of a file that nibabel has opened, or its other dimensions; further ones of length 1
    (of one time, one channel) are dropped.

    Args:
        image: a SpatialImage of nibabel, which its types do not say.

    Raises:
        UnreadableImage: a voxel holds a colour or a complex number, of which a conversion would keep a part.
    """
    if image.get_data_dtype().kind not in "iufb":
        raise UnreadableImage("expected one real number a voxel, got colours or complex numbers")
    path = Path(image.file_map["image"].filename)
    read = _read_packed if PACKED.get(path.suffix.lower()) == MOST_OF_A_BYTE else _read_stored
    voxels = read(image.dataobj, path)
    while voxels.ndim > 3 and voxels.shape[-1] == 1:
        voxels = voxels[..., 0]
    return voxels


def _read_stored(stored: Any, path: Path) -> np.ndarray:
    return np.asarray(stored, dtype=np.float32)


def _read_packed(stored: Any, path: Path) -> np.ndarray:
    """The voxels of a file that gzip has packed, read to its end, where the checksum stands: nibabel stops before it,
    and of files with one wrong bit five in six gave other voxels without a word."""
    from nibabel.arrayproxy import ArrayProxy
    from nibabel.openers import ImageOpener

    with ImageOpener(str(path)) as stream:
        spec = (stored.shape, stored.dtype, stored.offset, stored.slope, stored.inter)
        # An attempt to map what is packed would unpack it once more.
        voxels = np.asarray(ArrayProxy(stream, spec, mmap=False), dtype=np.float32)
        while stream.read(2**20):
            pass
    return voxels


@functools.lru_cache(maxsize=1)  # a manifest names the slices of one volume one after the other
def nifti_volume(path: Path, modified_ns: int) -> np.ndarray:
    """The (W, H, D) float32 volume of a file in RAS; the last one is kept, as long as its time stamp stays the same."""
    import nibabel

    try:
        image = open_nifti(path)
        volume = voxels_of(image)
    except UnreadableImage:
        raise
    except Exception as e:  # nibabel raises many types for a damaged file
        raise UnreadableImage(f"expected a NIfTI file, got a corrupt or truncated one ({type(e).__name__})") from None
    if volume.ndim == 2:
        volume = volume[..., None]
    if volume.ndim != 3:
        raise UnreadableImage(f"expected a slice or a 3-D NIfTI volume, got {volume.ndim} dimensions")
    if not volume.size:
        raise UnreadableImage("expected a NIfTI volume with voxels, got an empty one")
    with np.errstate(all="ignore"):
        orientation = nibabel.io_orientation(np.nan_to_num(image.affine, nan=0, posinf=0, neginf=0))
    if np.isnan(orientation).any():
        raise UnreadableImage("expected an affine matrix with three axes in the NIfTI header, got a degenerate one")
    return nibabel.apply_orientation(volume, orientation)


@functools.lru_cache(maxsize=1)
def _volume_window(path: Path, modified_ns: int) -> tuple[float, float]:
    """(centre, width) of the 0.5 and 99.5 percentiles of a whole volume, so that its slices can be compared."""
    volume = nifti_volume(path, modified_ns)
    low, width = grey_range(volume[np.abs(volume) <= LARGEST_VOXEL], None)
    return float(low + width / 2), float(width)


def _read_nifti(path: Path, index: str, window: Window) -> RawImage:
    volume = nifti_volume(path, path.stat().st_mtime_ns)
    if not index and volume.shape[2] != 1:
        raise UnreadableImage(
            f"expected 'file.nii.gz#slice' for a volume, got no slice number for {volume.shape[2]} slices"
        )
    if index and not (index.isdecimal() and int(index) < volume.shape[2]):
        raise UnreadableImage(f"expected a slice number below {volume.shape[2]} behind '#', got something else")
    plane = as_seen(volume, int(index or 0))
    if not (np.abs(plane) <= LARGEST_VOXEL).all():
        raise UnreadableImage("expected finite voxels, got NaN or infinity")
    if not isinstance(window, tuple):
        window = _volume_window(path, path.stat().st_mtime_ns)
    return RawImage(plane, window)


def as_seen(volume: np.ndarray, number: int) -> np.ndarray:
    """(H, W) axial slice of a volume (X, Y, Z) in RAS as a radiologist sees it: the front is up, the patient's right is
    on the left."""
    return np.rot90(volume[:, :, number])[:, ::-1]


def read_raw(path: Path, window: Window, *, color: bool = False) -> RawImage:
    """Reads one image, and the window through which a site sees it; see :func:`read_image`.

    Raises:
        OSError: the file cannot be opened; FileNotFoundError where there is none.
        UnreadableImage: the file cannot be used; the message says why without naming it.
    """
    name, _, index = path.name.partition("#")
    path = path.with_name(name)
    if not path.is_file():
        raise FileNotFoundError(path)
    lower = name.lower()
    if lower.endswith(PICTURE_SUFFIXES):
        if index:
            raise UnreadableImage("expected no number behind the '#' of a picture, got one")
        return _read_picture(path, color)
    if lower.endswith(NIFTI_SUFFIXES):
        if color:
            raise UnreadableImage("expected a picture in colour (site.json says color: true), got a NIfTI volume")
        return _read_nifti(path, index, window)
    from fedmend.data.dicom_files import read_dicom

    return read_dicom(path, index, window, color=color)


def read_image(path: Path, window: Window, *, color: bool = False) -> np.ndarray:
    """Reads one image as a site sees it.

    All formats come out as a radiologist sees them: the patient's right is on the left, front or head are up.

    DICOM values are rescaled to HU by the header's slope and intercept, windowed, and inverted for MONOCHROME1; what a
    header calls padding is black. ``name#12`` is frame 12, from 0, of a multi-frame file. NIfTI volumes are brought to
    RAS; ``name.nii.gz#12`` is their axial slice 12, counted from 0 at the feet. Where the card has no window, the 0.5
    and 99.5 percentiles of the values of the volume, or of the DICOM series, that are not 0 are black and white; CT
    needs a window. PNG, JPEG and DICOM in colour are taken as they are, turned as their EXIF data say.

    Args:
        path: image file, with ``#slice`` behind a NIfTI volume and ``#frame`` behind a multi-frame DICOM file.
        window: see :class:`fedmend.data.card.SiteCard`.
        color: keep the colour of a picture; otherwise it is turned to grey.

    Returns:
        (H, W) uint8, with ``color`` (H, W, 3).

    Raises:
        OSError: the file cannot be opened; FileNotFoundError where there is none.
        UnreadableImage: the file cannot be used; the message says why without naming it.
    """
    image = read_raw(path, window, color=color)
    return image.seen(image.window)


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """Resizes a (H, W) or (H, W, 3) uint8 image to ``size`` × ``size`` with antialiased bilinear filtering.

    MONAI's ``Resize`` takes as long (0.7 ms from 512 to 128 pixels) and has no such filter: its bilinear mode skips
    pixels, or blurs before with a Gaussian of the caller's choice.
    """
    from PIL import Image

    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((size, size), Image.Resampling.BILINEAR))
