"""Where a site or server keeps what must outlive a job: outside its startup kit, in which FLARE makes and deletes
folders at the word of the server.
"""

import filecmp
import json
import shutil
from pathlib import Path

import psutil

from fedmend.basics.files import locked, whole_folder, write_atomically, write_text
from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError
from fedmend.site.config import CONFIG_NAME, SiteConfig, read_site_config
from fedmend.site.privacy import FOLDER, MARKS, carry_over
from fedmend.site.register import FOLDER as REGISTER

DEFAULT = "../fedmend-state/{SITE_NAME}"  # beside the kit
KIT_FILES = {"fed_client.json": "client", "fed_server.json": "server"}  # in startup/; the simulator has neither
PROCESSES = ("pid.fl", "daemon_pid.fl")  # FLARE's start script notes them in the kit


def check_state(root: Path, config: SiteConfig, site: str) -> None:
    """Refuses a kit with its state inside, where a command of FLARE's could reach it.

    Args:
        root: the workspace, which is a kit unless the simulator made it.
        config: its settings.
        site: its name, for messages.

    Raises:
        FedMendError: says which command moves the state.
    """
    if is_kit(root) and config.state_dir.is_relative_to(root.resolve()):
        raise FedMendError(
            f"{site}: local/{CONFIG_NAME}, field state_dir: expected a folder outside the kit, got one in it; stop the"
            " site and move it, ledgers and all, by: fedmend move-state KIT"
        )


def is_kit(root: Path) -> bool:
    """Whether a workspace is the startup kit of a site or server."""
    return any((root / "startup" / name).is_file() for name in KIT_FILES)


def move_state(kit: Path, to: Path | None = None) -> tuple[Path, list[str]]:
    """Moves all that a kit's ``state_dir`` holds to another folder and writes that into its ``fedmend.json``.

    The account of the privacy spent goes first; where both folders have one, both are added up. Whatever stops it,
    nothing is lost: the settings name the new folder only when all is there, and the old one is cleared only then. The
    next call goes on.

    Args:
        kit: startup kit of a site or of the server, which does not run.
        to: the new folder; None: beside the kit, or where ``state_dir`` is already outside the kit, nothing moves.

    Returns:
        The new folder and the names of what was moved there.

    Raises:
        FedMendError: no such kit, it runs or began to meanwhile, one of the folders is none that the state can be moved
            from or to, the new one holds something else of the same name, or the account is damaged.
    """
    root, site = kit.resolve(), kit_name(kit)
    file = root / "local" / CONFIG_NAME
    old, settings = read_site_config(file, root, site).state_dir, read_json(file)
    setting = DEFAULT.format(SITE_NAME=site) if old.is_relative_to(root) else settings["state_dir"]
    setting = str(to.absolute()) if to else setting
    target = (root / setting.replace("{SITE_NAME}", site)).expanduser().resolve()
    if target.is_relative_to(root):
        raise FedMendError(f"{site}: --to: expected a folder outside the kit, got one in it")
    if target == old:
        return target, []
    _refuse_shared(root, old, target, site)
    refuse_running(root, old, site)
    found = sorted(old.iterdir()) if old.is_dir() else []
    others = [entry for entry in found if entry.name not in (FOLDER, MARKS)]
    for entry in others:
        if (target / entry.name).exists() and not _same(entry, target / entry.name):
            raise FedMendError(f"{site}: expected no {entry.name} in the new folder, there is one; keep one of them")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    carry_over(old, target, site)
    for entry in others:
        if not (target / entry.name).exists():
            _copy(entry, target / entry.name)
    now = sorted(old.iterdir()) if old.is_dir() else []
    if now != found or not all(_same(entry, target / entry.name) for entry in others):
        raise FedMendError(f"{site}: expected one that is stopped, its state has changed while it was copied")
    write_text(file, json.dumps({**settings, "state_dir": setting}, indent=2) + "\n")
    for entry in found:
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return target, [entry.name for entry in found]


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


def _refuse_shared(root: Path, old: Path, target: Path, site: str) -> None:
    if target.is_relative_to(old) or any((root / name).is_relative_to(old) for name in ("local", "startup")):
        raise FedMendError(f"{site}: state_dir: expected a folder for state alone, got one with the kit or --to in it")
    places = {place.name for place in old.glob("[!.]*/*") if place.is_dir()}
    kept = (*old.glob(f"{FOLDER}/*.json"), *old.glob(f"{REGISTER}/*.jsonl"))
    if others := sorted((places | {file.stem for file in kept}) - {site}):
        raise FedMendError(f"{site}: state_dir: expected the state of this site alone, got also that of {others[0]}")


def refuse_running(root: Path, old: Path, site: str) -> None:
    """Refuses a kit that runs.

    Args:
        root: the kit.
        old: its ``state_dir``.
        site: its name, for messages.

    Raises:
        FedMendError: one of FLARE's processes or a task is still there.
    """
    for name in PROCESSES:
        text = (root / name).read_text().strip() if (root / name).is_file() else ""
        if text.isdigit() and psutil.pid_exists(int(text)):
            raise FedMendError(f"{site}: expected one that is stopped, process {text} of {name} in the kit still runs")
    for lock in old.glob("*/*/in_use"):
        with locked(lock, patience=0) as alone:
            if not alone:
                raise FedMendError(f"{site}: expected one that is stopped, a task of it still runs")


def _same(one: Path, other: Path) -> bool:
    """Whether two files or folders hold the same: an earlier call was stopped before the old one was removed."""
    files, others = ({f.relative_to(top): f for f in (top, *top.rglob("*")) if f.is_file()} for top in (one, other))
    return files.keys() == others.keys() and all(filecmp.cmp(f, others[n], shallow=False) for n, f in files.items())


def _copy(entry: Path, goal: Path) -> None:
    if entry.is_dir():
        with whole_folder(goal) as temporary:
            shutil.copytree(entry, temporary, dirs_exist_ok=True)
    else:
        with write_atomically(goal) as temporary:
            shutil.copyfile(entry, temporary)
