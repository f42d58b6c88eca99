"""How far a comparison is, and how far a run is."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from fedmend.basics.page import duration
from fedmend.errors import FedMendError
from fedmend.records.picture import read_picture

WORTH_SAYING = 60  # seconds


class Lines:
    """A line after each run.

    Args:
        show: gets it.
    """

    def __init__(self, show: Callable[[str], None]):
        self._show = show

    def begin(self, total: int, done: int) -> None:
        """Of ``total`` runs of the comparison, ``done`` are those of an earlier call."""
        return

    def advance(self, run: str, togo: int, left: float) -> None:
        """A run is complete; ``togo`` runs are not, and will take ``left`` seconds."""
        rest = f", about {duration(left)} left" if left >= WORTH_SAYING else ""
        self._show(f"{run}: done, {togo} runs to go{rest}")

    def fail(self, why: str) -> None:
        """A run has failed, and no more runs of its row are made; ``why`` names it."""
        self._show(why)

    def end(self) -> None:
        """No run follows."""
        return


class Bar(Lines):
    """A bar on the terminal; lines go above it."""

    def __init__(self) -> None:
        from tqdm import tqdm

        super().__init__(tqdm.write)
        self._bar: Any = None
        self._tqdm = tqdm

    def begin(self, total: int, done: int) -> None:
        form = "{n_fmt} of {total_fmt} runs |{bar}| {elapsed} so far{postfix}"
        self._bar = self._tqdm(total=total, initial=done, bar_format=form, file=sys.stderr)

    def advance(self, run: str, togo: int, left: float) -> None:
        self._bar.set_postfix_str(f"about {duration(left)} left", refresh=False)
        self._bar.update()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def rounds_bar(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar over the rounds of one run, on a terminal or in a notebook.

    Args:
        name: of the run.
        total: its rounds.

    Yields:
        A function that gets the picture of the run as JSON, see :mod:`fedmend.records.progress`, and moves the bar; one
        that does not read is passed over.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a notebook without ipywidgets, where the bar is text
        from tqdm.auto import tqdm

    # Without a width: a notebook would draw a bar of fixed width as text beside its widget.
    form = "{desc} |{bar}| round {n_fmt} of {total_fmt}, {elapsed}{postfix}"
    with tqdm(desc=name, total=total, bar_format=form) as bar:

        def watch(text: str) -> None:
            with contextlib.suppress(FedMendError):
                picture = read_picture(text)
                if (picture.done, picture.latest) != (bar.n, bar.postfix):
                    bar.n = picture.done
                    bar.set_postfix_str(picture.latest)  # draws it

        yield watch
