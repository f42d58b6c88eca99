"""A real federation on one machine: startup kits for the loopback interface, server and sites as processes."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import yaml
from nvflare.fuel.flare_api.flare_api import Session

from fedmend.errors import FedMendError
from fedmend.site.config import CONFIG_NAME
from fl_components.console import last_error
from fl_components.job.folder import UNCHANGED, Changes, configured
from fl_components.job.reading import read
from fl_components.kit_state import DEFAULT
from fl_components.run.simulate import local_settings
from fl_components.run.start import check_paths, in_use, reach_this_machine
from fl_components.run.submit import NoAnswer, fetch, follow, open_session, submit_job

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = CHECKOUT / "provisioning" / "project.yml"
MARK = "FEDMEND_FEDERATION"  # environment variable of everything that a federation starts
PATIENCE, SILENCE = 180.0, 20.0  # seconds until server and sites are up; without a word while they are not
OUTPUT = "output.txt"  # of server or site, in its kit


class ProvisionedFederation:
    """A federation provisioned with our policy whose server and sites run on this machine, with mutual TLS.

    Args:
        folder: a new or empty folder for kits, state and jobs.
        sites: names of the sites.
        baselines: whether jobs may also name methods that only comparisons need.

    Attributes:
        kits: folder with one startup kit per participant; a site's kit is also its workspace.
        server: name of the server's kit.
        lead: startup kit of the lead researcher.
        admin: startup kit of the project admin.
        sites: as given.
        mark: value of the environment variable ``MARK`` in every process of this federation, before ``/`` and the
            name of the kit.

    Raises:
        FedMendError: the folder holds files, FedMend was not installed from its checkout, or provisioning failed.
    """

    def __init__(self, folder: Path, sites: Sequence[str], *, baselines: bool = True):
        folder = folder.resolve()
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise FedMendError("--workspace: expected a new or empty folder, got one with files")
        self.sites, self.mark = list(sites), uuid.uuid4().hex
        project = local_project(folder, self.sites, baselines=baselines)
        people = {p.get("role"): p["name"] for p in project["participants"]}
        (self.server,) = (p["name"] for p in project["participants"] if p["type"] == "server")
        self.kits = folder / project["name"] / "prod_00"
        self.lead, self.admin = self.kits / people["lead"], self.kits / people["project_admin"]
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "project.json"
        file.write_text(json.dumps(project, indent=2) + "\n", encoding="utf-8")  # JSON is YAML
        words = ["provision", "-p", str(file), "-w", str(folder), "-c", str(CHECKOUT)]
        done = subprocess.run([sys.executable, "-m", "nvflare.cli", *words], capture_output=True, text=True, cwd=folder)
        if done.returncode or not self.lead.is_dir():
            raise FedMendError(f"provisioning: expected startup kits, got: {(done.stdout + done.stderr).strip()}")

    def configure_sites(self, settings: Mapping[str, object]) -> None:
        """Writes every site's ``fedmend.json``: that of the simulator's policy with other values, its state outside the
        kit; and where these name it the server's folder of weights."""
        laid = local_settings({"state_dir": DEFAULT, **settings})
        for site in self.sites:
            (self.kits / site / "local" / CONFIG_NAME).write_text(laid, encoding="utf-8")
        if "weights_dir" in settings:  # of the server alone; on one machine a person gives it with those of the sites
            own = self.kits / self.server / "local" / CONFIG_NAME
            known = json.loads(own.read_text(encoding="utf-8")) | {"weights_dir": json.loads(laid)["weights_dir"]}
            own.write_text(json.dumps(known, indent=2), encoding="utf-8")

    def start(self, *names: str) -> None:
        """Starts these participants, or server and all sites, each under FLARE's daemon, which restarts what dies."""
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # its python3
        for name in names or (self.server, *self.sites):
            kit = self.kits / name
            with open(kit / OUTPUT, "a") as output:
                subprocess.Popen(
                    ["bash", str(kit / "startup" / "sub_start.sh")],
                    cwd=kit,
                    env={**os.environ, "PATH": paths, MARK: f"{self.mark}/{name}"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for us, and we stop them
                )

    def connect(self, stack: contextlib.ExitStack, show: Callable[[str], None]) -> Session:
        """A session of the lead researcher, as soon as the server answers; ``stack`` closes it.

        Raises:
            FedMendError: it does not within ``PATIENCE``; with what it said last.
        """
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return stack.enter_context(open_session(self.lead, patience=SILENCE))
            except NoAnswer as e:
                if time.monotonic() > end:
                    raise FedMendError(f"{e}; the server said last: {self._last_words(self.server)}") from None
            show("the server does not answer yet")

    def wait_until_ready(self, session: Session, show: Callable[[str], None] = print) -> None:
        """Returns when the server knows all sites; ``show`` gets a line every ``SILENCE`` seconds until then.

        Raises:
            FedMendError: some are missing after ``PATIENCE``; with what one of them said last.
        """
        now = time.monotonic()
        end, told = now + PATIENCE, now
        while missing := sorted(set(self.sites) - {c.name for c in session.get_system_info().client_info}):
            now, names = time.monotonic(), ", ".join(missing)
            if now > end:
                said = f"{missing[0]} said last: {self._last_words(missing[0])}"
                raise FedMendError(f"federation: expected all sites to connect, {names} did not; {said}")
            if now > told + SILENCE:
                show(f"not connected yet: {names}")
                told = now
            time.sleep(0.5)

    def _last_words(self, name: str) -> str:
        return last_error(self.kits / name / "log.txt", self.kits / name / OUTPUT)

    @contextlib.contextmanager
    def running(self, show: Callable[[str], None] = print) -> Iterator[Session]:
        """Starts everything, gives a session of the lead researcher, and stops everything, come what may; ``show`` gets
        lines while nothing is ready."""
        try:
            self.start()
            with contextlib.ExitStack() as stack:
                session = self.connect(stack, show)
                self.wait_until_ready(session, show)
                yield session
        finally:
            self.stop()

    def processes(self) -> dict[psutil.Process, str]:
        """Everything that runs now → the name of its participant."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mark, _, name = process.environ().get(MARK, "").partition("/")
                if mark == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = name
        return found

    def stop(self) -> None:
        """Ends every process of this federation and nothing else; daemons first, so that none restarts another."""
        while running := self.processes():
            for process in sorted(running, key=lambda p: p.name() != "bash"):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(list(running), timeout=5)


def poc(
    job: Path,
    workspace: Path,
    changes: Changes = UNCHANGED,
    *,
    site_settings: Mapping[str, object] | None = None,
    show: Callable[[str], None] = print,
    watch: Callable[[str], None] | None = None,
) -> Path:
    """Runs one job on a federation of this machine that exists for as long as the job. What ``show`` and ``watch`` get,
    :func:`follow` says.

    Args:
        job: job folder.
        workspace: new or empty folder; kits, sites' state and logs stay there.
        changes: other settings of the job.
        site_settings: fields of every site's ``fedmend.json`` to override; the data are the job's phantom otherwise.

    Returns:
        Folder of the result, see :func:`fetch`.

    Raises:
        FedMendError: the job or the workspace is refused, the federation does not start, or the job does not complete.
    """
    check_paths(workspace.resolve())
    reach_this_machine()
    with configured(job, changes, strict=True) as folder, in_use(workspace.resolve()):
        federation = ProvisionedFederation(workspace, read(folder).sites)
        federation.configure_sites(site_settings or {})
        show(f"starting the server and {len(federation.sites)} sites, which takes half a minute")
        with federation.running(show) as session:
            job_id = submit_job(session, folder)
            show(f"job {job_id} submitted")
            follow(session, job_id, show=show, watch=watch)
            return fetch(session, job_id, workspace.resolve() / "results")


def local_project(folder: Path, sites: Sequence[str], *, baselines: bool = True) -> dict:
    """``project.yml`` for this machine: other sites, free ports, storage in the folder, which is absolute; people and
    rights stay.

    Raises:
        FedMendError: FedMend was not installed from its checkout.
    """
    if not PROJECT.is_file():
        raise FedMendError("provisioning: expected provisioning/project.yml in the FedMend checkout, not found")
    project = yaml.safe_load(PROJECT.read_text(encoding="utf-8"))
    learning, admin = _free_ports(2)
    changed = {"default_host": "localhost", "fed_learn_port": learning, "admin_port": admin}
    others = [p for p in project["participants"] if p["type"] != "client"]
    people = [{**p, **changed} if p["type"] == "server" else p for p in others]
    clients = [{"name": site, "type": "client", "org": site.replace("-", "_")} for site in sites]
    ours = {"server_storage": str(folder / "storage"), "baselines": baselines}
    for builder in project["builders"]:
        if "server_storage" in builder.get("args", {}):
            builder["args"] |= ours
    return {**project, "participants": [*people, *clients]}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("localhost", 0))
        return [sock.getsockname()[1] for sock in sockets]
