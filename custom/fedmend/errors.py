"""The one exception type that a person is meant to read."""


class FedMendError(Exception):
    """Bad input, said in one sentence: which site, file and field, what was expected, what was found.

    The sentence may travel to the server and into its log. It therefore names manifest rows, never image paths,
    sample ids or patients.
    """
