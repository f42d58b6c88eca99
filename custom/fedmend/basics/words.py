"""Words of another party, such as names in a package or a sentence of a site, made harmless where they are shown."""


def printable(value: object) -> str:
    """Text for a terminal or a log: what would steer it, or forge a line, is spelt out as in Python (``\\x1b``).

    Args:
        value: anything; its text is taken.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(value))


def markdown(value: object) -> str:
    """Text that is text in Markdown, too: no line, cell, link or tag of its own.

    Args:
        value: anything; its text is taken.
    """
    text = printable(" ".join(str(value).split()))
    return "".join(f"\\{letter}" if letter in "\\|<>[]`*_" else letter for letter in text)
