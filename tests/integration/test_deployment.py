"""A provisioned federation on loopback: real startup kits, mutual TLS, one process per server, site and job."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from cli_calls import call
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from deployment import DAEMON, JOB, PARENT, PHANTOM, SITES, TINY, deployed, tiny_job, until
from factories import ROOT, refused
from nvflare.recipe import ProdEnv
from simulation import fedmend, run

from fedmend import Job, Run
from fedmend.errors import FedMendError
from fedmend.server import exchange
from fl_components.approval import requests
from fl_components.job.folder import Changes, configured
from fl_components.recipes import FedMLPRecipe
from fl_components.run.submit import open_session, submit_job

pytestmark = pytest.mark.slow
DAY = timedelta(days=1)
SET = ["--sites", len(SITES), "--set", *(f"{name}={json.dumps(value)}" for name, value in TINY.items())]


@pytest.fixture(scope="module")
def began():
    return time.monotonic()


@pytest.fixture(scope="module")
def deployment(began, tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("deployed")) as running:
        yield running
    assert running.federation.processes() == {}


def test_a_job_is_submitted_left_alone_and_fetched_within_six_minutes(deployment, began, tmp_path):
    federation = deployment.federation
    given = ["submit", "--kit", federation.lead, "--out", tmp_path / "out"]
    words = [sys.executable, "-m", "fl_components.cli", *given, ROOT / "jobs" / "fedmlp_ich", *SET]
    with subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, text=True) as lead:
        said = list(iter(lead.stdout.readline, "RUNNING\n"))
        lead.send_signal(signal.SIGINT)
        assert lead.wait(60) == 130
    (job_id,) = re.findall(r"^job (\S+); Ctrl-C leaves it running", "".join(said), re.MULTILINE)
    assert list((tmp_path / "out").iterdir()) == []
    code, out = fedmend(*given, "--job-id", job_id, home=tmp_path)
    assert code == 0, out
    rounds = re.findall(r"PHANTOM round (\d)/2 (\w+) \| received model: test AUC 0\.\d{3}", out)
    assert rounds == [("1", "prototype"), ("2", "detect")]
    assert "Traceback" not in out
    workspace = tmp_path / "out" / job_id / "workspace"
    assert f"report: {workspace / 'fedmend' / 'report.html'}\n" in out
    for name in ("FL_global_model.pt", "best_FL_global_model.pt"):
        assert os.path.getsize(workspace / "app_server" / name) > 1e6  # 0.3 M parameters
        assert f"model: {workspace / 'app_server' / name}\n" in out
    results = json.loads((workspace / "fedmend" / "results.json").read_text())
    assert results["final"]["test"]["auc"] > 0
    assert str(federation.kits / federation.server) not in out  # the server's folders are of no use to a lead
    for site in SITES:
        assert (federation.kits / "fedmend-state" / site / "fedmlp_ich" / site / "ledger.sqlite").is_file()
    assert not list(federation.kits.glob("*/*/app*/custom"))
    assert time.monotonic() - began < 360


def test_a_job_from_python_is_submitted_and_its_run_opened_without_the_ledgers_of_the_sites(deployment, tmp_path):
    job = Job("fedmlp_ich", sites=len(SITES), run_name="python", **TINY)
    run = job.run(deployment.federation.lead, tmp_path, progress=False)
    assert (run.name, list(run.metrics()["round"].unique())) == ("python", [0, 1, 2])
    assert not run.model().training
    with pytest.raises(FedMendError, match=r"^repairs: expected the ledger of site-1 beside this run, not found; "):
        run.repairs("site-1")


def test_a_recipe_is_submitted_by_flares_production_environment(deployment):
    kit = deployment.federation.lead
    started = FedMLPRecipe("ich", sites=len(SITES), run_name="recipe", **TINY).execute(
        ProdEnv(str(kit), username=kit.name)
    )
    run = Run(started.get_result())
    assert (started.get_status(), run.name) == ("FINISHED:COMPLETED", "recipe")
    assert run.final["test"]["auc"] > 0


def test_the_submitter_watches_the_rounds_of_a_job_and_a_member_its_status(deployment, tmp_path):
    kits = deployment.federation.kits
    code, seen = fedmend("watch", "--kit", deployment.federation.lead, home=tmp_path)
    assert code == 0, seen
    assert "2 of 2 rounds" in seen
    assert re.search(r"PHANTOM finished: 2 rounds, test AUC 0\.\d{3}", seen)
    (member,) = (kit for kit in kits.iterdir() if kit.name.startswith("member@"))
    code, seen = fedmend("watch", "--kit", member, "--once", home=tmp_path)
    assert code == 0, seen
    assert "the server's log of this job is for its submitter and the project admin" in seen
    assert "rounds" not in seen


def test_server_and_sites_run_under_a_daemon_each(deployment):
    for name in (deployment.federation.server, *SITES):
        daemon, parent = (deployment.process(name, role) for role in (DAEMON, PARENT))
        assert parent.ppid() == daemon.pid
        assert deployment.processes(name, JOB) == []


def first_byte(port, startup, *, certificate):
    """What the server says first to somebody who speaks HTTP/2 over TLS; nothing where it hangs up."""
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("localhost", port), 20) as raw, context.wrap_socket(raw) as tls:
        try:
            return tls.recv(1)
        except (ssl.SSLError, ConnectionResetError):
            return b""


@pytest.mark.parametrize("port", ["fed_learn_port", "admin_port"])
def test_nobody_is_served_without_a_certificate(deployment, port):
    kits = deployment.federation.kits
    project = json.loads((kits.parents[1] / "project.json").read_text())
    (number,) = (p[port] for p in project["participants"] if p["type"] == "server")
    assert first_byte(number, kits / "site-1" / "startup", certificate=True)
    assert not first_byte(number, kits / "site-1" / "startup", certificate=False)


def by_console(session, folder):
    """FLARE's admin console: user name, then the command."""
    words = f"{session.username}\nsubmit_job {folder}\nbye\n"
    script = ["bash", f"{session.startup_path}/startup/fl_admin.sh"]
    out = subprocess.run(script, input=words, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    return re.search(r"Submitted job: (\S+)", out)[1]


def by_command(session, folder):
    """FLARE's own command."""
    words = ["job", "submit", "-j", folder, "--startup-kit", session.startup_path]
    code, out = run(["nvflare.cli", "--format", "json", *words], home=folder.parent)
    assert code == 0, out
    return re.search(r'"job_id": "([^"]+)"', out)[1]


@pytest.mark.parametrize(
    ("job", "variables", "send", "end"),
    [
        (
            "fedmlp_ich",
            {**TINY, "run_name": "by_command"},
            by_command,
            "by_command: fedmlp, 2 sites, 5 classes, finished",
        ),
        ("label_audit", PHANTOM, by_console, "label audit: 2 of 2 sites counted"),
    ],
)
def test_a_job_that_comes_by_flares_own_command_or_console_completes(deployment, job, variables, send, end):
    with configured(ROOT / "jobs" / job, Changes(variables, sites=len(SITES))) as folder:
        lines, sentence = deployment.run(folder, send)
    assert sentence == ""
    assert any(end in line for line in lines)


def test_closed_form_heads_are_solved_in_one_exchange(deployment):
    pytest.importorskip("timm")
    changes = Changes({**PHANTOM, "image_size": 32, "batch_size": 8}, sites=len(SITES))
    with configured(ROOT / "jobs" / "closed_form", changes, strict=True) as folder:
        lines, failed = deployment.run(folder)
    assert failed == ""
    (found,) = re.findall(r"PHANTOM +Final model, round 1 +(0\.\d{3})", "\n".join(lines))
    assert float(found) > 0.6  # chance is 0.5


def test_hospital_it_learns_whether_the_server_accepts_its_certificate(deployment, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(deployment.federation.kits / "site-1", kit, ignore=shutil.ignore_patterns("transfer"))
    lines = {}
    for certificate in ("own", "foreign"):
        _, out = fedmend("sitecheck", "--kit", kit, home=tmp_path)
        (lines[certificate],) = (line for line in out.splitlines() if " connection: " in line)
        key = ec.generate_private_key(ec.SECP256R1())
        name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site-1")]), datetime.now(UTC)
        foreign = x509.CertificateBuilder(name, name, key.public_key(), 1, now - DAY, now + DAY).sign(key, SHA256())
        for file in ("client.crt", "rootCA.pem"):  # they belong together, of another federation
            (kit / "startup" / file).write_bytes(foreign.public_bytes(Encoding.PEM))
        (kit / "startup" / "client.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
    assert lines["own"] == "ok    connection: the server accepts the certificate of this site"
    assert lines["foreign"].startswith("fail  connection: expected a server that accepts the certificate of this site")


def test_a_job_with_code_in_it_is_refused_in_a_sentence(deployment):
    with tiny_job("fedmlp_ich", run_name="byoc") as job:
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "own.py").write_text("")
        _, sentence = deployment.run(job)
    assert sentence.endswith(": expected it to complete, got FINISHED:FAILED_TO_RUN: server: BYOC not permitted")


def test_a_class_that_the_server_does_not_list_is_refused_in_a_sentence_to_the_console_too(deployment):
    with tiny_job("fedmlp_ich", run_name="unlisted") as job:
        file = job / "app" / "config" / "config_fed_server.json"
        file.write_text(file.read_text().replace("fl_components.controller.WorkflowController", "subprocess.Popen"))
        _, sentence = deployment.run(job, by_console)
    assert sentence.endswith(
        ": server: Component 'subprocess.Popen' at config path 'workflows.#1' is not in allow_list"
    )


def test_a_baseline_is_refused_in_a_sentence_that_names_the_switch_of_the_project(deployment, tmp_path):
    words = ["submit", ROOT / "jobs" / "fedmlp_ich", "--variant", "rscfed", "--sites", len(SITES)]
    code, out = fedmend(*words, "--kit", deployment.federation.lead, "--out", tmp_path / "out", home=tmp_path)
    assert code == 1
    assert out.rstrip().endswith(
        ": expected it to complete, got FINISHED:FAILED_TO_RUN: server: job, method: fedmend.baselines.rscfed.RSCFed"
        " belongs to a method that only comparisons need, and this policy does not list it: expected `baselines: true`"
        " under SitePolicyBuilder in project.yml when the kits were made"
    )


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("x/config_fed_client.conf", 'include file("../../local/fedmend.json")', "expected no files besides"),
        ("config_fed_client.json", '{"executors": [], "x": "{$HOME}"}', "expected literal values, got a string with"),
    ],
)
def test_a_job_that_would_read_a_site_is_refused_in_a_sentence_to_the_console_too(deployment, file, text, words):
    with tiny_job("fedmlp_ich", run_name="reads_a_site") as job:
        (job / "app" / "config" / file).parent.mkdir(exist_ok=True)
        (job / "app" / "config" / file).write_text(text)
        _, sentence = deployment.run(job, by_console)
    assert "got FINISHED:FAILED_TO_RUN: server: job" in sentence
    assert words in sentence


def test_a_class_that_the_sites_do_not_list_is_refused_in_a_sentence_of_theirs(deployment):
    with tiny_job("fedmlp_ich", run_name="unlisted_at_sites") as job:
        file = job / "app" / "config" / "config_fed_client.json"
        file.write_text(file.read_text().replace("fl_components.executor.MethodExecutor", "subprocess.Popen"))
        _, sentence = deployment.run(job)
    reason = "Component 'subprocess.Popen' at config path 'executors.#1.executor' is not in allow_list"
    assert sentence.endswith(f": expected it to complete, got FINISHED:FAILED_TO_RUN: server: {reason}")


def test_a_site_whose_class_list_differs_says_so_to_the_lead(deployment):
    file = deployment.federation.kits / "site-2" / "local" / "resources.json.default"
    text = file.read_text()
    file.write_text(text.replace('"fl_components.executor.MethodExecutor",', ""))
    try:
        with tiny_job("fedmlp_ich", run_name="other_list") as job:
            _, sentence = deployment.run(job, by_console)
    finally:
        file.write_text(text)
    reason = (
        "Component 'fl_components.executor.MethodExecutor' at config path 'executors.#1.executor' is not in allow_list"
    )
    too_few = "num_ok_sites 1 < required_min_sites 2"
    assert sentence.endswith(f": expected it to complete, got FINISHED:FAILED_TO_RUN: site-2: {reason}; {too_few}")


def test_a_site_without_a_data_folder_ends_the_job_with_its_sentence(deployment):
    with deployment.settings("site-2", data_root=""), tiny_job("fedmlp_ich", run_name="no_data") as job:
        lines, sentence = deployment.run(job, by_command)
    reason = "site-2: local/fedmend.json, field data_root: expected a folder, got ''"
    assert any(line.endswith(reason) for line in lines)
    assert sentence.endswith(f": census of round 0: expected valid results from 2 sites, got 1: {reason}")


def test_a_member_may_not_submit(deployment):
    member = deployment.federation.kits / "member@fedmend.example.org"
    name = member.name
    with (
        tiny_job("fedmlp_ich") as job,
        refused(f"server: expected somebody who may do this, {name} may not"),
        open_session(member) as session,
    ):
        submit_job(session, job)


def test_no_log_of_server_or_hospital_names_a_patient_an_image_or_the_folder_of_the_data(deployment):
    kits = deployment.federation.kits
    tables = list((kits.parents[2] / "cache").glob("phantoms/*/site-*/train.csv"))
    cells = {cell for t in tables for line in t.read_text().splitlines()[1:] for cell in line.split(",")[:2]}
    names = cells | {cell.removesuffix(".dcm") for cell in cells}
    assert len(tables) >= len(SITES)
    assert len(names) > 300
    files = [f for f in kits.rglob("*") if f.is_file() and re.search(r"log|\.txt$|audit|output|error", f.name)]
    written = {f.relative_to(kits).parts[0] for f in files}
    assert {deployment.federation.server, *SITES} <= written
    for file in files:
        text = file.read_text(errors="replace")
        assert not {word for word in re.split(r"[\s,;:'\"()\[\]/]+", text) if word in names}, file
        assert not [table for table in tables if str(table.parent) in text], file


def test_the_poc_command_starts_runs_fetches_and_stops(tmp_path):
    workspace = tmp_path / "poc"
    code, out = fedmend("poc", ROOT / "jobs" / "fedmlp_ich", "--workspace", workspace, *SET, home=tmp_path)
    assert code == 0, out
    (report,) = re.findall(r"^report: (.*)", out, re.MULTILINE)
    assert report.startswith(str(workspace / "results"))
    assert os.path.getsize(report) > 1e4
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(workspace) in " ".join(p.info["cmdline"] or [])]


def test_a_job_that_a_hospital_approves_late_waits_for_it_and_goes_on_to_the_end(deployment, capsys):
    state = deployment.federation.kits / "fedmend-state" / "site-1"
    kit, other = deployment.federation.kits / "site-1", deployment.federation.kits / "fedmend-state" / "site-2"
    with deployment.settings("site-1", approve="ask"), tiny_job("fedmlp_ich", run_name="approved") as folder:
        job_id = submit_job(deployment.session, folder)
        until(lambda: job_id in requests(state, "site-1"))
        until(lambda: list(other.glob("approved/site-2/*.pt")))  # which has answered the census
        time.sleep(3 * exchange.PAUSE)  # the server has asked again
        assert not (state / "approved").exists()  # no data were opened
        log = deployment.federation.kits / deployment.federation.server / job_id / "log.txt"
        assert log.read_text().count("site-1: waits until somebody of this site has approved the job") == 1
        assert call("approve", kit) == 0
        assert 'sites: ["site-1", "site-2"]' in capsys.readouterr().out
        assert call("approve", kit, job_id) == 0
        lines, error = deployment.end_of(job_id)
    assert error == ""
    assert any("round 2/2" in line for line in lines)
    assert (state / "approved" / "site-1" / "ledger.sqlite").is_file()


def test_of_two_jobs_under_one_run_name_at_once_one_goes_on_and_the_other_is_refused(deployment):
    session, both = deployment.session, set()
    with tiny_job("fedmlp_ich", run_name="twice", num_rounds=200) as folder:
        both |= {submit_job(session, folder), submit_job(session, folder)}
    ended = set()
    while not ended:
        time.sleep(1)
        ended = {job_id for job_id in both if session.get_job_meta(job_id)["status"].startswith("FINISHED")}
    (refused_one,), (goes_on,) = ended, both - ended
    reason = "run_name 'twice': expected no other job of this run, one still runs; abort it first"
    assert deployment.end_of(refused_one)[1].endswith(f"FINISHED:EXECUTION_EXCEPTION: {reason}")
    log = deployment.federation.kits / deployment.federation.server / goes_on / "log.txt"
    done = log.read_text().count(" | received model: ")
    until(lambda: log.read_text().count(" | received model: ") > done)
    session.abort_job(goes_on)
    assert deployment.end_of(goes_on)[1].endswith("FINISHED:ABORTED: somebody aborted it")
