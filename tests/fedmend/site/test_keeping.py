import hashlib
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from certificate_factories import make_root, sign_as
from factories import CLASSES
from torch_factories import TinyNetwork
from worker_factories import RUN, one_site

from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.messages import KEEP, Question
from fedmend.method import RoundTask
from fedmend.records.package_files import write_package
from fedmend.records.signature import Trust
from fedmend.site import keeping
from fedmend.site.config import SiteConfig
from fedmend.site.keeping import keep

ABOUT = {"name": "run-1", "classes": list(CLASSES), "network": {"name": "tiny"}}


@pytest.fixture(autouse=True)
def tiny():
    with one_site(lambda classes: TinyNetwork(classes, torch.initial_seed())):
        yield


@pytest.fixture
def config(tmp_path):
    """Settings of a site that wants the model of a run in which it has taken part."""
    (tmp_path / "state" / "run-1" / "site-1").mkdir(parents=True)
    return SiteConfig(tmp_path / "data", tmp_path / "cache", tmp_path / "state", keep_model=True)


def tensors(seed=7):
    return {name: value.numpy() for name, value in get_weights(initial_network("tiny", CLASSES, seed)).items()}


def package(folder, weights=None, **changes):
    """Files of a package as the server sends them."""
    write_package(folder / "p.fedmend", ABOUT | changes, tensors() if weights is None else weights)
    return files_of(folder / "p.fedmend")


def signed(folder, **who):
    package(folder)
    sign_as(folder / "p.fedmend", folder / "server", **who)
    return files_of(folder / "p.fedmend")


def files_of(folder):
    return {file.name: np.fromfile(file, np.uint8) for file in folder.iterdir()}


def ask(config, files, trust=None):
    task = RoundTask(KEEP, 3, 3, training=False)
    return keep("site-1", Question(KEEP, files, {"site-1": task}, RUN), config, trust)


def kept(config):
    """The packages at the site, and what else is left in the folder of the run."""
    folder = config.state_dir / "run-1" / "site-1"
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.fedmend"))


def left(config):
    return sorted(p.name for p in (config.state_dir / "run-1" / "site-1").iterdir() if p.name.startswith("model"))


def test_a_site_keeps_the_files_as_the_server_has_them(tmp_path, config):
    files = package(tmp_path)
    answer = ask(config, files)
    assert (answer.error, answer.round_num, answer.samples, answer.weights) == ("", 3, 0, {})
    assert kept(config) == ["model/run-1.fedmend"]
    folder = config.state_dir / "run-1" / "site-1" / "model" / "run-1.fedmend"
    assert {f.name for f in folder.iterdir()} == {"package.json", "weights.safetensors", "SHA256SUMS"}
    digest = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    assert digest == hashlib.sha256((tmp_path / "p.fedmend" / "weights.safetensors").read_bytes()).hexdigest()


def test_the_newest_model_takes_the_place_of_the_one_before(tmp_path, config):
    ask(config, package(tmp_path / "a"))
    (config.state_dir / "run-1" / "site-1" / "model.0badc0de").mkdir()  # of a task that was killed
    assert ask(config, package(tmp_path / "b", tensors(8), name="run-1-best")).error == ""
    assert kept(config) == ["model/run-1-best.fedmend"]
    assert left(config) == ["model"]


def refuses(config, files, words, trust=None):
    before = kept(config)
    assert words in ask(config, files, trust).error
    assert kept(config) == before
    assert left(config) == (["model"] if before else [])


def test_a_site_that_wants_none_keeps_none(tmp_path, config):
    wanted = "site-1: keep_model of this site's fedmend.json: expected no model from the server, got one"
    refuses(replace(config, keep_model=False), package(tmp_path), wanted)


def test_a_model_of_a_run_without_this_site_is_refused(tmp_path, config):
    (config.state_dir / "run-1" / "site-1").rmdir()
    assert "expected one of a run in which this site takes part" in ask(config, package(tmp_path)).error
    assert not (config.state_dir / "run-1" / "site-1").exists()


def test_with_certificates_only_what_the_server_has_signed_is_kept(tmp_path, config):
    root = make_root(tmp_path / "root")
    trust = Trust(root, "server.example.org")
    files = signed(tmp_path)
    assert ask(config, files, trust).error == ""
    refuses(config, package(tmp_path / "u"), "signature.json: expected a signature of the federation's server", trust)
    refuses(config, signed(tmp_path / "v", name="site-2"), "expected a signature of server.example.org", trust)
    other = files | {"weights.safetensors": package(tmp_path / "w", tensors(9))["weights.safetensors"]}
    refuses(config, other, "weights.safetensors: expected the file that SHA256SUMS lists", trust)
    both = package(tmp_path / "w2", tensors(9)) | {"signature.json": files["signature.json"]}
    refuses(config, both, "SHA256SUMS: expected the file that was signed, got one that has changed", trust)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "run-2"}, "package.json: expected a package of the run, got another"),
        ({"name": "../../x"}, "package.json: expected a package of the run, got another"),
        ({"name": ["run-1"]}, "package.json: expected a package of the run, got another"),
        ({"classes": ["edema"]}, "package.json, field classes: expected that of the run, got another"),
        ({"network": {"name": "huge"}}, "package.json, field network: expected that of the run, got another"),
        ({"network": "tiny"}, "package.json: expected a package of the run, got another"),
    ],
)
def test_a_package_of_something_else_than_the_run_is_refused(tmp_path, config, changes, words):
    refuses(config, package(tmp_path, **changes), f"site-1: model of the server, {words}")


def broken(name):
    """Numbers that no training leaves, of the first tensor."""
    weights = tensors()
    first = next(iter(weights))
    weights[first] = np.full_like(weights[first], np.nan) if name == "nan" else weights[first][..., :1]
    return weights


@pytest.mark.parametrize("name", ["nan", "shape"])
def test_tensors_that_are_not_those_of_the_network_are_refused(tmp_path, config, name):
    refuses(config, package(tmp_path, broken(name)), "global model: expected")


def test_a_file_of_weights_that_is_none_is_refused(tmp_path, config):
    folder = tmp_path / "p.fedmend"
    package(tmp_path)
    (folder / "weights.safetensors").write_bytes(b"\x80\x04K\x01.")  # a pickle
    sums = [
        f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n"
        for n in ("package.json", "weights.safetensors")
    ]
    (folder / "SHA256SUMS").write_text("".join(sums))
    refuses(config, files_of(folder), "weights.safetensors: expected floating tensors, got others or none that load")


@pytest.mark.parametrize("name", ["../x.py", "more.json", "package.json/"])
def test_a_file_of_another_name_is_refused_before_anything_is_written(tmp_path, config, name):
    refuses(config, package(tmp_path) | {name: np.zeros(1, np.uint8)}, "expected the files of a package, got others")


@pytest.mark.parametrize("content", [b"{}", "{}", np.zeros(2), np.zeros((1, 2), np.uint8), None])
def test_what_is_no_bytes_is_refused(tmp_path, config, content):
    refuses(config, package(tmp_path) | {"package.json": content}, "package.json: expected bytes, got something else")


def test_a_file_that_is_too_large_is_refused_before_anything_is_written(tmp_path, config, monkeypatch):
    monkeypatch.setattr(keeping, "SMALL", 1000)
    size = sum(value.nbytes for value in tensors().values())
    files = package(tmp_path) | {"weights.safetensors": np.zeros(size + 1001, np.uint8)}
    refuses(config, files, f"weights.safetensors: expected at most {size + 1000} bytes, got {size + 1001}")
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    refuses(config, package(tmp_path / "b"), "expected twice its size of free space in state_dir, got less")


def test_a_full_disk_is_a_sentence_and_the_model_before_stays(tmp_path, config, monkeypatch):
    ask(config, package(tmp_path))

    def full(path, content):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(keeping.Path, "write_bytes", full)
    files = files_of(tmp_path / "p.fedmend")
    refuses(config, files, "site-1: expected files that can be read and written, got: No space left on device")


def test_a_server_that_sends_its_model_again_and_again_is_stopped(tmp_path, config):
    files, few = package(tmp_path), replace(config, max_rounds=1)
    assert [ask(few, files).error for _ in range(2)] == ["", ""]
    assert "expected at most 2 tasks keep of one run" in ask(few, files).error
