import csv
import json
from pathlib import Path

import numpy as np
from cli_calls import call, capture
from factories import CLASSES, make_site_folder
from nifti_factories import lesion, make_volume_site

from fedmend.records.run_folder import RUN_FOLDER


def test_a_good_site_folder_is_ready_and_described(tmp_path, capsys):
    make_site_folder(tmp_path / "site-1", splits=("test",))
    assert call("sitecheck", tmp_path / "site-1", "--classes", ",".join(CLASSES)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ok    class names: the 3 classes of the job" in lines
    assert "        train, edema: 2 positive, 3 negative, 1 blank" in lines
    assert lines[-1].startswith("site-1: ready (")


def test_a_bad_site_folder_is_a_line_and_exit_code_1(tmp_path, capsys):
    make_site_folder(tmp_path / "site-1")
    assert call("sitecheck", tmp_path / "site-1", "--classes", "edema,nodule") == 1
    captured = capsys.readouterr()
    (line,) = [line for line in captured.out.splitlines() if line.startswith("fail")]
    assert line.startswith("fail  class names: site.json, field classes: expected the job's ['edema', 'nodule']")
    assert captured.err == "fedmend: site-1: expected every check to pass, got 1 that failed\n"


def test_a_bad_truth_table_is_found_by_sitecheck(tmp_path, capsys):
    folder = make_site_folder(tmp_path / "site-1", truth=np.zeros((6, 3), dtype=np.int8))
    assert call("sitecheck", folder) == 0
    lines = (folder / "truth.csv").read_text().splitlines()
    (folder / "truth.csv").write_text("\n".join([*lines[:2], lines[2].rsplit(",", 1)[0] + ",maybe", *lines[3:]]))
    capsys.readouterr()
    assert call("sitecheck", folder) == 1
    assert "truth.csv row 3, column nodule: expected 1, 0 or blank" in capsys.readouterr().out


def test_a_site_folder_of_volumes_is_ready_and_described(tmp_path, capsys):
    big = lesion(((9, 10), (0, 1), (0, 1)), shape=(300, 300, 2))  # one pixel, which smaller slices would lose
    folder = make_volume_site(tmp_path / "site-1", [lesion(), big], complete=[lesion(), big], window="lung")
    assert call("sitecheck", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("ok    counts: train 6, test 4 samples")
    assert lines[start + 1 : start + 4] == [
        "        train: 2 volumes, 2 with lesion; 6 slices, 3 with lesion",
        "        test: 1 volumes, 1 with lesion; 4 slices, 2 with lesion",
        "        window: centre -600 HU, width 1500 HU",
    ]


def test_bad_volumes_and_bad_complete_masks_are_found_by_sitecheck(tmp_path, capsys):
    folder = make_volume_site(tmp_path / "site-1", complete=[lesion()] * 2)
    assert call("sitecheck", folder, "--classes", "edema") == 1
    assert "site.json, field classes: expected the job's ['edema']" in capsys.readouterr().out
    (folder / "truth" / "labels" / "case-2.nii.gz").unlink()
    assert call("sitecheck", folder) == 1
    line = "fail  images: truth/datalist.json, training item 2, label: expected a NIfTI file, not found"
    assert line in capsys.readouterr().out.splitlines()
    (folder / "images" / "case-3.nii.gz").unlink()
    assert call("sitecheck", folder) == 1
    line = "        datalist.json, test item 1, image: expected a NIfTI file, not found"
    assert line in capsys.readouterr().out.splitlines()


def test_sitecheck_passes_everything_on(tmp_path, monkeypatch):
    seen = capture(monkeypatch, "fl_components.sitecheck.sitecheck")
    assert call("sitecheck", "--kit", "k", "--job", "j", "--max-unreadable", 3) == 0
    ((places, told),) = seen
    assert places == (None,)
    assert (told["kit"], told["job"], told["classes"], told["max_unreadable"]) == (Path("k"), Path("j"), (), 3)
    assert told["color"] is False


def test_a_run_folder_without_records_is_refused(tmp_path, capsys):
    assert call("report", tmp_path) == 1
    assert capsys.readouterr().err == "fedmend: run.json: expected in the run folder, not found\n"


def test_a_report_is_written_again_and_summed_up(tmp_path, monkeypatch, capsys):
    written = capture(monkeypatch, "fedmend.report.report.write_report")
    monkeypatch.setattr("fedmend.report.report.summary_text", lambda folder: f"summary of {folder.name}")
    assert call("report", tmp_path) == 0
    assert written == [((tmp_path,), {})]
    assert capsys.readouterr().out == f"summary of {tmp_path.name}\n"


def write_run(folder, auc, *, finished=True, classes=("edema",), seed=0):
    folder.mkdir(parents=True)
    info = {
        "run_name": "r",
        "method": "m",
        "phantom": True,
        "classes": classes,
        "num_rounds": 1,
        "sites": {},
        "seed": seed,
    }
    (folder / "run.json").write_text(json.dumps(info))
    evaluation = {"round": 1, "split": "test", "per_class": {"auc": [auc]}, "macro": {"auc": auc}}
    (folder / "metrics.jsonl").write_text(json.dumps(evaluation) + "\n")
    if finished:
        (folder / "results.json").write_text(json.dumps({"final": {"test": {"auc": auc}}}))
    return folder


def test_runs_are_compared_wherever_they_are(tmp_path, capsys):
    write_run(tmp_path / "folder", 0.5)
    write_run(tmp_path / "workspace" / RUN_FOLDER, 0.75, seed=1)
    for seed, auc in ((0, 0.8), (10, 0.9)):
        write_run(tmp_path / "seeds" / f"seed-{seed}" / RUN_FOLDER, auc, seed=seed)
    (tmp_path / "seeds" / "seed-0.log").write_text("")
    words = [f"A={tmp_path / 'folder'}", f"B={tmp_path / 'workspace'}", f"C={tmp_path / 'seeds'}"]
    assert call("table", *words, f"A={tmp_path / 'workspace'}", "--out", tmp_path / "new" / "out") == 0
    out = capsys.readouterr().out
    texts = {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "new" / "out").iterdir()}
    assert sorted(texts) == ["macro.csv", "macro.md", "per_class.csv", "per_class.md"]
    assert out == f"{texts['per_class.md']}\n{texts['macro.md']}\nwritten to {tmp_path / 'new' / 'out'}\n"
    assert "PHANTOM" in texts["macro.md"]
    assert [row[:4] for row in csv.reader(texts["per_class.csv"].splitlines())] == [
        ["method", "edema", "edema sd", "seeds"],
        ["A", "62.5", "17.7", "2"],
        ["B", "75.0", "", "1"],
        ["C", "85.0", "7.1", "2"],
    ]


def test_runs_that_cannot_be_compared_are_one_sentence_and_exit_code_1(tmp_path, capsys):
    good = write_run(tmp_path / "good", 0.5)
    (tmp_path / "seeds" / "seed-1").mkdir(parents=True)
    unfinished, other = write_run(tmp_path / "run", 0.5, finished=False), write_run(tmp_path / "c", 0.5, classes=("x",))
    nothing = "expected a run folder or a simulator workspace, found no run.json in"
    for word, sentence in (
        ("B", "table: expected NAME=FOLDER, got 'B'"),
        (f"B={tmp_path / 'no'}", f"table, B: {nothing} {tmp_path / 'no'}"),
        (f"B={tmp_path / 'seeds'}", f"table, B: {nothing} {tmp_path / 'seeds' / 'seed-1'}"),
        (f"B={unfinished}", "table, B, seed 0: expected finished runs, got one that goes on or was stopped"),
        (f"B={other}", "table, B, seed 0: expected the classes of the first run, in their order, got others"),
    ):
        assert call("table", f"A={good}", word, "--out", tmp_path / "out") == 1
        assert capsys.readouterr().err == f"fedmend: {sentence}\n"
        assert not (tmp_path / "out").exists()
