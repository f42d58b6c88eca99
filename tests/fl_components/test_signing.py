import json
import logging

import numpy as np
import pytest
from certificate_factories import make_root, make_signer
from factories import refused

from fedmend.records.package_files import write_package
from fedmend.records.signature import Trust, verify_package
from fl_components.signing import sign_with_kit, trust_of

SERVER = "server.example.org"


@pytest.fixture
def kit(tmp_path):
    """A server's kit, as far as signatures need it."""
    startup = tmp_path / "server" / "startup"
    make_root(startup)
    make_signer(startup, SERVER)
    (startup / "fed_server.json").write_text("{}")
    return tmp_path / "server"


@pytest.fixture
def package(tmp_path):
    write_package(tmp_path / "run.fedmend", {"name": "run"}, {"a": np.ones(2, np.float32)})
    return tmp_path / "run.fedmend"


def site_kit(folder, servers):
    make_root(folder / "startup")
    (folder / "startup" / "fed_client.json").write_text(json.dumps({"servers": servers}))
    return folder


def test_the_server_signs_and_a_site_knows_whose_signature_counts(kit, package, tmp_path):
    sign_with_kit(kit, package)
    site = site_kit(tmp_path / "site", [{"identity": SERVER}])
    assert trust_of(site) == Trust(site / "startup" / "rootCA.pem", SERVER)
    assert trust_of(kit) == Trust(kit / "startup" / "rootCA.pem", SERVER)
    assert verify_package(package, trust_of(site)).name == SERVER


def test_the_kit_of_a_person_has_the_root_alone(tmp_path):
    root = make_root(tmp_path / "lead" / "startup")
    assert trust_of(tmp_path / "lead") == Trust(root)


def test_without_a_kit_nothing_is_signed_and_nobody_trusted(package, tmp_path):
    sign_with_kit(tmp_path, package)
    assert not (package / "signature.json").exists()
    assert trust_of(tmp_path) is None


def test_a_kit_that_cannot_sign_loses_no_model_and_says_so(kit, package, caplog):
    (kit / "startup" / "server.key").unlink()
    with caplog.at_level(logging.WARNING):
        sign_with_kit(kit, package)
    assert not (package / "signature.json").exists()
    assert "the package stays unsigned, and no site will keep it" in caplog.text


@pytest.mark.parametrize("servers", [[], None, [{}], [{"identity": ""}], [{"identity": "a"}, {"identity": "b"}]])
def test_a_site_that_does_not_know_its_server_trusts_nobody(tmp_path, servers):
    with refused("startup/fed_client.json: expected one server with its identity, got others"):
        trust_of(site_kit(tmp_path / "site", servers))


def test_a_server_without_its_certificate_is_said(kit):
    (kit / "startup" / "server.crt").write_text("none")
    with refused("startup/server.crt: expected the server's certificate, got another file"):
        trust_of(kit)
