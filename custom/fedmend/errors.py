"""The one exception type that a person is meant to read."""

WAY_ON = "put it back from a backup, or choose another run_name"  # where what a run has kept is lost


class FedMendError(Exception):
    """Bad input, said in one sentence: which site, file and field, what was expected, what was found.

    The sentence may travel to the server and into its log. It therefore names manifest rows, never image paths,
    sample ids or patients.
    """


LONGEST_VALUE = 120  # characters of a refused value


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
