"""Certificates as FLARE's provisioning makes them."""

import datetime
from functools import cache

from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

from fedmend.records.signature import sign_package

NOW = datetime.datetime.now(datetime.UTC)


@cache
def _keys(name):  # 0.1 s each
    return generate_keys()


def make_root(folder, project="fedmend"):
    """``rootCA.pem`` of a project in a folder."""
    private, public = _keys(project)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rootCA.pem"
    file.write_bytes(serialize_cert(generate_cert(Identity(project), Identity(project), private, public, ca=True)))
    return file


def make_signer(folder, name="server.example.org", project="fedmend", *, side="server", since=NOW, until=None):
    """Certificate and key of a participant, in PEM, in a folder; the certificate lasts from ``since`` to ``until``."""
    private, public = _keys(name)
    owner, issuer = Identity(name, "lead_org"), Identity(project)
    times = {"not_valid_before": since, "not_valid_after": until}
    certificate = generate_cert(owner, issuer, _keys(project)[0], public, server_default_host="localhost", **times)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / f"{side}.crt", folder / f"{side}.key"
    for file, content in zip(files, (serialize_cert(certificate), serialize_pri_key(private)), strict=True):
        file.write_bytes(content)
    return files


def sign_as(package, folder, name="server.example.org", project="fedmend", **times):
    """Signs a package with a new certificate."""
    sign_package(package, *make_signer(folder, name, project, **times))
