"""Packages signed and checked with the certificates of a startup kit."""

import json
import logging
from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.records.signature import Trust, sign_package

LOG = logging.getLogger("fedmend.run")
CERTIFICATE, KEY, ROOT = "server.crt", "server.key", "rootCA.pem"  # in startup/


def sign_with_kit(kit: Path, package: Path) -> None:
    """Signs a package with the certificate of the server's kit. Without a kit, as in the simulator, or with one that
    cannot sign, which the log says, the package stays unsigned: the model is not lost.

    Args:
        kit: workspace of the server.
        package: folder with all files of the package.
    """
    startup = kit / "startup"
    if not (startup / ROOT).is_file():
        return
    try:
        sign_package(package, startup / CERTIFICATE, startup / KEY)
    except FedMendError as e:
        LOG.warning("the package stays unsigned, and no site will keep it: %s", e)


def trust_of(kit: Path) -> Trust | None:
    """Whose signatures count by a startup kit.

    Args:
        kit: of a site, of the server or of a person; or another workspace.

    Returns:
        The root certificate and, by the kit of a site or of the server, the server's name; None: no startup kit.

    Raises:
        FedMendError: the kit does not say the name of its server.
    """
    startup = kit / "startup"
    if not (startup / ROOT).is_file():
        return None
    if (startup / "fed_server.json").is_file():
        return Trust(startup / ROOT, _own_name(startup / CERTIFICATE))
    if not (startup / "fed_client.json").is_file():
        return Trust(startup / ROOT)
    try:
        (server,) = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))["servers"]
        name = server["identity"]
        if not isinstance(name, str) or not name:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise FedMendError("startup/fed_client.json: expected one server with its identity, got others") from None
    return Trust(startup / ROOT, name)


def _own_name(certificate: Path) -> str:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
        return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    except (OSError, ValueError, IndexError):
        raise FedMendError(f"startup/{CERTIFICATE}: expected the server's certificate, got another file") from None
