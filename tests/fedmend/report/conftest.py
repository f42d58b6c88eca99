import pytest
from run_factories import make_run, make_single_label_run

from fedmend.report.report import write_report


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """The page of a finished multi-label run with FedMLP."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def skin_page(tmp_path_factory):
    """The page of a finished single-label run with FedNoRo."""
    folder = tmp_path_factory.mktemp("skin")
    make_single_label_run(folder)
    return write_report(folder).read_text(encoding="utf-8")
