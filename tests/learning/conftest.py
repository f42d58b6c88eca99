"""What the rows of one module share."""

import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The phantom is drawn once."""
    return tmp_path_factory.mktemp("cache")
