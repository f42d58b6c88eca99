from datetime import UTC, datetime

import pytest
from factories import make_site_folder
from sitecheck_factories import make_job, make_kit

from fl_components.sitecheck import connection

NOW = datetime(2030, 5, 1, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(monkeypatch):
    monkeypatch.setattr(connection, "_now", lambda: NOW)


@pytest.fixture
def site(tmp_path):
    """Six images; edema and nodule are annotated."""
    return make_site_folder(tmp_path / "data" / "site-1")


@pytest.fixture
def job(tmp_path):
    return make_job(tmp_path / "job")


@pytest.fixture
def kit(tmp_path, site):
    return make_kit(tmp_path / "kit", data_root=str(site))
