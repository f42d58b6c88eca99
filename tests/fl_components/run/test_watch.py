"""Where the picture of a run comes from."""

import json
import os
import re

import pytest
from test_submit import ID, Session, entry

from fedmend.errors import FedMendError
from fl_components.console import PICTURES
from fl_components.run.watch import GONE, FolderRun, KitRun


def write(folder, at=None, **facts):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "progress.json"
    file.write_text(json.dumps({"state": "runs", **facts}))
    if at is not None:
        os.utime(file, (at, at))
    return file


def picture(second, **facts):
    return entry(second, json.dumps({"state": "runs", **facts}), logger=PICTURES)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "server/simulate_job/fedmend",
        "seed-0/server/simulate_job/fedmend",
        "fedmend/prod_00/localhost/0b00fc9e/fedmend",
        "results/0b00fc9e/workspace/fedmend",
        "my_run/server/simulate_job/fedmend",
        "fedavg/seed-0/server/simulate_job/fedmend",
        "iid/fedavg/seed-0/server/simulate_job/fedmend",
        "iid/rules/fedavg/seed-0/server/simulate_job/fedmend",
    ],
)
def test_a_run_is_found_in_every_kind_of_place(tmp_path, where):
    write(tmp_path / where, run_name="spring")
    look = FolderRun(tmp_path).look()
    assert look.picture.run_name == "spring"
    assert not look.over


def test_the_newest_of_several_runs_is_watched(tmp_path):
    for at, name in ((100, "old"), (300, "new"), (200, "older")):
        write(tmp_path / name / "server/simulate_job/fedmend", at, run_name=name)
    assert FolderRun(tmp_path).look().picture.run_name == "new"


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    run = FolderRun(tmp_path)
    assert run.look().note == "no run has begun here yet"
    write(tmp_path)
    assert run.look().picture.state == "runs"


def test_a_place_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FedMendError, match="watch: expected the folder of a run"):
        FolderRun(tmp_path / "typo")


def test_a_damaged_picture_is_refused(tmp_path):
    write(tmp_path).write_bytes(b"\xff{")
    with pytest.raises(FedMendError, match=r"progress.json: expected the picture of a run"):
        FolderRun(tmp_path).look()


def test_a_run_ends_well_or_with_its_reason(tmp_path):
    write(tmp_path, state="finished")
    look = FolderRun(tmp_path).look()
    assert (look.over, look.reason) == (True, "")
    write(tmp_path, state="stopped", reason="too few sites")
    look = FolderRun(tmp_path).look()
    assert (look.over, look.reason) == (True, "too few sites")


def test_a_run_whose_records_are_cleared_away_is_given_up_after_a_while(tmp_path):
    now = [0.0]
    file = write(tmp_path, run_name="spring")
    run = FolderRun(tmp_path, clock=lambda: now[0])
    run.look()
    file.unlink()
    assert run.look().picture.run_name == "spring"
    now[0] = GONE
    look = run.look()
    assert look.over
    assert look.reason.startswith("its records are gone")


# ---- a kit ----------------------------------------------------------------------------------------------------------


def test_a_kit_sees_the_newest_picture_in_the_servers_log():
    log = entry(1, "round 1/2 warmup") + picture(1, done=1) + entry(2, "x") + picture(2, done=2)
    look = KitRun(Session(("RUNNING", log)), ID).look()
    assert (look.picture.done, look.note, look.over) == (2, "RUNNING", False)


def test_a_picture_that_flare_cut_off_leaves_the_one_before():
    log = picture(1, done=1)
    look = KitRun(Session(("RUNNING", log), ("RUNNING", "")), ID)
    assert look.look().picture.done == 1
    assert look.look().picture.done == 1


def test_lines_of_other_loggers_are_no_pictures():
    log = picture(1, done=1) + entry(2, '{"state": "finished"}')
    assert KitRun(Session(("RUNNING", log)), ID).look().picture.state == "runs"


def test_a_damaged_picture_in_a_log_is_refused():
    with pytest.raises(FedMendError, match=r"progress.json, field done"):
        KitRun(Session(("RUNNING", picture(1, done="all"))), ID).look()


def test_who_may_not_read_the_log_sees_how_the_job_stands():
    look = KitRun(Session(("RUNNING", ""), denied=True), ID).look()
    assert look.picture is None
    assert look.note == "RUNNING; the server's log of this job is for its submitter and the project admin"


def test_a_job_that_ends_otherwise_says_why():
    log = picture(1, done=1) + entry(2, "run stopped: census: expected one kind of labels", level="ERROR")
    look = KitRun(Session(("FINISHED:EXECUTION_EXCEPTION", log)), ID).look()
    assert (look.over, look.reason) == (True, "FINISHED:EXECUTION_EXCEPTION: census: expected one kind of labels")


def test_a_job_that_completes_has_no_reason():
    look = KitRun(Session(("FINISHED:COMPLETED", picture(1, state="finished"))), ID).look()
    assert (look.over, look.reason) == (True, "")


def test_a_run_that_has_finished_is_over_although_flare_still_clears_up():
    assert KitRun(Session(("RUNNING", picture(1, state="finished"))), ID).look().over


def test_without_an_id_the_job_that_was_submitted_last_is_watched():
    session = Session(("RUNNING", ""))
    times = {ID: "2026-11-22T03:00:01", "other": "2026-11-21T03:00:01"}
    session.list_jobs = lambda detailed: [{"job_id": name, "submit_time": time} for name, time in times.items()]
    assert KitRun(session).job_id == ID
    session.list_jobs = lambda detailed: []
    with pytest.raises(FedMendError, match=re.escape("watch: expected a job at the server, found none")):
        KitRun(session)
