import datetime
import json
import re
from pathlib import Path

import numpy as np
import pytest
from certificate_factories import NOW, make_root, make_signer, sign_as

from fedmend.errors import FedMendError
from fedmend.records.package_files import package_digest, write_package
from fedmend.records.signature import Trust, sign_package, verify_package


def refused(words):
    """Expects a FedMendError with these words."""
    return pytest.raises(FedMendError, match=re.escape(words))


DAY = datetime.timedelta(days=1)


@pytest.fixture
def unsigned(tmp_path):
    write_package(tmp_path / "run.fedmend", {"name": "run"}, {"a": np.ones(2, np.float32)})
    return tmp_path / "run.fedmend"


@pytest.fixture
def root(tmp_path):
    return make_root(tmp_path / "root")


@pytest.fixture
def package(unsigned, root, tmp_path):
    sign_as(unsigned, tmp_path / "server")
    return unsigned


def test_a_signature_says_who_made_the_package_and_when(package, root):
    found = verify_package(package, Trust(root))
    assert (found.name, found.organization, found.expired) == ("server.example.org", "lead_org", False)
    assert abs(found.time - NOW) < DAY
    assert verify_package(package, Trust(root, "server.example.org")) == found


def test_a_signature_leaves_the_digest_of_the_package_alone(unsigned, root, tmp_path):
    before = package_digest(unsigned)
    sign_as(unsigned, tmp_path / "server")
    assert package_digest(unsigned) == before


def test_without_a_root_the_files_are_checked_alone_and_with_one_a_signature_has_to_be_there(package, root):
    assert verify_package(package, None) is None
    (package / "signature.json").unlink()
    assert verify_package(package, None) is None
    with refused("signature.json: expected a signature of the federation's server, got an unsigned package"):
        verify_package(package, Trust(root))


@pytest.mark.parametrize("name", ["package.json", "weights.safetensors", "SHA256SUMS", "signature.json"])
def test_any_changed_byte_names_its_file(package, root, name):
    content = (package / name).read_bytes()
    for place in range(0, len(content), 7 if name == "signature.json" else 1):
        changed = bytearray(content)
        changed[place] ^= 1
        (package / name).write_bytes(changed)
        with refused(f"package run.fedmend, {name}: expected "):
            verify_package(package, Trust(root))
    (package / name).write_bytes(content)
    assert verify_package(package, Trust(root))


def test_a_file_that_is_missing_added_or_a_link_is_named(package, root):
    (package / "more.py").write_text("")
    with refused("package run.fedmend, more.py: expected files of SHA256SUMS alone, got this one too"):
        verify_package(package, Trust(root))
    (package / "more.py").unlink()
    (package / "weights.safetensors").rename(package.parent / "w")
    with refused("package run.fedmend, weights.safetensors: expected the file that SHA256SUMS lists, not found"):
        verify_package(package, Trust(root))
    (package / "weights.safetensors").symlink_to(package.parent / "w")
    with refused("package run.fedmend, weights.safetensors: expected the file that SHA256SUMS lists, not found"):
        verify_package(package, Trust(root))


@pytest.mark.parametrize("made", [lambda sums: None, Path.mkdir, lambda sums: sums.symlink_to("../s")])
def test_a_package_without_a_file_of_checksums_is_refused(package, root, made):
    (package / "SHA256SUMS").rename(package.parent / "s")
    made(package / "SHA256SUMS")
    for trust in (Trust(root), None):
        with refused("package run.fedmend: expected a file SHA256SUMS, not found"):
            verify_package(package, trust)


def test_checksums_of_files_elsewhere_are_none(unsigned):
    sums = unsigned / "SHA256SUMS"
    sums.write_text(sums.read_text() + "0" * 64 + "  ../secret\n")
    with refused("package run.fedmend, SHA256SUMS: expected a checksum of each file, got another list"):
        verify_package(unsigned, None)


def test_another_federation_or_participant_is_refused(package, root, tmp_path):
    with refused(
        "package run.fedmend, signature.json: expected a certificate of this federation's root, got one of ano"
    ):
        verify_package(package, Trust(make_root(tmp_path / "other", "another")))
    sign_as(package, tmp_path / "site", "site-1")
    assert verify_package(package, Trust(root)).name == "site-1"
    with refused("signature.json: expected a signature of server.example.org, got one of site-1"):
        verify_package(package, Trust(root, "server.example.org"))


def test_a_root_of_the_same_name_with_another_key_is_refused(package, root, tmp_path):
    sign_as(package, tmp_path / "x", "server.example.org", "another")  # signed by another root
    with refused("signature.json: expected a certificate of this federation's root, got one of another"):
        verify_package(package, Trust(root))


def test_a_certificate_that_had_ended_before_the_time_of_signing_is_refused(package, root, tmp_path):
    files = make_signer(tmp_path / "short", since=NOW - 2 * DAY, until=NOW - DAY)
    sign_package(package, *files)
    with refused("signature.json: expected a certificate that was valid at "):
        verify_package(package, Trust(root))


def test_a_certificate_counts_as_of_the_time_of_signing(package, root, tmp_path, monkeypatch):
    from fedmend.records import signature

    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return NOW + 400 * DAY

    found = verify_package(package, Trust(root))
    monkeypatch.setattr(signature.datetime, "datetime", Later)
    assert found.expired
    monkeypatch.undo()
    assert not found.expired


def test_a_key_that_is_not_that_of_the_certificate_signs_nothing(unsigned, tmp_path):
    certificate, _ = make_signer(tmp_path / "server")
    _, key = make_signer(tmp_path / "site", "site-1")
    with refused("signature of the package: expected the RSA key of the certificate, got another"):
        sign_package(unsigned, certificate, key)
    with refused("signature of the package: expected a certificate and a private key in PEM, got others"):
        sign_package(unsigned, certificate, tmp_path / "none")
    assert not (unsigned / "signature.json").exists()


@pytest.mark.parametrize("text", ["[]", "{}", "null", "[" * 60000, json.dumps({"signed": 1, "certificate": 2}), "\0"])
def test_a_signature_file_of_somebody_else_is_none(package, root, text):
    (package / "signature.json").write_text(text)
    with refused("package run.fedmend, signature.json: expected a signature as FedMend writes it, got another file"):
        verify_package(package, Trust(root))


def test_a_root_file_that_is_none_is_said(package, tmp_path):
    (tmp_path / "rootCA.pem").write_text("no certificate")
    with refused("expected a root certificate in PEM (rootCA.pem), got another file"):
        verify_package(package, Trust(tmp_path / "rootCA.pem"))
