import json

import numpy as np
import pytest
from advice_factories import CLASSES, LABELLED
from cli_calls import call
from factories import make_site_folder

from fedmend.advice.label_audit import audit_text
from fedmend.records.run_folder import RUN_FOLDER

SITES = {f"site-{i}": LABELLED for i in range(1, 5)}


def write_audit(folder):
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(audit_text(SITES, CLASSES))


def write_run(folder, **said):
    folder.mkdir(parents=True)
    info = {"run_name": "r", "method": "fednoro", "phantom": False, "classes": CLASSES, "num_rounds": 3, "sites": {}}
    (folder / "run.json").write_text(json.dumps(info))
    value = {"class_loss": {name: [0.5, 0.5] for name in SITES}, "noisy": [], "vote_share": 0.9, **said}
    decision = {"round": 2, "what": "noisy_client_detection", "value": value}
    (folder / "decisions.jsonl").write_text(json.dumps(decision) + "\n")


@pytest.mark.parametrize("below", [".", RUN_FOLDER, "fedmend", "workspace/fedmend"])
def test_an_audit_is_found_wherever_it_is(tmp_path, capsys, below):
    write_audit(tmp_path / "place" / below)
    assert call("advise", tmp_path / "place") == 0
    out = capsys.readouterr().out
    assert out.startswith("4 of 4 sites counted, 2 classes of singlelabel labels\n")
    assert "- Run FedNoRo. Its warm-up compares" in out


def test_losses_change_the_advice(tmp_path, capsys):
    write_audit(tmp_path / "audit")
    write_run(tmp_path / "clean" / RUN_FOLDER)
    write_run(tmp_path / "noisy", noisy=["site-3"])
    assert call("advise", tmp_path / "audit", "--losses", tmp_path / "clean") == 0
    assert "- Plain FedAvg is enough: there is neither noise nor imbalance" in capsys.readouterr().out
    assert call("advise", tmp_path / "audit", "--losses", tmp_path / "noisy") == 0
    assert "take these for noisy: site-3." in " ".join(capsys.readouterr().out.split())


def test_site_folders_are_counted_here_with_the_minimum_that_is_asked_for(tmp_path, capsys):
    for number in (1, 2):
        make_site_folder(tmp_path / f"site-{number}", np.array([[1, 0, -1]] * 3 + [[0, 1, -1]] * 4, dtype=np.int8))
    assert call("advise", "--data", tmp_path, "--min-count", 3) == 0
    out = capsys.readouterr().out
    assert f"--site 'data_root={tmp_path}/{{SITE_NAME}}'" in out
    assert "sites do not tell" not in out
    assert call("advise", "--data", tmp_path) == 0  # 3 and 4 are below 5
    assert "Numbers that sites do not tell (site-1: edema, fracture;" in " ".join(capsys.readouterr().out.split())


def test_bad_input_is_one_sentence_and_exit_code_1(tmp_path, capsys):
    write_audit(tmp_path / "audit")
    for words, sentence in (
        ([tmp_path], f"advise: expected a label audit, found no audit.json in {tmp_path}"),
        (
            [tmp_path / "audit", "--losses", tmp_path],
            f"advise: expected a run with losses, found no run.json in {tmp_path}",
        ),
        (
            ["--data", tmp_path / "no"],
            f"data: expected a folder of site folders, found no site.json one level below {tmp_path / 'no'}",
        ),
        (
            [tmp_path / "audit", "--min-count", 3],
            "advise: expected --min-count with --data; a site holds back by its own fedmend.json",
        ),
    ):
        assert call("advise", *words) == 1
        assert capsys.readouterr().err == f"fedmend: {sentence}\n"


@pytest.mark.parametrize("words", [[], ["place", "--data", "folder"]])
def test_one_place_must_be_given(words, capsys):
    with pytest.raises(SystemExit) as stop:
        call("advise", *words)
    assert stop.value.code == 2
    assert "usage: fedmend advise" in capsys.readouterr().err
