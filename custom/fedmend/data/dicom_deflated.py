"""DICOM files whose whole data set is compressed (Deflated Explicit VR), of which a small one may hold anything."""

import zlib
from pathlib import Path

from fedmend.data.raw import MOST_OF_A_BYTE, UnreadableImage

MOST_BYTES = 2**29  # of an inflated data set; honest ones have fewer
BLOCK = 2**16  # bytes that are inflated at once


def check_inflated(path: Path) -> None:
    """Refuses a file that would fill the memory: pydicom inflates the whole of it whatever one wants to know.

    Args:
        path: a file of any kind; of small ones, and so of most slices, nothing is read.

    Raises:
        UnreadableImage: it holds more than :data:`MOST_BYTES`.
        Exception: pydicom and zlib raise many types for a damaged file.
    """
    if path.stat().st_size * MOST_OF_A_BYTE <= MOST_BYTES:
        return
    from pydicom.filereader import read_dataset, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    with open(path, "rb") as stream:
        read_preamble(stream, force=True)
        meta = read_dataset(stream, False, True, stop_when=lambda tag, vr, length: tag >> 16 != 2)
        if meta.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
            return
        inflate, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while not inflate.eof and (block := stream.read(BLOCK)):
            size += len(inflate.decompress(block))
            if size > MOST_BYTES:
                raise UnreadableImage(f"expected at most {MOST_BYTES} bytes in a deflated DICOM file, got more")
