"""What is FLARE's about a federation: messages, waiting, aborted jobs, model files, the sentence of a panic."""

import itertools
import json
import weakref

import numpy as np
import pytest
import torch
from certificate_factories import make_root, make_signer
from federation_factories import Script, census, failing, in_rounds, initial, plain_answers
from fl_factories import Federation, write_settings
from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import FLContextKey

from fedmend.averaging import Fold
from fedmend.messages import CENSUS, COLLECT, EVALUATE, HOLD, TRAIN, WAITS, SiteResult
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.records.signature import Trust, verify_package
from fedmend.server import federation as core
from fl_components import controller as module
from fl_components.controller import WorkflowController

CLASSES = ["edema", "nodule"]
BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
THREE = {**BOTH, "site-3": [1, 1]}
FOUR = {f"site-{i}": [1, 1] for i in range(1, 5)}
ROLES = {"site-1": "clean", "site-2": "noisy", "site-3": "clean"}  # site-4 has none


def controller(**changes):
    return WorkflowController(
        **{"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 3, "seed": 7, **changes}
    )


def federation(folder, answer, sites=BOTH, workflow=None, *, backwards=False, **changes):
    workflow = workflow or FedAvgWorkflow()
    return Federation(folder, controller(**changes), workflow, list(sites), answer, backwards=backwards)


def play(*args, **changes):
    return federation(*args, **changes).run()


def saved(played, file="FL_global_model.pt"):
    return torch.load(played.app / file, weights_only=False)["model"]


def bias(played, file="FL_global_model.pt"):
    """How far the run has moved the classifier's bias."""
    return float((saved(played, file)["classifier.bias"].numpy() - initial(CLASSES)["classifier.bias"])[0])


# ---- a run ----------------------------------------------------------------------------------------------------------


def test_a_server_with_a_kit_signs_the_packages_and_one_without_does_not(tmp_path):
    root = make_root(tmp_path / "kit" / "startup")
    make_signer(tmp_path / "kit" / "startup")
    for name in ("run-1", "run-1-best"):
        package = play(tmp_path / "kit", plain_answers(BOTH)).records / f"{name}.fedmend"
        assert verify_package(package, Trust(root, "server.example.org")).organization == "lead_org"
    unsigned = play(tmp_path / "other", plain_answers(BOTH)).records / "run-1.fedmend"
    assert not (unsigned / "signature.json").exists()


def test_a_run_leaves_models_records_and_a_report(tmp_path):
    played = federation(tmp_path, plain_answers(BOTH)).run(report=True)
    assert played.engine.panics() == []
    assert [question[:3] for question in played.asked] == [
        (CENSUS, 0, "census"),
        *((TRAIN, r, "train") for r in range(3)),
        (EVALUATE, 3, "evaluate"),
    ]
    results = json.loads((played.records / "results.json").read_text())
    assert results["final"]["test"]["auc"] == 1
    for name in ("global model", "best model", "records"):
        assert (tmp_path / results["files"][name]).exists()
    assert results["files"]["global model"] == str(played.app / "FL_global_model.pt")
    assert bias(played) == pytest.approx(3)
    assert bias(played, "best_FL_global_model.pt") == 1  # the model received in round 1, the first trained one
    assert "<html" in (played.records / "report.html").read_text()[:200]


def test_the_settings_of_the_job_stand_in_the_records(tmp_path):
    info = json.loads((play(tmp_path, plain_answers(BOTH)).records / "run.json").read_text())
    assert info["settings"] == {"batch_size": 4, "mld": True, "run_name": "run-1"}  # none of FLARE's own components


def test_a_job_whose_configuration_the_server_does_not_have_runs_all_the_same(tmp_path):
    started = federation(tmp_path, plain_answers(BOTH))
    (started.app / "config" / "config_fed_client.json").unlink()
    assert started.run().engine.panics() == []
    assert json.loads((started.records / "run.json").read_text())["settings"] == {"run_name": "run-1"}


def test_metrics_and_losses_are_streamed_by_flare_s_analytics_event(tmp_path):
    played = play(tmp_path, plain_answers(BOTH))
    streamed = [data["DXO"]["data"] for event, data in played.engine.events if event == "analytix_log_stats"]
    tags = [(d["track_key"], d["global_step"]) for d in streamed]
    assert ("test/auc", 3) in tags
    assert ("loss/site-2", 2) in tags


def test_the_picture_of_the_run_is_handed_to_the_log_of_the_job(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("fl_components.controller.log_picture", lambda picture: shown.append(picture["state"]))
    play(tmp_path, plain_answers(BOTH))
    assert (shown[0], shown[-1]) == ("starts", "finished")


def test_the_state_is_kept_where_the_server_s_settings_say_and_a_job_goes_on(tmp_path):
    crash = failing(plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 2))
    assert play(tmp_path, crash).engine.panics()
    assert (tmp_path / "state" / "run-1" / "server" / "checkpoint.pt").is_file()
    resumed = play(tmp_path, plain_answers(BOTH))
    assert [r for name, r, *_ in resumed.asked if name == TRAIN] == [2]
    assert bias(resumed) == pytest.approx(3)


@pytest.mark.parametrize(("person", "said"), [("lead@a", ""), ("lead@b", "expected a job of the person who submitted")])
def test_only_the_person_who_submitted_a_run_goes_on_with_it(tmp_path, person, said):
    crash = failing(plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 1))
    for name, answer in (("lead@a", crash), (person, plain_answers(BOTH))):
        started = federation(tmp_path, answer)
        started.fl_ctx.set_prop(FLContextKey.JOB_META, {"submitter_name": name}, private=True, sticky=False)
        started.run()
    assert [sentence[:60] for sentence in started.engine.panics()] == (
        [f"run_name 'run-1': {said}"[:60]] if said else []
    )


def test_a_job_of_another_method_is_refused(tmp_path):
    crash = failing(plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 1))
    play(tmp_path, crash)
    started = federation(tmp_path, plain_answers(BOTH))
    file = started.app / "config" / "config_fed_client.json"
    file.write_text(file.read_text().replace("fedmlp.FedMLP", "baselines.FedAvg").replace("4", "8"))
    (sentence,) = started.run().engine.panics()
    assert (
        'batch_size: before 4, now 8; method.class: before "fedmend.methods.fedmlp.FedMLP", now'
        ' "fedmend.methods.baselines.FedAvg"'
    ) in sentence


# ---- what stops a run -----------------------------------------------------------------------------------------------


def test_a_run_that_stops_says_why_in_one_sentence(tmp_path, caplog):
    played = play(tmp_path, failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == TRAIN and r == 1))
    sentence = (
        "train of round 1: expected valid results from 2 sites, got 1: site-2: train.csv row 3: expected ..., got ..."
    )
    assert played.engine.panics() == [sentence]
    assert f"run stopped: {sentence}" in caplog.text


def test_a_phantom_run_that_stops_says_so(tmp_path, caplog):
    def answer(site, question, weights, task, evaluate):
        if question != CENSUS:
            return SiteResult(error=f"{site}: no")
        result = census(BOTH[site])
        result.census["phantom"] = True
        return result

    assert play(tmp_path, answer).engine.panics()[0].startswith("train of round 0: expected valid results")
    assert "PHANTOM run stopped: train of round 0" in caplog.text


def test_a_bad_setting_of_the_server_stops_the_run_with_its_sentence(tmp_path, caplog):
    started = federation(tmp_path, plain_answers(BOTH))
    write_settings(tmp_path, min_count=-1)
    sentence = "server: local/fedmend.json, field min_count: expected a whole number >= 0, got -1"
    assert started.run().engine.panics() == [sentence]
    assert f"run stopped: {sentence}" in caplog.text
    assert started.asked == []


@pytest.mark.parametrize("component", [None, object()], ids=["missing", "no workflow"])
def test_a_job_without_a_workflow_is_stopped(tmp_path, component):
    started = federation(tmp_path, plain_answers(BOTH))
    started.engine._components["workflow"] = component
    assert started.run().engine.panics() == ["server configuration: expected a workflow with id 'workflow'"]
    assert started.asked == []


def test_a_workflow_that_does_not_fit_the_run_stops_it(tmp_path):
    workflow = FedAvgWorkflow()
    workflow.warmup_rounds = 4
    assert play(tmp_path, plain_answers(BOTH), BOTH, workflow).engine.panics() == [
        "job variables warmup_rounds, num_rounds: expected the warm-up to fit into the run, got 4 of 3"
    ]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"num_rounds": 0}, "num_rounds and eval_every >= 1, got 0 and"),
        ({"grace_period": -1}, "grace_period and seed >= 0"),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        controller(**wrong)


def test_a_run_name_that_leaves_its_folder_stops_the_run(tmp_path):
    assert play(tmp_path, plain_answers(BOTH), run_name="../x").engine.panics() == [
        "job variable run_name: expected at most 100 letters, digits, '_', '.' or '-', got '../x'"
    ]


def test_an_abort_ends_the_run(tmp_path):
    started = federation(tmp_path, None)
    started.answer = lambda site, *rest: started.controller.abort_signal.trigger("stop") or census(BOTH[site])
    assert started.run().engine.panics() == ["census: the job was aborted"]
    assert len(started.asked) == 1


# ---- one message per role -------------------------------------------------------------------------------------------


def roles_after_a_look(fed):
    for r in fed.rounds():
        if r == 0:
            fed.collect("look", at_least=2)
        fed.train("train", roles=ROLES)


def two_stages(folder, answer=None, **changes):
    workflow = Script(roles_after_a_look)
    return federation(folder, answer or plain_answers(FOUR), FOUR, workflow, **{"num_rounds": 2, **changes})


def test_each_site_learns_its_own_role_and_no_message_names_another_ones(tmp_path):
    played = two_stages(tmp_path).run()
    assert played.engine.panics() == []
    told = {}
    for task, targets, meta in played.sent:
        assert task.sites == tuple(FOUR)  # who takes part is no secret of theirs; what each is, is
        meta["fedmend"]["task"].pop("sites")
        assert not any(site in str(meta) for site in FOUR)
        if task.stage == "train":
            told.update({(task.round_num, site): task.role for site in targets})
            assert [role for role in ("clean", "noisy") if role in str(meta)] == [role for role in (task.role,) if role]
        else:
            assert task.role == ""
    assert told == {(r, site): ROLES.get(site, "") for r in (0, 1) for site in FOUR}


def test_sites_of_the_same_role_share_a_message(tmp_path):
    played = two_stages(tmp_path).run()
    asked = [sites for name, r, _, sites in played.asked if (name, r) == (TRAIN, 1)]
    assert asked == [["site-4"], ["site-1", "site-3"], ["site-2"]]
    assert bias(played) == pytest.approx(2)


def test_no_site_learns_the_mark_of_another_one_s_ledger(tmp_path):
    def answer(site, question, weights, task, evaluate):
        result = plain_answers(FOUR)(site, question, weights, task, evaluate)
        result.ledger_mark = site[-1] * 32 if question == TRAIN and site != "site-4" else ""
        return result

    played = two_stages(tmp_path, answer).run()
    assert played.engine.panics() == []
    told = [(task.ledger_mark, sites) for task, sites, _ in played.sent if (task.stage, task.round_num) == ("train", 1)]
    assert sorted(told) == [("", ["site-4"]), *((str(i) * 32, [f"site-{i}"]) for i in (1, 2, 3))]


def test_a_round_may_ask_some_sites_only(tmp_path):
    workflow = Script(in_rounds(lambda fed, r: fed.train("train", sites=["site-3"])))
    played = play(tmp_path, plain_answers(FOUR), FOUR, workflow, num_rounds=1)
    assert [(name, sites) for name, _, _, sites in played.asked] == [
        (CENSUS, list(FOUR)),
        (EVALUATE, list(FOUR)),
        (TRAIN, ["site-3"]),
        (EVALUATE, list(FOUR)),
    ]


def test_knowledge_travels_beside_the_weights(tmp_path):
    scale = np.float32([0.25, 1])
    workflow = Script(in_rounds(lambda fed, r: fed.train("train", knowledge={"scale": scale})))
    played = play(tmp_path, plain_answers(BOTH), BOTH, workflow, num_rounds=1)
    assert [t.knowledge["scale"].tolist() for t, *_ in played.sent if t.stage == "train"] == [[0.25, 1]]


def test_reports_are_asked_for_without_training(tmp_path):
    got = []

    def answer(site, question, *rest):
        result = plain_answers(FOUR)(site, question, *rest)
        if question == COLLECT:
            result.report = {"number": np.array(int(site[-1]))}
        return result

    step = in_rounds(lambda fed, r: got.append(fed.collect("look")) or fed.train("train"))
    played = play(tmp_path, answer, FOUR, Script(step), num_rounds=1)
    assert {site: int(a.report["number"]) for site, a in got[0].items()} == {f"site-{i}": i for i in range(1, 5)}
    assert [t.training for t, *_ in played.sent if t.stage == "look"] == [False]


# ---- waiting --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fast_clock(monkeypatch):
    """A clock that moves by half a second whenever it is looked at, and does not sleep."""
    now = itertools.count(0, 0.5)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)


def trickling(started):
    """Answers arrive one at a time, a poll of the server apart."""
    broadcast, underway = started.controller.broadcast_model, []

    def send(*, targets, **options):
        underway.extend((broadcast, [site], options) for site in (reversed(targets) if started.backwards else targets))

    def ask():
        if underway:
            send_one, targets, options = underway.pop(0)
            send_one(targets=targets, **options)
            return 1
        return 0

    started.controller.broadcast_model = send
    started.controller.get_num_standing_tasks = ask
    return started


@pytest.mark.parametrize(
    ("trickle", "backwards"),
    [(False, False), (True, False), (True, True)],
    ids=["all at once", "in turn", "backwards"],
)
def test_models_wait_on_disk_and_none_is_held_in_memory(tmp_path, monkeypatch, fast_clock, trickle, backwards):
    models, held = [], []

    def held_models():
        return sum(found() is not None for found in models)

    def answer(site, question, *rest):
        result = plain_answers(THREE)(site, question, *rest)
        if question == TRAIN:
            models.append(weakref.ref(result.weights["classifier.bias"]))
        return result

    class Watched(Fold):
        def take(self, *result):
            held.append(held_models())
            super().take(*result)

    monkeypatch.setattr(core, "Fold", Watched)
    monkeypatch.setattr(module, "cleanup_memory", lambda: held.append(f"cleaned with {held_models()}"))
    started = federation(tmp_path, answer, THREE, backwards=backwards, num_rounds=2)
    (trickling(started) if trickle else started).run()
    assert len(models) == 6
    cleaned = "cleaned with 0"
    assert held == [cleaned, cleaned, 0, 0, 0, cleaned, 0, 0, 0, cleaned]  # census, two rounds, evaluation


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refused"])
def test_answers_that_trickle_in_count_once_each(tmp_path, fast_clock, silent, backwards):
    samples, step = dict(zip(THREE, (10, 20, 30), strict=True)), dict(zip(THREE, (1.0, 2.0, 4.0), strict=True))
    plain = plain_answers(THREE, samples=samples, step=step)
    odd = "" if silent else "site-2: no"
    answer = failing(plain, site="site-2", when=lambda name, r: name == TRAIN, error=odd)
    started = federation(tmp_path, answer, THREE, backwards=backwards, num_rounds=1, min_sites=2)
    direct = started._broadcast
    started.controller.broadcast_model = lambda *, callback, **message: direct(
        callback=lambda reply: [callback(reply) for _ in range(2)], **message
    )
    trickling(started).run()
    assert started.engine.panics() == []
    reason = odd or "site-2: train: expected a result, got none"
    assert started.decisions("refused") == [(0, {"site": "site-2", "reason": reason})]
    assert bias(started) == pytest.approx((10 * 1 + 30 * 4) / 40)


def test_a_site_that_is_later_than_the_round_timeout_is_told_from_one_that_gave_no_reason(tmp_path, fast_clock):
    late = failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == TRAIN, error="")
    played = federation(tmp_path, late, BOTH, round_timeout=1)
    standing = iter([0, 1, 1, 1, 0])  # the census ends at once, the round after three looks at the clock
    played.controller.get_num_standing_tasks = lambda: next(standing)
    assert played.run().engine.panics() == [
        "train of round 0: expected valid results from 2 sites, got 1: site-2: train: expected a result within 1 s"
        " (round_timeout), got none"
    ]


def test_messages_of_all_roles_are_out_before_the_first_answer_is_waited_for(tmp_path, monkeypatch):
    """As in FLARE, answers arrive one by one while the controller waits."""
    monkeypatch.setattr(module, "POLL", 0)
    started = two_stages(tmp_path)
    pending, waited_for, direct = [], [], started._broadcast

    def later(*, targets, callback, **message):
        pending.extend((target, callback, message) for target in targets)

    def standing():
        if pending:
            waited_for.append(len(pending))
            target, callback, message = pending.pop(0)
            direct(targets=[target], callback=callback, **message)
        return len(pending)

    started.controller.broadcast_model, started.controller.get_num_standing_tasks = later, standing
    assert started.run().engine.panics() == []
    assert waited_for == [4, 3, 2, 1] * 5  # census, collection, two rounds, evaluation
    assert bias(started) == pytest.approx(2)


def test_an_abort_while_answers_are_waited_for_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POLL", 0)
    started, polls = two_stages(tmp_path), []

    def standing():
        if started.asked[-1][0] != COLLECT:
            return 0
        polls.append(1)
        if len(polls) == 3:
            started.controller.abort_signal.trigger("stop")
        return 1

    started.controller.get_num_standing_tasks = standing
    assert started.run().engine.panics() == ["collect: the job was aborted"]
    assert len(polls) == 3


def test_the_timeout_of_a_round_is_flare_s(tmp_path):
    started, timeouts = federation(tmp_path, plain_answers(BOTH), round_timeout=90), []
    broadcast = started.controller.broadcast_model
    started.controller.broadcast_model = lambda *, task_name, timeout, blocking, **message: (
        timeouts.append((task_name, timeout, blocking))
        or broadcast(task_name=task_name, timeout=timeout, blocking=blocking, **message)
    )
    started.run()
    assert timeouts[:2] == [(CENSUS, 150, False), (TRAIN, 90, False)]


@pytest.mark.parametrize(("round_timeout", "timeout"), [(5, 65), (0, 0)])
def test_a_site_that_holds_the_census_for_its_people_is_not_late(tmp_path, monkeypatch, round_timeout, timeout):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    asked, held = [], iter([f"site-2: {WAITS}"] * 2)

    def answer(site, question, *rest):
        if question == CENSUS and site == "site-2" and (error := next(held, "")):
            now[0] += HOLD
            return SiteResult(error=error)
        return plain_answers(BOTH)(site, question, *rest)

    started = federation(tmp_path, answer, round_timeout=round_timeout)
    broadcast = started.controller.broadcast_model
    started.controller.broadcast_model = lambda *, timeout, **message: (
        asked.append((message["task_name"], timeout)) or broadcast(timeout=timeout, **message)
    )
    assert started.run().engine.panics() == []
    assert asked[:4] == [(CENSUS, timeout)] * 3 + [(TRAIN, round_timeout)]


def waiting(folder, answer, polls, *, slow=TRAIN, **changes):
    """A run in which FLARE waits for a late answer to every task ``slow``; ``polls`` notes how often it was asked."""
    started = federation(folder, answer, THREE, num_rounds=1, **changes)
    broadcast, standing = started.controller.broadcast_model, {"tasks": 0}

    def send(*, task_name, **options):
        broadcast(task_name=task_name, **options)
        standing["tasks"] = int(task_name == slow)

    def ask():
        polls.append(standing["tasks"])
        if len(polls) > 200:
            standing["tasks"] = 0
        return standing["tasks"]

    started.controller.broadcast_model = send
    started.controller.get_num_standing_tasks = ask
    started.controller.cancel_all_tasks = lambda: standing.update(tasks=0)
    return started.run()


def odd_one(question, error="site-2: no"):
    return failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == question, error=error)


def test_a_round_waits_for_the_others_no_longer_than_the_grace_period(tmp_path, fast_clock):
    polls = []
    played = waiting(tmp_path, odd_one(TRAIN, ""), polls, min_sites=2, grace_period=3)
    assert played.engine.panics() == []
    assert polls.count(1) == 7  # 3 seconds after the second answer at half a second each
    assert played.decisions("refused")[0] == (
        0,
        {"site": "site-2", "reason": "site-2: train: expected a result, got none"},
    )


def test_the_grace_period_begins_with_enough_results_and_not_with_sentences(tmp_path, fast_clock):
    polls = []
    played = waiting(tmp_path, odd_one(TRAIN), polls, min_sites=3, grace_period=3)
    assert len(polls) > 200  # nobody ends the wait
    assert played.engine.panics()[0].startswith("train of round 0: expected valid results from 3 sites, got 2")


def test_a_refused_result_does_not_start_the_grace_period(tmp_path, fast_clock):
    polls = []
    answer = plain_answers(THREE, step={**dict.fromkeys(THREE, 1), "site-2": np.nan})
    waiting(tmp_path, answer, polls, min_sites=3, grace_period=3)
    assert len(polls) > 200  # nobody ends the wait


def test_the_census_has_no_grace_period_as_who_misses_it_is_out_of_the_whole_job(tmp_path, fast_clock):
    polls = []
    waiting(tmp_path, odd_one(CENSUS, ""), polls, slow=CENSUS, min_sites=2, grace_period=3)
    assert len(polls) > 200  # nobody ends the wait


# ---- what arrives ---------------------------------------------------------------------------------------------------


def test_encrypted_weights_stop_the_run_with_the_reason(tmp_path):
    started = two_stages(tmp_path)
    direct = started._broadcast

    def encrypted(*, task_name, callback, **message):
        def receive(reply):
            if task_name == TRAIN:
                reply.meta[MetaKey.PROCESSED_ALGORITHM] = "HE_CKKS"
            callback(reply)

        direct(task_name=task_name, callback=receive, **message)

    started.controller.broadcast_model = encrypted
    (sentence,) = started.run().engine.panics()
    assert sentence.startswith(
        "train of round 0: expected valid results from 4 sites, got 0: site-1: weights: expected plain"
    )
    assert "switch homomorphic encryption off for this job" in sentence


def repaired(**changes):
    return {**{name: np.zeros(2, dtype=np.int64) for name in ("positive", "negative", "untagged")}, **changes}


def weights(value):
    """Puts another value, made from the honest one, in the place of one tensor."""

    def spoil(result):
        if result.weights:
            result.weights["classifier.bias"] = value(result.weights["classifier.bias"])

    return spoil


def attribute(question, **changes):
    """Sets attributes of the answers to one question, or to all others than the census."""

    def spoil(result):
        if bool(result.census) == (question == CENSUS):
            vars(result).update(changes)

    return spoil


def in_census(**changes):
    return lambda result: result.census and result.census.update(changes)


JUNK = {
    "counts without an axis": lambda r: r.counts and r.counts.update(val=np.array(3)),
    "counts of three classes": lambda r: r.counts and r.counts.update(val=np.zeros((3, 2, 1000), dtype=np.int64)),
    "negative counts": lambda r: r.counts and r.counts.update(val=-np.ones((2, 2, 1000), dtype=np.int64)),
    "counts of an unknown split": lambda r: r.counts and r.counts.update(train=r.counts["val"]),
    "a list in the report": lambda r: r.report.update(field=[1, 2]),
    "nested junk in the report": lambda r: r.report.update(field={"a": [{"b": "c"}]}),
    "nested junk as report": attribute(TRAIN, report={"a": {"b": [None, {"c": 1}]}}),
    "nested junk as counts": attribute(TRAIN, counts={"val": [[{"a": 1}]]}),
    "no annotated classes": lambda r: r.census.pop("annotated", None),
    "no census": attribute(CENSUS, census={}),
    "annotated of another shape": in_census(annotated=np.ones((2, 2), dtype=bool)),
    "annotated of three classes": in_census(annotated=np.ones(3, dtype=bool)),
    "positives as text": in_census(positives="many"),
    "sizes as a list": in_census(sizes=[10]),
    "kind of labels as an array": in_census(kind=np.ones(3)),
    "an unknown kind of labels": in_census(kind="boxes"),
    "infinite size": in_census(sizes={"train": float("inf")}),
    "repairs without names": attribute(TRAIN, repairs={"positive": np.zeros(2, dtype=np.int64)}),
    "repairs of another shape": attribute(TRAIN, repairs=repaired(positive=np.zeros((2, 2), dtype=np.int64))),
    "repairs of three classes": attribute(TRAIN, repairs=repaired(positive=np.zeros(3, dtype=np.int64))),
    "weights as text": weights(lambda v: np.array(["a"] * len(v))),
    "complex weights": weights(lambda v: v.astype(np.complex64)),
    "weights of double precision": weights(lambda v: v.astype(np.float64)),
    "ragged lists as weights": weights(lambda v: [[1.0], [1.0, 2.0]]),
    "weights without name": lambda r: r.weights and r.weights.update({3: np.ones(2), "c": np.ones(2)}),
    "a million million samples": attribute(TRAIN, samples=10**12),
    "infinitely many samples": attribute(TRAIN, samples=float("inf")),
    "an endless error": attribute(TRAIN, error="x" * 3000),
}


@pytest.mark.parametrize("spoil", JUNK.values(), ids=JUNK)
def test_an_answer_of_another_kind_costs_its_site_alone(tmp_path, spoil):
    plain = plain_answers({"site-1": [1, 1], "site-2": [1, 1]}, step={"site-1": 1, "site-2": 100})

    def answer(site, *rest):
        result = plain(site, *rest)
        if site == "site-2":
            spoil(result)
        return result

    played = play(tmp_path, answer, min_sites=1)
    assert played.engine.panics() == []
    reasons = played.decisions("refused")
    assert {value["site"] for _, value in reasons} == {"site-2"}
    assert reasons[0][1]["reason"].startswith("site-2: result")
    assert len(reasons[0][1]["reason"]) < 300
    assert bias(played) == pytest.approx(3)
