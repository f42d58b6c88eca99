"""The gallery of corrected masks: one page for the eyes of the site whose images it shows."""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from scipy import ndimage

from fedmend.basics.page import whole_page

if TYPE_CHECKING:
    from fedmend.data.slices import VolumeSplit

ANNOTATED, ADDED, COMPLETE = (86, 180, 233), (230, 159, 0), (200, 0, 120)  # seen on bright lesions as well as on tissue
PICTURE = 480  # pixels
DETAIL = 3  # a detail is at least this part of the slice in width
MARGIN = 1.3
LINE = 2  # pixels
TINT = 0.45  # of what was added
DASH = 6
PAGE_CSS = """
.row{display:grid;grid-template-columns:repeat(3,1fr);gap:12px}figcaption{font-size:13px;color:#52606b}
img{display:block;width:100%;background:#000}.key{margin-right:22px;white-space:nowrap}
.key i{display:inline-block;width:22px;height:13px;margin-right:7px;vertical-align:-1px;border:2.5px solid}
"""
NOTHING_REMOVED = " A pixel that a person has annotated is never removed."
PRIVATE = "This page stays at the site: it is no part of what the site sends."
PATIENTS = "It shows images of patients."
PHANTOM = "PHANTOM data: its images are synthetic and say nothing about patients."
FOOTER = (
    "As radiologists see them: the patient's right is on the left, the front is up. Cases are"
    " numbered as in the datalist, slices from 0 at the feet."
)


def gallery_page(
    split: "VolumeSplit", target: np.ndarray, complete: np.ndarray | None, *, phantom: bool, cases: int = 4
) -> str:
    """Slices with the site's own annotation, what was added to it and, where it is known, the complete annotation.

    Shown are the slices with the most added pixels, one of each volume; where nothing was added, those with the largest
    annotation. The same input gives the same page.

    Args:
        split: N training slices with the site's own masks.
        target: (N, S, S) numbers of classes, or bool of one: the annotation in force.
        complete: (N, S, S) numbers of classes in complete masks, or None where they are unknown.
        phantom: whether the images are synthetic.
        cases: volumes to show at most.

    Returns:
        an HTML page that holds its images and asks for nothing outside itself.
    """
    own = split.masks > 0
    added = (target > 0) & ~own
    corrected = bool(added.any())
    shown = _chosen(added if corrected else own, split.case)[:cases]
    heading = "Corrected masks" if corrected else "Masks without a correction"
    right = None if complete is None else added & (complete == target)
    known = None if complete is None else complete > 0
    figures = [_slice(split, row, own, added, known, right) for row in shown]
    words = f"{own.sum():,} pixels are annotated in {len(own):,} training slices"
    words += f"; the correction added {added.sum():,}." if corrected else "; nothing has been added."
    if known is not None and right is not None and corrected:
        words += " " + _truth_words(own, added, known, right)
    kind = "with the most added pixels" if corrected else "with the largest annotation"
    chosen = f"Below: {'the slice' if len(shown) == 1 else f'{len(shown)} slices'} {kind}, at most one of a volume."
    chosen += "" if (own & (target == 0)).any() else NOTHING_REMOVED
    legend = _legend(corrected=corrected, known=complete is not None)
    body = f"<p>{words}</p>\n<p>{chosen}</p>\n<p class='sub'>{legend}</p>\n{''.join(figures)}"
    warning = f"<p class='flag'><strong>{PRIVATE}</strong> {PHANTOM if phantom else PATIENTS}</p>"
    return whole_page(heading, warning, body, FOOTER, phantom=phantom, style=PAGE_CSS, pictures=True)


def _legend(*, corrected: bool, known: bool) -> str:
    keys = [("site's annotation", ANNOTATED, "solid", 0.0)]
    keys += [("added by the correction", ADDED, "solid", TINT)] if corrected else []
    keys += [("complete annotation", COMPLETE, "dashed", 0.0)] if known else []
    return "".join(
        f'<span class="key">'
        f'<i style="border-color:rgb{colour};border-style:{style};background:rgba{(*colour, alpha)}"></i>'
        f"{escape(word)}</span>"
        for word, colour, style, alpha in keys
    )


def _truth_words(own: np.ndarray, added: np.ndarray, complete: np.ndarray, right: np.ndarray) -> str:
    hits, missing = right.sum(), (complete & ~own).sum()
    words = f"{hits:,} of them ({hits / added.sum():.0%}) are so in the complete annotation"
    return words + (f", {hits / missing:.0%} of what was missing." if missing else ", where nothing was missing.")


def _chosen(masks: np.ndarray, case: np.ndarray) -> list[int]:
    """Slices with the most pixels of their volumes, the largest first; the first of equal ones, none that is empty."""
    size = masks.sum((1, 2))
    largest: dict[int, int] = {}
    for row in sorted(np.flatnonzero(size).tolist(), key=lambda row: (-size[row], row)):
        largest.setdefault(int(case[row]), row)
    return list(largest.values())


def _slice(
    split: "VolumeSplit",
    row: int,
    all_own: np.ndarray,
    all_added: np.ndarray,
    all_complete: np.ndarray | None,
    right: np.ndarray | None,
) -> str:
    """A slice as a whole, its part with lesions, and the same part with what is marked."""
    own, added, complete = all_own[row], all_added[row], None if all_complete is None else all_complete[row]
    image = np.asarray(split.images[row], dtype=np.float32)
    marked = own | added if complete is None else own | added | complete
    part = _detail(marked)
    plain = _picture(image[part])
    overlay = _overlay(plain, own[part], added[part], None if complete is None else complete[part])
    name = f"Case {split.case[row] + 1}, slice {split.plane[row]}"
    words = f"{own.sum():,} pixels annotated"
    words += f", {added.sum():,} added" if added.any() else ""
    if complete is not None and right is not None:
        words += f", {right[row].sum():,} of them in the complete annotation" if added.any() else ""
        words += f"; {(complete & ~own & ~added).sum():,} still missing"
    pictures = [
        (_framed(image, part), "whole slice; frame: the part beside"),
        (plain, "image"),
        (overlay, "image with annotation"),
    ]
    figures = "".join(
        f'<figure><img src="{_data_uri(pixels)}" alt="{name}: {word}"><figcaption>{word}</figcaption></figure>'
        for pixels, word in pictures
    )
    return f'<section><h2>{name}</h2>\n<p>{words}.</p>\n<div class="row">{figures}</div></section>\n'


def _detail(marked: np.ndarray) -> tuple[slice, slice]:
    """A square part of the slice around all marked pixels."""
    size = len(marked)
    ends = [(int(found[0]), int(found[-1]) + 1) for found in (np.flatnonzero(marked.any(axis)) for axis in (1, 0))]
    width = round(MARGIN * max(stop - start for start, stop in ends))
    width = min(max(width, size // DETAIL), size)
    starts = [min(max((start + stop - width) // 2, 0), size - width) for start, stop in ends]
    down, across = (slice(start, start + width) for start in starts)
    return down, across


def _enlarged(pixels: np.ndarray, how: Image.Resampling) -> np.ndarray:
    """To a picture, mirrored: in RAS the patient's left is on the left."""
    return np.asarray(Image.fromarray(pixels[:, ::-1]).resize((PICTURE, PICTURE), how))


def _picture(image: np.ndarray) -> np.ndarray:
    """(H, W) float 0..1 → (PICTURE, PICTURE, 3) uint8."""
    grey = _enlarged(np.rint(255 * image).astype(np.uint8), Image.Resampling.BICUBIC)
    return np.repeat(grey[..., None], 3, axis=2)


def _framed(image: np.ndarray, part: tuple[slice, slice]) -> np.ndarray:
    picture, inside = _picture(image), np.zeros(image.shape, dtype=bool)
    inside[part] = True
    picture[edge(_enlarged(inside, Image.Resampling.NEAREST), inner=True)] = 255
    return picture


def _overlay(plain: np.ndarray, own: np.ndarray, added: np.ndarray, complete: np.ndarray | None) -> np.ndarray:
    """The complete annotation runs along the outside, so that it does not hide the others where they agree."""
    picture = plain.copy()
    own, added = (_enlarged(mask, Image.Resampling.NEAREST) for mask in (own, added))
    picture[added] = ((1 - TINT) * picture[added] + TINT * np.array(ADDED)).astype(np.uint8)
    picture[edge(added, inner=True)] = ADDED
    picture[edge(own, inner=True)] = ANNOTATED
    if complete is not None:
        y, x = np.indices((PICTURE, PICTURE)) // DASH
        dashed = edge(_enlarged(complete, Image.Resampling.NEAREST), inner=False) & ((x + y) % 2 == 0)
        picture[dashed] = COMPLETE
    return picture


def edge(mask: np.ndarray, *, inner: bool) -> np.ndarray:
    """The outline of a mask, ``LINE`` pixels wide, along its inside or its outside; (H, W) bool both."""
    if inner:
        return mask & ~ndimage.binary_erosion(mask, iterations=LINE)
    return ndimage.binary_dilation(mask, iterations=LINE) & ~mask


def png_bytes(pixels: np.ndarray, compression: int = -1) -> bytes:
    """A PNG file of (H, W), (H, W, 3) or (H, W, 4) uint8; ``compression`` from 1, fast, to 9, small; -1: zlib's own."""
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, format="PNG", compress_level=compression)
    return stream.getvalue()


def _data_uri(pixels: np.ndarray) -> str:
    return f"data:image/png;base64,{base64.b64encode(png_bytes(pixels)).decode()}"
