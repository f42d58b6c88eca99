"""A federation in one process: real sites, no messages."""

import json
import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from factories import CLASSES, make_site_folder, refused
from federation_factories import same_models, small_world
from torch_factories import PlainMethod, PlainRound

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.fields import Field
from fedmend.learning.local_norm import kept_norm
from fedmend.local.local_federation import LocalTransport, census_locally, run_locally
from fedmend.local.metering import Meter
from fedmend.method import Workflow
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.package import Package
from fedmend.report.report import summary_text
from fedmend.server.federation import RunSettings
from fedmend.site.config import SiteConfig
from fedmend.site.register import read_register, register_file

RUN = {"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 2, "seed": 3}
SITE = {"image_size": 32, "batch_size": 4, "learning_rate": 0.1}
ROWS = Field(("C",), "float32", 0, 9, "a mean of each class", "means", counted_by="counts")
RUINED = "site-3: result of round 1, weights norm.running_var: expected numbers >= 0, got smaller ones"
COUNTS = Field(("C",), "int64", 0, 99, "samples of each class", "counts")


class Counting(PlainMethod):
    """Reports the number of samples of each class and a mean that tells it."""

    FIELDS = {"rows": ROWS, "counts": COUNTS}  # noqa: RUF012

    def collect(self, model, task, site):
        counts = (site.data.train.labels == 1).sum(0)
        return {"rows": counts.astype(np.float32), "counts": counts}


class Collecting(Workflow):
    METHOD = Counting

    def run(self, fed):
        for _ in fed.rounds():
            reports = {site: a.report for site, a in fed.collect("look").items()}
            fed.record("told", {site: [v.tolist() for v in report.values()] for site, report in reports.items()})


class Without(Counting):
    """Leaves the counts out."""

    def collect(self, model, task, site):
        return {"rows": np.ones(3, np.float32)}


class Interrupted(PlainRound):
    """Ctrl-C arrives at the first batch of site-1."""

    def loss(self, index):
        if self.site.name == "site-1":
            raise KeyboardInterrupt
        return super().loss(index)


class InterruptedMethod(PlainMethod):
    ROUND = Interrupted


class Poisoned(PlainRound):
    """site-3 leaves a variance below zero in the second round, after an honest training."""

    def report(self):
        if (self.site.name, self.task.round_num) == ("site-3", 1):
            self.model.norm.running_var.fill_(-1e12)
        return {}


class PoisonedMethod(PlainMethod):
    ROUND = Poisoned


def make_sites(folder, *, splits=()):
    """Three sites of 7, 8 and 9 samples."""
    rng = np.random.default_rng(0)
    for number in (1, 2, 3):
        labels = np.array([[1, 0, 1], [0, 1, 0], *rng.integers(0, 2, (4 + number, 3))], dtype=np.int8)
        make_site_folder(folder / f"site-{number}", labels, splits=splits)


@pytest.fixture
def play(tmp_path):
    """Runs a job; each site has other labels."""
    make_sites(tmp_path / "data", splits=("val", "test"))
    before = torch.get_num_threads()

    def run(name, method=None, workflow=None, *, threads=0, min_count=1, site=None, meter=None, watch=None, **changes):
        def config(site):
            data = tmp_path / "data" / site
            state = tmp_path / name / "state"
            return SiteConfig(data, tmp_path / "cache" / site, state, min_count, threads=1, max_epochs=0)

        with small_world():
            return run_locally(
                workflow=workflow or FedAvgWorkflow(),
                method=method or PlainMethod(),
                run={**RUN, **changes},
                site={**SITE, **(site or {})},
                sites=["site-2", "site-1", "site-3"],
                workspace=tmp_path / name,
                config_of=config,
                settings={"note": "as configured", **(site or {})},
                threads=threads,
                meter=meter,
                watch=watch,
            )

    yield run
    torch.set_num_threads(before)


def model(records, file="FL_global_model.pt"):
    found = torch.load(records.parent / "app_server" / file, weights_only=True)["model"]
    return {name: value.numpy() for name, value in found.items()}


def lines(records, name):
    return [json.loads(line) for line in (records / name).read_text().splitlines()]


def metrics(records):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines(records, "metrics.jsonl")]


def test_a_run_leaves_the_files_that_flare_s_simulator_leaves(play, tmp_path):
    records = play("run")
    assert records == tmp_path / "run" / "server" / "simulate_job" / "fedmend"
    files = json.loads((records / "results.json").read_text())["files"]
    app = records.parent / "app_server"
    assert files == {
        "global model": str(app / "FL_global_model.pt"),
        "best model": str(app / "best_FL_global_model.pt"),
        "final package": str(records / "run-1.fedmend"),
        "best package": str(records / "run-1-best.fedmend"),
        "records": str(records),
    }
    assert set(model(records)) == set(model(records, "best_FL_global_model.pt"))
    info = json.loads((records / "run.json").read_text())
    assert (info["settings"], sorted(info["sites"])) == ({"note": "as configured"}, ["site-1", "site-2", "site-3"])
    assert (tmp_path / "run" / "state" / "run-1" / "server" / "checkpoint.pt").is_file()


def test_threads_change_no_digit(play):
    one, three = (play(name, threads=n) for name, n in (("one", 1), ("three", 3)))
    assert same_models(model(one), model(three))
    assert metrics(one) == metrics(three)


def test_the_number_of_threads_of_the_process_is_as_before(play):
    torch.set_num_threads(2)
    play("run", num_rounds=1)
    assert torch.get_num_threads() == 2


def test_rows_of_too_few_samples_stay_at_the_site(play):
    everything, guarded = (
        lines(play(str(n), Counting(), Collecting(), min_count=n, num_rounds=1), "decisions.jsonl") for n in (1, 4)
    )
    (told,) = [d["value"] for d in everything if d["what"] == "told"]
    (kept,) = [d["value"] for d in guarded if d["what"] == "told"]
    assert any(0 < count < 4 for _, counts in told.values() for count in counts)
    assert any(count >= 4 for _, counts in told.values() for count in counts)
    assert kept == {site: [[v if v >= 4 else 0 for v in row] for row in rows] for site, rows in told.items()}


def test_every_answer_is_in_the_register_of_its_site(play, tmp_path):
    play("ours")
    lines = read_register(register_file(tmp_path / "ours" / "state", "site-1"))
    assert [line["task"] for line in lines] == ["census", "train", "train", "evaluate"]
    assert {line["run"] for line in lines} == {"run-1"}
    assert ["weights" in line["fields"] for line in lines] == [False, True, True, False]


def test_a_report_without_its_counts_does_not_leave(play):
    sentence = "expected counts with one count per row of rows"
    with refused(
        "collect of round 0: expected valid results from 3 sites, got 0: "
        + "; ".join(f"site-{i}: {sentence}" for i in (1, 2, 3))
    ):
        play("run", Without(), Collecting())


def test_the_sentence_of_a_site_stops_the_run(play, tmp_path):
    (tmp_path / "data" / "site-2" / "train.csv").unlink()
    with refused(
        "census of round 0: expected valid results from 3 sites, got 2: site-2: train.csv: expected beside"
        " site.json, not found"
    ):
        play("run")


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_at_one_site_stops_all_of_them_at_their_next_batch(play, threads):
    with pytest.raises(KeyboardInterrupt):
        play("run", InterruptedMethod(), threads=threads, site={"local_epochs": 10**9})


def test_an_unknown_setting_of_a_run_is_refused_with_those_that_there_are(play):
    known = sorted(field.name for field in fields(RunSettings))
    with refused(f"job: expected the settings {known} of a run, got also ['rounds']"):
        play("run", rounds=3)


@pytest.mark.parametrize("damaged", [False, True])
def test_sites_still_have_what_the_older_checkpoint_needs(play, tmp_path, monkeypatch, damaged):
    """Adam's moments go on over rounds; round 3 was trained, but its results never arrived."""
    options = {"site": {"keep_moments": True}, "num_rounds": 5}
    whole = play("whole", **options)
    exchange = LocalTransport.exchange

    def lost(transport, question, receive, enough):
        exchange(transport, question, receive, enough)
        if (question.name, question.tasks["site-1"].round_num) == ("train", 3):
            raise FedMendError("the server stopped")

    with monkeypatch.context() as patched, refused("the server stopped"):
        patched.setattr(LocalTransport, "exchange", lost)
        play("cut", **options)
    newest = tmp_path / "cut" / "state" / "run-1" / "server" / "checkpoint.pt"
    if damaged:
        newest.write_bytes(newest.read_bytes()[:-1])
    again = play("cut", **options)
    assert [d["value"] for d in lines(again, "decisions.jsonl") if d["what"] == "resumed"] == [
        {"at_round": 3 - damaged}
    ]
    assert same_models(model(again), model(whole))


def test_normalisation_layers_of_their_own_stay_at_the_sites_and_the_package_says_that_they_are_not_in_it(
    play, tmp_path
):
    records = play("run", site={"norm": "local"})
    sent, averaged = model(records), model(play("other"))
    assert sent["norm.running_mean"].tolist() == [0] * 12
    assert np.abs(averaged["norm.running_mean"]).max() > 0.01
    assert not np.array_equal(sent["classifier.weight"], averaged["classifier.weight"])
    kept = {
        site: kept_norm(tmp_path / "run" / "state" / "run-1" / site, 2)["norm.running_mean"].tolist()
        for site in ("site-1", "site-2", "site-3")
    }
    assert len({tuple(found) for found in kept.values()}) == 3
    with refused(
        "package run-1.fedmend: expected a whole model, its normalisation layers stayed at the sites (norm local);"
        " `fedmend personalise` at a site makes a package that has the site's own"
    ):
        Package(records / "run-1.fedmend").network()


def test_classifiers_are_solved_behind_the_layers_of_the_last_round_also_when_a_job_goes_on(play, monkeypatch):
    options = {"site": {"norm": "local"}, "refit": True}
    whole, exchange, asked = play("whole", **options), LocalTransport.exchange, []

    def killed(transport, question, *given):
        asked.append((question.name, question.round_num))
        if question.name == "collect":
            raise FedMendError("killed")
        exchange(transport, question, *given)

    with monkeypatch.context() as patched, refused("killed"):
        patched.setattr(LocalTransport, "exchange", killed)
        play("again", **options)
    assert asked[-1] == ("collect", 2)  # after two rounds, so that a site takes what it kept in the second
    assert same_models(model(play("again", **options)), model(whole))


def test_a_site_that_ruins_a_round_is_named_and_the_next_job_goes_on_without_it_from_the_last_good_model(
    play, tmp_path
):
    with refused(f"train of round 1: expected valid results from 3 sites, got 2: {RUINED}"):
        play("run", PoisonedMethod(), num_rounds=4)
    checkpoint = StateStore(tmp_path / "run" / "state" / "run-1" / "server").load("checkpoint")
    assert checkpoint["round"] == 1
    assert (checkpoint["weights"]["norm.running_var"] > 0).all()
    records = play("run", PoisonedMethod(), num_rounds=4, without=["site-3"])
    assert sorted(json.loads((records / "run.json").read_text())["sites"]) == ["site-1", "site-2"]
    assert [line["round"] for line in metrics(records) if line["split"] == "val"] == [0, 1, 2, 3, 4]
    assert all(np.isfinite(value).all() for value in model(records).values())


def test_a_run_does_not_go_on_with_another_test_split_unless_the_lead_wants_it(play, tmp_path):
    with refused("train of round 1: expected valid results from 3 sites, got 2: " + RUINED):
        play("run", PoisonedMethod())
    table = tmp_path / "data" / "site-2" / "test.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-3]))
    with refused(
        "run_name 'run-1': expected the images and labels that the run has seen at each site, got others (site-2:"
        " test); have the earlier ones put back, choose another run_name, or go on with these on purpose by"
        ' allow_changes=["evaluation_data"]'
    ):
        play("run", PoisonedMethod(), without=["site-3"])
    records = play("run", PoisonedMethod(), without=["site-3"], allow_changes=["evaluation_data"])
    assert "Other data than before from round 2 on: site-2: [test]" in summary_text(records)


def test_such_a_site_costs_itself_alone_where_min_sites_allows_it(play):
    records = play("run", PoisonedMethod(), num_rounds=4, min_sites=2)
    (refusal,) = [line for line in lines(records, "decisions.jsonl") if line["what"] == "refused"]
    assert (refusal["round"], refusal["value"]["site"]) == (1, "site-3")


def test_a_meter_counts_what_each_site_gets_sends_and_does(play):
    with Meter() as meter:
        records = play("run", meter=meter)
    found = meter.measured()["sites"]
    size = sum(value.nbytes for value in model(records).values())
    assert set(found) == {"site-1", "site-2", "site-3"}
    for counted in found.values():
        assert counted["rounds"] == 2
        assert counted["received"] == 3 * size  # two rounds and the evaluation at the end
        assert 2 * size <= counted["sent"]
        assert counted["steps"] == 4  # 7, 8 and 9 samples are two batches of 4, a last one of one joins the one before


def test_pictures_of_the_run_are_handed_to_whoever_watches(play):
    seen = []
    play("run", watch=lambda picture: seen.append((picture["state"], picture.get("done", 0))))
    assert (seen[0], seen[-1]) == (("starts", 0), ("finished", 2))
    assert ("runs", 1) in seen


def test_a_census_is_that_of_the_run_and_refuses_what_the_run_would(play, tmp_path):
    play("run")
    workspace = tmp_path / "run"

    def config(site):
        return SiteConfig(tmp_path / "data" / site, tmp_path / "cache", workspace / "state", threads=1)

    def census(**changes):
        sites = ("site-1", "site-2")
        with small_world():
            return census_locally(
                method=PlainMethod(), run=RUN | changes, site=SITE, sites=sites, workspace=workspace, config_of=config
            )

    assert census().sizes["site-1"]["train"] == census().facts["site-1"].samples
    with pytest.raises(
        FedMendError, match=r"^site-[12]: site\.json, field classes: expected the job's \['other'\], got "
    ):
        census(classes=["other"])


def test_a_hospital_has_the_numbers_that_the_server_has_of_it(play, tmp_path):
    records = play("run")
    final = json.loads((records / "results.json").read_text())["sites"]
    for site in ("site-1", "site-2", "site-3"):
        own = json.loads((tmp_path / "run" / "state" / "run-1" / site / "site_results.json").read_text())
        assert (own["site"], own["round"]) == (site, 2)
        for split in ("val", "test"):
            few = final[split][site]["held_back"]
            known = [v for v, held in zip(own["metrics"][split]["per_class"]["auc"], few, strict=True) if not held]
            told = [v for v, held in zip(final[split][site]["per_class"]["auc"], few, strict=True) if not held]
            assert told == pytest.approx(known, abs=1e-12)


def test_a_run_without_a_split_to_evaluate_on_says_so_at_its_census_and_in_its_report(play, tmp_path, caplog):
    make_sites(tmp_path / "data")
    records = play("run")
    assert "census: expected a val or test split at a site, got none; nothing will say how good the" in caplog.text
    assert "No model was evaluated: no site has a val or test split." in summary_text(records)
    results = json.loads((records / "results.json").read_text())
    assert (results["final"], results["best"]) == ({}, {"round": None})
    assert "best model" not in results["files"]
    assert np.isfinite(model(records)["classifier.weight"]).all()


def test_one_site_without_a_test_split_trains_and_is_left_out_of_the_numbers(play, tmp_path, caplog):
    make_site_folder(tmp_path / "data" / "site-2", np.array([[1, 0, 1], [0, 1, 0]] * 4, np.int8), splits=("val",))
    results = json.loads((play("run") / "results.json").read_text())
    assert "got none; nothing will say" not in caplog.text
    assert (sorted(results["sites"]["test"]), len(results["sites"]["val"])) == (["site-1", "site-3"], 3)


@pytest.mark.parametrize("only", [0, 1])
def test_a_site_whose_column_has_one_value_stops_the_run_at_its_census(play, tmp_path, only):
    make_site_folder(tmp_path / "data" / "site-2", np.full((6, 3), only, np.int8), splits=("val", "test"))
    with refused(
        "census of round 0: expected valid results from 3 sites, got 2: site-2: train.csv, column edema: expected both"
        f" 0 and 1 (a class prior between 0 and 1), got only {only}; leave the column out if the class is not annotated"
        " here"
    ):
        play("run")


def test_images_that_vanish_during_a_run_change_no_digit_of_it_and_the_next_run_names_their_row(play, tmp_path):
    class Deleting(PlainRound):
        def report(self):
            shutil.rmtree(tmp_path / "data" / self.site.name / "images", ignore_errors=True)
            return {}

    class DeletingMethod(PlainMethod):
        ROUND = Deleting

    whole = model(play("whole"))
    assert same_models(model(play("run", DeletingMethod())), whole)
    assert not list((tmp_path / "data").glob("*/images"))
    with pytest.raises(
        FedMendError, match=r"site-2: train\.csv row 2, column image: expected a file below image_root, no"
    ):
        play("later")
