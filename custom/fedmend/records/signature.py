"""Who made a model package: a detached signature over the checksums of its files, and its check without a network.

``signature.json`` holds the SHA-256 of ``SHA256SUMS`` and the time, signed with the key of the federation's server, and
that server's certificate. Whoever has the federation's root certificate can tell whether the server made the package,
and which file has changed since.
"""

import base64
import datetime
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.basics.files import sha256, write_text
from fedmend.errors import FedMendError
from fedmend.records.package_files import ABOUT, SUMS, WEIGHTS, is_package

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SIGNATURE = "signature.json"
TIME = "%Y-%m-%dT%H:%M:%SZ"
LINE = re.compile(r"([0-9a-f]{64})  (\w[\w.-]{0,99})", re.ASCII)  # no name that leads out of the package
LARGEST = 2**16  # bytes of a signature file, which has some 3,000


@dataclass(frozen=True)
class Trust:
    """Whose signatures count.

    Attributes:
        root: PEM file of the federation's root certificate.
        signer: name that the signer's certificate must have; empty: any that the root has signed.
    """

    root: Path
    signer: str = ""


@dataclass(frozen=True)
class Signature:
    """A signature that has been checked.

    Attributes:
        name: of the signer, as its certificate says.
        organization: of the signer; may be empty.
        time: when it signed, by its own clock; UTC.
        expires: when its certificate ends or has ended; UTC.
    """

    name: str
    organization: str
    time: datetime.datetime
    expires: datetime.datetime

    @property
    def expired(self) -> bool:
        """Whether the certificate is no longer valid; it was when it signed."""
        return datetime.datetime.now(datetime.UTC) > self.expires


def sign_package(folder: Path, certificate: Path, key: Path) -> None:
    """Signs a package whose files are all there.

    Args:
        folder: the package, or a temporary that becomes it.
        certificate: PEM file of the signer.
        key: PEM file of its private RSA key, without a password.

    Raises:
        FedMendError: a certificate or key that cannot be read, of another kind, or not of each other.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    where = "signature of the package"
    try:
        owner = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        raise FedMendError(f"{where}: expected a certificate and a private key in PEM, got others") from None
    if not isinstance(private, RSAPrivateKey) or private.public_key() != owner.public_key():
        raise FedMendError(f"{where}: expected the RSA key of the certificate, got another")
    now = datetime.datetime.now(datetime.UTC).strftime(TIME)
    signed = {"file": SUMS, "sha256": sha256(folder / SUMS), "time": now}
    content = {
        "signed": signed,
        "certificate": owner.public_bytes(serialization.Encoding.PEM).decode(),
        "signature": base64.b64encode(private.sign(_message(signed), *_how())).decode(),
    }
    write_text(folder / SIGNATURE, _text(content))


def verify_package(folder: Path | str, trust: Trust | None) -> Signature | None:
    """Checks every file of a package, and who has signed it.

    Args:
        folder: the package.
        trust: whose signature it must have; None: the files are checked, and no signature.

    Returns:
        The signature; None where none was to be checked.

    Raises:
        FedMendError: names the file that has changed, is missing or was added; or no signature, or one of another
            federation or participant, or of a time at which its certificate was not valid.
    """
    folder = Path(folder)
    where = f"package {folder.name}"
    if not is_package(folder):
        raise FedMendError(f"{where}: expected a folder with {ABOUT}, not found")
    if (folder / SUMS).is_symlink() or not (folder / SUMS).is_file():
        raise FedMendError(f"{where}: expected a file {SUMS}, not found")
    found = None if trust is None else _check_signature(folder, trust)
    _check_files(folder, where)
    return found


def _check_files(folder: Path, where: str) -> None:
    text = (folder / SUMS).read_text(encoding="utf-8", errors="replace")
    lines = [LINE.fullmatch(line) for line in text.removesuffix("\n").split("\n")]
    sums = {line[2]: line[1] for line in lines if line}
    if len(sums) != len(lines) or not {ABOUT, WEIGHTS} <= {*sums} or not text.endswith("\n"):
        raise FedMendError(f"{where}, {SUMS}: expected a checksum of each file, got another list")
    for name, digest in sums.items():
        file = folder / name
        if file.is_symlink() or not file.is_file():
            raise FedMendError(f"{where}, {name}: expected the file that {SUMS} lists, not found")
        if sha256(file) != digest:
            raise FedMendError(f"{where}, {name}: expected the file that {SUMS} lists, got one that has changed")
    if others := sorted({file.name for file in folder.iterdir()} - {*sums, SUMS, SIGNATURE}):
        raise FedMendError(f"{where}, {ascii(others[0])[1:-1]:.60}: expected files of {SUMS} alone, got this one too")


def _check_signature(folder: Path, trust: Trust) -> Signature:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    where = f"package {folder.name}, {SIGNATURE}"
    if not (folder / SIGNATURE).is_file():
        raise FedMendError(f"{where}: expected a signature of the federation's server, got an unsigned package")
    signed, owner, signature = _read(folder / SIGNATURE, where)
    _check_issuer(owner, trust.root, where)
    public, name = owner.public_key(), _named(owner, "commonName")
    try:
        if not isinstance(public, RSAPublicKey):
            raise InvalidSignature
        public.verify(signature, _message(signed), *_how())
        time = datetime.datetime.strptime(signed["time"], TIME).replace(tzinfo=datetime.UTC)
    except (InvalidSignature, ValueError, TypeError):
        raise FedMendError(f"{where}: expected what the key of its certificate has signed, got other words") from None
    if trust.signer and name != trust.signer:
        raise FedMendError(f"{where}: expected a signature of {trust.signer}, got one of {ascii(name)[1:-1]:.60}")
    expires = owner.not_valid_after_utc
    if not owner.not_valid_before_utc <= time <= expires:
        raise FedMendError(f"{where}: expected a certificate that was valid at {signed['time']}, got another")
    if sha256(folder / SUMS) != signed["sha256"]:
        raise FedMendError(
            f"package {folder.name}, {SUMS}: expected the file that was signed, got one that has changed"
        )
    return Signature(name, _named(owner, "organizationName"), time, expires)


def _read(file: Path, where: str) -> tuple[dict[str, Any], "Certificate", bytes]:
    """What stands in a signature file, which has to be as :func:`sign_package` writes it, to the byte."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        if file.stat().st_size > LARGEST:
            raise ValueError
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
        signed, owner = content["signed"], x509.load_pem_x509_certificate(content["certificate"].encode())
        signature = base64.b64decode(content["signature"], validate=True)
        again = {
            "signed": {"file": SUMS, "sha256": signed["sha256"], "time": signed["time"]},
            "certificate": owner.public_bytes(Encoding.PEM).decode(),
            "signature": base64.b64encode(signature).decode(),
        }
        if text != _text(again):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, x509.InvalidVersion):
        raise FedMendError(f"{where}: expected a signature as FedMend writes it, got another file") from None
    return signed, owner, signature


def _check_issuer(owner: "Certificate", root: Path, where: str) -> None:
    """Refuses a signer whose certificate none of the root file has signed."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        anchors = x509.load_pem_x509_certificates(root.read_bytes())
    except (OSError, ValueError):
        raise FedMendError(f"{where}: expected a root certificate in PEM ({root.name}), got another file") from None
    for anchor in anchors:
        try:
            owner.verify_directly_issued_by(anchor)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return
    raise FedMendError(f"{where}: expected a certificate of this federation's root, got one of another")


def _named(owner: "Certificate", word: str) -> str:
    return next((str(part.value) for part in owner.subject if part.oid._name == word), "")


def _message(signed: dict[str, Any]) -> bytes:
    return json.dumps(signed, sort_keys=True).encode()


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _how() -> tuple[Any, Any]:
    """Padding and hash of all signatures."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH), hashes.SHA256()
