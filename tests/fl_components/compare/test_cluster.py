"""A Dask cluster as far as it needs none; real workers are in tests/integration/test_compare_table.py."""

import sys
from types import SimpleNamespace

import pytest
from factories import refused

import fedmend
from fl_components.compare import cluster
from fl_components.compare.cluster import connected, look

VERSION = fedmend.__version__
AT_EVERY = f"expected FedMend {VERSION} at every worker"


class Client:
    """Workers that say what they are told to."""

    threads, told = {"a": 1, "b": 1}, [(VERSION, True), (VERSION, True)]

    def __init__(self, address, timeout):
        if address == "nobody":
            raise OSError
        self.address = address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def nthreads(self):
        return self.threads

    def run(self, ask, token, on_error):
        assert ask(token) == (VERSION, True)
        return dict(zip(self.threads, self.told, strict=True))

    def get_executor(self, pure):
        return SimpleNamespace(shutdown=lambda: None, address=self.address)


@pytest.fixture
def dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=Client, KilledWorker=MemoryError))
    return monkeypatch


def test_a_cluster_takes_as_many_runs_as_it_has_workers(dask, tmp_path):
    with connected("tcp://x:1", tmp_path / "out") as (pool, width):
        assert (pool.address, width) == ("tcp://x:1", 2)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_dask_a_cluster_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    sentence = "--cluster: expected the package distributed (pip install 'fedmend[cluster]'), not found"
    with refused(sentence), connected("tcp://x:1", tmp_path):
        pass


@pytest.mark.parametrize(
    ("address", "changes", "sentence"),
    [
        ("nobody", {}, "expected a Dask scheduler at nobody, got no answer"),
        ("x", {"threads": {}}, "expected workers of one thread each (dask worker --nthreads 1), got no worker"),
        (
            "x",
            {"threads": {"a": 1, "b": 4}},
            "expected workers of one thread each (dask worker --nthreads 1), got 1, 4",
        ),
        (
            "x",
            {"told": [(VERSION, True), ("9", True)]},
            f"expected FedMend {VERSION} at every worker, got {VERSION}, 9",
        ),
        (
            "x",
            {"told": [(VERSION, True), ImportError()]},
            f"{AT_EVERY}, got {VERSION}",
        ),
        (
            "x",
            {"told": [(VERSION, True), (VERSION, False)]},
            "expected workers that see the folder of --out under the same path, one does not",
        ),
    ],
)
def test_workers_that_are_not_fit_for_runs_are_one_sentence(dask, tmp_path, address, changes, sentence):
    for name, value in changes.items():
        dask.setattr(Client, name, value)
    with refused(f"--cluster: {sentence}"), connected(address, tmp_path):
        pass


def test_a_lost_worker_is_one_sentence(dask, tmp_path):
    with (
        refused("--cluster: expected workers that live until a run ends, lost one (memory?)"),
        connected("x", tmp_path),
    ):
        raise MemoryError


def test_a_worker_says_its_version_and_whether_it_sees_a_file(tmp_path):
    assert look(str(tmp_path / "no")) == (cluster.fedmend.__version__, False)
