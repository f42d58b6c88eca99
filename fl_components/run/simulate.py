"""Runs of jobs in FLARE's simulator."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from fedmend.basics.files import copy_folder
from fedmend.basics.json_files import read_json
from fedmend.basics.page import short_name
from fedmend.errors import FedMendError
from fedmend.records.progress import PROGRESS
from fedmend.records.run_folder import DECISIONS, RUN_FOLDER, read_lines
from fedmend.repairs.ledger import read_verdicts
from fedmend.report.tables import mean_and_sd, shown
from fedmend.site.config import CONFIG_NAME, PHANTOM
from fl_components.console import last_error
from fl_components.job.folder import UNCHANGED, Changes, configured, list_receivers
from fl_components.job.reading import read
from fl_components.job.sites import ALL
from fl_components.run.start import check_paths, check_threads, in_use, reach_this_machine, set_aside

POLICY = Path(__file__).resolve().parents[2] / "simulator_workspace" / "local"
GRACE, LAST_WORDS = 60.0, 5.0  # seconds between the end of a run, or the sentence that ends it, and the simulator's
TRIES = 5  # of FLARE to listen on a port that is taken, within 20 s; it would go on for ever
TAKEN = "server: expected a free port, got one that another process has taken in the same moment; start it again"
STARTS_HERE = {"data_root", "weights_dir"}  # paths of fedmend.json that a person types; others start at the workspace
DEFAULT_SITES = 2  # of the simulator, where a job names none


def lay_policy(workspace: Path, site_settings: Mapping[str, object]) -> None:
    """Puts the tracked site policy into ``workspace/local``, with other values in its ``fedmend.json``.

    Args:
        workspace: a new folder or that of an earlier run, because the simulator empties it.
        site_settings: fields of ``fedmend.json``; a relative ``data_root`` or ``weights_dir`` starts at the
            current folder.

    Raises:
        FedMendError: the policy is not there (FedMend was not installed from its checkout), or the workspace holds
            other files, or verdicts of people.
    """
    _refuse_others(workspace)
    copy_folder(POLICY, workspace / "local")
    (workspace / "local" / CONFIG_NAME).write_text(local_settings(site_settings), encoding="utf-8")


@contextlib.contextmanager
def fresh(workspace: Path, site_settings: Mapping[str, object]) -> Iterator[None]:
    """A workspace for one run, with the site policy alone, see :func:`lay_policy`, which refuses the same.

    Args:
        workspace: absolute; of an earlier run it is emptied, see :func:`fl_components.run.start.set_aside`.
        site_settings: fields of ``fedmend.json``.

    Raises:
        FedMendError: also, another run is at work in it.
    """
    _refuse_others(workspace)
    with in_use(workspace), set_aside(workspace):
        lay_policy(workspace, site_settings)
        yield


def _refuse_others(workspace: Path) -> None:
    """Refuses a workspace that no run may have, or a FedMend without the policy."""
    if not POLICY.is_dir():
        raise FedMendError("site policy: expected simulator_workspace/local in the FedMend checkout, not found")
    file = workspace / "local" / CONFIG_NAME
    startup = workspace / "startup"  # the simulator leaves it empty, a provisioned site keeps its certificates there
    earlier_run = file.is_file() and not (startup.is_dir() and any(startup.iterdir()))
    empty = not workspace.exists() or (workspace.is_dir() and not any(workspace.iterdir()))
    if workspace.resolve() == POLICY.parent or not (earlier_run or empty):
        raise FedMendError("--workspace: expected a new folder or one of an earlier run, got one with other files")
    _refuse_verdicts(workspace)


def _refuse_verdicts(workspace: Path) -> None:
    """What people said in a review is not emptied with the workspace."""
    for ledger in sorted(workspace.rglob("ledger.sqlite")):
        count = 0
        with contextlib.suppress(FedMendError):  # of a damaged file nobody can say what it held
            count = len(read_verdicts(ledger))
        if count:
            raise FedMendError(
                f"--workspace: expected one without verdicts of people, got {count} of {ledger.parent.name}; choose"
                " another workspace, and the same state_dir outside of both (--site state_dir=...) for both runs"
            )


def local_settings(site_settings: Mapping[str, object]) -> str:
    """Content of ``fedmend.json`` for a trial on this machine: the tracked one with other values."""
    settings = {**read_json(POLICY / CONFIG_NAME), **site_settings}
    for name in STARTS_HERE & {*site_settings}:
        if isinstance(folder := settings[name], str) and folder and (name, folder) != ("data_root", PHANTOM):
            settings[name] = str(Path(folder).expanduser().absolute())
    return json.dumps(settings, indent=2) + "\n"


def simulate(
    job: Path,
    workspace: Path,
    changes: Changes = UNCHANGED,
    *,
    threads: int = 1,
    site_settings: Mapping[str, object] | None = None,
    quiet: bool = False,
    watch: Callable[[str], None] | None = None,
) -> dict:
    """Runs one job in FLARE's simulator and returns its ``results.json``.

    Args:
        job: job folder.
        workspace: emptied by the simulator, except for ``local``; a new folder or that of an earlier run.
        changes: other settings of the job.
        threads: sites that run at the same time.
        site_settings: fields of ``fedmend.json`` to override.
        quiet: keep the simulator's output in ``<workspace>.log`` instead of showing it.
        watch: gets the picture of the run as JSON every second, see :mod:`fedmend.records.progress`.

    Raises:
        FedMendError: the workspace holds other files, the simulator failed, or a site's result was refused.
    """
    workspace = workspace.resolve()
    log, server_log = workspace.with_name(workspace.name + ".log"), workspace / "server" / "log.txt"
    records = workspace / RUN_FOLDER
    check_threads(threads)
    check_paths(workspace)
    reach_this_machine()
    with configured(job, changes) as folder, fresh(workspace, site_settings or {}):
        list_receivers(folder, workspace / "local" / "resources.json")
        sites = read(folder).sites
        command = [sys.executable, "-m", "nvflare.cli", "simulator", str(folder), "-w", str(workspace)]
        command += ["-t", str(min(threads, DEFAULT_SITES if ALL in sites else len(sites)))]
        with open(log if quiet else os.devnull, "w") as output:
            streams = {"stdout": output, "stderr": subprocess.STDOUT} if quiet else {}
            code = _run_simulator(command, records / "results.json", server_log, watch=watch, **streams)
        return results_of(workspace, code, *[log] * quiet)


def results_of(workspace: Path, code: int, *logs: Path) -> dict:
    """The ``results.json`` of a simulation that has ended.

    Args:
        workspace: where it ran.
        code: its exit code.
        logs: further files of its output.

    Raises:
        FedMendError: it failed, or a site's result was refused; with what was said of it.
    """
    records, server_log = workspace / RUN_FOLDER, workspace / "server" / "log.txt"
    refused = refused_results(records)
    if code or refused or not (records / "results.json").is_file():
        reasons = refused[:1] or _stopped(server_log)[-1:] or [last_error(server_log, *logs)]
        raise FedMendError(f"simulator: expected a complete run, got exit code {code}: {reasons[0]}")
    return json.loads((records / "results.json").read_text(encoding="utf-8"))


def _run_simulator(
    command: Sequence[str], results: Path, server_log: Path, watch: Callable[[str], None] | None = None, **streams: Any
) -> int:
    """Exit code of the simulator. Where a site's process starts while the server stops, FLARE 2.9 waits for it
    forever: a simulator that has written its results is stopped after ``GRACE``, one that has said why the run stopped
    after ``LAST_WORDS``. Ctrl-C is for us, and we stop it."""
    picture = results.with_name(PROGRESS)
    process = subprocess.Popen(command, start_new_session=True, **streams)
    end = float("inf")
    try:
        while time.monotonic() < end:
            try:
                return process.wait(1)
            except subprocess.TimeoutExpired:
                _look(picture, watch)
                if end == float("inf") and (results.is_file() or _stopped(server_log)):
                    end = time.monotonic() + (GRACE if results.is_file() else LAST_WORDS)
        return 0
    finally:
        _look(picture, watch)
        if process.poll() is None:
            simulator = psutil.Process(process.pid)
            for running in [*simulator.children(recursive=True), simulator]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    running.kill()
            process.wait()


def _look(picture: Path, watch: Callable[[str], None] | None) -> None:
    if watch and picture.is_file():
        watch(picture.read_text(encoding="utf-8"))


def refused_results(records: Path) -> list[str]:
    """Why results of sites were refused in a run, in order."""
    return [line["value"]["reason"] for line in read_lines(records / DECISIONS) if line["what"] == "refused"]


def _stopped(log: Path) -> list[str]:
    """What the server said when it stopped the run, or that it gets no port."""
    text = log.read_text() if log.is_file() else ""
    taken = Counter(re.findall(r"Error binding to +(\S+): .*Address already in use", text))
    return re.findall(r"run stopped: (.+)", text) or [TAKEN] * (max(taken.values(), default=0) >= TRIES)


def seed_lines(runs: Sequence[Mapping]) -> list[str]:
    """Lines ``split metric mean ± sd`` in points (0-100) over the final macro metrics of several runs; n/a where a run
    lacks the metric."""
    lines, finals = [], [run["final"] for run in runs]
    for split in dict.fromkeys(split for final in finals for split in final):
        of_split = [final.get(split, {}) for final in finals]
        for metric in dict.fromkeys(metric for macro in of_split for metric in macro):
            values = [macro.get(metric) for macro in of_split]
            if any(value is not None for value in values):
                lines.append(f"{split} {short_name(metric)}: {shown(*mean_and_sd(values, digits=2))}")
    return lines
