"""Makes ``factories`` importable and keeps the test folders, named like the packages, from hiding the packages."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "custom"), str(ROOT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors lose more time to threads than they gain

NEEDED = {  # tests → the package of an extra or a tool, without which they are left out
    "fedmend/report/test_live.py": "rich",
    "fedmend/review/test_app.py": "starlette",
    "fedmend/review/test_bad_input_of_reviews.py": "starlette",
    "fedmend/review/test_dicom_seg.py": "highdicom",
    "fedmend/site/test_privacy.py": "opacus",
    "fedmend/site/test_private_site.py": "opacus",
    "fl_components/cli/test_cli_watch.py": "rich",
    "fuzz": "hypothesis",
    "test_docs_site.py": "mkdocs",
    "test_notebooks.py": "nbclient",
}
collect_ignore = [tests for tests, package in NEEDED.items() if find_spec(package) is None]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also the tests that start simulators and servers")


def pytest_configure(config):
    """Worker processes take the files in the order of the collection, not those with most tests first."""
    if not config.option.slow:
        os.fsync = lambda handle: None  # thousands of waits for the disk; no fast test cuts the power
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config, items):
    """Slow tests are left out, or come first, so that no worker is left alone with a long one at the end."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    items[:] = slow + others if config.option.slow else others
    if not config.option.slow:
        config.hook.pytest_deselected(items=slow)


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Whoever names a slow test learns how to run it."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not config.option.slow:
        terminalreporter.write_line("slow tests are run with --slow")
