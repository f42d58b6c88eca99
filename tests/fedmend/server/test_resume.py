"""A job of the same run_name goes on where an earlier one stopped."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from federation_factories import Run, Script, failing, histograms, initial, plain_answers, same_models
from full_disk import full_disk

from fedmend.errors import FedMendError
from fedmend.messages import CENSUS, EVALUATE, TRAIN
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.records.run_records import RunRecords
from fedmend.server import federation, fingerprint
from fedmend.server.checkpoint import Checkpoint

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}


def play(folder, answer=None, sites=BOTH, workflow=None, **options):
    return Run(folder, workflow or FedAvgWorkflow(), list(sites), answer or plain_answers(sites), **options)


def crashing(round_num, question=TRAIN, answer=None):
    """Sites of which site-1 fails in a round."""
    return failing(
        answer or plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (question, round_num)
    )


def metrics(run):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines("metrics.jsonl")]


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_job_submitted_again_goes_on_to_the_same_bytes(tmp_path, stopped_at):
    answer = plain_answers(BOTH, samples={"site-1": 10, "site-2": 31}, step={"site-1": 0.1, "site-2": 0.7})
    whole = play(tmp_path / "whole", answer)
    assert play(tmp_path / "crash", crashing(stopped_at, answer=answer)).stopped
    resumed = play(tmp_path / "crash", answer, job="job-2")
    assert resumed.rounds() == list(range(stopped_at, 3))
    assert same_models(whole.model, resumed.model)
    assert resumed.decisions("resumed") == ([(None, {"at_round": stopped_at})] if stopped_at else [])
    assert metrics(resumed) == metrics(whole)


def test_what_killed_jobs_of_a_run_left_half_written_at_the_server_is_gone_when_it_goes_on(tmp_path):
    play(tmp_path, crashing(1))
    left = [tmp_path / "state" / "run-1" / "server" / name for name in (".checkpoint.pt.025bcf20", ".best.pt.173340f8")]
    for file in left:
        file.write_bytes(b"half")
    assert play(tmp_path, job="job-2").rounds() == [1, 2]
    assert not any(file.exists() for file in left)


def test_the_picture_of_a_run_that_goes_on_begins_with_the_rounds_that_are_done(tmp_path):
    seen = []

    def watched(transport):
        transport.show = lambda picture: seen.append((picture["state"], picture.get("done")))

    play(tmp_path, crashing(2))
    play(tmp_path, prepare=watched)
    assert min(done for state, done in seen if state == "runs" and done is not None) == 2
    assert seen[-1] == ("finished", 3)
    again = play(tmp_path, prepare=watched)
    assert again.content("progress.json")["done"] == 3


def test_a_run_goes_on_without_the_only_annotator_of_a_class_and_names_the_class(tmp_path, caplog):
    play(tmp_path, crashing(1))
    left = {"site-1": BOTH["site-1"]}  # site-2 alone annotates the second class
    run = play(tmp_path, sites=left)
    assert run.stopped == ""
    assert run.decisions("classes_without_annotator") == [(1, ["b"])]
    assert "round 2: no site that annotates b took part" in caplog.text
    assert run.rounds() == [1, 2]


def test_what_was_said_of_a_run_is_not_said_again_by_the_next_job_and_is_taken_back_by_it(tmp_path):
    sites, samples = {"site-1": [1, 0], "site-2": [0, 1], "site-3": [1, 0]}, {"site-1": 40, "site-2": 10, "site-3": 10}
    plain, stopped = plain_answers(sites, samples=samples), {"site-2": (1, 2), "site-1": (2,), "site-3": (2,)}

    def crash(site, question, weights, task, evaluate):
        if question == TRAIN and task.round_num in stopped[site]:
            return FedMendError("the site is gone")
        return plain(site, question, weights, task, evaluate)

    options = {"sites": sites, "min_sites": 2}
    assert play(tmp_path, crash, **options).stopped
    run = play(tmp_path, plain, **options)
    assert run.stopped == ""
    assert run.decisions("classes_without_annotator") == [(1, ["b"]), (2, [])]
    assert run.decisions("capped") == [(0, {"site": "site-1", "samples": 40, "counted": 20})]


def test_a_finished_run_is_handed_over_again_and_names_the_job_that_did_it(tmp_path, caplog):
    whole = play(tmp_path, repairing)
    for job in ("job-2", "job-3"):
        again = play(tmp_path, repairing, job=job)
        assert again.stages == [(CENSUS, 0, "census"), (EVALUATE, 3, "evaluate")]
        assert same_models(again.transport.saved["global"], whole.transport.saved["global"])
        assert same_models(again.transport.saved["best"], whole.transport.saved["best"])
        assert again.content("results.json")["final"] == whole.content("results.json")["final"]
        assert records(again) == records(whole)
        assert again.decisions("no_round_left") == [(3, {"job": "job-1"})]
    assert "run_name 'run-1': all 3 rounds were done before by job job-1; nothing is trained, " in caplog.text
    assert play(tmp_path, seed=1).stopped.endswith('allow_changes=["seed"]')


class Killed(BaseException):
    """Ends a job as a killed process does: nothing is told, nothing is tidied."""


def dying(transport, at):
    """The transport of a job that is killed when it is about to do ``at``: save a model, or ask a question."""
    save, exchange = transport.save_model, transport.exchange

    def saving(weights, *, best=False):
        if at == ("best" if best else "global"):
            raise Killed
        return save(weights, best=best)

    def exchanging(question, *given):
        if at == question.name:
            raise Killed
        exchange(question, *given)

    transport.save_model, transport.exchange = saving, exchanging


@pytest.mark.parametrize("at", ["global", EVALUATE, "best", "package", "report"])
def test_a_job_killed_after_its_last_checkpoint_is_submitted_again_and_hands_everything_over(tmp_path, monkeypatch, at):
    def killed(*_given, **_options):
        raise Killed

    page = at == "report"  # whose figures take a second
    whole = play(tmp_path / "whole", repairing, report=page)
    with monkeypatch.context() as patched:
        if at == "package":
            patched.setattr(federation, "pack", killed)
        if at == "report":
            patched.setattr(RunRecords, "finish", killed)
        with pytest.raises(Killed):
            play(tmp_path, repairing, prepare=lambda transport: dying(transport, at))
    again = play(tmp_path, repairing, job="job-2", report=page)
    assert (again.stopped, again.rounds()) == ("", [])
    assert again.decisions("no_round_left") == [(3, {"job": "job-1"})]
    assert same_models(again.transport.saved["global"], whole.transport.saved["global"])
    assert same_models(again.transport.saved["best"], whole.transport.saved["best"])
    assert again.content("results.json")["final"] == whole.content("results.json")["final"]
    assert records(again) == records(whole)
    files = [{str(f.relative_to(run.folder)) for f in run.folder.rglob("*") if f.is_file()} for run in (again, whole)]
    assert files[0] == files[1]
    assert {"run-1.fedmend/weights.safetensors", "run-1-best.fedmend/weights.safetensors"} <= files[0]
    assert ("report.html" in files[0]) == page


def test_a_failed_final_evaluation_costs_no_model_and_the_run_can_be_finished(tmp_path):
    failed = play(tmp_path, failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == EVALUATE))
    assert failed.stopped.startswith("evaluate of round 3: expected valid results from 2 sites, got 1")
    assert not (failed.folder / "results.json").exists()
    saved = failed.transport.saved["global"]
    assert failed.moved(model=saved) == pytest.approx([3, 3])
    again = play(tmp_path)
    assert again.stopped == ""
    assert again.stages == [(CENSUS, 0, "census"), (EVALUATE, 3, "evaluate")]
    assert same_models(again.transport.saved["global"], saved)
    assert again.content("results.json")["final"]["test"]["auc"] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, {"seed": "before 7, now 1"}),
        ({"method": "fedprox"}, {"method": 'before "", now "fedprox"'}),
        ({"network": "other"}, {"network": 'before "tiny", now "other"'}),
        ({"classes": ["b", "a"]}, {"classes": 'before ["a", "b"], now ["b", "a"]'}),
        ({"min_sites": 1, "eval_every": 2}, {"eval_every": "before 1, now 2", "min_sites": "before 0, now 1"}),
        ({"num_rounds": 5}, {"num_rounds": "before 3, now 5"}),
        ({"described": {"note": "another"}}, {"note": 'before "as configured", now "another"'}),
        ({"described": {"lr": 0.1}}, {"lr": "before nothing, now 0.1", "note": 'before "as configured", now nothing'}),
        ({"workflow": Script(lambda fed: None)}, {"workflow": 'before "FedAvgWorkflow", now "Script"'}),
        ({"made_by": {"method.class": "A"}}, {"method.class": 'before nothing, now "A"'}),
    ],
)
def test_another_run_under_the_same_name_is_refused_with_every_difference(tmp_path, changes, said):
    play(tmp_path, crashing(1))
    again = play(tmp_path, **changes)
    assert again.stopped == (
        "run_name 'run-1': expected the settings of the job before, got others ("
        + "; ".join(f"{name}: {values}" for name, values in said.items())
        + f"); choose another run_name, or change them on purpose by allow_changes={json.dumps(list(said))}"
    )
    assert again.asked == []


def test_another_version_of_a_package_is_a_difference_and_may_be_allowed(tmp_path, monkeypatch):
    play(tmp_path, crashing(1))
    monkeypatch.setattr(fingerprint, "_version", lambda package: "9.9" if package == "torch" else "1")
    again = play(tmp_path)
    assert 'torch: before "' in again.stopped
    assert '", now "9.9"' in again.stopped
    assert again.stopped.endswith('allow_changes=["fedmend", "monai", "numpy", "nvflare", "torch", "torchvision"]')
    allowed = play(tmp_path, allow_changes=list(fingerprint.PACKAGES))
    assert allowed.stopped == ""
    ((_, changed),) = allowed.decisions("changed")
    assert changed["torch"][1] == "9.9"


@pytest.mark.parametrize(("network", "counts"), [("timm/test_resnet", True), ("resnet18", False)])
def test_the_version_of_timm_counts_where_the_network_is_one_of_its(network, counts):
    assert ("timm" in fingerprint.fingerprint({"network": network})) is counts


def test_the_content_of_the_weights_file_counts_not_its_name_alone(tmp_path):
    for content in ("one", "other"):
        (tmp_path / "job-1").mkdir(exist_ok=True)
        start = {k: v + (content == "other") for k, v in initial(["a", "b"]).items()}
        torch.save({k: torch.from_numpy(v) for k, v in start.items()}, tmp_path / "job-1" / "start.pt")
        run = play(tmp_path, crashing(1), weights="start.pt")
        if content == "one":
            assert run.stopped.startswith("train of round 1")
    # The hash of a file, which tells what is in it, is said in no sentence and no record.
    said = 'expected the settings of the job before, got others (weights_file: before "a file", now "a file");'
    assert said in run.stopped
    assert run.stopped.endswith('allow_changes=["weights_file"]')
    allowed = play(tmp_path, weights="start.pt", allow_changes=["weights_file"])
    assert allowed.decisions("changed") == [(None, {"weights_file": ["a file", "a file"]})]


def test_a_job_of_another_person_is_refused_and_cannot_be_allowed(tmp_path):
    mine, yours = ({"submitter": name} for name in ("lead@a", "lead@b"))
    play(tmp_path, crashing(1), made_by=mine)
    for options in ({}, {"allow_changes": ["submitter"]}):
        again = play(tmp_path, made_by=yours, **options)
        assert again.stopped == (
            "run_name 'run-1': expected a job of the person who submitted the run first, got one of another person;"
            " choose another run_name"
        )
        assert again.asked == []
    assert play(tmp_path, made_by=mine).stopped == ""


def test_the_number_of_rounds_may_be_raised_on_purpose_while_a_run_is_unfinished(tmp_path, caplog):
    play(tmp_path, crashing(2))
    more = play(tmp_path, num_rounds=5, allow_changes=["num_rounds"])
    assert more.rounds() == [2, 3, 4]
    assert more.moved() == pytest.approx([5, 5])
    assert more.decisions("changed") == [(None, {"num_rounds": [3, 5]})]
    assert "the run goes on with other settings, as allow_changes says: num_rounds" in caplog.text


def test_what_was_changed_on_purpose_counts_for_the_next_job(tmp_path):
    play(tmp_path, crashing(1))
    play(tmp_path, crashing(2), seed=1, allow_changes=["seed"])
    assert play(tmp_path, seed=7).stopped.endswith('allow_changes=["seed"]')
    assert play(tmp_path, seed=1).stopped == ""


def test_fewer_rounds_than_are_done_are_refused_also_on_purpose(tmp_path):
    play(tmp_path, crashing(2))
    assert play(tmp_path, num_rounds=1, allow_changes=["num_rounds"]).stopped == (
        "run_name 'run-1': expected num_rounds of at least the 2 rounds that are done, got 1"
    )
    assert play(tmp_path, num_rounds=2, allow_changes=["num_rounds"]).rounds() == []


# ---- damage and full disks ------------------------------------------------------------------------------------------
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_to_the_same_bytes(tmp_path, caplog):
    whole = play(tmp_path / "whole")
    play(tmp_path / "crash", crashing(2))
    file = tmp_path / "crash" / "state" / "run-1" / "server" / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:-1])
    resumed = play(tmp_path / "crash", job="job-2")
    assert resumed.rounds() == [1, 2]
    assert same_models(whole.model, resumed.model)
    assert metrics(resumed) == metrics(whole)
    assert resumed.decisions("checkpoint_damaged") == [(None, {"at_round": 1})]
    assert "the newest checkpoint is damaged; the run goes on from that after round 1" in caplog.text


def repairing(site, question, weights, task, evaluate):
    """Sites that repair one more label of every class in each round."""
    result = plain_answers(BOTH)(site, question, weights, task, evaluate)
    if question in (TRAIN, EVALUATE):
        done = np.full(2, min(task.round_num + 1, 3))
        result.repairs = {"positive": done, "negative": done, "untagged": done}
    return result


def records(run):
    """All records without times and without those that say that the run goes on."""
    lines = [line for name in ("metrics", "repairs", "decisions") for line in run.lines(f"{name}.jsonl")]
    kept = [line for line in lines if line.get("what") not in ("resumed", "checkpoint_damaged", "no_round_left")]
    return [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in kept]


@pytest.mark.parametrize("job", ["job-1", "job-2"], ids=["same run folder", "another"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_killed_in_the_middle_of_a_line_leaves_the_same_records_in_the_end(tmp_path, monkeypatch, damaged, job):
    whole = play(tmp_path / "whole", repairing)
    save = Checkpoint.save

    def die(checkpoint, done, *content, **options):
        if done == 3:
            raise FedMendError("killed")
        save(checkpoint, done, *content, **options)

    with monkeypatch.context() as dying:
        dying.setattr(Checkpoint, "save", die)
        killed = play(tmp_path / "crash", repairing)
    assert killed.stopped == "killed"
    server = tmp_path / "crash" / "state" / "run-1" / "server"
    for file in (*server.glob("*.jsonl"), *killed.folder.glob("*.jsonl")):
        with open(file, "a") as stream:
            stream.write('{"round": 3, "wh')
    if damaged:
        (server / "checkpoint.pt").write_bytes((server / "checkpoint.pt").read_bytes()[:-1])
    resumed = play(tmp_path / "crash", repairing, job=job)
    assert resumed.rounds() == list(range(2 - damaged, 3))
    assert records(resumed) == records(whole)
    assert len(whole.lines("repairs.jsonl")) == 3 * 2
    for name in ("metrics", "repairs", "decisions"):
        kept, whole_file = (folder / f"{name}.jsonl" for folder in (server, resumed.folder))
        assert whole_file.read_text().startswith(kept.read_text())  # which ends with the last checkpoint


@pytest.mark.parametrize("full_in", [CENSUS, TRAIN, EVALUATE])
def test_a_full_disk_at_the_server_is_one_sentence_and_the_run_goes_on_when_there_is_room(tmp_path, full_in):
    whole = play(tmp_path / "whole")

    def filling(site, question, weights, task, evaluate):
        if question == full_in and task.round_num >= 1 - (full_in == CENSUS):
            disk.enter_context(full_disk(0))
        return plain_answers(BOTH)(site, question, weights, task, evaluate)

    with contextlib.ExitStack() as disk:
        full = play(tmp_path / "full", filling)
    assert full.stopped == (
        "server: expected files that can be read and written, got: File too large; make room or mend the disk, and"
        " submit the job again"
    )
    again = play(tmp_path / "full")
    assert again.stopped == ""
    assert same_models(whole.model, again.model)


# ---- marks of ledgers -----------------------------------------------------------------------------------------------
def marking(told, *, until=99):
    """Sites that leave a mark in every round, and note what they are told."""

    def answer(site, question, weights, task, evaluate):
        told.append((site, question, task.round_num, task.ledger_mark))
        result = plain_answers(BOTH)(site, question, weights, task, evaluate)
        if question == TRAIN and site == "site-1":
            if task.round_num == until:
                return FedMendError("the site is gone")
            result.ledger_mark = f"{task.round_num}" * 32
        return result

    return answer


def test_each_site_is_told_the_latest_mark_of_its_ledger_also_by_the_next_job(tmp_path):
    told = []
    play(tmp_path, marking(told, until=2))
    assert [entry[3] for entry in told if entry[:2] == ("site-1", TRAIN)] == ["", "0" * 32, "1" * 32]
    assert {mark for site, *_, mark in told if site == "site-2"} == {""}
    del told[:]
    play(tmp_path, marking(told))
    assert [entry[1:] for entry in told if entry[0] == "site-1"] == [
        (CENSUS, 0, "1" * 32),
        (TRAIN, 2, "1" * 32),
        (EVALUATE, 3, "2" * 32),
    ]


def test_a_job_may_go_on_with_ledgers_that_have_fallen_behind(tmp_path):
    told = []
    play(tmp_path, marking(told, until=2))
    del told[:]
    play(tmp_path, marking(told), allow_changes=["ledgers"])
    assert [entry[3] for entry in told if entry[0] == "site-1"] == ["", "", "2" * 32]


# ---- marks of data --------------------------------------------------------------------------------------------------
def showing(**splits):
    """Sites of which site-2 has these marks of its splits' data."""

    def answer(site, question, weights, task, evaluate):
        result = plain_answers(BOTH)(site, question, weights, task, evaluate)
        if question == CENSUS and site == "site-2":
            result.census["data"] |= {split: digit * 32 for split, digit in splits.items()}
        return result

    return answer


@pytest.mark.parametrize(
    ("splits", "names"),
    [
        ({"test": "1"}, ["evaluation_data"]),
        ({"val": "1", "test": "1"}, ["evaluation_data"]),
        ({"train": "1"}, ["training_images"]),
        ({"train": "1", "test": "1"}, ["evaluation_data", "training_images"]),
    ],
)
def test_other_data_at_a_site_are_refused_unless_the_lead_wants_them(tmp_path, caplog, splits, names):
    play(tmp_path, crashing(1))
    again = play(tmp_path, showing(**splits))
    assert again.stopped == (
        "run_name 'run-1': expected the images and labels that the run has seen at each site, got others (site-2:"
        f" {', '.join(splits)}); have the earlier ones put back, choose another run_name, or go on with these on"
        f" purpose by allow_changes={json.dumps(names)}"
    )
    assert again.rounds() == []
    assert play(tmp_path, showing(**splits), allow_changes=["ledgers", *names[1:]]).stopped == again.stopped
    allowed = play(tmp_path, showing(**splits), allow_changes=names)
    assert allowed.stopped == ""
    assert allowed.decisions("other_data") == [(1, {"site-2": list(splits)})]
    assert "the run goes on with other data from round 2 on, as allow_changes says: site-2 (" in caplog.text


def test_data_that_were_accepted_are_those_of_the_next_job(tmp_path):
    play(tmp_path, crashing(1))
    play(tmp_path, crashing(2, answer=showing(test="1")), allow_changes=["evaluation_data"])
    assert "(site-2: test)" in play(tmp_path).stopped
    assert play(tmp_path, showing(test="1")).stopped == ""


def test_a_site_that_is_away_for_a_job_must_come_back_with_the_same_data(tmp_path):
    play(tmp_path, crashing(1))
    one = failing(plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 2))
    play(tmp_path, one, {"site-1": BOTH["site-1"]})
    assert "(site-2: test)" in play(tmp_path, showing(test="1")).stopped
    assert play(tmp_path).stopped == ""


def val(auc):
    return {"val": histograms(auc, auc)}


@pytest.mark.parametrize(("split", "best"), [("val", 2), ("test", 1)])
def test_the_best_model_is_chosen_anew_where_the_samples_that_choose_it_are_others(tmp_path, split, best):
    auc = {0: 0, 1: 1, 2: 0.5, 3: 0}

    def measured(site, question, *given):
        result = showing(**({split: "1"} if resumed else {}))(site, question, *given)
        return replace(result, counts=val(auc[result.round_num]) if result.counts else {})

    resumed = False
    play(tmp_path, crashing(2, answer=measured))
    resumed = True
    again = play(tmp_path, measured, allow_changes=["evaluation_data"])
    assert again.stopped == ""
    assert again.content("results.json")["best"]["round"] == best
    resumed = False
    finished = play(tmp_path, measured, allow_changes=["evaluation_data"])  # nothing is trained, no model is better
    assert finished.content("results.json")["best"]["round"] == best


@pytest.mark.parametrize("better", [True, False])
def test_a_server_that_dies_between_best_model_and_checkpoint_goes_on_in_agreement(tmp_path, monkeypatch, better):
    """The model of round 2 is the best one; the repeated round measures it again, a little better or worse."""
    auc = {0: 0, 1: 0, 2: 0.5, 3: 0}

    save = Checkpoint.save

    def dying(checkpoint, done, *content, **options):
        if done == 3:
            raise FedMendError("the power failed")
        save(checkpoint, done, *content, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save", dying)
        first = play(tmp_path, plain_answers(BOTH, counts=lambda r: val(auc[r])))
    assert first.stopped == "the power failed"
    assert first.decisions("best_model")[-1] == (2, {"auc": 0.5, "split": "val"})
    auc[2] = int(better)
    again = play(tmp_path, plain_answers(BOTH, counts=lambda r: val(auc[r])))
    assert again.stopped == ""
    assert again.decisions("best_model") == [
        (1, {"auc": 0.0, "split": "val"}),
        (2, {"auc": float(better), "split": "val"}),
    ]
    best = again.content("results.json")["best"]
    assert (best["round"], best["val"]["auc"]) == (2, float(better))
    assert again.moved(model=again.transport.saved["best"]) == pytest.approx([2, 2])


def test_the_best_model_of_a_finished_run_keeps_its_numbers_where_the_run_gets_more_rounds(tmp_path):
    answer = plain_answers(BOTH, counts=lambda r: val({0: 0, 2: 0.5, 3: 1, 4: 0.5, 5: 0.5}[r]))
    play(tmp_path, answer, eval_every=2)
    more = play(tmp_path, answer, eval_every=2, num_rounds=5, allow_changes=["num_rounds"])
    assert more.stopped == ""
    assert [line["round"] for line in more.lines("metrics.jsonl")] == [0, 2, 3, 4, 5]
    best = more.content("results.json")["best"]
    assert (best["round"], best["val"]["auc"]) == (3, 1)
    package = more.content("run-1-best.fedmend/package.json")
    assert (package["round"], package["metrics"]["val"]["auc"]) == (3, 1)
    assert more.moved(model=more.transport.saved["best"]) == pytest.approx([3, 3])


def test_the_best_model_keeps_its_numbers_also_where_rounds_only_collect(tmp_path):
    class Collects(FedAvgWorkflow):
        trains = False

        def run(self, fed):
            for _ in fed.rounds():
                fed.collect("collect")

    answer = plain_answers(BOTH, counts=lambda r: val({3: 1, 5: 0.5}[r]))
    play(tmp_path, answer, workflow=Collects())
    more = play(tmp_path, answer, workflow=Collects(), num_rounds=5, allow_changes=["num_rounds"])
    best = more.content("results.json")["best"]
    assert (best["round"], best["val"]["auc"]) == (3, 1)
    package = more.content("run-1-best.fedmend/package.json")
    assert (package["round"], package["metrics"]["val"]["auc"]) == (3, 1)


def test_what_a_workflow_remembers_comes_back_in_the_same_types(tmp_path):
    seen = []

    def run(fed):
        for r in fed.rounds():
            seen.append((r, fed.memory.notes))
            fed.train("train")
            fed.memory.notes = {
                "prototypes": np.arange(4, dtype=np.float32).reshape(2, 2) + r,
                "sites": {"site-1": {"counts": np.array([r, 2**40]), "flags": np.array([True, False])}},
                "list": [r, 0.5, "text", None, np.float32(0.25)],
                "tuple": (1, np.zeros((0, 3))),
            }

    play(tmp_path, crashing(1), workflow=Script(run))
    del seen[:]
    resumed = play(tmp_path, workflow=Script(run))
    assert resumed.stopped == ""
    round_num, notes = seen[0]
    assert round_num == 1
    assert notes["prototypes"].dtype == np.float32
    assert notes["prototypes"].tolist() == [[0, 1], [2, 3]]
    assert notes["sites"]["site-1"]["counts"].tolist() == [0, 2**40]
    assert notes["sites"]["site-1"]["flags"].dtype == bool
    assert notes["list"] == [0, 0.5, "text", None, 0.25]
    assert (notes["tuple"][0], notes["tuple"][1].shape) == (1, (0, 3))
    assert seen[1][1]["prototypes"].tolist() == [[1, 2], [3, 4]]


def test_a_job_that_goes_on_begins_with_an_empty_memory_where_nothing_was_remembered(tmp_path):
    seen = []

    def run(fed):
        for _ in fed.rounds():
            seen.append(fed.memory.notes)
            fed.train("train")

    play(tmp_path, crashing(1), workflow=Script(run))
    play(tmp_path, workflow=Script(run))
    assert seen == [{}] * 4


def test_a_round_of_some_sites_is_repeated_whole(tmp_path):
    def run(fed):
        for _ in fed.rounds():
            for site in fed.sites:
                fed.train("train", sites=[site])

    whole = play(tmp_path / "whole", workflow=Script(run))
    crash = failing(plain_answers(BOTH), site="site-2", when=lambda name, r: (name, r) == (TRAIN, 1))
    assert play(tmp_path / "crash", crash, workflow=Script(run)).stopped
    resumed = play(tmp_path / "crash", workflow=Script(run))
    assert [question[3] for question in resumed.asked if question[:2] == (TRAIN, 1)] == [["site-1"], ["site-2"]]
    assert same_models(whole.model, resumed.model)
    assert metrics(resumed) == metrics(whole)
