"""Job folders with other variables, and runs of them in FLARE's simulator."""

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from fedmend.datasets.phantom_sites import phantom_spec
from fedmend.errors import FedMendError
from fl_components.site_config import CONFIG_NAME, PHANTOM

POLICY = Path(__file__).resolve().parents[1] / "simulator_workspace" / "local"
VARIANTS = "variants"
STRUCTURE = {
    "format_version",
    "server",
    "workflows",
    "executors",
    "components",
    "task_data_filters",
    "task_result_filters",
}
KINDS = {  # of a job variable's value: what it is called, which values may take its place
    bool: ("true or false", {bool}),
    int: ("a whole number", {int}),
    float: ("a number", {int, float}),
    str: ("text", {str}),
    list: ("a list", {list}),
    dict: ("a mapping or null", {dict, type(None)}),
}
RUN_FOLDER = Path("server") / "simulate_job" / "fedmend"
GRACE = 60.0  # seconds between the results and the end of the simulator


def parse_assignments(pairs: Sequence[str]) -> dict[str, object]:
    """``name=value`` words → mapping; a value that parses as JSON becomes what it says, any other is text.

    Raises:
        FedMendError: a word without ``=``.
    """
    parsed = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise FedMendError(f"--set: expected variable=value, got {pair!r}")
        try:
            parsed[name] = json.loads(text)
        except json.JSONDecodeError:
            parsed[name] = text
    return parsed


def configure_job(job: Path, out: Path, variables: Mapping[str, object], *, variant: str = "", sites: int = 0) -> None:
    """Copies a job folder with other variables.

    Args:
        job: job folder.
        out: folder to write; must not exist.
        variables: variable → value; ``phantom.images`` reaches into a mapping. A variable that both configuration files have
            is set in both.
        variant: name of a file in the job's ``variants`` folder, whose variables are set first.
        sites: number of sites ``site-1`` … in meta.json; 0 keeps what stands there.

    Raises:
        FedMendError: no job, unknown variant or variable, or a value of another kind than the job's.
    """
    if not (job / "meta.json").is_file():
        raise FedMendError(f"job: expected a folder with meta.json, not found in {job}")
    chosen = dict(variables)
    if variant:
        file = job / VARIANTS / f"{variant}.json"
        if not file.is_file():
            known = sorted(f.stem for f in (job / VARIANTS).glob("*.json"))
            raise FedMendError(f"--variant: expected one of {known}, got {variant!r}")
        chosen = {**json.loads(file.read_text()), **chosen}
    configs = {f.relative_to(job): json.loads(f.read_text()) for f in sorted(job.glob("*/config/config_fed_*.json"))}
    for name, value in chosen.items():
        head, _, field = name.partition(".")
        homes = [c for c in configs.values() if head in c and head not in STRUCTURE]
        if not homes or (field and not all(isinstance(c[head], dict) for c in homes)):
            known = sorted({k for c in configs.values() for k in c} - STRUCTURE)
            raise FedMendError(f"--set: expected one of {known}, got {name!r}")
        for config in homes:
            if field:
                config[head][field] = value
            else:
                _check_kind(name, config[head], value)
                config[head] = value
            if head == "phantom" and config[head]:
                _check_phantom(config[head])
    shutil.copytree(job, out)
    for file, config in configs.items():
        (out / file).write_text(json.dumps(config, indent=2) + "\n")
    if sites:
        meta = json.loads((out / "meta.json").read_text())
        names = ["server", *(f"site-{i + 1}" for i in range(sites))]
        meta["deploy_map"], meta["min_clients"] = dict.fromkeys(meta["deploy_map"], names), sites
        (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _check_phantom(given: Mapping[str, object]) -> None:
    usual = asdict(type(phantom_spec(given))())
    for field, value in given.items():
        _check_kind(f"phantom.{field}", usual[field], value)


def _check_kind(name: str, old: object, new: object) -> None:
    if type(old) in KINDS and type(new) not in KINDS[type(old)][1]:
        raise FedMendError(f"job variable {name}: expected {KINDS[type(old)][0]}, got {new!r}")


def lay_policy(workspace: Path, site_settings: Mapping[str, object]) -> None:
    """Puts the tracked site policy into ``workspace/local``, with other values in its ``fedmend.json``.

    Args:
        workspace: a new folder or that of an earlier run, because the simulator empties it.
        site_settings: fields of ``fedmend.json``; a relative ``data_root`` starts at the current folder.

    Raises:
        FedMendError: the policy is not there (FedMend was not installed from its checkout), or the workspace holds other files.
    """
    if not POLICY.is_dir():
        raise FedMendError("site policy: expected simulator_workspace/local in the FedMend checkout, not found")
    file = workspace / "local" / CONFIG_NAME
    startup = workspace / "startup"  # the simulator leaves it empty, a provisioned site keeps its certificates there
    earlier_run = file.is_file() and not (startup.is_dir() and any(startup.iterdir()))
    empty = not workspace.exists() or (workspace.is_dir() and not any(workspace.iterdir()))
    if workspace.resolve() == POLICY.parent or not (earlier_run or empty):
        raise FedMendError("--workspace: expected a new folder or one of an earlier run, got one with other files")
    shutil.copytree(POLICY, workspace / "local", dirs_exist_ok=True)
    file.write_text(local_settings(site_settings))


def local_settings(site_settings: Mapping[str, object]) -> str:
    """Content of ``fedmend.json`` for a trial on this machine: the tracked one with other values, see :func:`lay_policy`."""
    settings = {**json.loads((POLICY / CONFIG_NAME).read_text()), **site_settings}
    data_root = site_settings.get("data_root")
    if isinstance(data_root, str) and data_root not in ("", PHANTOM):
        settings["data_root"] = str(Path(data_root).expanduser().absolute())
    return json.dumps(settings, indent=2) + "\n"


def simulate(
    job: Path,
    workspace: Path,
    *,
    threads: int = 1,
    variables: Mapping[str, object] | None = None,
    variant: str = "",
    sites: int = 0,
    site_settings: Mapping[str, object] | None = None,
    quiet: bool = False,
) -> dict:
    """Runs one job in FLARE's simulator and returns its ``results.json``.

    Args:
        job: job folder.
        workspace: emptied by the simulator, except for ``local``; a new folder or that of an earlier run.
        threads: sites that run at the same time.
        variables: job variables to override.
        variant: see :func:`configure_job`.
        sites: see :func:`configure_job`.
        site_settings: fields of ``fedmend.json`` to override.
        quiet: keep the simulator's output in ``<workspace>.log`` instead of showing it.

    Raises:
        FedMendError: the workspace holds other files, the simulator failed, or a site's result was refused.
    """
    workspace = workspace.resolve()
    with tempfile.TemporaryDirectory() as folder:
        configured = Path(folder) / job.resolve().name
        configure_job(job, configured, variables or {}, variant=variant, sites=sites)
        lay_policy(workspace, site_settings or {})  # after the job: a mistyped variable leaves no folder behind
        command = [
            sys.executable,
            "-m",
            "nvflare.cli",
            "simulator",
            str(configured),
            "-w",
            str(workspace),
            "-t",
            str(threads),
        ]
        log = workspace.with_name(workspace.name + ".log")
        with open(log if quiet else os.devnull, "w") as output:
            streams = {"stdout": output, "stderr": subprocess.STDOUT} if quiet else {}
            code = _run_simulator(command, workspace / RUN_FOLDER / "results.json", **streams)
    records = workspace / RUN_FOLDER
    server_log = workspace / "server" / "log.txt"
    refused = _refused(records)
    if code or refused or not (records / "results.json").is_file():
        reasons = refused[:1] or _stopped(server_log)[-1:] or [f"see {log if quiet else server_log}"]
        raise FedMendError(f"simulator: expected a complete run, got exit code {code}: {reasons[0]}")
    return json.loads((records / "results.json").read_text())


def _run_simulator(command: Sequence[str], results: Path, **streams) -> int:
    """Exit code of the simulator. Where a site's process starts while the server stops, FLARE 2.9 waits for it forever: a
    simulator that has written its results is stopped after ``GRACE``."""
    results.unlink(missing_ok=True)
    process = subprocess.Popen(command, **streams)
    end = float("inf")
    try:
        while time.monotonic() < end:
            try:
                return process.wait(1)
            except subprocess.TimeoutExpired:
                if end == float("inf") and results.is_file():
                    end = time.monotonic() + GRACE
        return 0
    finally:
        if process.poll() is None:
            simulator = psutil.Process(process.pid)
            for running in [*simulator.children(recursive=True), simulator]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    running.kill()
            process.wait()


def _refused(records: Path) -> list[str]:
    file = records / "decisions.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [line["value"]["reason"] for line in lines if line["what"] == "refused"]


def _stopped(log: Path) -> list[str]:
    """What the server said when it stopped the run."""
    return re.findall(r"run stopped: (.+)", log.read_text()) if log.is_file() else []


def mean_and_sd(runs: Sequence[Mapping]) -> list[str]:
    """Lines ``split metric mean ± sd`` in points (0-100) over the final macro metrics of several runs."""
    lines = []
    for split in runs[0]["final"]:
        for metric in runs[0]["final"][split]:
            values = [100 * run["final"][split][metric] for run in runs if run["final"][split][metric] is not None]
            if values:
                sd = statistics.stdev(values) if len(values) > 1 else 0.0
                lines.append(
                    f"{split} {metric.upper() if metric != 'map' else 'mAP'}: {statistics.mean(values):.2f} ± {sd:.2f}"
                )
    return lines
