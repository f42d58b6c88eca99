"""What people of a site ask about what it keeps."""

import json

import pytest
from cli_calls import call
from fl_factories import write_settings

from fedmend.errors import FedMendError
from fedmend.messages import SiteResult
from fedmend.site.register import last_hash, note, register_file, told
from fl_components.approval import check_approved


@pytest.fixture
def kit(tmp_path):
    """Of a site that has sent a census answer, a trained model and a sentence."""
    folder = tmp_path / "kit"
    write_settings(folder, state_dir="../state")
    (folder / "startup").mkdir()
    (folder / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "site-1"}}))
    promise = {"epsilon": 1.25, "delta": 1e-5, "clip": 1.0, "noise_multiplier": 2.0}
    for task, answer in (
        ("census", SiteResult(census={"kind": "multilabel"}, samples=8)),
        ("train", SiteResult(round_num=1, loss=0.5, privacy=promise)),
        ("train", SiteResult(error="site-1: train.csv row 3: expected 1")),
    ):
        note(tmp_path / "state", "site-1", {"job": "d3b07384-d9a0", "run": "spring", "task": task, **told(answer)})
    return folder


def test_the_register_is_a_table_and_its_end_says_that_it_is_whole(kit, capsys):
    assert call("register", kit) == 0
    head, *rows, end = capsys.readouterr().out.splitlines()
    assert head.split() == ["line", "time", "job", "run", "task", "round", "bytes", "epsilon", "what"]
    assert [row.split()[2:8] for row in rows] == [
        ["d3b07384", "spring", "census", "0", "18", "census"],
        ["d3b07384", "spring", "train", "2", "48", "1.25"],
        ["d3b07384", "spring", "train", "1", "35", "site-1:"],
    ]
    assert rows[2].endswith("site-1: train.csv row 3: expected 1")
    whole = last_hash(register_file(kit.parent / "state", "site-1"))
    assert end == f"3 answers, none changed or missing; last hash {whole}"
    assert call("register", kit, "--noted", whole, "--last", 1) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_name_of_the_server_in_the_register_cannot_hide_lines(kit, capsys):
    about = {"job": "d3b07384-d9a0", "run": "spring", "task": "x\x1b[3A\x1b[0J\n1 answers", **told(SiteResult())}
    note(kit.parent / "state", "site-1", about)
    assert call("register", kit) == 0
    *_, row, end = capsys.readouterr().out.splitlines()
    assert row.split()[4:6] == ["x\\x1b[3A\\x1b[0J\\n1", "answers"]
    assert end.startswith("4 answers, none changed or missing")


def test_a_register_that_was_touched_is_shown_and_the_exit_code_is_1(kit, capsys):
    file = register_file(kit.parent / "state", "site-1")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[::2]))
    assert call("register", kit) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    expected = "fedmend: site-1: register: expected every line as it was written, but line 2 is missing\n"
    assert said.err == expected


def test_a_site_that_has_sent_nothing_has_no_register(kit, capsys):
    register_file(kit.parent / "state", "site-1").unlink()
    assert call("register", kit) == 1
    assert "expected answers that have left this site, found none" in capsys.readouterr().err


def test_a_job_that_waits_is_shown_and_approved_by_its_id(kit, capsys):
    state = kit.parent / "state"
    about = {"run_name": "spring", "classes": ["edema"], "submitter": "lead\x1b[2J"}
    with pytest.raises(FedMendError, match="waits until"):
        check_approved(state, "site-1", "d3b07384", about, stop=lambda: False, rounds=8)
    assert call("approve", kit) == 0
    head, *shown, end = capsys.readouterr().out.splitlines()
    assert head.startswith("d3b07384, asked 20")
    assert [line.strip() for line in shown] == [
        "run_name: 'spring'",
        'classes: ["edema"]',
        "submitter: 'lead\\x1b[2J'",
        "rounds: 8",
    ]
    assert end == "1 jobs wait"
    assert call("approve", kit, "other") == 1
    assert capsys.readouterr().err == "fedmend: site-1: approve: expected one of ['d3b07384'], got 'other'\n"
    assert call("approve", kit, "d3b07384") == 0
    begins = "it begins within a minute, a label audit when it is submitted again"
    assert capsys.readouterr().out == f"d3b07384 approved; {begins}\n"
    check_approved(state, "site-1", "d3b07384", about, stop=lambda: False, rounds=9)
    assert call("approve", kit) == 0
    assert capsys.readouterr().out == "0 jobs wait\n"
    where = "fedmend: site-1: approve: expected a job that waits"
    assert call("approve", kit, "d3b07384") == 1
    assert capsys.readouterr().err == f"{where}, this one has been approved\n"
    assert call("approve", kit, "other") == 1
    assert capsys.readouterr().err == f"{where}, none does, got 'other'\n"


def test_of_two_jobs_whose_sites_differ_by_one_it_is_said_that_both_models_tell_what_that_one_sent(kit, capsys):
    def ask(job, sites, network="resnet18"):
        with pytest.raises(FedMendError, match="waits until"):
            check_approved(kit.parent / "state", "site-1", job, {"network": network}, stop=lambda: False, sites=sites)

    def said():
        assert call("approve", kit) == 0
        jobs = {}
        for line in capsys.readouterr().out.splitlines():
            if ", asked 20" in line:
                remarks = jobs.setdefault(line.partition(",")[0], set())
            elif "!" in line:
                remarks.add(line.strip())
        return jobs

    def remark(job, site):
        return f"! the sites of {job} but for '{site}': both models together tell what that site sent"

    ask("first", ["site-1", "site-2", "site-3"])
    assert call("approve", kit, "first") == 0
    capsys.readouterr()
    ask("network", ["site-1", "site-2"], "densenet121")
    ask("same", ["site-1", "site-2", "site-3"])
    ask("two", ["site-1", "site-4", "site-2"])
    assert said() == {"network": set(), "same": set(), "two": set()}
    ask("less", ["site-1", "site-2"])
    assert said() == {
        "network": set(),
        "same": {remark("less", "site-3")},
        "two": {remark("less", "site-4")},
        "less": {remark("first", "site-3"), remark("same", "site-3"), remark("two", "site-4")},
    }
