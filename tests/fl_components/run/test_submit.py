"""Submitting, following and fetching, with a session that says what a test wants."""

import json
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import ROOT, refused
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api import flare_api as api

from fedmend.errors import FedMendError
from fl_components.cli import main
from fl_components.console import PICTURES
from fl_components.job.folder import Changes, configured, read_job
from fl_components.run import submit
from fl_components.run.submit import SILENT, fetch, follow, open_session, submit_job, way_back, what_came_out

ID = "0b00fc9e-3ceb-4917-81dd-e1d0d8c03b44"


class Session:
    """Answers one look at the job after the other; the last one again and again."""

    def __init__(self, *looks, denied=False):
        self.looks, self.denied, self.closed, self.disk_full = list(looks), denied, False, False

    def get_job_meta(self, job_id):
        assert job_id == ID
        meta, self.log = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {"status": meta} if isinstance(meta, str) else meta

    def get_job_logs(self, job_id, *, log_file_name):
        assert (job_id, log_file_name) == (ID, "log.json")
        if self.denied:
            raise api_spec.AuthorizationError("no")
        return {"logs": {"server": self.log} if self.log else {}}

    def get_system_info(self):
        return SimpleNamespace(client_info=[SimpleNamespace(name="site-1")])

    def submit_job(self, folder):
        self.sent = folder
        return ID

    def download_job_result(self, job_id, destination):
        result = Path(destination) / job_id
        result.mkdir()
        (result / "meta.json").write_text("{}")
        if self.disk_full:
            full = f"[Errno 28] No space left on device: '{result}/model.pt'"
            raise shutil.Error([("from", f"{result}/model.pt", full)])
        return str(result)

    def close(self):
        self.closed = True


def entry(second, message, *, logger="fedmend.run", level="INFO"):
    time = f"2026-11-22 03:00:{second:02d},123"
    return json.dumps({"asctime": time, "name": "x", "fullName": logger, "levelname": level, "message": message}) + "\n"


def seen(session):
    lines = []
    follow(session, ID, show=lines.append, interval=0)
    return lines


def test_states_and_new_rounds_are_shown_once():
    first, second = entry(1, "round 1/2 warmup"), entry(2, "round 2/2 detect")
    looks = [("SUBMITTED", ""), ("RUNNING", ""), ("RUNNING", first), ("RUNNING", first), ("RUNNING", first + second)]
    assert seen(Session(*looks, ("FINISHED:COMPLETED", first + second))) == [
        "SUBMITTED",
        "RUNNING",
        "03:00:01 round 1/2 warmup",
        "03:00:02 round 2/2 detect",
        "FINISHED:COMPLETED",
    ]


def test_nothing_is_lost_when_flare_cuts_the_beginning_of_a_long_log():
    log = [entry(i, f"round {i}") for i in range(5)]
    looks = [("RUNNING", "".join(log[:3])), ("FINISHED:COMPLETED", "... output truncated\n" + log[2][9:] + log[3])]
    assert seen(Session(*looks))[1:] == [f"03:00:0{i} round {i}" for i in range(3)] + [
        "FINISHED:COMPLETED",
        "03:00:03 round 3",
    ]


def test_flares_own_lines_half_written_ones_and_folders_of_the_server_are_left_out():
    log = entry(1, "sent task", logger="nvflare.x") + entry(2, f"report: /srv/{ID}/report.html") + "3\n{}\n"
    log += entry(3, "round 1/1") + entry(4, "round")[:-9]
    assert seen(Session(("FINISHED:COMPLETED", log))) == ["FINISHED:COMPLETED", "03:00:03 round 1/1"]


def test_the_newest_picture_of_the_run_is_handed_on_and_is_no_line():
    log = entry(1, "round 1/2") + entry(2, '{"done": 1}', logger=PICTURES) + entry(3, '{"done": 2}', logger=PICTURES)
    lines, watched = [], []
    looks = ("RUNNING", ""), ("FINISHED:COMPLETED", log)
    follow(Session(*looks), ID, show=lines.append, watch=watched.append, interval=0)
    assert watched == ['{"done": 2}']
    assert lines == ["RUNNING", "FINISHED:COMPLETED", "03:00:01 round 1/2"]


def test_a_person_leaves_even_where_flare_swallows_ctrl_c():
    looks = iter([False, True])
    lines = []
    with pytest.raises(KeyboardInterrupt):
        follow(Session(("RUNNING", "")), ID, show=lines.append, interval=0, left=lambda: next(looks))
    assert lines == ["RUNNING"]


def test_a_job_that_waits_says_for_what_and_names_the_sites_that_are_there_and_missing():
    waiting = {"status": "SUBMITTED", "schedule_history": ["first", "12:00:00: not enough sites"]}
    waiting["deploy_map"] = {"app": ["server", "site-1", "site-2"]}
    started = {"status": "FINISHED:COMPLETED", "schedule_history": ["first", "12:00:00: not enough sites", "scheduled"]}
    assert seen(Session((waiting, ""), (waiting, ""), (started, ""))) == [
        "SUBMITTED, 12:00:00: not enough sites",
        "connected sites: site-1; missing: site-2 (not started, cut off, not accepted by the server, or with a clock"
        " behind its certificate: fedmend sitecheck --kit says which, on the site's machine)",
        "FINISHED:COMPLETED",
    ]


def test_a_job_for_all_sites_says_that_nobody_can_tell_who_is_missing_and_still_names_who_refuses_it():
    waiting = {"status": "SUBMITTED", "schedule_history": ["12:00:00: connected sites (1) < min_sites (3)"]}
    waiting |= {"deploy_map": {"app": ["@ALL"]}, "job_deploy_detail": ["server: OK", "site-2: BYOC not permitted"]}
    ended = {"status": "FINISHED:COMPLETED", "job_deploy_detail": []}
    assert seen(Session((waiting, ""), (ended, ""))) == [
        "SUBMITTED, site-2: BYOC not permitted, 12:00:00: connected sites (1) < min_sites (3)",
        "connected sites: site-1; the job is for @ALL: who is missing can be told where its meta.json names them in"
        " deploy_map (not started, cut off, not accepted by the server, or with a clock behind its certificate: fedmend"
        " sitecheck --kit says which, on the site's machine)",
        "FINISHED:COMPLETED",
    ]


def test_a_site_that_refuses_the_job_is_named_while_the_others_go_on():
    detail = ["server: OK", "site-1: scope 'x' is not allowed", "site-2: OK"]
    running, ended = ({"status": s, "job_deploy_detail": detail} for s in ("RUNNING", "FINISHED:EXECUTION_EXCEPTION"))
    log = entry(1, "run stopped: site-2: why")
    lines = []
    with refused(f"job {ID}: expected it to complete, got {ended['status']}: site-2: why"):
        follow(Session((running, ""), (ended, log)), ID, show=lines.append, interval=0)
    assert lines[0] == "RUNNING, site-1: scope 'x' is not allowed"


def test_without_the_right_to_read_logs_the_states_are_shown():
    assert seen(Session(("RUNNING", ""), ("FINISHED:COMPLETED", ""), denied=True)) == ["RUNNING", "FINISHED:COMPLETED"]


UNLISTED = "not authorized: Component 'a.B' at config path 'workflows.#1' is not in allow_list"
BYOC = {
    "status": "FINISHED:FAILED_TO_RUN",
    "job_deploy_detail": ["server: OK", "site-1: NVFLARE_ERROR: BYOC not permitted", "x < y"],
}
UNSCHEDULED = {"status": "FINISHED:CAN_NOT_SCHEDULE", "schedule_history": ["missing site-4"]}
BROKEN = "FINISHED:EXECUTION_EXCEPTION"


@pytest.mark.parametrize(
    ("meta", "log", "reason"),
    [
        (BYOC, "", "site-1: BYOC not permitted; x < y"),
        (UNSCHEDULED, "", "missing site-4"),
        (BROKEN, entry(1, UNLISTED, level="ERROR"), f"server: {UNLISTED[16:]}"),
        (BROKEN, entry(1, "PHANTOM run stopped: site-2: why", level="ERROR"), "site-2: why"),
        ("FINISHED:ABNORMAL", entry(1, "run stopped: census: the job was aborted"), SILENT),
        ("FINISHED:ABORTED", entry(1, "run stopped: train: the job was aborted"), "somebody aborted it"),
        (BROKEN, entry(1, "no module x\nmore", logger="nvflare.y", level="ERROR"), "no module x"),
        (BROKEN, "", SILENT),
    ],
)
def test_a_job_that_fails_says_why_in_a_sentence(meta, log, reason):
    status = meta if isinstance(meta, str) else meta["status"]
    with refused(f"job {ID}: expected it to complete, got {status}: {reason}"):
        seen(Session((meta, log)))


def test_a_job_folder_is_sent_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    session = Session()
    assert submit_job(session, (tmp_path / "job").relative_to(tmp_path)) == ID
    assert session.sent == str(tmp_path / "job")  # FLARE would look for a relative one in the kit


def test_a_configured_job_lives_as_long_as_it_is_needed():
    with configured(ROOT / "jobs" / "fedmlp_ich", Changes({"num_rounds": 5}, ["fedavg"], 2)) as folder:
        assert folder.name == "fedmlp_ich"
        assert read_job(folder).run["num_rounds"] == 5
        assert json.loads((folder / "meta.json").read_text())["min_clients"] == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("nvflare.app_opt.he.model_encryptor.HEModelEncryptor", "expected plain weights, which the checks"),
        ("{$HOME}", "expected literal values, got a string with a brace"),
    ],
)
def test_a_job_that_every_site_would_refuse_is_not_sent(server, kit, tmp_path, capsys, word, words):
    shutil.copytree(ROOT / "jobs" / "fedmlp_ich", tmp_path / "job")
    file = tmp_path / "job" / "app" / "config" / "config_fed_client.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "task_result_filters": [{"tasks": ["train"], "filters": [{"path": word}]}]}))
    assert call(kit, tmp_path / "job") == 1
    assert capsys.readouterr().err.startswith(f"fedmend: job, config_fed_client.json: {words}")
    assert not hasattr(server, "sent")


def test_a_result_is_fetched_into_a_folder_of_its_own(tmp_path):
    assert fetch(Session(), ID, tmp_path) == tmp_path / ID
    with refused(f"--out: expected no folder {ID} in it, there is one"):
        fetch(Session(), ID, tmp_path)


def test_a_download_that_breaks_off_can_be_begun_again(tmp_path):
    session = Session()
    session.disk_full = True
    with refused(f"--out, {tmp_path}: expected room and the right to write, got: No space left on device"):
        fetch(session, ID, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == [f"{ID}.part"]
    session.disk_full = False
    assert fetch(session, ID, tmp_path) == tmp_path / ID
    assert [str(f.relative_to(tmp_path)) for f in sorted(tmp_path.rglob("*"))] == [ID, f"{ID}/meta.json"]


def test_the_way_back_is_a_command_that_a_shell_takes():
    words = ["fedmend", "submit", "--kit", "my kit", "--job-id", ID, "--out", "it's"]
    assert shlex.split(way_back(Path("my kit"), ID, Path("it's"))) == words


def test_a_result_that_is_there_is_refused_before_the_server_is_asked(kit, capsys):
    (kit.parent / "out" / ID).mkdir(parents=True)
    assert call(kit, "--job-id", ID) == 1
    assert capsys.readouterr().err == f"fedmend: --out: expected no folder {ID} in it, there is one\n"


def test_pages_and_models_of_a_result_are_named(tmp_path):
    for name in ("workspace/app_server/model.pt", "workspace/fedmend/report.html", "meta.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert what_came_out(tmp_path) == [
        f"report: {tmp_path}/workspace/fedmend/report.html",
        f"model: {tmp_path}/workspace/app_server/model.pt",
        f"result: {tmp_path}",
    ]


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    admin = {"username": "lead@x.org", "host": "fl.x.org", "port": 8003}
    (tmp_path / "kit" / "startup" / "fed_admin.json").write_text(json.dumps({"admin": admin}))
    return tmp_path / "kit"


def connect(monkeypatch, *answers):
    """FLARE's way to get a session answers so; an exception is raised."""
    asked, left = [], list(answers)

    def new_secure_session(*args, **options):
        asked.append((args, options))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(submit, "new_secure_session", new_secure_session)
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
    return asked


def test_a_session_is_that_of_the_kits_owner_and_is_closed(kit, monkeypatch):
    session = Session()
    asked = connect(monkeypatch, session)
    with open_session(kit) as given:
        assert given is session
        assert not session.closed
    assert session.closed
    assert asked == [(("lead@x.org", str(kit)), {"timeout": submit.CONNECT})]


def test_a_session_is_closed_after_an_error_too(kit, monkeypatch):
    session = Session()
    connect(monkeypatch, session)
    with pytest.raises(KeyboardInterrupt), open_session(kit):
        raise KeyboardInterrupt
    assert session.closed


def test_with_patience_a_server_that_starts_is_waited_for(kit, monkeypatch):
    session = Session()
    connect(monkeypatch, api_spec.NoConnection(), api_spec.NoConnection(), session)
    with open_session(kit, patience=60) as opened:
        assert opened is session


def test_a_proxy_in_the_way_is_named(kit, monkeypatch):
    for name in ("grpc_proxy", "http_proxy", "no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    connect(monkeypatch, api_spec.NoConnection("x"))
    with (
        refused(
            "server: expected an answer from fl.x.org:8003, got none; https_proxy sends this connection to a proxy, and"
            " no_proxy does not name the server"
        ),
        open_session(kit),
    ):
        pass


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (api_spec.NoConnection("x"), "server: expected an answer from fl.x.org:8003, got none"),
        (api_spec.SessionExpired("x"), "server: expected an answer from fl.x.org:8003, got none"),
        (
            api_spec.AuthenticationError("why"),
            "server: expected a kit that fl.x.org:8003 accepts, it refused lead@x.org: why",
        ),
        (api_spec.AuthorizationError("x"), "server: expected somebody who may do this, lead@x.org may not"),
        (api_spec.JobNotFound("x"), "--job-id: expected a job that the server knows, it does not know this one"),
        (api_spec.JobNotDone("x"), "result: expected a job that has ended, this one still runs"),
        (api_spec.InvalidJobDefinition("why"), "server: expected a job or command that it accepts, it said: why"),
        (api_spec.InternalError("why"), "server: expected a job or command that it accepts, it said: why"),
    ],
)
def test_whatever_the_server_refuses_is_one_sentence(kit, monkeypatch, problem, sentence):
    connect(monkeypatch, problem)
    with refused(sentence), open_session(kit):
        pass
    session = Session()
    connect(monkeypatch, session)
    with refused(sentence), open_session(kit):
        raise problem
    assert session.closed


def test_a_job_folder_with_a_blank_in_its_name_is_one_sentence_of_flare_before_anything_is_sent(kit, monkeypatch):
    session = api.Session.__new__(api.Session)  # it has no connection
    session.close = lambda: None
    connect(monkeypatch, session)
    shutil.copytree(ROOT / "jobs" / "fedmlp_ich", kit / "my job")
    sentence = r"^server: expected a job .* it said: .*'my job'.* with no spaces\.$"
    with pytest.raises(FedMendError, match=sentence), open_session(kit) as opened:
        submit_job(opened, kit / "my job")


@pytest.mark.parametrize("content", [None, "{", "{}", '{"admin": {}}'])
def test_a_folder_that_is_no_persons_kit_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "startup").mkdir()
        (tmp_path / "startup" / "fed_admin.json").write_text(content)
    with (
        refused("--kit: expected the startup kit of a person, with startup/fed_admin.json"),
        open_session(tmp_path),
    ):
        pass


@pytest.fixture
def server(kit, monkeypatch):
    """The session that the console command gets."""
    session = Session(("FINISHED:COMPLETED", ""))
    connect(monkeypatch, session)
    monkeypatch.setattr("fl_components.cli.federation.quiet_flare", lambda: None)
    return session


def call(kit, *words):
    return main([str(w) for w in ("submit", "--kit", kit, "--out", kit.parent / "out", *words)])


def test_the_console_command_submits_a_configured_job_and_says_how_to_come_back(server, kit, capsys):
    assert call(kit, ROOT / "jobs" / "fedmlp_ich", "--set", "num_rounds=5") == 0
    assert server.sent.endswith("/fedmlp_ich")
    assert server.sent != str(ROOT / "jobs" / "fedmlp_ich")
    out = kit.parent / "out"
    back = f"fedmend submit --kit {kit} --job-id {ID} --out {out}"
    assert capsys.readouterr().out.splitlines() == [
        f"job {ID}; Ctrl-C leaves it running, and this comes back to it: {back}",
        "FINISHED:COMPLETED",
        f"result: {out / ID}",
    ]


def test_the_line_with_the_jobs_id_may_go_elsewhere_and_signals_are_asked_for_in_the_main_thread_alone(server, kit):
    said, shown, given = [], [], {"job_id": ID}
    how = {"show": shown.append, "announce": said.append}
    with ThreadPoolExecutor(1) as pool:
        folder = pool.submit(submit.submit, None, kit, kit.parent / "out", **given, **how).result()
    assert folder == kit.parent / "out" / ID
    assert shown == ["FINISHED:COMPLETED"]
    assert [line.partition(";")[0] for line in said] == [f"job {ID}"]


def test_the_console_command_comes_back_to_a_job(server, kit, capsys):
    assert call(kit, "--job-id", ID) == 0
    assert not hasattr(server, "sent")
    assert f"result: {kit.parent / 'out' / ID}\n" in capsys.readouterr().out


def test_after_ctrl_c_the_session_is_closed_and_nothing_aborted(server, kit, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    server.looks = [("RUNNING", "")]
    monkeypatch.setattr(submit.time, "sleep", interrupt)
    assert call(kit, "--job-id", ID) == 130
    assert server.closed


def test_a_mistyped_setting_is_refused_before_the_server_is_asked(kit, capsys):
    assert call(kit, ROOT / "jobs" / "fedmlp_ich", "--set", "rounds=5") == 1
    assert capsys.readouterr().err.startswith(
        "fedmend: --set: expected a setting of this job, got 'rounds'; nearest: num_rounds"
    )


@pytest.mark.parametrize(("words", "got"), [([], "none"), (["jobs/x", "--job-id", ID], "both")])
def test_either_a_job_or_its_id_is_wanted(kit, capsys, words, got):
    assert call(kit, *words) == 1
    assert capsys.readouterr().err == f"fedmend: submit: expected a job folder or --job-id, got {got}\n"


def test_whoever_keeps_going_gives_the_job_that_is_submitted_again(kit, capsys):
    assert call(kit, "--keep-going", "--job-id", ID) == 1
    sentence = "submit: expected a job folder to submit again with --keep-going, got none"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"
