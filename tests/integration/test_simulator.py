"""The job in FLARE's real simulator, with a phantom so small that only plumbing is tested, not learning."""

import csv
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from factories import ROOT
from simulation import LOCAL, SMALL, fedmend, ledger, lines, outcome, records, run

from fedmend import Package
from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.repairs.site_run import OPINIONS

pytestmark = pytest.mark.slow
JOB = ROOT / "jobs" / "fedmlp_ich"
SITES = [f"site-{i}" for i in range(1, 4)]
SETTINGS = SMALL["fedmlp_ich"]


def test_a_run_leaves_models_report_and_decisions_and_no_label_is_touched(fedmlp, originals):
    workspace, out = fedmlp(3)
    results = json.loads((records(workspace) / "results.json").read_text())
    for name in ("global model", "best model"):
        assert os.path.getsize(results["files"][name]) > 1e6  # 0.3 M parameters
    assert "<html" in (records(workspace) / "report.html").read_text()[:200]
    decided = [line["what"] for line in lines(workspace, "decisions.jsonl")]
    assert "best_model" in decided
    assert decided.count("learning_degree") == 2
    assert [m["round"] for m in lines(workspace, "metrics.jsonl") if m["split"] == "test"] == [0, 1, 2, 3]
    assert results["final"]["test"]["auc"] > 0
    assert "PHANTOM round 3/3 detect" in out  # the cards say so: these sites have a data_root
    for file, content in originals.items():
        assert file.read_bytes() == content, file.name


def test_every_site_keeps_its_repairs_in_its_own_ledger(fedmlp):
    workspace, _ = fedmlp(3)
    for site in SITES:
        rows = ledger(workspace, site)
        assert rows
        assert {row["round"] for row in rows} == {1, 2}
        assert {row["old"] for row in rows} == {-1}


def test_no_slice_is_named_in_what_the_server_writes(fedmlp):
    workspace, _ = fedmlp(3)
    assert not re.search(r"ID_[0-9a-f]+|\.dcm", (workspace / "server" / "log.txt").read_text())
    assert all(".dcm" not in (records(workspace) / f).read_text() for f in ("decisions.jsonl", "run.json"))


def test_one_thread_and_three_give_the_same_run(fedmlp):
    assert outcome(fedmlp(1)[0], SITES) == outcome(fedmlp(3)[0], SITES)  # with one, every task is a new process


def test_without_flare_a_run_is_that_of_the_simulator(fedmlp):
    assert outcome(fedmlp(LOCAL)[0], SITES) == outcome(fedmlp(3)[0], SITES)


def test_the_package_of_a_run_gives_the_scores_that_a_site_had_in_the_last_round(fedmlp, sites, tmp_path):
    workspace, _ = fedmlp(3)
    card = load_card(sites / "site-1", "site-1")
    images = load_table(card, card.splits["train"], card.classes).images
    (state,) = workspace.glob("**/state/*/site-1")
    opinions = StateStore(state).load(OPINIONS).numpy()
    code, out = fedmend("predict", records(workspace), card.image_root, tmp_path / "out", home=tmp_path)
    assert code == 0, out
    with open(tmp_path / "out" / "predictions.csv", newline="") as stream:
        rows = {row["image"]: row for row in csv.DictReader(stream)}
    scores = [[float(rows[image][f"{name}_probability"]) for name in card.classes] for image in images]
    wanted = torch.from_numpy(opinions).double().logit() / torch.tensor(Package(records(workspace)).temperatures)
    np.testing.assert_allclose(scores, wanted.sigmoid(), atol=1e-6)  # predict's are calibrated


def test_two_runs_at_once_on_one_machine_make_one_cache_and_are_each_that_of_a_run_alone(fedmlp, sites, home):
    words = ["--threads", 3, "--sites", 3, "--set", *SETTINGS]
    words += ["--site", f"data_root={sites}/{{SITE_NAME}}", f"cache_dir={home}/at_once"]

    def start(name):
        return fedmend("simulate", JOB, "--workspace", home / name, *words, home=home)

    with ThreadPoolExecutor(2) as both:
        ends = list(both.map(start, ("first", "second")))
    assert [code for code, _ in ends] == [0, 0], ends
    alone = outcome(fedmlp(LOCAL)[0], SITES)
    assert outcome(home / "first", SITES) == outcome(home / "second", SITES) == alone
    assert len(list((home / "at_once" / "stores").glob("*/meta.json"))) == 3 * len(SITES)  # of each split, once


@pytest.fixture(scope="module")
def checkout(home):
    """A job for two sites beside the tracked policy, as in a fresh checkout."""
    folder = home / "checkout"
    shutil.copytree(ROOT / "simulator_workspace" / "local", folder / "simulator_workspace" / "local")
    words = ["num_rounds=2", *SETTINGS[1:], "phantom.images=300", "phantom.sites=2", "phantom.annotated_per_site=4"]
    code, out = fedmend("configure", JOB, folder / "job", "--sites", 2, "--set", *words, home=home)
    assert code == 0, out
    return folder


def test_the_bare_command_of_flare_runs_a_job_and_says_what_came_out(checkout, home):
    code, out = run(["nvflare.cli", "simulator", "job"], home=home, cwd=checkout)
    assert code == 0, out
    rounds = re.findall(r"PHANTOM round (\d)/2 (\w+) \| received model: test AUC 0\.\d{3}", out)
    assert rounds == [("1", "prototype"), ("2", "detect")]
    assert re.search(r"global model: .*FL_global_model\.pt", out)
    assert re.search(r"report: .*report\.html", out)
    assert (records(checkout / "simulator_workspace") / "report.html").is_file()
    assert (home / ".cache" / "fedmend" / "phantoms").is_dir()


def test_a_class_that_the_site_policy_does_not_allow_stops_the_job(checkout, home):
    policy = home / "strict" / "local"
    shutil.copytree(checkout / "simulator_workspace" / "local", policy)
    resources = json.loads((policy / "resources.json").read_text())
    resources["class_allow_list"].remove("fedmend.methods.fedmlp.FedMLPWorkflow")
    (policy / "resources.json").write_text(json.dumps(resources))
    code, out = run(["nvflare.cli", "simulator", checkout / "job", "-w", home / "strict", "-t", 2], home=home)
    assert code != 0
    assert "'fedmend.methods.fedmlp.FedMLPWorkflow'" in out
    assert "is not in allow_list" in out
    assert not records(home / "strict").exists()


def test_a_report_field_that_the_site_policy_does_not_name_stops_the_run(checkout, home):
    policy = home / "guarded" / "local"
    shutil.copytree(checkout / "simulator_workspace" / "local", policy)
    privacy = json.loads((policy / "privacy.json").read_text())
    allowed = privacy["scopes"][0]["task_result_filters"][0]["args"]["fields"]
    del allowed["learning_degree"]
    (policy / "privacy.json").write_text(json.dumps(privacy))
    code, out = run(["nvflare.cli", "simulator", checkout / "job", "-w", home / "guarded", "-t", 2], home=home)
    assert code != 0
    for site in SITES[:2]:
        sentence = f"expected report fields out of {sorted(allowed)}, got also ['learning_degree']"
        assert f"{site}: ReportGuard: {sentence}" in out
    assert "run stopped: train of round 0: expected valid results from 2 sites, got 0" in out
    assert not (records(home / "guarded") / "results.json").exists()


def test_sites_with_bad_data_stop_the_run_with_a_sentence_each(sites, home, tmp_path):
    cards = {name: json.loads((sites / name / "site.json").read_text()) for name in SITES}
    cards["site-3"]["classes"][0] = "extradural"
    for name, card in cards.items():  # copies, because other tests read these folders
        shutil.copytree(sites / name, tmp_path / name)
        card["image_root"] = str((sites / name / card["image_root"]).resolve())
        (tmp_path / name / "site.json").write_text(json.dumps(card))
    other_label = tmp_path / "site-2" / "train.csv"
    table = other_label.read_text().splitlines()
    table[2] = table[2].rsplit(",", 1)[0] + ",yes"
    other_label.write_text("\n".join(table))
    code, out = fedmend(
        *("simulate", JOB, "--workspace", home / "refused", "--threads", 3, "--sites", 3, "--set", *SETTINGS),
        *("--site", f"data_root={tmp_path}/{{SITE_NAME}}", f"cache_dir={home}/cache"),
        home=home,
    )
    assert code == 1
    column = table[0].rsplit(",", 1)[1]
    value = f"site-2: train.csv row 3, column {column}: expected 1, 0 or blank, got text of 3 characters"
    *_, last = out.splitlines()  # FLARE's code depends on whether it ended by itself or was stopped
    assert (
        re.sub(r"code -?\d+", "code N", last)
        == f"fedmend: simulator: expected a complete run, got exit code N: {value}"
    )
    assert "site-3: site.json, field classes: expected the job's" in out
    assert "extradural" in out
    assert "Traceback" not in out
