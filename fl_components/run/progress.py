"""How far a comparison is: a bar on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable

from fedmend.report.page import duration

WORTH_SAYING = 60  # seconds


class Lines:
    """A line after each run.

    Args:
        show: gets it.
    """

    def __init__(self, show: Callable[[str], None]):
        self._show = show

    def begin(self, total: int, done: int) -> None:
        """Says nothing yet.

        Args:
            total: runs of the comparison.
            done: of them, those of an earlier call.
        """
        return

    def advance(self, run: str, togo: int, left: float) -> None:
        """A run is complete.

        Args:
            run: row and seed.
            togo: runs that are not.
            left: seconds that these will take.
        """
        rest = f", about {duration(left)} left" if left >= WORTH_SAYING else ""
        self._show(f"{run}: done, {togo} runs to go{rest}")

    def end(self) -> None:
        """No run follows."""
        return


class Bar(Lines):
    """A bar on the terminal; lines go above it."""

    def __init__(self):
        from tqdm import tqdm

        super().__init__(tqdm.write)
        self._tqdm, self._bar = tqdm, None

    def begin(self, total: int, done: int) -> None:
        """See :class:`Lines`."""
        form = "{n_fmt} of {total_fmt} runs |{bar}| {elapsed} so far{postfix}"
        self._bar = self._tqdm(total=total, initial=done, bar_format=form, file=sys.stderr)

    def advance(self, run: str, togo: int, left: float) -> None:
        """See :class:`Lines`."""
        self._bar.set_postfix_str(f"about {duration(left)} left", refresh=False)
        self._bar.update()

    def end(self) -> None:
        """See :class:`Lines`."""
        if self._bar is not None:
            self._bar.close()
