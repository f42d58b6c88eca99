"""A disk that takes no more."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(limit):
    """Every write of a file beyond so many bytes fails, also those of pytest's own output."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
