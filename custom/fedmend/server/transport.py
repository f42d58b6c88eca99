"""How a federation reaches its sites: over FLARE, or by function calls in one process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedmend.errors import FedMendError
from fedmend.messages import Question, SiteResult


class Transport(ABC):
    """How questions get to sites, and models and numbers to people."""

    @abstractmethod
    def sites(self) -> list[str]:
        """Names of the sites that there are."""

    @abstractmethod
    def exchange(
        self, question: Question, receive: Callable[[str, SiteResult | FedMendError], None], enough: Callable[[], bool]
    ) -> None:
        """Asks, and hands over every answer as it comes, with the name of its site, in one thread.

        Args:
            question: what is asked.
            receive: takes a result, or what is wrong with the message.
            enough: whether enough sites have answered.

        Raises:
            FedMendError: the job was aborted.
        """

    @abstractmethod
    def save_model(self, weights: Mapping[str, np.ndarray], *, best: bool = False) -> str:
        """Writes the global or the best model; returns its file."""

    @abstractmethod
    def stream(self, tag: str, value: float, step: int) -> None:
        """One number for those who watch."""

    def sign(self, package: Path) -> None:
        """Signs a package, whose folder has all files; by default nobody has a certificate to sign it with."""
        return

    def show(self, picture: Mapping[str, object]) -> None:
        """Hands on the run's picture, see :mod:`fedmend.records.progress`, to people who cannot read its folder; by
        default there are none."""
        return
