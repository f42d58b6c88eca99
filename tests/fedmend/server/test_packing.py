"""The packages that a run leaves, and a package as the beginning of another run."""

import json
import time
from dataclasses import replace

import pytest
from federation_factories import Run, census, histograms, plain_answers
from result_factories import PREPARED

from fedmend.errors import FedMendError
from fedmend.messages import CENSUS
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.records.package_files import package_digest, read_package
from fedmend.server.checkpoint import Checkpoint

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}


def play(folder, answer=None, sites=BOTH, **options):
    return Run(folder, FedAvgWorkflow(), list(sites), answer or plain_answers(sites), own_machine=True, **options)


def worse(r):
    """A validation AUC that falls after the initial model."""
    return {"val": histograms(*[1 if r == 0 else 0.5] * 2)}


def weights(folder):
    from safetensors.numpy import load_file

    return {name: value.tolist() for name, value in load_file(folder / "weights.safetensors").items()}


def as_lists(model):
    return {name: value.tolist() for name, value in model.items()}


def test_a_run_leaves_its_final_and_its_best_model_with_all_that_using_them_needs(tmp_path):
    run = play(tmp_path)
    final, best = (run.folder / name for name in ("run-1.fedmend", "run-1-best.fedmend"))
    about = read_package(final)
    assert (about["name"], about["model"], about["round"], about["phantom"]) == ("run-1", "final", 3, False)
    assert (about["kind"], about["classes"]) == ("multilabel", ["a", "b"])
    assert about["network"] == {"name": "tiny", "arguments": {"num_classes": 2}}
    assert about["preprocessing"] == PREPARED.of_package("multilabel")
    results = run.content("results.json")
    chosen = {k: v for k, v in results["thresholds"]["final"].items() if k in ("threshold", "not_sure")}
    assert {**about["thresholds"]}.keys() == {*chosen, "temperature", "not_fitted"}
    for c, temperature in enumerate(about["thresholds"]["temperature"]):
        odds = (chosen["threshold"][c] / (1 - chosen["threshold"][c])) ** (1 / temperature)
        assert about["thresholds"]["threshold"][c] == pytest.approx(odds / (1 + odds))
    assert (about["metrics"], about["intervals"]) == (results["final"], results["intervals"])
    assert about["provenance"]["settings"] == {"note": "as configured"}
    assert about["sites"]["site-1"]["train"] == 10
    assert "positives" not in about["sites"]["site-1"]  # exact counts of patients stay in the run folder
    assert about["parent"] is None
    assert weights(final) == as_lists(run.transport.saved["global"])
    assert read_package(best)["round"] == results["best"]["round"]
    assert read_package(best)["intervals"] == results["intervals"] != {}  # all rounds have the same counts here
    assert results["sites"]["test"]["site-1"]["intervals"]["auc"] == [1, 1]
    assert weights(best) == as_lists(run.transport.saved["best"])


def test_a_class_with_few_validation_samples_has_a_reason_in_place_of_a_threshold(tmp_path):
    val = histograms(1, 1)  # ten samples with, and ten without each class, at each of two sites
    val[1, 1, 600] = 2
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: {"val": val}))
    chosen = read_package(run.folder / "run-1.fedmend")["thresholds"]
    assert chosen["not_fitted"] == ["", "1 to 4 positives, 10 needed"]
    assert (chosen["threshold"][1], chosen["not_sure"][1], chosen["temperature"][1]) == (0.5, [0.5, 0.5], 1.0)
    results = run.content("results.json")["thresholds"]["final"]
    assert results["threshold"][1] is results["not_sure"][1] is None  # as BACC (val) of the class is n/a
    assert results["positives"] == [20, 4]


def test_a_run_that_trained_nothing_leaves_no_package(tmp_path):
    run = play(tmp_path, plain_answers(BOTH, step=dict.fromkeys(BOTH, 0.0)))
    assert [file.name for file in run.folder.glob("*.fedmend")] == []


def test_the_time_of_a_run_is_all_that_its_packages_take_from_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "2026-11-25T12:00:00")
    digests = [package_digest(play(tmp_path / name).folder / "run-1.fedmend") for name in "ab"]
    assert digests[0] == digests[1]


@pytest.fixture
def package(tmp_path):
    return play(tmp_path / "first").folder / "run-1.fedmend"


def test_a_run_that_begins_with_a_package_names_it_as_the_parent(tmp_path, package):
    run = play(tmp_path / "second", weights=str(package), run_name="run-2")
    assert run.stopped == ""
    about = read_package(run.folder / "run-2.fedmend")
    parent = {"name": "run-1", "model": "final", "round": 3, "parent": None, "digest": package_digest(package)}
    assert about["parent"] == run.content("run.json")["parent"] == parent
    assert about["provenance"]["trains"] is True
    third = play(tmp_path / "third", weights=str(run.folder / "run-2.fedmend"), run_name="run-3")
    versions = read_package(third.folder / "run-3.fedmend")["parent"]
    assert (versions["name"], versions["parent"]["name"], versions["parent"]["parent"]) == ("run-2", "run-1", None)


def test_a_trained_model_that_no_round_improves_stays_the_best_one(tmp_path, package):
    run = play(tmp_path / "second", plain_answers(BOTH, counts=worse), weights=str(package), report=True)
    page = (run.folder / "report.html").read_text()
    assert "Warm start" in page
    assert "Before training" not in page
    assert run.decisions("best_model") == [(0, {"auc": 1.0, "split": "val"})]
    assert weights(run.folder / "run-1-best.fedmend") == weights(package)
    assert run.content("run.json")["warm_start"] is True
    cold = play(tmp_path / "cold", plain_answers(BOTH, counts=worse))
    assert cold.decisions("best_model") == [(1, {"auc": 0.5, "split": "val"})]


def test_a_run_that_begins_anew_has_no_best_model_of_the_attempt_before(tmp_path, package, monkeypatch):
    def die(*_given, **_options):
        raise FedMendError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(Checkpoint, "save", die)
        assert play(tmp_path / "second", plain_answers(BOTH), weights=str(package)).decisions("best_model")
    run = play(tmp_path / "second", plain_answers(BOTH, counts=worse))
    assert run.decisions("resumed") == []
    assert run.content("results.json")["best"]["round"] == 1
    assert run.moved(model=run.transport.saved["best"]) == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"classes": ["b", "a"]}, "classes in this order as in this run, ['a', 'b'], got ['b', 'a']"),
        ({"kind": "singlelabel"}, "kind of labels as in this run, 'multilabel', got 'singlelabel'"),
        ({"network": {"name": "resnet18"}}, "network as in this run, 'tiny', got 'resnet18'"),
        (
            {"preprocessing": replace(PREPARED, window=None).of_package("multilabel")},
            "preprocessing, window as in this run, [40.0, 80.0], got None",
        ),
    ],
)
def test_a_package_that_was_made_for_something_else_is_refused(tmp_path, package, changed, what):
    from safetensors.numpy import load_file

    from fedmend.records.package_files import write_package

    write_package(package, read_package(package) | changed, load_file(package / "weights.safetensors"))
    run = play(tmp_path / "second", weights=str(package))
    assert run.stopped == f"job variable weights, package run-1: expected {what}"


def test_a_package_that_has_changed_is_refused(tmp_path, package):
    about = json.loads((package / "package.json").read_text())
    (package / "package.json").write_text(json.dumps(about | {"classes": ["b", "a"]}))
    run = play(tmp_path / "second", weights=str(package))
    assert run.stopped.startswith("package run-1.fedmend, package.json: expected the file that SHA256SUMS lists")


def test_what_most_samples_went_through_stands_in_the_package(tmp_path):
    plain = plain_answers(BOTH, samples={"site-1": 10, "site-2": 30})

    def answer(site, question, *rest):
        if question != CENSUS:
            return plain(site, question, *rest)
        result = census(BOTH[site], samples=10 if site == "site-1" else 30)
        window = None if site == "site-1" else (40.0, 80.0)
        result.census["preprocessing"] = replace(PREPARED, window=window).told()
        return result

    about = read_package(play(tmp_path, answer).folder / "run-1.fedmend")
    assert about["preprocessing"] == PREPARED.of_package("multilabel")
    assert about["sites"]["site-1"]["preprocessing"]["window"] is None
