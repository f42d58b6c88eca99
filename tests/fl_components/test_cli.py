import csv
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from factories import CLASSES, ROOT, make_site_folder
from nifti_factories import lesion, make_volume_site
from torch_factories import make_mask_site

from fedmend.datasets.cxr14 import PROTOCOLS
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.phantom_sites import ChestPhantom, LabelSetPhantom, PartlyAnnotatedPhantom
from fedmend.errors import FedMendError
from fedmend.ledger import LabelLedger, Repairs
from fl_components.cli import build_parser, main
from fl_components.simulate import RUN_FOLDER


@pytest.fixture
def ledger(tmp_path):
    """Round 0: sample 1 of class nodule becomes 1; round 1: sample 2 of edema becomes 0."""
    path = tmp_path / "ledger.sqlite"
    book = LabelLedger(
        path, fingerprint="ab", images=["img0", "img1", "img2"], classes=["edema", "nodule"], site="site-1"
    )
    old = np.array([[0, 1], [1, -1], [-1, 0]], dtype=np.int8)
    for round_num, rule, row in ((0, "first", (1, 1, 1, 0.75)), (1, "second", (2, 0, 0, 0.5))):
        book.record(rule, round_num, old, Repairs(*np.array(row)[:, None]))
    return path


def call(*words):
    return main([str(w) for w in words])


def capture(monkeypatch, target):
    """Puts a function that notes its arguments in the place of ``target``."""
    seen = []
    monkeypatch.setattr(target, lambda *args, **kwargs: seen.append((args, kwargs)))
    return seen


def test_a_ledger_is_shown_in_words(ledger, capsys):
    assert call("ledger", "show", ledger) == 0
    assert capsys.readouterr().out.splitlines() == [
        "round    1  img1  nodule: blank -> 1  confidence 0.7500  first",
        "round    2  img2  edema: blank -> 0  confidence 0.5000  second",
        "2 repairs; originals are unchanged",
    ]


def test_the_newest_entries_of_a_ledger_are_shown_last(ledger, capsys):
    call("ledger", "show", ledger, "--last", 1)
    first, total = capsys.readouterr().out.splitlines()
    assert "img2" in first
    assert total.startswith("newest 1 of 2 repairs")


def test_repairs_are_taken_back_and_stay_in_the_history(ledger, capsys):
    assert call("ledger", "undo", ledger, "--from-round", 2) == 0
    assert capsys.readouterr().out == "1 repairs taken back; they stay in the history\n"
    call("ledger", "show", ledger)
    assert "img2" not in capsys.readouterr().out
    call("ledger", "show", ledger, "--all")
    assert "img2  edema: blank -> 0  confidence 0.5000  second  (taken back)" in capsys.readouterr().out


def test_one_rule_is_taken_back_alone(ledger, capsys):
    call("ledger", "undo", ledger, "--rule", "first")
    call("ledger", "show", ledger)
    out = capsys.readouterr().out
    assert "first" not in out
    assert "second" in out


def test_a_ledger_is_exported_whole(ledger, tmp_path, capsys):
    call("ledger", "undo", ledger, "--from-round", 2)
    assert call("ledger", "export", ledger, tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(r["image"], r["class"], r["old"], r["new"], r["in_force"]) for r in rows] == [
        ("img1", "nodule", "", "1", "1"),
        ("img2", "edema", "", "0", "0"),
    ]


def test_a_ledger_of_masks_counts_lesion_voxels_and_gives_the_masks_back(tmp_path, capsys):
    site = make_mask_site(tmp_path, np.zeros((2, 8, 8)))
    added = np.zeros((2, 8, 8), dtype=bool)
    added[1, 0, :5] = True
    site.ledger.record("fedia.correction", 2, added, np.array([0.0, 0.9]))
    path = tmp_path / "ledger.sqlite"
    assert call("ledger", "show", path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "round    3  case-0.nii.gz#1  lesion voxels: 0 -> 5  confidence 0.9000  fedia.correction",
        "1 repairs; originals are unchanged",
    ]
    assert call("ledger", "undo", path) == 0
    assert not site.ledger.added().any()
    assert call("ledger", "export", path, tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert [row[name] for name in ("image", "class", "old", "new", "round", "in_force")] == [
        "case-0.nii.gz#1",
        "lesion voxels",
        "0",
        "5",
        "3",
        "0",
    ]


@pytest.mark.parametrize("action", [["show"], ["undo"], ["export", "x.csv"]], ids=lambda a: a[0])
def test_a_missing_ledger_is_one_sentence_and_exit_code_1(tmp_path, capsys, action):
    path = tmp_path / "no.sqlite"
    assert call("ledger", action[0], path, *action[1:]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"fedmend: label ledger {path}: expected a ledger file, not found\n"
    assert captured.out == ""
    assert not path.exists()


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
    seen = capture(monkeypatch, "fl_components.sitecheck.SiteCheck")
    monkeypatch.setattr("fl_components.sitecheck.sitecheck", lambda check, **how: None)
    assert call("sitecheck", "--kit", "k", "--job", "j", "--max-unreadable", 3) == 0
    assert seen == [((None,), {"kit": Path("k"), "job": Path("j"), "classes": (), "max_unreadable": 3})]


def test_a_run_folder_without_records_is_refused(tmp_path, capsys):
    assert call("report", tmp_path) == 1
    assert capsys.readouterr().err == "fedmend: run.json: expected in the run folder, not found\n"


def test_a_report_is_written_again_and_summed_up(tmp_path, monkeypatch, capsys):
    written = capture(monkeypatch, "fedmend.reporting.write_report")
    monkeypatch.setattr("fedmend.reporting.summary_text", lambda folder: f"summary of {folder.name}")
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


def test_a_job_is_configured_into_a_new_folder(tmp_path, monkeypatch, capsys):
    seen = capture(monkeypatch, "fl_components.simulate.configure_job")
    out = tmp_path / "new"
    words = ["configure", "jobs/x", out, "--variant", "paper", "--sites", 3, "--set", "a=1", "b.c=x"]
    assert call(*words) == 0
    assert seen == [((Path("jobs/x"), out, {"a": 1, "b.c": "x"}), {"variant": "paper", "sites": 3})]
    assert capsys.readouterr().out == f"job written to {out}\n"


def test_a_job_is_not_configured_over_another_one(tmp_path, capsys):
    assert call("configure", "jobs/x", tmp_path) == 1
    assert capsys.readouterr().err == f"fedmend: configure: expected a new folder, {tmp_path} exists\n"


def test_simulate_passes_everything_on(monkeypatch):
    seen = []
    monkeypatch.setattr("fl_components.simulate.simulate", lambda *a, **k: seen.append((a, k)) or {"final": {}})
    words = "simulate jobs/x --workspace w --threads 5 --sites 2 --variant paper --quiet --set a=1 --site min_count=4"
    assert call(*words.split()) == 0
    assert seen == [
        (
            (Path("jobs/x"), Path("w")),
            {
                "threads": 5,
                "variables": {"a": 1},
                "variant": "paper",
                "sites": 2,
                "site_settings": {"min_count": 4},
                "quiet": True,
            },
        )
    ]


def test_several_seeds_are_several_runs_with_mean_and_deviation(tmp_path, monkeypatch, capsys):
    def run(job, workspace, *, variables, **options):
        seen.append((workspace.name, variables))
        return {"final": {"test": {"auc": 0.5 + 0.1 * variables["seed"]}}}

    seen = []
    monkeypatch.setattr("fl_components.simulate.simulate", run)
    assert call("simulate", "jobs/x", "--workspace", tmp_path, "--seeds", "0,2", "--set", "a=1") == 0
    assert seen == [("seed-0", {"a": 1, "seed": 0}), ("seed-2", {"a": 1, "seed": 2})]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "final global model, mean ± sd over 2 seeds:",
        "test AUC: 60.00 ± 14.14",
    ]
    assert [r["seed"] for r in json.loads((tmp_path / "seeds.json").read_text())] == [0, 2]


def test_a_run_that_fails_is_one_sentence_and_exit_code_1(monkeypatch, capsys):
    def run(*args, **options):
        raise FedMendError("simulator: expected a complete run, got exit code 2: site-2: ...")

    monkeypatch.setattr("fl_components.simulate.simulate", run)
    assert call("simulate", "jobs/x") == 1
    assert capsys.readouterr().err == "fedmend: simulator: expected a complete run, got exit code 2: site-2: ...\n"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("num_rounds=abc", "job variable num_rounds: expected a whole number, got 'abc'"),
        ("phantom.slcies=3", "job variable phantom: expected the fields "),
    ],
)
def test_a_variable_that_the_job_cannot_use_is_one_sentence_and_exit_code_1(tmp_path, capsys, word, sentence):
    out = tmp_path / "out"
    assert call("configure", ROOT / "jobs" / "fedmlp_ich", out, "--set", word) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedmend: {sentence}")
    assert not out.exists()


def test_a_phantom_is_made_as_asked_and_called_one(tmp_path, monkeypatch, capsys):
    seen = capture(monkeypatch, "fedmend.datasets.phantom_sites.make_phantom")
    words = ["phantom", "ich", tmp_path, "--slices", 60, "--pixels", 32, "--sites", 3, "--annotated-per-site", 2]
    assert call(*words, "--rule", "random", "--seed", 4) == 0
    ((out, spec), _) = seen[0]
    assert out == tmp_path
    assert (spec.images, spec.pixels, spec.sites, spec.annotated_per_site) == (60, 32, 3, 2)
    assert (spec.rule, spec.seed) == ("random", 4)
    assert capsys.readouterr().out.startswith("PHANTOM: 60 synthetic slices in ")


NOISE = [
    *("--sites", 6, "--alpha", 3, "--presence", 0.8, "--partition-seed", 5, "--noisy-share", 0.3),
    *("--noise-low", 0.2, "--noise-high", 0.4, "--noise", "uniform", "--noise-seed", 7),
]
PROTOCOL = NoiseProtocol(
    sites=6,
    alpha=3.0,
    presence=0.8,
    partition_seed=5,
    noisy_share=0.3,
    noise_low=0.2,
    noise_high=0.4,
    noise="uniform",
    noise_seed=7,
)


@pytest.mark.parametrize(
    ("name", "target", "words", "expected"),
    [
        (
            "rsna-ich-single",
            "rsna_ich.prepare_single_label",
            ["--split", "slice", "--test-share", 0.4, "--window", "bone", "--seed", 3],
            {"split": "slice", "test_share": 0.4, "window": "bone", "seed": 3},
        ),
        (
            "isic2019",
            "isic2019.prepare",
            ["--split", "image", "--test-share", 0.4, "--seed", 3],
            {"split": "image", "test_share": 0.4, "seed": 3},
        ),
        ("brain-mri-single", "brain_mri.prepare_single_label", [], {}),
    ],
)
def test_a_download_is_prepared_with_the_noise_that_is_asked_for(monkeypatch, name, target, words, expected):
    seen = capture(monkeypatch, f"fedmend.datasets.{target}")
    assert call("prepare", name, "source", "out", *words, *NOISE) == 0
    ((places, arguments),) = seen
    assert places == (Path("source"), Path("out"))
    arguments.pop("progress")
    assert arguments == {"protocol": PROTOCOL, "soft_labels": None, **expected}


@pytest.mark.parametrize("protocol", ["fedlsm", "fedmlp"])
def test_chest_films_are_prepared_by_a_protocol_and_what_is_said_beside_it(monkeypatch, protocol):
    seen = capture(monkeypatch, "fedmend.datasets.cxr14.prepare")
    words = ["--sites", 4, "--view", "all", "--top", 5, "--split", "image", "--train-per-site", 9, "--seed", 3]
    assert call("prepare", "cxr14", "source", "out", "--protocol", protocol, *words) == 0
    ((places, arguments),) = seen
    assert places == (Path("source"), Path("out"))
    arguments.pop("progress")
    said = {"sites": 4, "view": None, "top": 5, "split": "image", "train_per_site": 9, "seed": 3}
    assert arguments == {**PROTOCOLS[protocol], **said}


def test_isic_2018_is_prepared_as_asked(monkeypatch):
    seen = capture(monkeypatch, "fedmend.datasets.isic2018.prepare")
    words = ["--sites", 4, "--classes-per-site", 2, "--assignment", "released", "--split", "image"]
    assert call("prepare", "isic2018", "source", "out", *words, "--train-per-site", 9, "--seed", 3) == 0
    ((_, arguments),) = seen
    arguments.pop("progress")
    expected = {"sites": 4, "classes_per_site": 2, "assignment": "released", "split": "image"}
    assert arguments == {**expected, "train_per_site": 9, "seed": 3}


def test_the_defaults_of_the_noise_are_those_of_the_paper(monkeypatch):
    ich = capture(monkeypatch, "fedmend.datasets.rsna_ich.prepare_single_label")
    isic = capture(monkeypatch, "fedmend.datasets.isic2019.prepare")
    call("prepare", "rsna-ich-single", "source", "out")
    call("prepare", "isic2019", "source", "out")
    assert ich[0][1]["protocol"] == NoiseProtocol()
    assert isic[0][1]["protocol"] == NoiseProtocol(alpha=1.5, presence=0.99)


@pytest.mark.parametrize(("word", "dataset"), [("ich-single", "ich_single"), ("isic2019", "isic2019")])
def test_a_noisy_phantom_is_made_as_asked_and_called_one(tmp_path, monkeypatch, capsys, word, dataset):
    seen = capture(monkeypatch, "fedmend.datasets.phantom_sites.make_phantom")
    assert call("phantom", word, tmp_path, "--images", 60, "--pixels", 32, "--seed", 4, *NOISE) == 0
    ((out, spec), _) = seen[0]
    assert (out, spec.dataset, spec.images, spec.pixels, spec.seed) == (tmp_path, dataset, 60, 32, 4)
    assert {name: getattr(spec, name) for name in vars(PROTOCOL)} == vars(PROTOCOL)
    assert capsys.readouterr().out.startswith("PHANTOM: 60 synthetic images in ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cxr14", "--protocol", "fedmlp"], ChestPhantom(images=60, pixels=64, protocol="fedmlp")),
        (["isic2018", "--sites", 4], LabelSetPhantom(images=60, pixels=96, sites=4)),
    ],
)
def test_a_phantom_with_different_label_sets_is_made_as_asked(tmp_path, monkeypatch, capsys, words, expected):
    seen = capture(monkeypatch, "fedmend.datasets.phantom_sites.make_phantom")
    assert call("phantom", *words, tmp_path, "--images", 60) == 0
    assert seen[0][0] == (tmp_path, expected)
    assert capsys.readouterr().out.startswith("PHANTOM: 60 synthetic images in ")


@pytest.mark.parametrize("dataset", ["ms", "lung"])
def test_a_phantom_with_partly_annotated_lesions_is_made_as_asked(tmp_path, monkeypatch, capsys, dataset):
    seen = capture(monkeypatch, "fedmend.datasets.phantom_sites.make_phantom")
    words = ["--images", 12, "--sites", 3, "--pixels", 32, "--depth", 9, "--m", 1, "--test-share", 0.3, "--seed", 4]
    assert call("phantom", dataset, tmp_path, *words) == 0
    assert call("phantom", dataset, tmp_path) == 0
    given = {"images": 12, "sites": 3, "pixels": 32, "depth": 9, "m": 1, "test_share": 0.3, "seed": 4}
    expected = [PartlyAnnotatedPhantom(dataset=dataset, **given), PartlyAnnotatedPhantom(dataset=dataset)]
    assert [places for places, _ in seen] == [(tmp_path, spec) for spec in expected]
    assert capsys.readouterr().out.startswith("PHANTOM: 12 synthetic volumes in ")


@pytest.mark.parametrize("dataset", ["ms", "lung"])
def test_a_phantom_with_lesions_is_by_default_the_one_of_its_job(tmp_path, monkeypatch, dataset):
    seen = capture(monkeypatch, "fedmend.datasets.phantom_sites.make_phantom")
    assert call("phantom", dataset, tmp_path) == 0
    job = json.loads((ROOT / "jobs" / f"fedia_{dataset}" / "app" / "config" / "config_fed_client.json").read_text())
    assert [spec for (_, spec), _ in seen] == [PartlyAnnotatedPhantom(**job["phantom"])]


def test_brain_slices_are_prepared_with_label_sets(tmp_path, monkeypatch):
    seen = capture(monkeypatch, "fedmend.datasets.brain_mri.prepare_label_sets")
    assert call("prepare", "brain-mri-sets", "in", tmp_path, "--sites", 5, "--classes-per-site", 3) == 0
    assert seen == [((Path("in"), tmp_path), {"sites": 5, "classes_per_site": 3, "seed": 1037})]


@pytest.mark.parametrize(("word", "share"), [("0.25", 0.25), ("all", None)])
def test_a_download_is_prepared_as_asked(tmp_path, monkeypatch, word, share):
    seen = capture(monkeypatch, "fedmend.datasets.rsna_ich.prepare")
    words = "--split slice --partition station --test-share 0.2 --val-share 0 --train-per-site 50 --window subdural"
    assert call("prepare", "rsna-ich", "in", tmp_path, *words.split(), "--healthy-share", word, "--sites", 4) == 0
    ((source, out), options) = seen[0]
    assert (source, out) == (Path("in"), tmp_path)
    assert options.pop("progress") is print
    assert options == {
        "sites": 4,
        "annotated_per_site": 1,
        "rule": "one_each",
        "split": "slice",
        "partition": "station",
        "test_share": 0.2,
        "val_share": 0.0,
        "train_per_site": 50,
        "healthy_share": share,
        "window": "subdural",
        "seed": 1037,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("simulate jobs/x --seeds a", "argument --seeds: expected whole numbers like 0,1,2, got 'a'"),
        ("simulate jobs/x --seeds 0,", "argument --seeds: expected whole numbers like 0,1,2, got '0,'"),
        ("prepare rsna-ich a b --healthy-share x", "argument --healthy-share: expected a number or 'all', got 'x'"),
    ],
)
def test_a_word_in_the_place_of_a_number_ends_with_usage_and_exit_code_2(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {message}")


@pytest.mark.parametrize("words", [[], ["bake"], ["ledger"], ["prepare", "other", "a", "b"], ["simulate"]])
def test_words_that_are_no_command_end_with_usage_and_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: fedmend" in capsys.readouterr().err


def test_a_person_can_interrupt(monkeypatch):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmend.reporting.write_report", interrupt)
    assert call("report", "x") == 130


def test_defaults_of_a_simulation_are_those_of_the_bare_command():
    args = build_parser().parse_args(["simulate", "jobs/x"])
    assert isinstance(args, Namespace)
    assert (args.threads, args.sites, args.variant, args.set, args.site) == (1, 0, "", [], [])


def test_without_a_workspace_a_run_has_its_jobs_name_and_a_quiet_one_says_where_it_is(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        "fl_components.simulate.simulate", lambda job, folder, **k: seen.append(folder) or {"final": {}}
    )
    assert call("simulate", "jobs/x", "--quiet") == 0
    assert seen == [Path("runs/x")]
    assert capsys.readouterr().out == f"finished; records and report.html are in {Path('runs/x') / RUN_FOLDER}\n"
