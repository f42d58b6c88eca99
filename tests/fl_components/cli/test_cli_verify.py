import datetime

import numpy as np
import pytest
from certificate_factories import NOW, make_root, sign_as

from fedmend.records.package_files import write_package
from fl_components.cli import main

YEARS = {"name": "run-1", "model": "final", "round": 5, "digest": "11", "parent": None}


@pytest.fixture
def package(tmp_path):
    """The second warm start, so the third version."""
    second = {"name": "run-2", "model": "best", "round": 4, "digest": "22", "parent": YEARS}
    about = {"name": "run-3", "model": "final", "round": 3, "parent": second}
    write_package(tmp_path / "run-3.fedmend", about, {"a": np.ones(2, np.float32)})
    return tmp_path / "run-3.fedmend"


def verify(*words):
    return main(["package", "verify", *map(str, words)])


def test_a_signed_package_says_its_versions_and_who_made_it(package, tmp_path, capsys):
    sign_as(package, tmp_path / "server")
    assert verify(package, "--root", make_root(tmp_path / "root")) == 0
    first, second, third, signed, certificate = capsys.readouterr().out.splitlines()
    assert first.startswith("run-3: final model after 3 rounds, digest ")
    assert second == "began with run-2: best model after 4 rounds, digest 22"
    assert third == "began with run-1: final model after 5 rounds, digest 11"
    assert signed.startswith("signed by server.example.org (lead_org) at ")
    assert certificate.startswith("its certificate is valid (until ")


def test_a_package_that_a_hospital_has_trained_further_says_no_rounds(tmp_path, capsys):
    about = {"name": "own", "model": "personalised", "round": None, "parent": YEARS}
    write_package(tmp_path / "own.fedmend", about, {"a": np.ones(2, np.float32)})
    assert verify(tmp_path / "own.fedmend") == 0
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("own: personalised model, digest ")
    assert second == "began with run-1: final model after 5 rounds, digest 11"


def test_a_changed_byte_and_another_federation_end_with_1(package, tmp_path, capsys):
    sign_as(package, tmp_path / "server")
    assert verify(package, "--root", make_root(tmp_path / "other", "another")) == 1
    assert "expected a certificate of this federation's root, got one of another" in capsys.readouterr().err
    weights = package / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert verify(package, "--root", make_root(tmp_path / "root")) == 1
    assert "run-3.fedmend, weights.safetensors: expected the file that SHA256SUMS lists" in capsys.readouterr().err


def test_a_package_that_is_unsigned_or_not_checked_says_so(package, tmp_path, capsys):
    assert verify(package) == 0
    assert "unsigned: made without a startup kit" in capsys.readouterr().out
    assert verify(package, "--root", make_root(tmp_path / "root")) == 1
    assert "expected a signature of the federation's server, got an unsigned package" in capsys.readouterr().err
    sign_as(package, tmp_path / "server")
    assert verify(package) == 0
    assert "signature not checked: say --root rootCA.pem or --kit KIT" in capsys.readouterr().out


def test_a_certificate_that_has_ended_since_is_told(package, tmp_path, capsys, monkeypatch):
    from fedmend.records.signature import Signature

    monkeypatch.setattr(Signature, "expired", True)
    sign_as(package, tmp_path / "server", until=NOW + datetime.timedelta(days=1))
    assert verify(package, "--root", make_root(tmp_path / "root")) == 0
    assert "its certificate has ended since; it was valid at that time (until " in capsys.readouterr().out


def test_a_kit_has_the_root(package, tmp_path, capsys):
    sign_as(package, tmp_path / "server")
    make_root(tmp_path / "lead" / "startup")
    assert verify(package, "--kit", tmp_path / "lead") == 0
    assert verify(package, "--kit", tmp_path / "server") == 1
    assert "--kit: expected a startup kit, with startup/rootCA.pem, got another folder" in capsys.readouterr().err


def test_words_of_the_package_cannot_steer_the_terminal(tmp_path, capsys):
    write_package(tmp_path / "x.fedmend", {"name": "\x1b[2J", "parent": None}, {"a": np.ones(2, np.float32)})
    assert verify(tmp_path / "x.fedmend") == 0
    assert "\x1b" not in capsys.readouterr().out
