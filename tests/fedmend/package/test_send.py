"""Results sent to archives on this machine: pynetdicom's, a server that refuses, and Orthanc where it is there."""

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pydicom
import pytest
from factories import make_dicom, refused
from package_factories import make_package

from fedmend.package import send as module
from fedmend.package.send import check_target, send
from fl_components.cli import main

pynetdicom = pytest.importorskip("pynetdicom")
pytest.importorskip("dicomweb_client")
ORTHANC = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin")
CT = "1.2.840.10008.5.1.4.1.1.2"
NO_REPORTS = "to take 3 files, it took [01]: it does not know Comprehensive SR Storage; "
PLUGIN = "/usr/share/orthanc/plugins/libOrthancDicomWeb.so"


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


@pytest.fixture
def results(tmp_path):
    """A package, images and reports of three studies."""
    for number in range(3):
        make_dicom(
            tmp_path / "in" / f"{number}.dcm",
            np.random.default_rng(number).integers(0, 80, (40, 40)),
            Modality="CT",
            StudyInstanceUID=f"1.2.4.{number}",
            SeriesInstanceUID=f"1.2.5.{number}",
            SOPInstanceUID=f"1.2.7.{number}",
        )
    made = make_package(tmp_path)
    return made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")


@contextlib.contextmanager
def archive(status=lambda asked: 0x0000, classes=None, title="ARCHIVE"):
    """A storage SCP; gives its address and what it has taken."""
    taken, asked = [], []

    def store(event):
        asked.append(event.request.AffectedSOPInstanceUID)
        code = status(len(asked) - 1)
        if code == 0:
            dataset = event.dataset
            dataset.file_meta = event.file_meta
            taken.append(dataset)
        return code

    entity = pynetdicom.AE(ae_title=title)
    entity.require_called_aet = True
    for context in classes or pynetdicom.AllStoragePresentationContexts:
        entity.add_supported_context(context if isinstance(context, str) else context.abstract_syntax)
    port = free_port()
    server = entity.start_server(("127.0.0.1", port), block=False, evt_handlers=[(pynetdicom.evt.EVT_C_STORE, store)])
    try:
        yield f"ARCHIVE@127.0.0.1:{port}", taken
    finally:
        server.shutdown()


@pytest.mark.slow
def test_reports_arrive_by_c_store_as_they_were_written(results):
    with archive() as (target, taken):
        send(results.dicom, target)
    assert len(taken) == 3
    for file, dataset in zip(results.dicom, taken, strict=True):
        assert dataset == pydicom.dcmread(file)


@pytest.mark.slow
def test_what_an_archive_refuses_stays_and_is_sent_again(results, tmp_path):
    before = {file: file.read_bytes() for file in results.dicom}
    with archive(status=lambda asked: 0xA700 if asked else 0) as (target, taken):
        again = f"the files are as they were, send them again with: fedmend send {tmp_path / 'dicom'} {target}"
        with refused(f"send: expected {target} to take 3 files, it took 1: status 0xA700; {again}"):
            send(results.dicom, target)
        assert len(taken) == 1
    assert {file: file.read_bytes() for file in results.dicom} == before
    with archive() as (target, taken):
        assert main(["send", str(tmp_path / "dicom"), target]) == 0
        assert len(taken) == 3


@pytest.mark.slow
def test_an_archive_that_is_not_there_or_takes_no_reports_is_one_sentence(results):
    target = f"ARCHIVE@127.0.0.1:{free_port()}"
    with pytest.raises(Exception, match=r"^send: expected ARCHIVE@.* to take 3 files, it took 0: no association; "):
        send(results.dicom, target)
    with archive(title="OTHER") as (target, _), pytest.raises(Exception, match="Called AE title not recognised; "):
        send(results.dicom, target)
    with archive(classes=[CT]) as (target, _), pytest.raises(Exception, match=NO_REPORTS):
        send(results.dicom, target)


@pytest.mark.slow
def test_a_file_that_is_refused_stops_no_other(results, tmp_path):
    with archive(status=lambda asked: 0 if asked else 0xA900) as (target, taken):
        with pytest.raises(Exception, match=r"to take 3 files, it took 2: status 0xA900; "):
            send(results.dicom, target)
        assert [d.SOPInstanceUID for d in taken] == [pydicom.dcmread(f).SOPInstanceUID for f in results.dicom[1:]]
    with archive(classes=[CT]) as (target, taken), pytest.raises(Exception, match=NO_REPORTS.replace("3", "4", 1)):
        send([tmp_path / "dicom", tmp_path / "in" / "0.dcm"], target)
    assert [d.SOPInstanceUID for d in taken] == ["1.2.7.0"]


@pytest.mark.slow
@pytest.mark.parametrize("code", [0x0111, 0xB000, 0x0107], ids=["has it", "coerced", "left fields out"])
def test_what_an_archive_has_already_or_warns_of_is_taken(results, code):
    asked = []
    with archive(status=lambda number: asked.append(number) or code) as (target, _):
        send(results.dicom, target)
    assert asked == [0, 1, 2]


class Refusing(BaseHTTPRequestHandler):
    """Takes one object, then no more; the last one it has already."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        if self.server.asked == 2:
            self.send_error(409)
            return
        last = self.server.asked == 3
        failed = {"00081197": {"vr": "US", "Value": [0x0111]}}
        sequence = {"00081198": [failed]} if last else {"00081199": []}
        answer = json.dumps({tag: {"vr": "SQ", "Value": value} for tag, value in sequence.items()}).encode()
        self.send_response(409 if last else 200)
        self.send_header("Content-Type", "application/dicom+json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


@pytest.mark.slow
def test_a_web_archive_that_refuses_is_one_sentence(results):
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    server.asked = 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    target = f"dicomweb:http://127.0.0.1:{server.server_port}/studies-root"
    try:
        with pytest.raises(Exception, match=r"^send: expected .* to take 3 files, it took 2: HTTPError 409; the files"):
            send(results.dicom, target)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(Exception, match=r"^send: expected .* to take 3 files, it took 0: ConnectionError; the files"):
        send(results.dicom, target)


@pytest.mark.slow
def test_a_web_archive_that_never_answers_is_one_sentence(results, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"dicomweb:http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Exception, match=r"^send: expected .* to take 3 files, it took 0: ReadTimeout; the files"):
            send(results.dicom, target)


@pytest.fixture
def orthanc(tmp_path):
    """The address of an Orthanc's DICOMweb."""
    port = free_port()
    settings = {
        "StorageDirectory": str(tmp_path / "orthanc"),
        "IndexDirectory": str(tmp_path / "orthanc"),
        "HttpPort": port,
        "DicomServerEnabled": False,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "Plugins": [PLUGIN],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
    }
    (tmp_path / "orthanc.json").write_text(json.dumps(settings))
    with open(tmp_path / "orthanc.log", "wb") as log:
        process = subprocess.Popen([ORTHANC, str(tmp_path / "orthanc.json")], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/dicom-web"
    try:
        for _ in range(150):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/studies", timeout=5).close()
                break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(ORTHANC is None, reason="Orthanc with DICOMweb is not installed")
def test_orthanc_takes_reports_by_stow_once_and_finds_them(results, orthanc, tmp_path):
    package, images, out = tmp_path / "run-1.fedmend", tmp_path / "in", tmp_path / "out"
    words = ["predict", str(package), str(images), str(out), "--dicom", str(tmp_path / "dicom")]
    assert main([*words, "--send", f"dicomweb:{orthanc}"]) == 0
    send(results.dicom, f"dicomweb:{orthanc}")  # again: no second copies
    with urllib.request.urlopen(f"{orthanc}/instances?Modality=SR", timeout=10) as answer:
        found = json.load(answer)
    assert {i["0020000D"]["Value"][0] for i in found} == {"1.2.4.0", "1.2.4.1", "1.2.4.2"}
    assert {i["00080018"]["Value"][0] for i in found} == {pydicom.dcmread(f).SOPInstanceUID for f in results.dicom}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("ARCHIVE", "send: expected dicomweb:URL or AET@host:port, got 'ARCHIVE'"),
        ("A@h:99999", "send: expected dicomweb:URL or AET@host:port, got 'A@h:99999'"),
        ("dicomweb:ftp://h", "send: expected http:// or https:// behind dicomweb:, without a password, got another"),
        (
            "dicomweb:http://u:p@h",
            "send: expected http:// or https:// behind dicomweb:, without a password, got another",
        ),
    ],
)
def test_words_that_name_no_archive_are_refused(target, sentence):
    with refused(sentence):
        check_target(target)


def test_nothing_to_send_and_what_is_no_dicom_are_refused(tmp_path):
    with refused("send: expected DICOM files, found none"):
        send([tmp_path], "A@127.0.0.1:1")
    make_dicom(tmp_path / "1.dcm", [[0]], SOPClassUID=None)
    with refused(f"send: expected a DICOM file with SOPClassUID, {tmp_path / '1.dcm'} has none"):
        send([tmp_path], "A@127.0.0.1:1")
    (tmp_path / "1.dcm").write_text("no")
    with refused(f"send: expected DICOM files, {tmp_path / '1.dcm'} is none (InvalidDicomError)"):
        send([tmp_path], "A@127.0.0.1:1")


def test_sending_needs_a_folder_of_results(tmp_path, capsys):
    package = make_package(tmp_path).folder
    assert main(["predict", str(package), str(tmp_path), str(tmp_path / "out"), "--send", "A@127.0.0.1:1"]) == 1
    assert "expected --dicom FOLDER with --send, whose files are sent, got none" in capsys.readouterr().err
