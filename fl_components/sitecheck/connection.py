"""Checks of the way to the server."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.basics.files import said
from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError
from fl_components.run.start import proxy_of
from fl_components.sitecheck.site import FAIL, OK, OTHERS, SKIP, WARN, CheckedSite, Result

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

CERTIFICATE, KEY, ROOT = "client.crt", "client.key", "rootCA.pem"  # in startup/
RENEWAL = timedelta(days=30)  # before the end of a certificate
MINUTE = "%Y-%m-%d %H:%M"


def clock(site: CheckedSite) -> Result:
    """The site's clock.

    No server tells its time; but a clock outside the validity of the site's certificate gets no connection.

    Raises:
        FedMendError: the kit's certificate is none.
    """
    if site.kit is None:
        return Result(SKIP, "needs --kit, whose certificate says what time it can be")
    certificate = _certificate(site.kit, CERTIFICATE)
    start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, _now()
    valid = f"expected {start:{MINUTE}} to {end:{MINUTE}} UTC, when the certificate is valid"
    text = (
        f"{valid}, got {now:{MINUTE}} UTC"  # to the minute: a kit of today and a clock of this morning are of one day
    )
    if not start <= now <= end:
        return Result(FAIL, text)
    if end - now < RENEWAL:
        return Result(WARN, f"{text}: ask for a new certificate")
    return Result(OK, f"{text}, local time zone {time.strftime('%z')}")


def connection(site: CheckedSite) -> Result:
    """The rule of FLARE's preflight check that opens a connection with the site's certificate.

    Its other half starts a client, which the server then takes for a present site for ten minutes.

    Raises:
        FedMendError: the kit does not name its server, or its certificate, key and root do not belong together.
    """
    from nvflare.tool.package_checker.check_rule import CHECK_PASSED, CheckServerAvailable
    from nvflare.tool.package_checker.utils import NVFlareRole

    if site.kit is None:
        return Result(SKIP, "needs --kit")
    _check_together(site.kit, site.name)
    try:
        server = read_json(site.kit / "startup" / "fed_client.json")["servers"][0]["service"]["target"]
        found = CheckServerAvailable("connection", NVFlareRole.CLIENT)(str(site.kit), None)
    except (KeyError, IndexError, TypeError, ValueError):
        raise FedMendError("startup/fed_client.json: expected the address of a server, got none") from None
    if found.problem == CHECK_PASSED:
        text = "the server accepts the certificate of this site"
        if _open_to_others(site.kit.resolve() / "startup" / KEY):
            return Result(WARN, f"{text}; startup/{KEY}: expected a file for its owner alone (chmod -R go-rwx KIT)")
        return Result(OK, text)
    expected = "expected a server that accepts the certificate of this site"
    return Result(FAIL, f"{expected}, got: {found.problem}{_proxy(server)}")


def _check_together(kit: Path, name: str) -> None:
    """Where one of the three is exchanged alone, as at a renewal, the handshake fails and says nothing of it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID

    own, root = (_certificate(kit, file) for file in (CERTIFICATE, ROOT))
    if [told.value for told in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] != [name]:
        raise FedMendError(f"startup/{CERTIFICATE}: expected the certificate of {name}, got that of another name")
    try:
        key = load_pem_private_key(_content(kit, KEY), password=None)
    except (ValueError, TypeError):
        raise FedMendError(f"startup/{KEY}: expected a private key without a password, got another file") from None
    if key.public_key() != own.public_key():
        raise FedMendError(f"startup/{KEY}: expected the private key of {CERTIFICATE}, got that of another certificate")
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise FedMendError(f"startup/{CERTIFICATE}: expected one that {ROOT} has signed, got another") from None


def _certificate(kit: Path, name: str) -> "Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_content(kit, name))
    except ValueError:
        raise FedMendError(f"startup/{name}: expected a certificate, got another file") from None


def _content(kit: Path, name: str) -> bytes:
    try:
        return (kit / "startup" / name).read_bytes()
    except OSError as e:
        raise FedMendError(f"startup/{name}: expected a file that can be read, got: {said(e)}") from None


def _open_to_others(file: Path) -> bool:
    """Whether others than the owner have rights to a file and to all folders above it."""
    return all(place.stat().st_mode & OTHERS for place in (file, *file.parents))


def _proxy(server: str) -> str:
    """Words about a proxy that is asked for the way to the server; empty where none is."""
    name = proxy_of(server.rpartition(":")[0])
    return f"; {name} sends this connection to a proxy, and no_proxy does not name the server" if name else ""


def _now() -> datetime:
    return datetime.now(UTC)


CHECKS = {"clock": clock, "connection": connection}
