"""What every start on this machine needs: a workspace for one run at a time, paths that FLARE bears, no proxy between
processes of one machine."""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from fedmend.basics.checked import accepted, shown, whole
from fedmend.basics.files import locked
from fedmend.errors import FedMendError
from fedmend.records.run_folder import RESULTS, RUN, RUN_FOLDER

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # variables that gRPC asks, in its order; lower case alone
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@contextlib.contextmanager
def in_use(workspace: Path) -> Iterator[None]:
    """A workspace that no other run is given meanwhile; the lock lies beside it, as runs empty their workspace.

    Args:
        workspace: absolute; need not exist.

    Raises:
        FedMendError: another run has it.
    """
    with locked(workspace.with_name(f".{workspace.name}.lock"), patience=0) as alone:
        if not alone:
            raise FedMendError(
                "--workspace: expected one without a run at work, there is one; wait for its end, or choose another"
            )
        yield


@contextlib.contextmanager
def set_aside(workspace: Path) -> Iterator[None]:
    """An empty workspace in place of that of an earlier run, which is lost only when the new run has begun: until then
    it lies beside the workspace, and it comes back where the start fails, or at the next one where it is killed.

    Args:
        workspace: absolute, held by :func:`in_use`.
    """
    _bring_back(workspace)
    moving, aside = _beside(workspace)
    if workspace.is_dir() and any(workspace.iterdir()):
        moving.mkdir()
        _move(workspace, moving)
        moving.rename(aside)
    try:
        yield
    finally:
        _bring_back(workspace)


def _beside(workspace: Path) -> tuple[Path, Path]:
    """Where an earlier run lies: with what is still, or again, in the workspace a whole; and whole by itself."""
    return workspace.with_name(f".{workspace.name}.moving"), workspace.with_name(f".{workspace.name}.earlier")


def _bring_back(workspace: Path) -> None:
    moving, aside = _beside(workspace)
    begun = any((workspace / RUN_FOLDER / name).is_file() for name in (RUN, RESULTS))  # a label audit has results alone
    if aside.is_dir() and begun:
        shutil.rmtree(aside)
    elif aside.is_dir():
        for entry in workspace.iterdir() if workspace.is_dir() else ():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        aside.rename(moving)
    if moving.is_dir():
        workspace.mkdir(exist_ok=True)
        _move(moving, workspace)
        moving.rmdir()


def _move(source: Path, goal: Path) -> None:
    for entry in list(source.iterdir()):
        shutil.move(entry, goal / entry.name)


def check_threads(threads: int) -> None:
    """Refuses a number of sites at the same time that is none.

    Raises:
        FedMendError: it is below one.
    """
    accepted(threads, [whole(1)], "--threads", shown)


def check_paths(workspace: Path) -> None:
    """Refuses paths that FLARE cannot take: it makes command lines of them, and splits these at blanks.

    Args:
        workspace: of a run, or the kit of a site or server.

    Raises:
        FedMendError: it, or this Python, has a path with a blank, a quotation mark or a backslash.
    """
    for what, place in (("workspace or kit", workspace), ("Python", sys.executable)):
        if re.search(r"[\s'\"\\]", str(place)):
            raise FedMendError(
                f"path of the {what}: expected one without blanks and quotation marks, which FLARE cannot take, got one"
                " with them; move it (a simulation may also do without FLARE, by --local)"
            )


def reach_this_machine() -> None:
    """Lets this process, and all that it starts, reach this machine past a proxy."""
    for name, given in _bypasses().items():
        hosts = [host for host in given.split(",") if host.strip()]
        os.environ[name] = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])


def proxy_of(host: str) -> str:
    """The variable of the environment that sends a connection with a host to a proxy, or ""; by the rule of gRPC."""
    *_, asked = _bypasses().values()
    past = any(host.endswith(name.strip()) for name in asked.split(",") if name.strip())
    return "" if past else next((name for name in PROXIES if os.environ.get(name)), "")


def _bypasses() -> dict[str, str]:
    """Variables that name hosts which no proxy reaches; gRPC asks the last of these alone."""
    found = {"no_proxy": os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")}
    return found | {name: value for name, value in os.environ.items() if name == "no_grpc_proxy" and value}
