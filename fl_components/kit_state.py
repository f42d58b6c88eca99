"""Where a site or server keeps what must outlive a job: outside its startup kit, in which FLARE makes and deletes
folders at the word of the server.
"""

import errno
import filecmp
import json
import os
import shutil
from pathlib import Path

import psutil

from fedmend.basics.files import locked, whole_folder, write_text
from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError
from fedmend.site.config import CONFIG_NAME, SiteConfig, read_site_config

DEFAULT = "../fedmend-state/{SITE_NAME}"  # beside the kit
OLD = "state"  # where kits of FedMend 0.1 have it, below the kit
KIT_FILES = {"fed_client.json": "client", "fed_server.json": "server"}  # in startup/; the simulator has neither
PROCESSES = ("pid.fl", "daemon_pid.fl")  # FLARE's start script notes them in the kit
COMMAND = "fedmend move-state KIT"


def check_state(root: Path, config: SiteConfig, site: str) -> None:
    """Refuses a kit with state in it, so that no run starts anew beside a ledger that there is.

    Args:
        root: the workspace, which is a kit unless the simulator made it.
        config: its settings.
        site: its name, for messages.

    Raises:
        FedMendError: says which command moves the state.
    """
    if not _is_kit(root):
        return
    if config.state_dir.is_relative_to(root.resolve()):
        raise FedMendError(
            f"{site}: local/{CONFIG_NAME}, field state_dir: expected a folder outside the kit, got one in it; stop the"
            f" site and move it, ledgers and all, by: {COMMAND}"
        )
    if runs := _runs(root / OLD, site):
        raise FedMendError(
            f"{site}: expected no state of runs in the kit, got that of {len(runs)}; stop the site and move it by:"
            f" {COMMAND}"
        )


def open_state(root: Path, config: SiteConfig, site: str) -> None:
    """As :func:`check_state`, and makes a kit's folder for state, for its owner alone, as the kit is.

    Raises:
        FedMendError: as there; or the folder cannot be made.
    """
    check_state(root, config, site)
    try:
        if _is_kit(root):
            config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise FedMendError(
            f"{site}: local/{CONFIG_NAME}, field state_dir: expected a folder that can be written, got another"
        ) from None


def _is_kit(root: Path) -> bool:
    return any((root / "startup" / name).is_file() for name in KIT_FILES)


def move_state(kit: Path, to: Path | None = None) -> tuple[Path, list[str]]:
    """Moves the state of all runs out of a kit and writes the new place into its ``fedmend.json``.

    Whatever stops it, nothing is lost: every run is whole at the old place or at the new one, the kit refuses jobs
    until all is moved, and the next call goes on.

    Args:
        kit: startup kit of a site or of the server, which does not run.
        to: the new folder; None: what ``state_dir`` says if that is outside the kit, else beside the kit.

    Returns:
        The new folder and the names of the runs that were moved.

    Raises:
        FedMendError: no such kit, it runs, the new folder is in the kit, or it holds a run of the same name.
    """
    root, site = kit.resolve(), kit_name(kit)
    file = root / "local" / CONFIG_NAME
    config = read_site_config(file, root, site)
    inside = config.state_dir.is_relative_to(root)
    kept = DEFAULT.format(SITE_NAME=site) if inside else read_json(file)["state_dir"]
    setting = str(to.absolute()) if to else kept
    target = (root / setting.replace("{SITE_NAME}", site)).expanduser().resolve()
    if target.is_relative_to(root):
        raise FedMendError(f"{site}: --to: expected a folder outside the kit, got one in it")
    old = config.state_dir if inside else root / OLD
    _refuse_running(root, old, site)
    runs = _runs(old, site)
    for run in runs:
        if (target / run.name).exists() and not _same(run, target / run.name):
            raise FedMendError(
                f"{site}: expected no run {run.name} in the new folder, there is another one; keep one of them"
            )
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for run in runs:
        _move(run, target / run.name)
    settings = read_json(file)
    if settings["state_dir"] != setting:
        write_text(file, json.dumps({**settings, "state_dir": setting}, indent=2) + "\n")
    return target, [run.name for run in runs]


def state_of(kit: Path) -> Path:
    """The folder in which a startup kit keeps ledgers and state.

    Raises:
        FedMendError: no kit, or its ``fedmend.json`` cannot be used.
    """
    root, site = kit.resolve(), kit_name(kit)
    return read_site_config(root / "local" / CONFIG_NAME, root, site).state_dir


def kit_name(kit: Path) -> str:
    """The name of the site whose startup kit this is, or ``server``.

    Raises:
        FedMendError: no startup kit of either.
    """
    for name, side in KIT_FILES.items():
        try:
            about = json.loads((kit / "startup" / name).read_text(encoding="utf-8"))
            return "server" if side == "server" else about["client"]["fqsn"].split(".")[-1]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    raise FedMendError("expected the startup kit of a site or server, with startup and local, got another folder")


def _runs(folder: Path, site: str) -> list[Path]:
    """The runs below a folder, which may be the kit itself: each has a folder with the site's name."""
    return sorted(run for run in folder.iterdir() if (run / site).is_dir()) if folder.is_dir() else []


def _refuse_running(root: Path, old: Path, site: str) -> None:
    for name in PROCESSES:
        text = (root / name).read_text().strip() if (root / name).is_file() else ""
        if text.isdigit() and psutil.pid_exists(int(text)):
            raise FedMendError(f"{site}: expected one that is stopped, process {text} of {name} in the kit still runs")
    for lock in old.glob("*/*/in_use"):
        with locked(lock, patience=0) as alone:
            if not alone:
                raise FedMendError(f"{site}: expected one that is stopped, a task of it still runs")


def _same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same: a move to another disk was stopped before the old one was removed."""
    files = {f.relative_to(one) for f in one.rglob("*") if f.is_file()}
    return files == {f.relative_to(other) for f in other.rglob("*") if f.is_file()} and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in files
    )


def _move(run: Path, goal: Path) -> None:
    if not goal.exists():
        try:
            os.rename(run, goal)
            return
        except OSError as e:
            if e.errno != errno.EXDEV:  # another disk
                raise
        with whole_folder(goal) as temporary:
            shutil.copytree(run, temporary, dirs_exist_ok=True)
    shutil.rmtree(run)
