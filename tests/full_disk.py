"""A disk that takes no more."""

import contextlib
import resource
import sys
from unittest.mock import patch


@contextlib.contextmanager
def full_disk(limit):
    """Every write of a file beyond so many bytes fails, also those of pytest's own output. No bytecode of modules that
    are imported meanwhile: Python would leave the part that fits, and later imports would fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with patch.object(sys, "dont_write_bytecode", True):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
