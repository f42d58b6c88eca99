"""The one exception type that a person is meant to read."""

import traceback
from pathlib import Path

WAY_ON = "put it back from a backup, or choose another run_name"  # where what a run has kept is lost
LONGEST_VALUE = 120  # characters of a refused value


class FedMendError(Exception):
    """Bad input, said in one sentence: which site, file and field, what was expected, what was found.

    The sentence may travel to the server and into its log. It therefore names manifest rows, never image paths,
    sample ids or patients.
    """


def said_by(site: str, sentence: FedMendError | str) -> str:
    """A sentence that begins with the name of the site that it is about, as in ``site-1: train.csv row 3: ...``.

    Args:
        site: its name.
        sentence: what was said; returned as it is where it begins with the whole name and a colon.
    """
    text, name = str(sentence), f"{site}: "
    return text if text.startswith(name) else name + text


def place_of(error: Exception) -> str:
    """Type and place of an unexpected error, for logs: its words may name a folder or a patient's file.

    Args:
        error: as it was caught.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def not_installed(package: str, extra: str) -> str:
    """What is said where a feature needs a package that is not installed; the place goes before it.

    Args:
        package: name of the package.
        extra: the extra of FedMend that brings it, of those in ``pyproject.toml``.
    """
    return f"expected the package {package} (pip install 'fedmend[{extra}]'), not found"


def check_variables(holds: bool, expected: str, **given: object) -> None:
    """Refuses job variables that are out of range.

    Args:
        holds: whether they are in range.
        expected: what holds then.
        given: name → value.

    Raises:
        FedMendError: ``holds`` is false.
    """
    if not holds:
        names, values = ", ".join(given), ", ".join(f"{value!r:.{LONGEST_VALUE}}" for value in given.values())
        raise FedMendError(f"job variable{'s' * (len(given) > 1)} {names}: expected {expected}, got {values}")
