"""Checks of the way to the server."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError
from fl_components.run.start import proxy_of
from fl_components.sitecheck.site import FAIL, OK, SKIP, WARN, CheckedSite, Result

RENEWAL = timedelta(days=30)  # before the end of a certificate
MINUTE = "%Y-%m-%d %H:%M"


def clock(site: CheckedSite) -> Result:
    """The site's clock.

    No server tells its time; but a clock outside the validity of the site's certificate gets no connection.

    Raises:
        FedMendError: the kit's certificate is none.
    """
    from cryptography import x509

    if site.kit is None:
        return Result(SKIP, "needs --kit, whose certificate says what time it can be")
    try:
        certificate = x509.load_pem_x509_certificate((site.kit / "startup" / "client.crt").read_bytes())
    except ValueError:
        raise FedMendError("startup/client.crt: expected a certificate, got another file") from None
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
        FedMendError: the kit does not name its server.
    """
    from nvflare.tool.package_checker.check_rule import CHECK_PASSED, CheckServerAvailable
    from nvflare.tool.package_checker.utils import NVFlareRole

    if site.kit is None:
        return Result(SKIP, "needs --kit")
    try:
        found = CheckServerAvailable("connection", NVFlareRole.CLIENT)(str(site.kit), None)
    except (KeyError, IndexError, TypeError, ValueError):
        raise FedMendError("startup/fed_client.json: expected the address of a server, got none") from None
    if found.problem == CHECK_PASSED:
        return Result(OK, "the server accepts the certificate of this site")
    expected = "expected a server that accepts the certificate of this site"
    return Result(FAIL, f"{expected}, got: {found.problem}{_proxy(site.kit)}")


def _proxy(kit: Path) -> str:
    """Words about a proxy that is asked for the way to the server; empty where none is."""
    server = read_json(kit / "startup" / "fed_client.json")["servers"][0]["service"]["target"]
    name = proxy_of(server.rpartition(":")[0])
    return f"; {name} sends this connection to a proxy, and no_proxy does not name the server" if name else ""


def _now() -> datetime:
    return datetime.now(UTC)


CHECKS = {"clock": clock, "connection": connection}
