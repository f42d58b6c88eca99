"""What the tests of the site check share: job folders, startup kits, and what a person sees."""

import json
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from factories import CLASSES, ROOT

from fedmend.errors import FedMendError
from fl_components.sitecheck import sitecheck


def make_job(
    folder,
    *,
    classes=CLASSES,
    method="fedmend.methods.fedmlp.FedMLP",
    method_args=None,
    network="resnet_narrow",
    **arguments,
):
    """A job folder as FLARE takes it; ``arguments`` are further ones of the executor."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"name": "job", "deploy_map": {"app": []}}))
    run = {"classes": classes, "network": network, "num_rounds": 3}
    controller = {"path": "fl_components.controller.WorkflowController", "args": run}
    (config / "config_fed_server.json").write_text(json.dumps({"workflows": [controller]}))
    executor = {
        "path": "fl_components.executor.MethodExecutor",
        "args": {"image_size": 48, "batch_size": 4, **arguments},
    }
    parts = {
        "executors": [{"tasks": ["train"], "executor": executor}],
        "components": [{"id": "method", "path": method, "args": method_args or {}}],
    }
    (config / "config_fed_client.json").write_text(json.dumps(parts))
    return folder


def make_kit(folder, *, start=datetime(2030, 1, 1, tzinfo=UTC), port=1, **settings):
    """A startup kit of site-1 with the policy of the checkout, and a certificate of one year that is its own root."""
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True)
    server = {"service": {"target": f"localhost:{port}", "scheme": "tcp"}}
    client = {"fqsn": "relay.site-1", "connection_security": "clear"}
    (folder / "startup" / "fed_client.json").write_text(json.dumps({"servers": [server], "client": client}))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "site-1")])
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    for file in ("client.crt", "rootCA.pem"):
        (folder / "startup" / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "startup" / "client.key").write_bytes(key.private_bytes(*form))
    for file in ("resources.json", "privacy.json"):
        shutil.copy(ROOT / "simulator_workspace" / "local" / file, folder / "local")
    usual = {"cache_dir": "cache", "state_dir": "../state", "min_count": 2}
    (folder / "local" / "fedmend.json").write_text(json.dumps({**usual, **settings}))
    return folder


def change_settings(kit, **settings):
    file = kit / "local" / "fedmend.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def allow(kit, classes, **more):
    (kit / "local" / "resources.json").write_text(json.dumps({"class_allow_list": classes, **more}))


def shown(folder=None, *, color=False, **given):
    """All lines that a person sees, without those of failures."""
    lines = []
    with suppress(FedMendError):
        sitecheck(folder, **given, show=lines.append, color=color)
    return lines


def found(title, folder=None, **given):
    """The line of one check and the lines below it."""
    lines = shown(folder, **given)
    (start,) = [i for i, line in enumerate(lines) if line[6:].startswith(f"{title}: ")]
    end = next(i for i in range(start + 1, len(lines) + 1) if i == len(lines) or not lines[i].startswith("        "))
    return lines[start:end]
