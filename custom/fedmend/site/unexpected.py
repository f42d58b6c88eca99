"""What a site's log says of an error that nobody expected."""

import logging
import traceback
from pathlib import Path

LOG = logging.getLogger("fedmend.executor")


def log_unexpected(name: str, question: str, error: Exception) -> None:
    """Logs type and place of an error; its words, which may name a patient's file, at level DEBUG.

    Args:
        name: of the site.
        question: what the server had asked.
        error: what came of it.
    """
    tb = traceback.extract_tb(error.__traceback__)
    steps = [f"{'/'.join(Path(s.filename).parts[-2:])}:{s.lineno} {s.name}" for s in tb]
    LOG.error("%s: %s failed with %s at %s", name, question, type(error).__name__, " > ".join(steps))
    LOG.debug("%s", "".join(traceback.format_exception(error)))
