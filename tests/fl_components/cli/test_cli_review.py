import json

import pytest
from cli_calls import call, capture
from review_factories import make_run

from fedmend.repairs.verdicts import ACCEPT
from fedmend.review.desk import Desk

TAG = (0, 1, 1, 0, 0.9)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, TAG)


@pytest.fixture
def served(monkeypatch):
    return capture(monkeypatch, "fedmend.review.server.serve")


@pytest.mark.parametrize("words", [("{}",), ("--state", "{}/state"), ("{}", "--site", "site-1", "--run", "run-1")])
def test_the_run_of_a_workspace_or_state_folder_is_served(run, served, tmp_path, words):
    assert call("review", *(w.format(tmp_path) for w in words), "--port", 5000) == 0
    (((desk,), how),) = served
    assert (desk.folder, how) == (run, {"port": 5000})


def test_the_state_of_a_kit_is_where_its_settings_say(run, served, tmp_path):
    kit = tmp_path / "kit"
    for folder in ("startup", "local"):
        (kit / folder).mkdir(parents=True)
    (kit / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "site-1"}}))
    settings = {"data_root": str(tmp_path / "data"), "cache_dir": "cache", "state_dir": str(tmp_path / "state")}
    (kit / "local" / "fedmend.json").write_text(json.dumps(settings))
    assert call("review", "--kit", kit) == 0
    assert served[0][0][0].folder == run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--run", "run-9"), "--run: expected one of run-1, got run-9"),
        (("--site", "site-9"), "--site: expected one of site-1, got site-9"),
        (("--unseen",), "--unseen: expected --export beside it"),
    ],
)
def test_another_run_or_site_is_one_sentence(run, served, tmp_path, capsys, words, sentence):
    assert call("review", tmp_path, *words) == 1
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"
    assert served == []


def test_several_sites_are_to_choose_from(run, served, tmp_path, capsys):
    other = run.with_name("site-2")
    other.mkdir()
    (other / "ledger.sqlite").write_bytes((run / "ledger.sqlite").read_bytes())
    assert call("review", tmp_path) == 1
    assert capsys.readouterr().err == "fedmend: --site: expected one of site-1, site-2\n"


def test_of_two_runs_of_one_name_and_site_the_folder_has_to_be_named(run, served, tmp_path, capsys):
    other = tmp_path / "seed-1" / "run-1" / "site-1"
    other.mkdir(parents=True)
    (other / "ledger.sqlite").write_bytes((run / "ledger.sqlite").read_bytes())
    assert call("review", tmp_path, "--site", "site-1") == 1
    sentence = "expected a folder with one run run-1 of site-1, got 2; name the folder of one of them"
    assert capsys.readouterr().err == f"fedmend: review: {sentence}\n"
    assert served == []


def test_the_corrected_copy_is_exported(run, tmp_path, capsys):
    desk = Desk(run)
    desk.judge(desk.item(0, 1), ACCEPT, reviewer="AB")
    assert call("review", tmp_path, "--export", tmp_path / "out") == 0
    assert "1 labels differ from the original" in capsys.readouterr().out
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["sign_off.html", "train.csv"]


def test_a_mask_becomes_a_dicom_segmentation(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("fedmend.review.dicom_seg.mask_on_series", lambda mask, series, foreground: (mask, foreground))
    written = capture(monkeypatch, "fedmend.review.dicom_seg.write_dicom_seg")
    words = [tmp_path / "mask.nii.gz", tmp_path / "series", tmp_path / "out.dcm", "--label", "plaque"]
    assert call("dicom-seg", *words, "--foreground", 2) == 0
    assert written == [((tmp_path / "series", (tmp_path / "mask.nii.gz", 2), "plaque", tmp_path / "out.dcm"), {})]


def test_a_segmentation_is_not_written_over_its_mask(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedmend.review.dicom_seg.mask_on_series", lambda mask, series, foreground: mask)
    written = capture(monkeypatch, "fedmend.review.dicom_seg.write_dicom_seg")
    mask = tmp_path / "mask.nii.gz"
    assert call("dicom-seg", mask, tmp_path / "series", tmp_path / "." / "mask.nii.gz") == 1
    assert "expected another file than the mask" in capsys.readouterr().err
    assert not written
