"""A federation whose sites keep differential privacy: what its server is told, and what its records say."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from factories import CLASSES, make_site_folder
from federation_factories import small_world
from torch_factories import GroupNetwork

from fedmend.errors import FedMendError
from fedmend.local.local_federation import run_locally
from fedmend.methods.baselines import FedAvg, FedAvgWorkflow
from fedmend.methods.closed_form_sums import ClosedFormSums, ClosedFormSumsWorkflow
from fedmend.report.report import summary_text
from fedmend.site.config import SiteConfig
from fedmend.site.privacy import Privacy

POLICY = Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3)


@pytest.fixture
def play(tmp_path):
    """Runs two rounds; ``private`` names the sites that keep differential privacy."""
    rng = np.random.default_rng(0)
    for number in (1, 2):
        labels = np.array([[1, 0, 1], [0, 1, 0], *rng.integers(0, 2, (4, 3))], dtype=np.int8)
        make_site_folder(tmp_path / "data" / f"site-{number}", labels, splits=("val", "test"))
    before = torch.get_num_threads()

    def run(private, method=None, *, report=False, workflow=None, **job):
        def config(site):
            made = SiteConfig(tmp_path / "data" / site, tmp_path / "cache" / site, tmp_path / "state", threads=1)
            return replace(made, privacy=POLICY) if site in private else made

        with small_world(GroupNetwork, report=report):
            return run_locally(
                workflow=workflow or FedAvgWorkflow(),
                method=method or FedAvg(weighted=False),
                run={"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 2, **job},
                site={"image_size": 32, "batch_size": 4, "learning_rate": 0.01},
                sites=["site-1", "site-2"],
                workspace=tmp_path / "run",
                config_of=config,
                settings={},
            )

    yield run
    torch.set_num_threads(before)


def read(records, name):
    return [json.loads(line) for line in (records / name).read_text().splitlines()]


def test_records_and_report_of_private_sites_hold_epsilon_and_no_number_of_a_class(play):
    pytest.importorskip("opacus")
    records = play(["site-1", "site-2"], report=True)
    sites = json.loads((records / "run.json").read_text())["sites"]
    told = {"delta": 1e-3, "clip": 1.0, "noise_multiplier": 2.0}
    known = {"annotated": list(CLASSES), "train": 6, "preprocessing": sites["site-1"]["preprocessing"]}
    assert sites["site-1"] == {**known, "privacy": {"epsilon": 0.0, "epsilon_rdp": 0.0, **told}}
    spent = [line for line in read(records, "decisions.jsonl") if line["what"] == "privacy"]
    assert [line["round"] for line in spent] == [1, 2]
    assert spent[0]["value"]["site-2"]["epsilon"] < spent[1]["value"]["site-2"]["epsilon"]
    package = json.loads((records / "run-1.fedmend" / "package.json").read_text())
    assert {site: told["privacy"] for site, told in package["sites"].items()} == spent[1]["value"]
    assert read(records, "metrics.jsonl") == read(records, "repairs.jsonl") == []
    epsilon = spent[1]["value"]["site-1"]["epsilon"]
    assert f"Privacy, site-1: epsilon {epsilon:.3g} (PRV), delta 0.001" in summary_text(records).splitlines()
    page = (records / "report.html").read_text(encoding="utf-8")
    assert "Differential privacy" in page
    assert "Loss, label counts and evaluation of these sites stay there" in page


def test_a_site_without_the_policy_still_counts_and_evaluates(play):
    pytest.importorskip("opacus")
    records = play(["site-1"])
    sites = json.loads((records / "run.json").read_text())["sites"]
    assert "positives" not in sites["site-1"]
    assert set(sites["site-2"]["positives"]) == set(CLASSES)
    assert {line["split"] for line in read(records, "metrics.jsonl")} == {"val", "test"}
    spent = [line["value"] for line in read(records, "decisions.jsonl") if line["what"] == "privacy"]
    assert [set(value) for value in spent] == [{"site-1"}, {"site-1"}]


def test_a_run_whose_sites_all_keep_their_evaluation_does_not_say_that_they_have_no_split(play, caplog):
    pytest.importorskip("opacus")
    records = play(["site-1", "site-2"])
    assert "census: expected a val or test split at a site without differential privacy, got none; " in caplog.text
    words = "No model was evaluated: no site without differential privacy has a val or test split."
    assert words in summary_text(records).splitlines()


SUMS = {"workflow": ClosedFormSumsWorkflow(), "network": "projected/resnet_narrow", "num_rounds": 1}


def test_one_exchange_of_sums_makes_heads_and_its_epsilon_is_on_record_and_in_the_report(play):
    pytest.importorskip("opacus")
    records = play(["site-1", "site-2"], ClosedFormSums(), report=True, **SUMS)
    spent = [line for line in read(records, "decisions.jsonl") if line["what"] == "privacy"]
    assert [line["round"] for line in spent] == [1]
    epsilon = spent[0]["value"]["site-1"]["epsilon"]
    assert 1.1 < epsilon < 1.4  # the Gaussian mechanism with noise 2 and delta 1e-3: 1.3
    assert f"Privacy, site-1: epsilon {epsilon:.3g} (PRV), delta 0.001" in summary_text(records).splitlines()
    assert read(records, "metrics.jsonl") == read(records, "repairs.jsonl") == []


def test_a_site_without_the_policy_refuses_sums_with_noise_in_the_census(play):
    pytest.importorskip("opacus")
    words = "site-2: local/fedmend.json, field privacy: expected a policy for a job of sums with noise, got none"
    with pytest.raises(FedMendError, match=words):
        play(["site-1"], ClosedFormSums(), **SUMS)


def test_a_job_that_a_private_site_cannot_bear_ends_before_anybody_trains(play, tmp_path):
    with pytest.raises(FedMendError, match=r"^census of round 0: expected valid results from 2 sites, got 1: site-1: "):
        play(["site-1"], FedAvg())
    assert not (tmp_path / "state" / "run-1" / "server" / "checkpoint.pt").exists()
    assert not (tmp_path / "state" / ".privacy").exists()
