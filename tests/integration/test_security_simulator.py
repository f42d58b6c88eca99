"""What the logs of a real run hold: nothing about a patient, an image, a folder of the data or a single label."""

import re

import numpy as np
import pytest
from factories import ROOT, make_site_folder
from simulation import fedmend, lines, records

pytestmark = pytest.mark.slow
CLASSES = ("epidural", "subdural")
SITES = ("site-1", "site-2")
SAMPLES = 24
PATIENT, IMAGE = "PATIENT-4711", "MUELLER_ANNA"


def rename(site):
    """Names that a hospital would use, in the table and on the disk."""
    table = site / "train.csv"
    lines = table.read_text().splitlines()
    lines[1:] = [re.sub(r"^img(\d+)\.png,p", rf"{IMAGE}_\1.png,{PATIENT}-", line) for line in lines[1:]]
    table.write_text("\n".join(lines) + "\n")
    for image in (site / "images").iterdir():
        image.rename(image.with_name(image.name.replace("img", f"{IMAGE}_")))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def workspace(home):
    """A run in which two sites repair labels; one image of the second cannot be read."""
    random = np.random.default_rng(3)
    for own, name in enumerate(SITES):
        labels = np.full((SAMPLES, 2), -1)
        labels[:, own] = random.permutation(np.arange(SAMPLES) % 2)
        rename(make_site_folder(home / "hospital" / name, labels, size=48, classes=CLASSES))
    (home / "hospital" / "site-2" / "images" / f"{IMAGE}_5.png").write_bytes(b"no picture")
    words = ["num_rounds=2", "warmup_rounds=1", "image_size=32", "batch_size=8", "st=false", "ratio_negative=0.5"]
    words += ["ratio_positive=0.5", 'classes=["epidural","subdural"]']
    settings = [f"data_root={home}/hospital/{{SITE_NAME}}", f"cache_dir={home}/cache", "max_unreadable=1"]
    code, out = fedmend(
        *("simulate", ROOT / "jobs" / "fedmlp_ich", "--workspace", home / "work", "--threads", 2, "--sites", 2),
        *("--set", *words, "--site", *settings),
        home=home,
    )
    assert code == 0, out
    (home / "work" / "console_log.txt").write_text(out)
    return home / "work"


def logs(workspace):
    """Path → text of everything that somebody may read as a log."""
    files = [f for f in workspace.rglob("*") if f.is_file() and re.search(r"log|\.txt$|audit", f.name)]
    assert {"server", *SITES} <= {part for f in files for part in f.relative_to(workspace).parts}
    return {f: f.read_text(errors="replace") for f in files}


def secrets(text, home):
    return [secret for secret in (PATIENT, IMAGE, f"{home}/hospital", ".png") if secret in text]


def test_no_log_names_a_patient_an_image_or_the_folder_of_the_data(workspace, home):
    texts = logs(workspace)
    assert any("site-2: train.csv row 7" in text for text in texts.values())  # by row, not by name
    assert any("labels repaired so far" in text for text in texts.values())
    for file, text in texts.items():
        assert secrets(text, home) == [], file


def test_no_log_lists_the_labels_of_samples(workspace, home):
    for site in SITES:
        rows = (home / "hospital" / site / "train.csv").read_text().splitlines()[1:]
        labels = "".join(row.strip(",")[-1] for row in rows)
        assert sorted(labels) == ["0"] * 12 + ["1"] * 12
        for file, text in logs(workspace).items():
            listed = re.sub(r"[^01]", "", re.sub(r"\d*[2-9]\d*|\d{2,}", "", text))  # numbers of one digit
            assert labels not in listed, file


def test_what_the_server_keeps_names_no_patient_image_or_folder_either(workspace, home):
    files = [f for f in records(workspace).rglob("*") if f.is_file()]
    assert {"run.json", "report.html", "decisions.jsonl"} <= {f.name for f in files}
    for file in files:
        assert secrets(file.read_text(errors="replace"), home) == [], file


def test_sites_with_differential_privacy_send_sums_once_through_their_guard(home):
    words = ["network=projected/resnet_narrow", "weights=", "image_size=32", "batch_size=8"]
    words += ['classes=["epidural","subdural"]', "phantom=null"]
    settings = [f"data_root={home}/hospital/{{SITE_NAME}}", f"cache_dir={home}/cache", "max_unreadable=1"]
    code, out = fedmend(
        *("simulate", ROOT / "jobs" / "closed_form", "--variant", "private", "--workspace", home / "private"),
        *("--threads", 2, "--sites", 2, "--set", *words),
        *("--site", *settings, 'privacy={"clip":1,"noise_multiplier":1}'),
        home=home,
    )
    assert code == 0, out
    told = [line for line in lines(home / "private", "decisions.jsonl") if line["what"] == "privacy"]
    assert [set(line["value"]) for line in told] == [set(SITES)]
    assert 4 < told[0]["value"]["site-1"]["epsilon"] < 5
    assert "PHANTOM" not in out
    assert (records(home / "private") / "closed_form_private.fedmend").is_dir()
