"""Runs that several tests of the session look at: job → function of :func:`simulation.runs_by_threads`."""

import pytest
from simulation import fedmend, runs_by_threads


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def sites(home):
    """Three site folders for FedMLP."""
    words = ["--slices", 360, "--pixels", 48, "--sites", 3, "--annotated-per-site", 3, "--seed", 2]
    code, out = fedmend("phantom", "ich", home / "sites", *words, home=home)
    assert code == 0, out
    return home / "sites"


@pytest.fixture(scope="session")
def originals(sites):
    """Bytes of everything that people wrote about the sites, before the first run."""
    files = [f for folder in sorted(sites.glob("site-*")) for f in sorted(folder.glob("*.[cj]s*"))]
    assert len(files) >= 4 * 3
    return {f: f.read_bytes() for f in files}


@pytest.fixture(scope="session")
def fedmlp(home, sites, originals):
    settings = [f"data_root={sites}/{{SITE_NAME}}", f"cache_dir={home}/cache"]
    return runs_by_threads("fedmlp_ich", home, sites=3, site_settings=settings)


@pytest.fixture(scope="session")
def fednoro(tmp_path_factory):
    return runs_by_threads("fednoro_isic2019", tmp_path_factory.mktemp("fednoro"), sites=4)


@pytest.fixture(scope="session")
def fedlsm(tmp_path_factory):
    return runs_by_threads("fedlsm_isic2018", tmp_path_factory.mktemp("fedlsm"), sites=3)


@pytest.fixture(scope="session")
def fedia(tmp_path_factory):
    return runs_by_threads("fedia_ms", tmp_path_factory.mktemp("fedia"), sites=2)


@pytest.fixture(scope="session")
def condist(tmp_path_factory):
    return runs_by_threads("condist_organs", tmp_path_factory.mktemp("condist"), sites=3)
