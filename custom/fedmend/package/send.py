"""DICOM files sent to an archive: by C-STORE (``AET@host:port``) or DICOMweb STOW (``dicomweb:URL``).

Files stay where they are: what was refused or did not arrive is sent again by the same call, and an archive that has an
object already keeps one of it.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmend.data.dicom_files import no_warnings
from fedmend.errors import FedMendError, not_installed

WEB = "dicomweb:"
OWN_TITLE = "FEDMEND"
SECONDS = 60  # that an archive has for each answer
_NODE = re.compile(r"(?P<title>[\x21-\x7e]{1,16})@(?P<host>[^@:/\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_TAKEN, _DUPLICATE = ("Success", "Warning"), 0x0111


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
    """Sends DICOM files. One that is refused stops none of the others; one that the archive has already counts as
    taken.

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
    datasets = [_read(file) for file in whole]
    answers = [*(_by_web if target.startswith(WEB) else _by_store)(datasets, target)]
    if refused := [why for why in answers if why]:
        again = shlex.join(["fedmend", "send", str(whole[0].parent), target])
        raise FedMendError(
            f"send: expected {target} to take {len(whole)} files, it took {len(answers) - len(refused)}: {refused[0]};"
            f" the files are as they were, send them again with: {again}"
        )


def _read(file: Path) -> Any:
    import pydicom

    try:
        with no_warnings():
            dataset = pydicom.dcmread(file)
    except Exception as e:  # pydicom raises many types
        raise FedMendError(f"send: expected DICOM files, {file} is none ({type(e).__name__})") from None
    for name, part in (("SOPClassUID", dataset), ("SOPInstanceUID", dataset), ("TransferSyntaxUID", dataset.file_meta)):
        if not part.get(name):
            raise FedMendError(f"send: expected a DICOM file with {name}, {file} has none")
    return dataset


def _by_web(datasets: Sequence[Any], target: str) -> Iterator[str]:
    """Why each was refused, blank where it was taken; ends early where nobody answers."""
    from dicomweb_client.api import DICOMwebClient
    from requests import RequestException

    client = DICOMwebClient(target.removeprefix(WEB), timeout=SECONDS)
    client.set_http_retry_params(retry=False)
    for dataset in datasets:
        answer, why = None, ""
        try:
            answer = client.store_instances([dataset])
        except RequestException as e:
            if e.response is None:
                yield type(e).__name__
                return
            answer, why = _said(e.response), f"{type(e).__name__} {e.response.status_code}"
        except Exception as e:  # many types, for what is no answer of DICOM's
            why = type(e).__name__
        failed = answer.get("FailedSOPSequence") if answer else None
        code = int(failed[0].get("FailureReason") or 0) if failed else None
        yield "" if code == _DUPLICATE else why or ("" if code is None else f"status 0x{code:04X}")


def _said(response: Any) -> Any:
    """The content of an answer of HTTP in DICOM's words; None of other words."""
    from pydicom import Dataset

    try:
        return Dataset.from_json(response.json())
    except Exception:  # many types, as above
        return None


def _by_store(datasets: Sequence[Any], target: str) -> Iterator[str]:
    """The same by C-STORE."""
    from pynetdicom import AE
    from pynetdicom.status import code_to_category

    node = _NODE.fullmatch(target)
    assert node is not None
    entity = AE(ae_title=OWN_TITLE)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = entity.connection_timeout = SECONDS
    for uid, syntax in sorted({(str(d.SOPClassUID), str(d.file_meta.TransferSyntaxUID)) for d in datasets}):
        entity.add_requested_context(uid, syntax)
    association = entity.associate(node["host"].strip("[]"), int(node["port"]), ae_title=node["title"])
    if not association.is_established:
        yield _why_none(association, datasets)
        return
    try:
        for dataset in datasets:
            try:
                status = association.send_c_store(dataset).get("Status")
            except ValueError:
                yield _not_known(dataset)
                continue
            except RuntimeError:  # the association has ended
                status = None
            if status is None:
                yield "no answer"
                return
            taken = status == _DUPLICATE or code_to_category(status) in _TAKEN
            yield "" if taken else f"status 0x{status:04X}"
    finally:
        association.release()


def _why_none(association: Any, datasets: Sequence[Any]) -> str:
    """Why there is no association."""
    if association.is_rejected:
        return f"no association, {association.acceptor.primitive.reason_str}"
    return _not_known(datasets[0]) if association.rejected_contexts else "no association"


def _not_known(dataset: Any) -> str:
    return f"it does not know {dataset.SOPClassUID.name}"
