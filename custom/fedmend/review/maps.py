"""Where the model looked that proposed a repair: its map over the picture, made in memory when somebody asks."""

import threading

import torch

from fedmend.data.augment import to_network
from fedmend.errors import FedMendError
from fedmend.package import Package
from fedmend.package.explain import Explainer, heat_png
from fedmend.records.package_files import ABOUT, SUFFIX
from fedmend.review.desk import Desk

STUDIES = "samples are studies, and maps are of single images"
NONE = "no model is kept at this site; `fedmend review --model PACKAGE` names the one of the run"


class Maps:
    """Maps of one desk.

    Args:
        desk: what is reviewed; its model, or the one that the run has left in the site's folder, is opened at the first
            question.
    """

    def __init__(self, desk: Desk):
        self._desk, self._lock = desk, threading.Lock()
        self._package: Package | None = None
        self._explainer: Explainer | None = None

    @property
    def problem(self) -> str:
        """Why there are no maps; empty: there are."""
        if not self._desk.masks and self._desk.data.train.table.slices:
            return STUDIES
        if self._desk.model is None and not any(self._desk.folder.rglob(f"*{SUFFIX}/{ABOUT}")):
            return NONE
        try:
            self._opened()
        except FedMendError as e:
            return str(e)
        return ""

    def _opened(self) -> Package:
        if self._package is None:
            package = Package(self._desk.model or self._desk.folder)
            if package.classes != tuple(self._desk.classes):
                raise FedMendError(
                    f"package {package.name}: expected the classes of the run in their order, got others"
                )
            package.network()  # whether it is whole
            self._package = package
        return self._package

    def png(self, sample: int, label_class: int) -> bytes:
        """The map of a class over the image of a sample, as a PNG file to lay over it.

        Args:
            sample: sample number.
            label_class: class number.

        Raises:
            FedMendError: there is no model, or another class.
        """
        if self.problem or self._desk.masks or not 0 <= label_class < len(self._desk.classes):
            raise FedMendError(self.problem or "expected a label of the run, got another")
        package = self._opened()
        prepared = package.preprocessing
        pixels = self._desk.data.train.pixels(torch.tensor([sample]))
        with self._lock:  # hooks of one model
            if self._explainer is None:
                self._explainer = Explainer(package.network(), prepared.image_size)
            image = to_network(pixels, prepared.pixel_mean, prepared.pixel_deviation)
            return heat_png(self._explainer.map(image, label_class))
