"""What the page shows of a label: words, the image through a window, outlines, and the slices beside it."""

import math
import threading
from dataclasses import dataclass

import numpy as np

from fedmend.data.raw import UnreadableImage
from fedmend.data.slices import plane_of
from fedmend.errors import FedMendError
from fedmend.labels import NOT_ANNOTATED
from fedmend.repairs.gallery import ADDED, ANNOTATED
from fedmend.repairs.mask_ledger import MaskLedger
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, UNSURE, Verdict
from fedmend.review.desk import Desk, Item
from fedmend.review.pictures import (
    Neighbours,
    SiteImage,
    SliceImage,
    Slices,
    open_picture,
    open_slice,
    overlay_png,
    png,
)
from fedmend.review.pictures import picture_problem as problem_of

REMOVED = (220, 50, 47)
OUTLINES = ("original", "added", "removed")
SAID = {ACCEPT: "accepted", REJECT: "rejected", UNSURE: "unsure", RELABEL: "another label"}


@dataclass(frozen=True)
class Line:
    """An item in words.

    Attributes:
        item: the item.
        name: class.
        before: original label.
        after: label now, or the one in doubt.
        rule: who repaired it; "own label" where nobody did.
        confidence: of the rule; "": not known.
        verdict: what people said; "": nothing.
    """

    item: Item
    name: str
    before: str
    after: str
    rule: str
    confidence: str
    verdict: str


class Shown:
    """Words and images of one desk."""

    def __init__(self, desk: Desk):
        self._desk = desk
        self._pictures: Slices | Neighbours | None = None
        if not desk.masks:
            table = desk.data.train.table
            self._pictures = Slices(table) if table.slices else Neighbours(table)
        self._one_at_a_time = threading.Lock()  # the volume that is kept is one

    # ---- words ------------------------------------------------------------------------------------------------------
    def line(self, item: Item) -> Line:
        """An item in words."""
        name = self._desk.classes[item.label_class]
        before, after = self._label(item, item.old), self._label(item, item.new)
        if self._desk.kind.one_label:
            own = self._desk.data.train.labels[item.sample] == 1
            before, after = (self._desk.classes[int(own.argmax())] if own.any() else "blank"), name
        sure = "" if math.isnan(item.confidence) else f"{item.confidence:.3f}"
        return Line(item, name, before, after, item.rule or "own label", sure, self._verdict(item.verdict))

    def _label(self, item: Item, value: int) -> str:
        if self._desk.masks:
            return f"{value:,} voxel{'' if value == 1 else 's'}"
        return {NOT_ANNOTATED: "blank", 0: "no", 1: "yes"}[value]

    def _verdict(self, verdict: Verdict | None) -> str:
        if verdict is None or verdict.word not in SAID:
            return ""
        words = SAID[verdict.word]
        if verdict.word == RELABEL:
            classes, one_label = self._desk.classes, self._desk.kind.one_label
            words += f": {classes[verdict.label_class] if one_label else ('no', 'yes')[verdict.value]}"
        return f"{words}, {verdict.reviewer}, {verdict.made[:16].replace('T', ' ')} UTC"

    # ---- images -----------------------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """Number of pictures: samples, or slices of all studies."""
        return len(self._desk.data.train) if self._pictures is None else self._pictures.count

    def about(self, sample: int) -> dict:
        """Windows and size of the picture of a sample, the numbers of those beside it and its place among them, and
        whether it has changed; ``problem`` in their place where it cannot be read."""
        beside, place = self._beside(sample)
        try:
            picture = self._open(beside[place])
        except (UnreadableImage, OSError, FedMendError) as e:
            return {"problem": problem_of(e), "windows": {}, "neighbours": beside[place : place + 1], "place": 0}
        found = {"problem": "", "windows": picture.windows, "neighbours": beside, "place": place}
        found["changed"] = self._desk.has_changed(sample)
        return found | dict(zip(("rows", "columns"), picture.shape, strict=True))

    def _beside(self, sample: int) -> tuple[list[int], int]:
        """The slices of the same volume or study, or the images of the same patient, in order; where to begin."""
        if self._pictures is not None:
            return self._pictures.of(sample)
        case = self._desk.data.train.case
        found = np.flatnonzero(case == case[sample]).tolist()
        return found, found.index(sample)

    def _open(self, picture: int) -> SiteImage:
        train = self._desk.data.train
        if self._pictures is not None:
            return open_picture(self._desk.card, self._pictures.path(picture))
        return open_slice(self._desk.card, train.items[train.case[picture]], plane_of(train, picture))

    def png(self, picture: int, centre: float | None = None, width: float | None = None) -> bytes:
        """A picture as PNG.

        Args:
            picture: its number.
            centre: of the window; None: that of the site.
            width: likewise.

        Raises:
            UnreadableImage, OSError, FedMendError: see :func:`fedmend.review.pictures.open_picture` and ``open_slice``.
        """
        with self._one_at_a_time:
            return png(self._open(picture), centre, width)

    def outline(self, sample: int, label_class: int, which: str) -> bytes:
        """Marks of a slice as a PNG to lay over its image.

        Args:
            sample: slice number.
            label_class: class number.
            which: ``original``, the site's own marks; ``added`` or ``removed``, pixels of the class that a verdict is
                about, see :meth:`fedmend.repairs.mask_ledger.MaskLedger.to_judge`.

        Raises:
            UnreadableImage, OSError, FedMendError: as :meth:`png`, or there is nothing of the kind.
        """
        if not isinstance(self._desk.ledger, MaskLedger) or which not in OUTLINES:
            raise UnreadableImage(f"expected {', '.join(OUTLINES)} of a slice, got another")
        if which == "original":
            with self._one_at_a_time:
                picture = self._open(sample)
            assert isinstance(picture, SliceImage)
            return overlay_png(picture.mask, ANNOTATED)
        change = self._desk.ledger.to_judge(sample, label_class)
        if which == "added":
            return overlay_png(change > 0, ADDED, filled=True)
        return overlay_png(change < 0, REMOVED)
