"""Makes ``factories`` importable and keeps the test folders, named like the packages, from hiding the packages."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "custom"), str(ROOT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors lose more time to threads than they gain


def pytest_configure(config):
    """Worker processes take the files in the order of the collection, not those with most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Slow tests come first, so that no worker is left alone with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
