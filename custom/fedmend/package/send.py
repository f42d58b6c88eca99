"""DICOM files sent to an archive: by C-STORE (``AET@host:port``) or DICOMweb STOW (``dicomweb:URL``).

Files stay where they are: what was refused or did not arrive is sent again by the same call, and an archive that has an
object already keeps one of it.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmend.data.dicom_files import no_warnings
from fedmend.errors import FedMendError, not_installed

WEB = "dicomweb:"
OWN_TITLE = "FEDMEND"
SECONDS = 60  # that an archive has for each answer
_NODE = re.compile(r"(?P<title>[\x21-\x7e]{1,16})@(?P<host>[^@:/\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_SUCCESS, _WARNINGS = 0x0000, {0xB000, 0xB006, 0xB007}


def check_target(target: str) -> None:
    """Refuses words that name no archive, before anything is computed for it.

    Args:
        target: ``dicomweb:URL`` or ``AET@host:port``.

    Raises:
        FedMendError: other words, or a package that is not installed.
    """
    if target.startswith(WEB):
        if not re.fullmatch(r"https?://[^\s@]+", target.removeprefix(WEB)):
            raise FedMendError("send: expected http:// or https:// behind dicomweb:, without a password, got another")
        _import("dicomweb_client", "dicomweb-client")
        return
    found = _NODE.fullmatch(target)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise FedMendError(f"send: expected dicomweb:URL or AET@host:port, got {target!r:.80}")
    _import("pynetdicom", "pynetdicom")


def _import(module: str, package: str) -> None:
    import importlib

    try:
        importlib.import_module(module)
    except ImportError:
        raise FedMendError(f"send: {not_installed(package, 'pacs')}") from None


def send(files: Sequence[Path], target: str) -> None:
    """Sends DICOM files.

    Args:
        files: all of them; a folder counts for the ``.dcm`` files in it.
        target: as of :func:`check_target`.

    Raises:
        FedMendError: no files, no archive there, or one that refuses, with the number of files that it has taken.
    """
    check_target(target)
    whole = [found for file in files for found in (sorted(file.glob("*.dcm")) if file.is_dir() else [file])]
    if not whole:
        raise FedMendError("send: expected DICOM files, found none")
    (_by_web if target.startswith(WEB) else _by_store)(whole, target)


def _read(file: Path) -> Any:
    import pydicom

    try:
        with no_warnings():
            return pydicom.dcmread(file)
    except Exception as e:  # pydicom raises many types
        raise FedMendError(f"send: expected DICOM files, {file} is none ({type(e).__name__})") from None


def _refused(target: str, taken: int, files: Sequence[Path], why: str) -> FedMendError:
    return FedMendError(
        f"send: expected {target} to take {len(files)} files, it took {taken}: {why}; the files are as they were, send"
        f" them again with: {shlex.join(['fedmend', 'send', str(files[0].parent), target])}"
    )


def _by_web(files: Sequence[Path], target: str) -> None:
    from dicomweb_client.api import DICOMwebClient
    from requests import RequestException

    client = DICOMwebClient(target.removeprefix(WEB), timeout=SECONDS)
    client.set_http_retry_params(retry=False)
    for taken, file in enumerate(files):
        try:
            answer = client.store_instances([_read(file)])
        except (RequestException, OSError, ValueError) as e:
            status = getattr(getattr(e, "response", None), "status_code", "")
            raise _refused(target, taken, files, f"{type(e).__name__} {status}".strip()) from None
        if answer.get("FailedSOPSequence"):
            code = int(answer.FailedSOPSequence[0].get("FailureReason") or 0)
            raise _refused(target, taken, files, f"status 0x{code:04X}")


def _by_store(files: Sequence[Path], target: str) -> None:
    from pynetdicom import AE

    node = _NODE.fullmatch(target)
    assert node is not None
    datasets = [_read(file) for file in files]
    entity = AE(ae_title=OWN_TITLE)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = entity.connection_timeout = SECONDS
    for uid, syntax in sorted({(str(d.SOPClassUID), str(d.file_meta.TransferSyntaxUID)) for d in datasets}):
        entity.add_requested_context(uid, syntax)
    association = entity.associate(node["host"].strip("[]"), int(node["port"]), ae_title=node["title"])
    if not association.is_established:
        raise _refused(target, 0, files, "no association")
    try:
        for taken, dataset in enumerate(datasets):
            try:
                status = association.send_c_store(dataset).get("Status")
            except (ValueError, RuntimeError) as e:  # no such kind of object there, or the association is gone
                raise _refused(target, taken, files, type(e).__name__) from None
            if status is None or (status != _SUCCESS and status not in _WARNINGS):
                raise _refused(target, taken, files, "no answer" if status is None else f"status 0x{status:04X}")
    finally:
        association.release()
