import json
import os

import numpy as np
import pytest
from factories import refused

from fedmend.errors import WAY_ON
from fedmend.records import run_records as records_module
from fedmend.records.run_records import LineFile, RunRecords

CLASSES = ("a", "b", "c")
ANNOTATED = np.array([True, False, False])


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def counts(positive, negative, **correct):
    values = {"positive": [0, *positive], "negative": [0, *negative], "untagged": [0, 5, 5], **correct}
    return {name: np.array(v) for name, v in values.items()}


def merged(auc):
    return {"per_class": {"auc": [auc]}, "macro": {"auc": auc}, "positives": [1], "negatives": [2]}


def test_the_description_is_written_when_the_run_starts(tmp_path):
    RunRecords(tmp_path / "new" / "run").start({"method": "fedmlp", "classes": list(CLASSES)})
    folder = tmp_path / "new" / "run"
    assert json.loads((folder / "run.json").read_text()) == {"method": "fedmlp", "classes": list(CLASSES)}
    assert lines(folder, "metrics.jsonl") == lines(folder, "repairs.jsonl") == lines(folder, "decisions.jsonl") == []


def test_a_decision_is_on_disk_at_once(tmp_path):
    records = RunRecords(tmp_path)
    records.decision("noisy_clients", ["site-2"], 3)
    (line,) = lines(tmp_path, "decisions.jsonl")
    assert line.pop("time")
    assert line == {"round": 3, "what": "noisy_clients", "value": ["site-2"]}
    assert records.decisions[0]["what"] == "noisy_clients"


def test_metrics_are_one_line_per_round_and_split(tmp_path):
    records = RunRecords(tmp_path)
    records.metrics(1, "warmup", "val", merged(0.5), 1.234)
    records.metrics(1, "warmup", "test", merged(0.6), 1.234)
    records.write()
    first, second = lines(tmp_path, "metrics.jsonl")
    assert first == {"round": 1, "stage": "warmup", "split": "val", **merged(0.5), "seconds": 1.23}
    assert (second["split"], second["macro"]) == ("test", {"auc": 0.6})


def test_repairs_are_one_line_per_class_that_the_site_does_not_annotate(tmp_path):
    records = RunRecords(tmp_path)
    records.repairs(1, "site-1", CLASSES, ANNOTATED, counts([2, 1], [4, 0], correct_positive=[0, 1, 1]))
    records.write()
    b, c = lines(tmp_path, "repairs.jsonl")
    assert b == {
        "round": 1,
        "site": "site-1",
        "class": "b",
        "positive": 2,
        "negative": 4,
        "untagged": 5,
        "correct_positive": 1,
        "correct_negative": None,  # unknown
        "new_positive": 2,
        "new_negative": 4,
    }
    assert (c["class"], c["new_positive"], c["new_negative"]) == ("c", 1, 0)


def test_new_repairs_are_the_growth_since_the_sites_round_before(tmp_path):
    records = RunRecords(tmp_path)
    records.repairs(1, "site-1", CLASSES, ANNOTATED, counts([2, 1], [4, 0]))
    records.repairs(1, "site-2", CLASSES, ANNOTATED, counts([9, 9], [9, 9]))
    records.repairs(2, "site-1", CLASSES, ANNOTATED, counts([5, 1], [4, 3]))
    records.write()
    assert len(lines(tmp_path, "repairs.jsonl")) == 6
    b, c = lines(tmp_path, "repairs.jsonl")[-2:]
    assert (b["positive"], b["new_positive"], b["new_negative"]) == (5, 3, 0)
    assert (c["positive"], c["new_positive"], c["new_negative"]) == (1, 0, 3)


def test_new_repairs_after_a_resume_are_the_growth_since_the_checkpoint(tmp_path):
    first, second = (RunRecords(tmp_path / name, tmp_path) for name in ("first", "second"))
    first.repairs(1, "site-1", CLASSES, ANNOTATED, counts([2, 1], [4, 0]))
    second.restore(first.dump())
    second.repairs(2, "site-1", CLASSES, ANNOTATED, counts([5, 1], [4, 3]))
    assert [(r["class"], r["round"], r["new_positive"]) for r in second.latest_repairs] == [("b", 2, 3), ("c", 2, 0)]


class Name(str):
    """The name of a site that counts how often it is compared."""

    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_the_line_before_is_found_without_a_walk_through_all_lines(tmp_path):
    records = RunRecords(tmp_path)
    for round_num in (1, 2):
        Name.compared = 0
        for i in range(20):
            records.repairs(round_num, Name(f"site-{i}"), CLASSES, ANNOTATED, counts([2, 1], [4, 0]))
    assert len(records.latest_repairs) == 40
    assert Name.compared <= 2 * 40  # at most one look-up and one replacement for each line


def test_a_round_is_counted_once(tmp_path):
    records = RunRecords(tmp_path)
    for _ in range(2):
        records.repairs(1, "site-1", CLASSES, ANNOTATED, counts([2, 1], [4, 0]))
    records.write()
    assert len(lines(tmp_path, "repairs.jsonl")) == 2


def test_results_hold_the_last_and_the_best_rounds_metrics(tmp_path):
    records = RunRecords(tmp_path)
    for round_num, auc in ((1, 0.5), (2, 0.9), (3, 0.7)):
        records.metrics(round_num, "train", "val", merged(auc), 0)
        records.metrics(round_num, "train", "test", merged(auc - 0.1), 0)
    records.decision("best_model", 0.5, 1)
    records.decision("best_model", 0.9, 2)
    records.decision("other", 1, 3)
    alone = {"test": {"site-1": {"macro": {"auc": 0.6}}}}
    told = {"intervals": {"test": {"auc": [0.5, 0.7]}}, "thresholds": {"best": {}}, "sites": alone}
    records.finish({"model": "model.pt"}, 12.34, rounds=3, **told)
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "final": {"val": {"auc": 0.7}, "test": {"auc": pytest.approx(0.6)}},
        "intervals": {"test": {"auc": [0.5, 0.7]}},
        "thresholds": {"best": {}},
        "best": {"round": 2, "val": {"auc": 0.9}, "test": {"auc": pytest.approx(0.8)}},
        "sites": alone,
        "files": {"model": "model.pt"},
        "seconds": 12.3,
    }
    assert len(lines(tmp_path, "metrics.jsonl")) == 6


def test_a_run_without_metrics_has_empty_results(tmp_path):
    RunRecords(tmp_path).finish({}, 1, rounds=3, intervals={}, sites={}, thresholds={})
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["final"], results["best"]) == ({}, {"round": None})


# ---- files that grow ------------------------------------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch):
    """Lengths of the texts that are written, in order."""
    lengths = []

    def count(write):
        return lambda *given: (lengths.append(len(given[-1])), write(*given))

    for name in ("write_text", "append_text"):
        monkeypatch.setattr(records_module, name, count(getattr(records_module, name)))
    return lengths


def test_a_decision_costs_the_same_however_many_there_are(tmp_path, written):
    records = RunRecords(tmp_path)
    for _ in range(50):
        records.decision("corrected", ["site-2"], 1)
    assert len(lines(tmp_path, "decisions.jsonl")) == 50
    assert len(written) == 50
    assert len(set(written)) == 1


def test_a_round_costs_the_same_however_many_there_were(tmp_path, written):
    records, costs, dumped = RunRecords(tmp_path / "run", tmp_path), [], []
    for round_num in range(1, 10):
        del written[:]
        records.metrics(round_num, "train", "val", merged(0.5), 0)
        records.repairs(round_num, "site-1", CLASSES, ANNOTATED, counts([2, 1], [4, 0]))
        records.write()
        dumped.append(len(records.dump()))
        costs.append(sum(written))
    assert max(costs[1:]) <= costs[0]  # all repairs of the first round are new ones
    assert max(dumped) < 400
    assert len(lines(tmp_path / "run", "repairs.jsonl")) == len(lines(tmp_path, "repairs.jsonl")) == 18


def test_a_file_of_an_earlier_run_gives_way_to_the_first_records(tmp_path):
    (tmp_path / "decisions.jsonl").write_text('{"what": "old"}\n{"wh')
    records = RunRecords(tmp_path)
    records.decision("a", 1)
    records.decision("b", 2)
    assert [d["what"] for d in lines(tmp_path, "decisions.jsonl")] == ["a", "b"]


def test_a_line_that_a_full_disk_cut_off_is_written_whole_by_the_next_one(tmp_path, monkeypatch):
    def cut(handle):
        os.truncate(handle, os.fstat(handle).st_size - 5)
        raise OSError("full")

    records = RunRecords(tmp_path)
    records.decision("a", 1)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", cut)
        with pytest.raises(OSError, match="full"):
            records.decision("b", 2)
    assert not (tmp_path / "decisions.jsonl").read_text().endswith("\n")
    records.decision("c", 3)
    assert [d["what"] for d in lines(tmp_path, "decisions.jsonl")] == ["a", "b", "c"]


# ---- a job that goes on ---------------------------------------------------------------------------------------------


def test_records_of_a_checkpoint_come_before_those_made_since(tmp_path):
    first, second = (RunRecords(tmp_path / name, tmp_path) for name in ("first", "second"))
    first.decision("a", 1, 0)
    first.metrics(1, "train", "val", merged(0.5), 0)
    second.decision("b", 2, 1)
    second.restore(first.dump())
    second.write()
    assert [d["what"] for d in lines(tmp_path / "second", "decisions.jsonl")] == ["a", "b"]
    assert len(lines(tmp_path / "second", "metrics.jsonl")) == 1


def test_what_was_written_after_the_checkpoint_is_cut_off_in_both_folders(tmp_path):
    first = RunRecords(tmp_path / "run", tmp_path)
    first.decision("a", 1, 0)
    older = first.dump()
    first.decision("lost", 1, 1)
    first.dump()
    for folder in (tmp_path, tmp_path / "run"):
        with open(folder / "decisions.jsonl", "a") as stream:
            stream.write('{"time": "20')  # the process was killed
    second = RunRecords(tmp_path / "run", tmp_path)
    second.restore(older)
    second.decision("b", 2, 1)
    second.dump()
    for folder in (tmp_path, tmp_path / "run"):
        assert [d["what"] for d in lines(folder, "decisions.jsonl")] == ["a", "b"]


@pytest.mark.parametrize("content", [None, "", '{"what": "b"}\n'])
def test_kept_lines_that_are_lost_or_changed_are_one_sentence(tmp_path, content):
    file = LineFile(tmp_path / "decisions.jsonl")
    file.write([{"what": "a"}])
    (tmp_path / "decisions.jsonl").unlink()
    if content is not None:
        (tmp_path / "decisions.jsonl").write_text(content)
    with refused(
        f"decisions.jsonl beside the checkpoint: expected the lines that the checkpoint counts, got others; {WAY_ON}"
    ):
        LineFile(tmp_path / "decisions.jsonl").read(file.extent())
