"""A lead researcher's job on a real federation: submitted, followed and fetched over FLARE's API."""

import contextlib
import json
import re
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from nvflare.apis.job_def import ALL_SITES, JobMetaKey, RunStatus
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    JobNotDone,
    JobNotFound,
    NoConnection,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.private.defs import ERROR_MSG_PREFIX

from fedmend.basics.files import make_folder, said
from fedmend.errors import FedMendError
from fl_components.console import PICTURES
from fl_components.job.folder import UNCHANGED, Changes, configured
from fl_components.run.start import proxy_of

CONNECT = 10.0  # seconds
POLL = 3.0  # seconds between two looks at a job
LOG_KEYS = {"asctime", "fullName", "levelname", "message"}
UNLISTED = re.compile(r"Component '[^']+' at config path '[^']+' is not in allow_list")
STOPPED = "run stopped: "
ABORTED = "the job was aborted"
SILENT = (
    "a process of the job ended without saying why; only the log of its site, or of the server, does (a class that its"
    " policy does not list, a package that it lacks, too little memory)"
)


class NoAnswer(FedMendError):
    """The server does not answer."""


class JobFailed(FedMendError):
    """A job has ended otherwise than well.

    Args:
        sentence: says so, and why.
        meta: FLARE's description of the job.
        log: entries of the server's log of it.
    """

    def __init__(self, sentence: str, meta: Mapping, log: list[dict]):
        super().__init__(sentence)
        self.meta, self.log = meta, log


@contextlib.contextmanager
def open_session(kit: Path, *, patience: float = 0.0) -> Iterator[Session]:
    """FLARE's session of the person to whom the startup kit belongs.

    Args:
        kit: startup kit of a person.
        patience: seconds to go on trying while the server does not answer.

    Raises:
        FedMendError: no kit of a person, no server, or it does not accept the kit; inside: whatever FLARE refuses.
    """
    file = kit / "startup" / "fed_admin.json"
    try:
        person = json.loads(file.read_text(encoding="utf-8"))["admin"]
        name, server = person["username"], f"{person['host']}:{person['port']}"
    except (OSError, ValueError, KeyError):
        raise FedMendError("--kit: expected the startup kit of a person, with startup/fed_admin.json") from None
    end = time.monotonic() + patience
    with _in_one_sentence(name, server):
        while True:
            try:
                session = new_secure_session(name, str(kit.resolve()), timeout=CONNECT)
                break
            except NoConnection:
                if time.monotonic() > end:
                    raise
                time.sleep(1)
        try:
            yield session
        finally:
            session.close()  # an open one keeps this process alive


@contextlib.contextmanager
def _in_one_sentence(person: str, server: str) -> Iterator[None]:
    try:
        yield
    except (NoConnection, SessionClosed):
        proxy = proxy_of(server.rpartition(":")[0])
        way = f"; {proxy} sends this connection to a proxy, and no_proxy does not name the server" if proxy else ""
        raise NoAnswer(f"server: expected an answer from {server}, got none{way}") from None
    except AuthenticationError as e:
        raise FedMendError(f"server: expected a kit that {server} accepts, it refused {person}: {e}") from None
    except AuthorizationError:
        raise FedMendError(f"server: expected somebody who may do this, {person} may not") from None
    except JobNotFound:
        raise FedMendError("--job-id: expected a job that the server knows, it does not know this one") from None
    except JobNotDone:
        raise FedMendError("result: expected a job that has ended, this one still runs") from None
    except (InvalidJobDefinition, InternalError) as e:
        raise FedMendError(f"server: expected a job or command that it accepts, it said: {e}") from None


@contextlib.contextmanager
def leaving() -> Iterator[threading.Event]:
    """Ctrl-C sets the event and interrupts; FLARE swallows the exception where it waits for an answer."""
    left = threading.Event()

    def leave(*_: object) -> None:
        left.set()
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # no other one may ask for signals
            stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, leave))
        yield left


def submit(
    job: Path | None,
    kit: Path,
    out: Path,
    changes: Changes = UNCHANGED,
    *,
    job_id: str = "",
    show: Callable[[str], None] = print,
    announce: Callable[[str], None] | None = None,
    watch: Callable[[str], None] | None = None,
) -> Path:
    """Runs one job on a provisioned federation and fetches its result; Ctrl-C leaves it running there. What ``show``
    and ``watch`` get, :func:`follow` says.

    Args:
        job: job folder; None: come back to a job.
        kit: startup kit of the lead researcher.
        out: folder for results.
        changes: other settings of the job.
        job_id: of the job to come back to.
        announce: gets the line with the job's id and the way back to it; None: ``show`` does.

    Returns:
        Folder of the result, see :func:`fetch`.

    Raises:
        FedMendError: the job is refused, no server, or the job does not complete.
        KeyboardInterrupt: the person has left.
    """
    with contextlib.ExitStack() as stack:
        left = stack.enter_context(leaving())
        if job:  # a mistyped setting is refused before the server is asked
            folder = stack.enter_context(configured(job, changes, strict=True))
        refuse_fetched(out, job_id)
        make_folder(out)  # before the job runs, not after it
        session = stack.enter_context(open_session(kit))
        job_id = job_id or submit_job(session, folder)
        back = way_back(kit, job_id, out)
        (announce or show)(f"job {job_id}; Ctrl-C leaves it running, and this comes back to it: {back}")
        follow(session, job_id, show=show, watch=watch, left=left.is_set)
        return fetch(session, job_id, out)


def submit_job(session: Session, job: Path) -> str:
    """Sends a job folder, which the person's key signs, and returns the job's id."""
    return session.submit_job(str(job.resolve()))


def follow(
    session: Session,
    job_id: str,
    *,
    show: Callable[[str], None] = print,
    watch: Callable[[str], None] | None = None,
    interval: float = POLL,
    left: Callable[[], bool] = lambda: False,
) -> None:
    """Shows what a job does until it ends well.

    Status and schedule come from the job's description, rounds and metrics from the server's log of this job, which our
    policy lets its submitter read. Logs of sites do not leave them.

    Args:
        session: of the person who submitted it.
        job_id: what :func:`submit_job` returned, in this process or an earlier one.
        show: gets one line at a time.
        watch: gets the newest picture of the run as JSON at every look, see :mod:`fedmend.records.progress`.
        interval: seconds between two looks.
        left: asked before every look; True when the person has gone.

    Raises:
        FedMendError: the job ended otherwise; with the sentence of the server or of the site that stopped it.
        KeyboardInterrupt: the person has gone.
    """
    last_state, last_line = "", ""
    while True:
        if left():
            raise KeyboardInterrupt
        meta = session.get_job_meta(job_id)
        state = job_state(meta)
        if state != last_state:
            show(state)
            if meta["status"] == RunStatus.SUBMITTED.value and _history(meta):
                show(who_is_there(connected_sites(session), named_sites(meta)))
            last_state = state
        log = server_log(session, job_id) or []
        ours = [entry for entry in log if entry["fullName"].startswith("fedmend.") and job_id not in entry["message"]]
        lines = [f"{entry['asctime'][11:19]} {entry['message']}" for entry in ours]
        stamps = [entry["asctime"] + entry["message"] for entry in ours]
        new = stamps.index(last_line) + 1 if last_line in stamps else 0
        for line in lines[new:]:
            show(line)
        last_line = stamps[-1] if stamps else last_line
        if watch and (told := pictures(log)):
            watch(told[-1])
        if meta["status"].startswith("FINISHED"):
            break
        time.sleep(interval)
    if meta["status"] != RunStatus.FINISHED_COMPLETED.value:
        why = f"job {job_id}: expected it to complete, got {meta['status']}: {reason(meta, log)}"
        raise JobFailed(why, meta, log)


def job_state(meta: Mapping) -> str:
    """The status of a job, by its description; with who refused it, and what it waits for."""
    waits = meta["status"] == RunStatus.SUBMITTED.value
    return ", ".join([meta["status"], *_not_deployed(meta), *(_history(meta)[-1:] if waits else [])])


def connected_sites(session: Session) -> set[str]:
    """Names of the sites that the server knows at this moment."""
    return {client.name for client in session.get_system_info().client_info}


def named_sites(meta: Mapping) -> set[str]:
    """The sites that a job names, by its description; none where it is for all."""
    listed = (meta.get(JobMetaKey.DEPLOY_MAP.value) or {}).values()
    names = {site if isinstance(site, str) else "" for sites in listed for site in sites}
    return names - {"", "server", ALL_SITES}


def who_is_there(there: set[str], wanted: set[str]) -> str:
    """A line about the sites that a job waits for.

    Args:
        there: connected sites.
        wanted: sites that are known to be needed; none where the job is for all (``@ALL``): FLARE's server knows no
            site before it connects, and so cannot tell one that is missing from one that does not exist.
    """
    missing = sorted(wanted - there)
    absent = f"missing: {', '.join(missing)}" if missing else "whoever is missing is not among them"
    if not wanted:
        absent = f"the job is for {ALL_SITES}: who is missing can be told where its meta.json names them in deploy_map"
    return (
        f"connected sites: {', '.join(sorted(there)) or 'none'}; {absent} (not started, cut off, not accepted by the"
        " server, or with a clock behind its certificate: fedmend sitecheck --kit says which, on the site's machine)"
    )


def _history(meta: Mapping) -> list[str]:
    return meta.get(JobMetaKey.SCHEDULE_HISTORY.value) or []


def _not_deployed(meta: Mapping) -> list[str]:
    """Who refused the job before it started, and why; it goes on without a site that it does not need."""
    details = meta.get(JobMetaKey.JOB_DEPLOY_DETAIL.value) or []
    return [d.replace(f"{ERROR_MSG_PREFIX}: ", "") for d in details if not d.endswith(": OK")]


def server_log(session: Session, job_id: str) -> list[dict] | None:
    """Entries of the server's log of the job, whose last 5 MB FLARE sends; None where FLARE's policy denies it."""
    try:
        text = session.get_job_logs(job_id, log_file_name="log.json")["logs"].get("server", "")
    except AuthorizationError:
        return None
    entries = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the first one may be cut, the last one half written
            entries.append(json.loads(line))
    return [e for e in entries if isinstance(e, dict) and e.keys() >= LOG_KEYS]


def pictures(log: list[dict]) -> list[str]:
    """The pictures of the run in the server's log, as JSON."""
    return [entry["message"] for entry in log if entry["fullName"] == PICTURES]


def reason(meta: Mapping, log: list[dict]) -> str:
    """Why a job did not complete: its description and the entries of the server's log, in one sentence."""
    if meta["status"] == RunStatus.FINISHED_ABORTED.value:
        return "somebody aborted it"
    if meta["status"] == RunStatus.FINISHED_CANT_SCHEDULE.value:
        return "; ".join(_history(meta)[-1:])
    if meta["status"] == RunStatus.FAILED_TO_RUN.value and _not_deployed(meta):
        return "; ".join(_not_deployed(meta))
    for entry in log:
        if found := UNLISTED.search(entry["message"]):
            return f"server: {found.group()}"
    stopped = [e["message"].partition(STOPPED)[2] for e in log if STOPPED in e["message"]]
    if stopped:
        return SILENT if stopped[-1].endswith(ABORTED) else stopped[-1]
    errors = [e["message"].splitlines()[0] for e in log if e["levelname"] in ("ERROR", "CRITICAL") and e["message"]]
    return errors[-1] if errors else SILENT


def way_back(kit: Path, job_id: str, out: Path) -> str:
    """The command that comes back to a job, as a shell takes it."""
    return shlex.join(["fedmend", "submit", "--kit", str(kit), "--job-id", job_id, "--out", str(out)])


def fetch(session: Session, job_id: str, out: Path) -> Path:
    """Downloads a job's result into the folder ``out/<job id>``, with ``workspace``, ``job`` and ``meta.json``; it is
    there when it is whole, and until then ``<job id>.part`` is.

    Raises:
        FedMendError: it is there already, or the disk takes no more.
    """
    refuse_fetched(out, job_id)
    part = out / f"{job_id}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)  # of an earlier try
        part.mkdir(parents=True)
        found = Path(session.download_job_result(job_id, str(part)))
        found.rename(out / job_id)
        part.rmdir()
    except OSError as e:
        raise FedMendError(f"--out, {out}: expected room and the right to write, got: {said(e)}") from None
    return out / job_id


def refuse_fetched(out: Path, job_id: str) -> None:
    """Refuses to fetch a result that is there already.

    Args:
        out: folder for results.
        job_id: of the job that is come back to; empty: of none.

    Raises:
        FedMendError: there is.
    """
    if job_id and (out / job_id).exists():
        raise FedMendError(f"--out: expected no folder {job_id} in it, there is one")


def what_came_out(folder: Path) -> list[str]:
    """Lines that say where pages and models of a fetched result are."""
    kinds = (("report", "*.html"), ("model", "*.pt"))
    found = [f"{kind}: {file}" for kind, pattern in kinds for file in sorted(folder.rglob(pattern))]
    return [*found, f"result: {folder}"]
