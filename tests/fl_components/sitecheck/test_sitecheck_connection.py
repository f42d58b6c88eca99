import json
import shutil
import socket
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sitecheck_factories import found, make_kit

from fl_components.sitecheck import connection

VALID = "expected 2030-01-01 00:00 to 2031-01-01 00:00 UTC, when the certificate is valid, got"


def test_a_clock_within_the_validity_of_the_certificate_passes(kit, site):
    (line,) = found("clock", kit=kit)
    assert line.startswith(f"ok    clock: {VALID} 2030-05-01 12:30 UTC, local time zone ")
    assert found("clock", site) == ["skip  clock: needs --kit, whose certificate says what time it can be"]


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (datetime(2029, 12, 31, 23, 59, tzinfo=UTC), f"fail  clock: {VALID} 2029-12-31 23:59 UTC"),
        (datetime(2030, 12, 20, tzinfo=UTC), f"warn  clock: {VALID} 2030-12-20 00:00 UTC: ask for a new certificate"),
        (datetime(2031, 1, 1, 1, tzinfo=UTC), f"fail  clock: {VALID} 2031-01-01 01:00 UTC"),
    ],
)
def test_a_clock_before_or_behind_the_validity_of_the_certificate_is_refused(kit, monkeypatch, now, line):
    monkeypatch.setattr(connection, "_now", lambda: now)
    assert found("clock", kit=kit) == [line]


def test_a_file_that_is_no_certificate_is_named(kit):
    (kit / "startup" / "client.crt").write_text("no certificate")
    assert found("clock", kit=kit) == ["fail  clock: startup/client.crt: expected a certificate, got another file"]


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("client.key", "startup/client.key: expected the private key of client.crt, got that of another certificate"),
        ("rootCA.pem", "startup/client.crt: expected one that rootCA.pem has signed, got another"),
    ],
)
def test_certificate_key_and_root_that_do_not_belong_together_are_named(kit, tmp_path, file, sentence):
    other = make_kit(tmp_path / "other")
    shutil.copy(other / "startup" / file, kit / "startup" / file)
    assert found("connection", kit=kit) == [f"fail  connection: {sentence}"]


@pytest.mark.parametrize("file", ["client.crt", "client.key", "rootCA.pem"])
def test_a_file_that_is_missing_in_a_kit_is_named(kit, file):
    (kit / "startup" / file).unlink()
    sentence = f"startup/{file}: expected a file that can be read, got: No such file or directory"
    assert found("connection", kit=kit) == [f"fail  connection: {sentence}"]


def test_the_certificate_of_another_site_is_named(kit):
    file = kit / "startup" / "fed_client.json"
    file.write_text(file.read_text().replace("relay.site-1", "site-2"))
    sentence = "startup/client.crt: expected the certificate of site-2, got that of another name"
    assert found("connection", kit=kit) == [f"fail  connection: {sentence}"]


def test_a_key_that_is_none_is_named(kit):
    (kit / "startup" / "client.key").write_text("no key")
    sentence = "startup/client.key: expected a private key without a password, got another file"
    assert found("connection", kit=kit) == [f"fail  connection: {sentence}"]


def test_a_server_that_listens_is_reached_and_another_one_is_not(tmp_path, site):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        kit = make_kit(tmp_path / "kit", port=port, data_root=str(site))
        assert found("connection", kit=kit) == ["ok    connection: the server accepts the certificate of this site"]
    assert found("connection", kit=kit) == [
        "fail  connection: expected a server that accepts the certificate of this site, got:"
        f" Can't connect to tcp server (localhost:{port})"
    ]


def test_a_private_key_that_others_can_read_is_named(site):
    passed = "connection: the server accepts the certificate of this site"
    wide = f"{passed}; startup/client.key: expected a file for its owner alone"
    with socket.create_server(("localhost", 0)) as server, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        kit = make_kit(Path(folder) / "kit", port=server.getsockname()[1], data_root=str(site))
        assert found("connection", kit=kit) == [f"ok    {passed}"]  # of a folder that is closed
        for place in (folder, kit, kit / "startup", kit / "startup" / "client.key"):
            Path(place).chmod(0o755)
        assert found("connection", kit=kit) == [f"warn  {wide} (chmod -R go-rwx KIT)"]
        (kit / "startup" / "client.key").chmod(0o600)
        assert found("connection", kit=kit) == [f"ok    {passed}"]


def test_a_proxy_in_the_way_is_named(tmp_path, site, monkeypatch):
    for name in ("grpc_proxy", "http_proxy", "no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    (line,) = found("connection", kit=make_kit(tmp_path / "kit", port=1, data_root=str(site)))
    assert line.endswith("; https_proxy sends this connection to a proxy, and no_proxy does not name the server")
    monkeypatch.setenv("no_proxy", "localhost")
    assert "proxy" not in found("connection", kit=tmp_path / "kit")[0]


@pytest.mark.parametrize("servers", [[{"service": {"target": "localhost"}}], [{"service": {}}], [], None])
def test_a_kit_without_the_address_of_a_server_is_named(kit, servers):
    file = kit / "startup" / "fed_client.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "servers": servers}))
    assert found("connection", kit=kit) == [
        "fail  connection: startup/fed_client.json: expected the address of a server, got none"
    ]
