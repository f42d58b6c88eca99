"""The job that trains nothing: what a site counts of subgroups, and what the server makes of it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from factories import refused
from federation_factories import Run, initial, plain_answers
from result_factories import PREPARED
from torch_factories import Says, make_split

import fedmend
from fedmend.evaluation.federated import EvaluateModels, ModelEvaluation, NoTraining
from fedmend.fields import GROUP_COUNTS, GROUP_PEOPLE
from fedmend.kinds import kind_of
from fedmend.kinds.multilabel import BINS
from fedmend.messages import COLLECT
from fedmend.method import RoundTask, Site
from fedmend.records.package_files import write_package

SEX = ["F"] * 6 + ["M"] * 10 + ["D"] * 8
LABELS = np.stack([np.arange(24) % 2, np.ones(24)], axis=1).astype(int)
JOB = {"subgroups": ["sex:F,M", "age:40"]}


def site(evaluate_by=("sex",), *, labels=LABELS, min_count=3, **about):
    split = make_split(labels, file="test.csv")
    split = replace(split, table=replace(split.table, about={"sex": tuple(SEX), **about}))
    data = SimpleNamespace(evaluation={"test": split}, kind="multilabel")
    return Site("site-1", split.device, data, None, None, 8, evaluate_by=evaluate_by, min_count=min_count)


def asked(here, **settings):
    task = RoundTask("evaluate", 0, 1, training=False)
    scores = np.linspace(0.1, 0.9, 48).reshape(24, 2)
    return EvaluateModels(**{**JOB, **settings}).collect(says(scores, here), task, here), scores


def says(scores, here):
    return Says(scores[: len(here.data.evaluation["test"])])


def test_a_site_that_allows_no_column_tells_none():
    assert asked(site(evaluate_by=()))[0] == {}
    assert asked(site(), subgroups=[])[0] == {}
    assert asked(site(), split="val")[0] == {}


def test_counts_of_a_subgroup_are_those_of_its_samples_and_zeros_of_columns_that_are_not_allowed():
    told, _ = asked(site())
    assert told[GROUP_PEOPLE].tolist() == [6, 10, 0, 0]
    counts = told[GROUP_COUNTS].reshape(4, 2, 2, BINS)
    assert counts[0].sum(-1).tolist() == [[3, 3], [0, 6]]
    assert counts[1].sum(-1).tolist() == [[5, 5], [0, 10]]
    assert not counts[2:].any()
    for name, value in told.items():
        letters = {"G": 4, "C": 2, "K": 2 * BINS}
        EvaluateModels.FIELDS[name].check(value, letters, name)


def test_a_small_subgroup_stays_at_the_site_with_what_would_give_it_away():
    told, _ = asked(site(min_count=7), subgroups=["sex:F,M,D"])
    assert told[GROUP_PEOPLE].tolist() == [0, 10, 0]  # F has 6; D, the next smallest, would give it away
    assert told[GROUP_COUNTS].any((1, 2)).tolist() == [False, True, False]
    told, _ = asked(site(min_count=7))  # the 8 in no subgroup of the job hide the 6
    assert told[GROUP_PEOPLE].tolist() == [0, 10, 0, 0]


def test_a_column_that_the_table_lacks_is_one_sentence():
    with refused("site-1: test.csv: expected a column 'age' that site.json lists under columns, got none"):
        asked(site(evaluate_by=("age",)))


def test_more_subgroups_than_a_message_holds_are_refused():
    edges = ",".join(str(n) for n in range(19))
    with refused("job variable subgroups: expected at most 30 groups, got 40"):
        asked(
            site(evaluate_by=("age",), age=("4",) * 24, weight=("4",) * 24),
            subgroups=[f"age:{edges}", f"weight:{edges}"],
        )


@pytest.mark.parametrize("subgroups", [["sex"], ["sex:F", "sex:M"]])
def test_groups_that_depend_on_the_sites_values_are_refused(subgroups):
    with refused(f"job variable subgroups: expected each column once, with values or bands behind it, got {subgroups}"):
        EvaluateModels(subgroups=subgroups)


@pytest.mark.parametrize("packages", [[], ["a", "a"], "a", [1]])
def test_a_job_names_different_packages(packages):
    with refused(f"job variable packages: expected a list of different packages, got {packages!r}"):
        ModelEvaluation(packages=packages)


def test_nobody_is_asked_to_train():
    with refused("site-1: expected to be asked for an evaluation, got a round of a training"):
        NoTraining(EvaluateModels(), None, None, SimpleNamespace(name="site-1")).loss(None)


# ---- the server ------------------------------------------------------------------------------------------------------
BOTH = {"site-1": [1, 0], "site-2": [0, 1]}


def package(folder, name, **changes):
    about = {
        "name": name,
        "phantom": False,
        "kind": "multilabel",
        "classes": ["a", "b"],
        "network": {"name": "tiny"},
        "preprocessing": PREPARED.of_package("multilabel"),
    }
    write_package(folder / "weights" / f"{name}.fedmend", {**about, **changes}, initial(["a", "b"]))
    return f"{name}.fedmend"


def play(folder, packages, *, groups=None, **settings):
    plain = plain_answers(BOTH)

    def answer(name, question, weights, task, evaluate):
        result = plain(name, question, weights, task, evaluate)
        if question == COLLECT and groups:
            people = np.array([3, 3, 0, 0])
            result.report = {GROUP_PEOPLE: people, GROUP_COUNTS: groups(name, result.counts["test"])}
        return result

    workflow = ModelEvaluation(packages=packages, **{**JOB, **settings})
    return Run(folder, workflow, list(BOTH), answer, num_rounds=1)


def of_subgroups(counts, times=1):
    found = np.zeros((4, 2, 2 * BINS), dtype=np.int64)
    found[:2] = times * counts.reshape(2, -1)
    return found


def test_every_site_evaluates_every_package_and_nothing_is_trained(tmp_path):
    names = [package(tmp_path, "one"), package(tmp_path, "two")]
    run = play(tmp_path, names, groups=lambda name, counts: of_subgroups(counts))
    assert run.stopped == ""
    assert run.stages == [("census", 0, "census"), *[("collect", 0, "evaluate")] * 2]
    found = json.loads((run.folder / "results.json").read_text())
    assert list(found["packages"]) == names
    one = found["packages"]["one.fedmend"]
    assert sorted(one["splits"]["test"]["sites"]) == ["site-1", "site-2"]
    assert one["splits"]["test"]["all"]["macro"]["auc"] == 1
    assert one["groups"]["sex F"]["sites"] == ["site-1", "site-2"]
    alone = kind_of("multilabel").site_metrics(plain_answers(BOTH)("site-1", COLLECT, {}, task(), True).counts["test"])
    assert one["groups"]["sex F"]["positives"] == [2 * n for n in alone["positives"]]
    assert "age below 40" not in one["groups"]
    page = (run.folder / "report.html").read_text()
    assert "one.fedmend" in page
    assert "held back" in page
    assert run.transport.saved == {}
    opened = fedmend.Run(run.folder)
    assert (repr(opened), opened.final) == ("run run-1 (ModelEvaluation): finished", {})
    assert list(run.folder.glob("*.fedmend")) == []


def task():
    return RoundTask("evaluate", 0, 1, training=False)


def test_counts_of_subgroups_that_a_site_cannot_have_made_leave_it_out(tmp_path):
    def groups(name, counts):
        return of_subgroups(counts, times=1000 if name == "site-2" else 1)

    run = play(tmp_path, [package(tmp_path, "one")], groups=groups)
    found = json.loads((run.folder / "results.json").read_text())["packages"]["one.fedmend"]
    assert sorted(found["splits"]["test"]["sites"]) == ["site-1"]
    said = (run.folder / "decisions.jsonl").read_text()
    assert "site-2: counts of subgroups: expected at most the samples of its census, got more" in said


def test_a_package_of_something_else_is_refused_before_any_site_evaluates(tmp_path):
    run = play(tmp_path, [package(tmp_path, "one"), package(tmp_path, "two", classes=["b", "a"])])
    where = "job variable packages, package two: expected classes in this order as in this run"
    assert run.stopped == f"{where}, ['a', 'b'], got ['b', 'a']"
    assert run.stages == [("census", 0, "census")]


def test_a_package_whose_fields_are_others_is_one_sentence(tmp_path):
    name = package(tmp_path, "one", network="tiny")
    sentence = "job variable packages, package: expected fields as a run of FedMend writes them, got others"
    assert play(tmp_path, [name]).stopped == sentence


@pytest.mark.parametrize("path", ["../one.fedmend", "/one.fedmend"])
def test_a_package_outside_the_folder_is_refused(tmp_path, path):
    run = play(tmp_path, [path])
    assert run.stopped == f"job variable packages: expected paths below weights_dir, got {path!r}"


def test_a_package_that_is_not_there_is_one_sentence(tmp_path):
    where = "the server's weights folder (weights_dir of its local/fedmend.json)"
    sentence = f"job variable packages: expected one.fedmend in {where}, not found"
    assert play(tmp_path, ["one.fedmend"]).stopped == sentence
