import json
import shutil
import socket
from collections import namedtuple
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from factories import CLASSES, LABELS, ROOT, make_dicom, make_site_folder, pixels, refused, write_png
from nifti_factories import make_volume_site, write_nifti

from fedmend.data.manifest import write_table
from fedmend.errors import FedMendError
from fl_components import sitecheck
from fl_components.sitecheck import SiteCheck

NOW = datetime(2030, 5, 1, 12, 30, tzinfo=UTC)
NO_KIT = "expected the startup kit of a site, with startup/fed_client.json and local, got another folder"
NO_JOB = (
    "fail  job: expected a job folder with meta.json and one configuration of the server, with classes, and one of the clients,"
    " got another"
)
VALID = "expected 2030-01-01 to 2031-01-01, when the certificate is valid, got"
UNREADABLE = "expected a PNG or JPEG picture, got a corrupt or truncated file (UnidentifiedImageError)"


@pytest.fixture(autouse=True)
def noon(monkeypatch):
    monkeypatch.setattr(sitecheck, "_now", lambda: NOW)


@pytest.fixture
def site(tmp_path):
    """Six images; edema and nodule are annotated."""
    return make_site_folder(tmp_path / "data" / "site-1")


@pytest.fixture
def job(tmp_path):
    return make_job(tmp_path / "job")


@pytest.fixture
def kit(tmp_path, site):
    return make_kit(tmp_path / "kit", data_root=str(site))


def make_job(folder, *, classes=CLASSES, method="fedmend.methods.fedmlp.FedMLP", **client):
    """A job folder as FLARE takes it; ``client`` are further parts of the client configuration."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"name": "job"}))
    (config / "config_fed_server.json").write_text(json.dumps({"classes": classes}))
    parts = {
        "method": "m",
        "image_size": 48,
        "batch_size": 4,
        "method_class": method,
        "components": [{"id": "m", "path": "{method_class}"}],
        "executors": [{"executor": {"path": "fl_components.executor.MethodExecutor"}}],
    }
    (config / "config_fed_client.json").write_text(json.dumps({**parts, **client}))
    return folder


def make_kit(folder, *, start=datetime(2030, 1, 1, tzinfo=UTC), port=1, **settings):
    """A startup kit of site-1 with the policy of the checkout, and a certificate of one year."""
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
    (folder / "startup" / "client.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    shutil.copy(ROOT / "simulator_workspace" / "local" / "resources.json", folder / "local")
    usual = {"cache_dir": "cache", "state_dir": "state", "min_count": 2}
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
        sitecheck.sitecheck(SiteCheck(folder, **given), show=lines.append, color=color)
    return lines


def found(title, folder=None, **given):
    """The line of one check and the lines below it."""
    lines = shown(folder, **given)
    (start,) = [i for i, line in enumerate(lines) if line[6:].startswith(f"{title}: ")]
    end = next(i for i in range(start + 1, len(lines) + 1) if i == len(lines) or not lines[i].startswith("        "))
    return lines[start:end]


def installed(monkeypatch, *requires, python=">=3.11"):
    fedmend = SimpleNamespace(version="1.2", requires=list(requires), metadata={"Requires-Python": python})
    monkeypatch.setattr(sitecheck, "_distribution", lambda: fedmend)


# ---- the whole list -------------------------------------------------------------------------------------------------
def test_every_check_has_one_line_and_a_site_without_failures_is_ready(site):
    lines = [line for line in shown(site) if not line.startswith("        ")]
    computer, settings = ["python", "packages", "gpu", "memory"], ["fedmend.json", "job", "class policy"]
    data = ["site card", "class names", "tables", "images", "counts", "overlap", "disk"]
    titles = [line[6:].split(": ")[0] for line in lines[:-1]]
    assert titles == [*computer, *settings, *data, "clock", "connection"]
    statuses = [line[:4].strip() for line in lines[:-1]]
    counts = [statuses.count(status) for status in ("ok", "warn", "skip")]
    assert lines[-1] == "site-1: ready ({} ok, {} warnings, {} skipped)".format(*counts)


def test_failures_are_counted_and_the_checks_behind_them_go_on(site):
    (site / "images" / "img1.png").unlink()
    check = SiteCheck(site, classes=("edema",))
    lines = []
    with refused("site-1: expected every check to pass, got 2 that failed"):
        sitecheck.sitecheck(check, show=lines.append)
    assert [line[6:].split(": ")[0] for line in lines if line.startswith("fail")] == ["class names", "images"]
    assert lines[-1] == "skip  connection: needs --kit"


def test_a_terminal_shows_colours_and_a_file_does_not(site):
    assert "\033" not in "".join(shown(site))
    assert "\033[2mskip\033[0m  connection: needs --kit" in shown(site, color=True)
    assert any(line.startswith("\033[32mok  \033[0m  images: ") for line in shown(site, color=True))


def test_no_line_names_an_image_a_patient_or_a_path(tmp_path, site, kit, job):
    (site / "images" / "img1.png").unlink()
    (site / "images" / "img2.png").write_text("no picture")
    shutil.copy(site / "train.csv", site / "test.csv")
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "splits": {"train": "train.csv", "test": "test.csv"}}))
    allow(kit, ["*"])
    change_settings(kit, cache_dir=str(site / "site.json"), data_root=str(tmp_path / "no"))
    text = "\n".join(shown(site, kit=kit, job=job))
    assert "train.csv row 3" in text
    assert not [word for word in (str(tmp_path), "img", "p1", "p2") if word in text]


def test_what_cannot_be_opened_is_a_line_without_its_path(site):
    (site / "site.json").unlink()
    (site / "site.json").mkdir()
    assert found("site card", site) == [
        "fail  site card: expected files and folders that can be read, got an error (IsADirectoryError)"
    ]
    assert found("images", site) == ["skip  images: needs the tables"]


def test_neither_folder_nor_kit_is_refused(tmp_path, site):
    with refused("sitecheck: expected a site folder or --kit, got neither"):
        SiteCheck(None)
    with refused(f"--kit: {NO_KIT}"):
        SiteCheck(None, kit=site)


# ---- the computer ---------------------------------------------------------------------------------------------------
def test_python_is_compared_with_what_fedmend_needs(site, monkeypatch):
    monkeypatch.setattr("platform.python_version", lambda: "3.12.1")
    installed(monkeypatch)
    assert found("python", site) == ["ok    python: expected >=3.11, got 3.12.1"]
    installed(monkeypatch, python=">=3.13")
    assert found("python", site) == ["fail  python: expected >=3.13, got 3.12.1"]


def test_packages_are_compared_with_what_fedmend_needs(site, monkeypatch):
    versions = {"numpy": "2.4.6", "torch": "2.14.1+cpu"}
    monkeypatch.setattr(metadata, "version", lambda name: versions[name])
    installed(monkeypatch, "numpy>=2", "torch>=2.11", 'pytest>=8; extra == "dev"')
    assert found("packages", site) == ["ok    packages: fedmend 1.2, numpy 2.4.6, torch 2.14.1+cpu"]


def test_missing_and_old_packages_are_named_and_end_the_list(site, monkeypatch):
    installed(monkeypatch, "numpy>=99", "no-such-package>=1,<2", "torch")
    version = metadata.version("numpy")
    assert shown(site)[1:] == [
        f"fail  packages: expected numpy>=99, got {version}; expected no-such-package<2,>=1, not installed",
        "skip  all other checks: need the packages",
    ]


def test_a_checkout_that_is_not_installed_is_refused(site, monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    assert found("python", site) == ["fail  python: expected FedMend installed with pip, not found"]


def test_a_gpu_is_named_with_its_memory_and_none_is_a_warning(site, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found("gpu", site) == ["warn  gpu: expected a GPU, got none: trainings run on the CPU"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    device = SimpleNamespace(name="Model 1", total_memory=24_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    assert found("gpu", site) == ["ok    gpu: Model 1, 24.0 GB, Model 1, 24.0 GB"]


@pytest.mark.parametrize(("free", "status"), [(4.0, "ok  "), (3.9, "warn")])
def test_memory_is_compared_with_what_a_site_takes(site, monkeypatch, free, status):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free * 1e9))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    assert found("memory", site) == [f"{status}  memory: expected 4.0 GB free, got {free} GB; 8 CPU cores"]


# ---- settings, job and policy ---------------------------------------------------------------------------------------
def test_complete_settings_pass(kit, site):
    assert found("fedmend.json", kit=kit) == ["ok    fedmend.json: complete, min_count 2, max_unreadable 0"]
    assert found("fedmend.json", site) == ["skip  fedmend.json: needs --kit"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"data_root": ""}, "fail  fedmend.json: local/fedmend.json, field data_root: expected a folder, got ''"),
        ({"data_root": "no"}, "fail  fedmend.json: data_root: expected a folder, not found"),
        ({"data_root": "phantom"}, "warn  fedmend.json: data_root: expected a folder, got phantom: PHANTOM data"),
        (
            {"cache_dir": "startup/client.crt/a", "state_dir": "startup/client.crt"},
            "fail  fedmend.json: cache_dir: expected a folder that can be written, got another;"
            " state_dir: expected a folder that can be written, got another",
        ),
    ],
)
def test_settings_that_a_job_cannot_use_are_named(kit, settings, line):
    change_settings(kit, **settings)
    assert found("fedmend.json", kit=kit) == [line]


def test_a_folder_that_is_not_the_one_of_the_settings_is_a_warning(tmp_path, kit):
    other = make_site_folder(tmp_path / "other")
    assert found("fedmend.json", other, kit=kit) == [
        "warn  fedmend.json: data_root: expected the folder that is checked, got another: jobs will open that one"
    ]


def test_the_folder_of_the_settings_is_checked_when_none_is_given(kit):
    assert found("site card", kit=kit) == ["ok    site card: multilabel, 3 classes, splits train"]
    change_settings(kit, data_root="")
    assert found("site card", kit=kit) == ["skip  site card: needs data_root"]


def test_phantom_data_are_those_of_the_job(kit, job, tmp_path):
    change_settings(kit, data_root="phantom")
    line = "fail  site card: local/fedmend.json, field data_root: expected a folder, as this job has no phantom"
    assert found("site card", kit=kit, job=job) == [line]
    phantom = {"dataset": "ms", "images": 8, "sites": 1, "pixels": 32, "depth": 12}
    other = make_job(tmp_path / "ms", classes=["lesion"], method="fedmend.methods.fedia.FedIA", phantom=phantom)
    assert found("site card", kit=kit, job=other) == ["ok    site card: segmentation, 1 classes, splits train, test"]


def test_a_job_says_what_it_needs(site, job, tmp_path):
    assert found("job", site, job=job) == ["ok    job: job: 3 classes, 48 pixels, batches of 4"]
    assert found("job", site) == ["skip  job: needs --job"]
    audit = make_job(tmp_path / "audit", method=None, components=[])
    config = audit / "app" / "config" / "config_fed_client.json"
    config.write_text(json.dumps({"components": []}))
    assert found("job", site, job=audit) == ["ok    job: job: 3 classes"]


@pytest.mark.parametrize("job", sorted(f.parent for f in ROOT.glob("jobs/*/meta.json")), ids=lambda j: j.name)
def test_every_job_of_the_checkout_can_be_read_and_is_allowed_by_its_policy(job, kit):
    needs = sitecheck.read_job(job)
    assert needs.components()
    assert needs.method() or needs.name == "label_audit"
    count = len(needs.components())
    assert found("class policy", kit=kit, job=job) == [
        f"ok    class policy: all {count} classes of the job are on class_allow_list"
    ]


@pytest.mark.parametrize(
    "file", ["meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"]
)
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_that_is_no_job_is_named(site, job, file, content):
    (job / file).unlink()
    if content:
        (job / file).write_text(content)
    assert found("job", site, job=job) == [NO_JOB]


@pytest.mark.parametrize("path", ["fedmend.methods.fedmlp.New", "fedmend.methods.new.New", "os.system"])
def test_a_method_that_is_not_installed_is_named(site, tmp_path, path):
    job = make_job(tmp_path / "new", method=path)
    version = metadata.version("fedmend")
    assert found("job", site, job=job) == [f"fail  job: method m: expected in FedMend {version}, not found"]


@pytest.mark.parametrize("listed", [["fedmend.methods.", "fl_components.executor"], None])
def test_classes_on_the_list_pass_as_flare_matches_them(kit, job, listed):
    if listed:
        allow(kit, listed)
    line = "ok    class policy: all 2 classes of the job are on class_allow_list"
    assert found("class policy", kit=kit, job=job) == [line]
    (kit / "local" / "resources.json").rename(kit / "local" / "resources.json.default")
    assert found("class policy", kit=kit, job=job) == [line]


@pytest.mark.parametrize("listed", [["fedmend.methods."], ["fedmend.methods.", "fl_components.exec"]])
def test_classes_that_are_not_on_the_list_are_named(kit, job, listed):
    allow(kit, listed)
    assert found("class policy", kit=kit, job=job) == [
        "fail  class policy: local/resources.json: expected on class_allow_list, not found: fl_components.executor.MethodExecutor"
    ]


@pytest.mark.parametrize(("listed", "more"), [(["*"], {}), (["a.b"], {"class_list_enforcement_mode": "warn"})])
def test_a_list_that_is_not_enforced_is_a_warning(kit, job, listed, more, caplog):
    allow(kit, listed, **more)
    assert found("class policy", kit=kit, job=job) == [
        "warn  class policy: local/resources.json: expected a class_allow_list that is enforced, got one that is not"
    ]
    assert caplog.text == ""


def test_a_policy_that_cannot_be_read_and_code_in_a_job_are_refused(kit, job, site):
    assert found("class policy", site, job=job) == ["skip  class policy: needs --kit and --job"]
    (kit / "local" / "resources.json").write_text("{")
    assert found("class policy", kit=kit, job=job) == [
        "fail  class policy: local/resources.json: expected JSON, got a file that does not parse"
    ]
    (job / "app" / "custom").mkdir()
    assert found("class policy", kit=kit, job=job) == [
        "fail  class policy: expected a job without code of its own, got one with a custom folder"
    ]


# ---- the data -------------------------------------------------------------------------------------------------------
def test_a_card_of_another_task_than_the_method_learns_from_is_refused(site, job, tmp_path):
    assert found("site card", site, job=job) == ["ok    site card: multilabel, 3 classes, splits train"]
    other = make_job(tmp_path / "ms", method="fedmend.methods.fedia.FedIA")
    assert found("site card", site, job=other) == [
        "fail  site card: site.json, field task: expected 'segmentation' for the method of the job, got 'multilabel'"
    ]
    (site / "site.json").unlink()
    assert found("site card", site) == [
        "fail  site card: site.json: expected in the folder that data_root names, not found"
    ]


def test_class_names_are_compared_with_the_job_and_the_rest_is_checked_all_the_same(site, job):
    passed = ["ok    class names: the 3 classes of the job"]
    assert found("class names", site, job=job) == passed
    assert found("class names", site, classes=CLASSES[::-1]) == passed
    assert found("class names", site) == ["skip  class names: needs the site card, and --job or --classes"]
    assert found("class names", site, classes=("edema", "nodule")) == [
        "fail  class names: site.json, field classes: expected the job's ['edema', 'nodule'], got"
        " ['edema', 'fracture', 'nodule'] (missing here: [], unknown to the job: ['fracture'])"
    ]
    assert found("images", site, classes=("edema", "nodule")) == ["ok    images: all 6 read"]


def test_tables_are_read_the_complete_one_too(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("val",), truth=np.zeros((6, 3), dtype=np.int8))
    assert found("tables", site) == ["ok    tables: train 6, val 6, truth 6 images"]
    (site / "truth.csv").write_text((site / "truth.csv").read_text().replace("img1.png,0,0,0", "img1.png,0,0,maybe"))
    assert found("tables", site) == [
        "fail  tables: truth.csv row 3, column nodule: expected 1, 0 or blank, got text of 5 characters"
    ]


def test_every_unreadable_row_is_listed(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("test",))
    assert found("images", site) == ["ok    images: all 12 read"]
    (site / "images" / "img1.png").unlink()
    for number in (3, 4):
        (site / "images" / f"img{number}.png").write_text("no picture")
    rows = [(3, "expected a file below image_root, not found"), (5, UNREADABLE), (6, UNREADABLE)]
    assert found("images", site) == [
        "fail  images: expected no missing image and at most 0 unreadable ones per split, got 6 in all",
        *(f"        {file} row {row}: {reason}" for file in ("train.csv", "test.csv") for row, reason in rows),
    ]


def test_at_most_ten_unreadable_rows_are_listed(tmp_path):
    site = make_site_folder(tmp_path / "site-1", np.tile(LABELS, (2, 1)))
    shutil.rmtree(site / "images")
    line, *rows = found("images", site)
    assert line == "fail  images: expected no missing image and at most 0 unreadable ones per split, got 12 in all"
    assert rows[0] == "        train.csv row 2: expected a file below image_root, not found"
    assert rows[9:] == [
        "        train.csv row 11: expected a file below image_root, not found",
        "        and 2 more",
    ]


def test_tolerated_unreadable_images_are_a_warning(site, kit):
    (site / "images" / "img2.png").write_text("no picture")
    expected = [
        "warn  images: expected every image readable, got 1 that are left out, as max_unreadable allows",
        f"        train.csv row 4: {UNREADABLE}",
    ]
    assert found("images", site, max_unreadable=1) == expected
    assert found("images", kit=kit)[0].startswith("fail  images: ")
    change_settings(kit, max_unreadable=1)
    assert found("images", kit=kit) == expected
    assert found("images", kit=kit, max_unreadable=0)[0].startswith("fail  images: ")


def test_labels_that_no_training_can_use_are_refused(tmp_path):
    site = make_site_folder(tmp_path / "site-1", [[1, 0, 0], [1, 1, 1]])
    assert found("images", site) == [
        "fail  images: train.csv, column edema: expected both 0 and 1 (a class prior between 0 and 1), got only 1;"
        " leave the column out if the class is not annotated here"
    ]


def test_a_dicom_file_that_cannot_be_used_is_listed_with_its_reason(tmp_path):
    site = make_site_folder(tmp_path / "site-1", suffix=".dcm", window=(40, 80))
    make_dicom(site / "images" / "img0.dcm", pixels(0).astype(np.int16), NumberOfFrames=2)
    assert found("images", site)[1:] == [
        "        train.csv row 2: expected one frame, got a multi-frame DICOM file with 2 frames"
    ]


def test_every_volume_that_cannot_be_read_is_listed(tmp_path):
    site = make_volume_site(tmp_path / "site-1")
    assert found("images", site) == ["ok    images: all 3 read"]
    (site / "images" / "case-1.nii.gz").unlink()
    write_nifti(site / "labels" / "case-3.nii.gz", np.full((8, 8, 4), 7, dtype=np.uint8))
    assert found("images", site) == [
        "fail  images: expected no missing image and at most 0 unreadable ones per split, got 2 in all",
        "        datalist.json, training item 1, image: expected a NIfTI file, not found",
        "        datalist.json, test item 1, label: expected the values 0 and 1, got others",
    ]


def test_labels_are_counted_by_split_and_class(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("test",))
    assert found("counts", site) == [
        "ok    counts: train 6, test 6 samples",
        "        train, edema: 2 positive, 3 negative, 1 blank",
        "        train, fracture: not annotated here",
        "        train, nodule: 2 positive, 3 negative, 1 blank",
        "        test, edema: 2 positive, 4 negative, 0 blank",
        "        test, fracture: 0 positive, 6 negative, 0 blank",
        "        test, nodule: 2 positive, 4 negative, 0 blank",
    ]


def test_too_few_samples_for_a_batch_are_refused_and_few_positives_a_warning(kit, tmp_path):
    assert found("counts", kit=kit)[0] == "ok    counts: train 6 samples"
    change_settings(kit, min_count=3)
    assert found("counts", kit=kit)[0] == (
        "warn  counts: expected at least min_count 3 positive training samples of each annotated class, got fewer of 2;"
        " train 6 samples"
    )
    big = make_job(tmp_path / "big", batch_size=7)
    line, *details = found("counts", kit=kit, job=big)
    assert line == "fail  counts: expected at least 7 training samples (batch_size of the job), got 6"
    assert len(details) == 3


def test_images_and_patients_in_two_splits_are_a_warning(tmp_path, site):
    assert found("overlap", site) == ["ok    overlap: expected nothing in two splits, got 0 images and 0 patients"]
    write_png(site / "images" / "new.png", 9)
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "splits": {"train": "train.csv", "test": "test.csv"}}))
    images, patients = ["img0.png", "img1.png", "new.png"], ["p0", "", "p5"]
    write_table(site / "test.csv", images, LABELS[[0, 1, 5]], CLASSES, patients=patients)
    lines = [line for line in shown(site) if "overlap" in line]
    assert lines == ["warn  overlap: expected nothing in two splits, got 2 images and 2 patients"]


def test_tables_without_patients_say_so(tmp_path):
    volumes = make_volume_site(tmp_path / "site-1")
    assert found("overlap", volumes) == [
        "ok    overlap: expected nothing in two splits, got 0 images; no patients are named"
    ]


Usage = namedtuple("Usage", "free")


def test_disk_space_is_compared_with_what_the_stores_of_a_site_take(kit, job, tmp_path, monkeypatch, site):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0.6e9))
    expected = "expected 0.0 GB in cache_dir and 0.5 GB in state_dir (6 images of {} pixels), got 0.6 GB"
    assert found("disk", kit=kit, job=job) == [f"ok    disk: {expected.format(48)}"]
    assert found("disk", kit=kit) == [f"ok    disk: {expected.format(224)}"]
    assert found("disk", site) == ["skip  disk: needs fedmend.json and the images"]
    big = make_job(tmp_path / "big", image_size=6000)
    assert found("disk", kit=kit, job=big) == [
        "fail  disk: expected 0.2 GB in cache_dir and 0.5 GB in state_dir (6 images of 6000 pixels), got 0.6 GB"
    ]


def test_volumes_take_three_bytes_a_pixel(kit, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(1e9))
    volumes = make_volume_site(tmp_path / "volumes")
    job = make_job(tmp_path / "big", classes=["lesion"], method="fedmend.methods.fedia.FedIA", image_size=5000)
    assert found("disk", volumes, kit=kit, job=job) == [
        "fail  disk: expected 0.9 GB in cache_dir and 0.5 GB in state_dir (12 images of 5000 pixels), got 1.0 GB"
    ]


# ---- the way to the server ------------------------------------------------------------------------------------------
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
    monkeypatch.setattr(sitecheck, "_now", lambda: now)
    assert found("clock", kit=kit) == [line]


def test_a_file_that_is_no_certificate_is_named(kit):
    (kit / "startup" / "client.crt").write_text("no certificate")
    assert found("clock", kit=kit) == ["fail  clock: startup/client.crt: expected a certificate, got another file"]


def test_a_server_that_listens_is_reached_and_another_one_is_not(tmp_path, site):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        kit = make_kit(tmp_path / "kit", port=port, data_root=str(site))
        assert found("connection", kit=kit) == ["ok    connection: the server accepts the certificate of this site"]
    assert found("connection", kit=kit) == [
        "fail  connection: expected a server that accepts the certificate of this site, got:"
        f" Can't connect to tcp server (localhost:{port})"
    ]


def test_a_kit_without_the_address_of_a_server_is_named(kit):
    file = kit / "startup" / "fed_client.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "servers": [{"service": {"target": "localhost"}}]}))
    assert found("connection", kit=kit) == [
        "fail  connection: startup/fed_client.json: expected the address of a server, got none"
    ]
