"""A copy of all that a site or server keeps for its runs, made while they go on, and its way back."""

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedmend.basics.files import OWNER, locked, sha256, whole_folder, write_atomically, write_text
from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError
from fedmend.site.privacy import FOLDER as ACCOUNTS
from fedmend.site.privacy import MARKS, account_file, mark_file, write_account
from fedmend.site.register import FOLDER as REGISTERS
from fl_components.approval import AUDIT
from fl_components.approval import FOLDER as APPROVALS
from fl_components.kit_state import kit_name, refuse_running, state_of

ABOUT = "backup.json"  # name, time, and the checksum of each file
STATE = "state"
PATIENCE = 30.0  # seconds until a process lets a ledger or the register go
SQLITE = ".sqlite"
# The order of copying, so that whatever is written meanwhile, what a file speaks of has been there: a ledger speaks of
# files of pixels, a checkpoint of lines. The account comes last: it may not know less than the rest.
ORDER = (SQLITE, ".pt")


def backup(kit: Path, out: Path) -> int:
    """Copies the ``state_dir`` of a kit; its site or server may run.

    Args:
        kit: startup kit of a site or of the server.
        out: folder to make.

    Returns:
        Number of files.

    Raises:
        FedMendError: no such kit, nothing to copy, ``out`` is there already or inside of ``state_dir``, or a ledger
            stays locked.
    """
    name, state_dir = kit_name(kit), state_of(kit)
    if out.exists() or out.resolve().is_relative_to(state_dir):
        raise FedMendError(f"{name}: backup: expected the name of a new folder outside state_dir, got another")
    nothing = FedMendError(f"{name}: backup: expected ledgers, state or checkpoints in state_dir, found none")
    if not state_dir.is_dir():  # as where it is misspelt, which no schedule would notice
        raise nothing
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as temporary:
        temporary.chmod(0o700)
        with locked(state_dir / REGISTERS / f"{name}.lock", patience=PATIENCE) as alone:  # lines and mark fit
            if not alone:
                raise FedMendError(f"{name}: backup: expected to read the register of what left, got no lock")
            _copy_all(state_dir / REGISTERS, temporary / STATE / REGISTERS, name)
        _copy_all(state_dir, temporary / STATE, name)
        if not (temporary / STATE).is_dir():
            raise nothing
        files = {str(f.relative_to(temporary)): sha256(f) for f in sorted(temporary.rglob("*")) if f.is_file()}
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_text(temporary / ABOUT, json.dumps({"name": name, "made": made, "files": files}, indent=1) + "\n")
    out.chmod(0o700)
    return len(files)


def restore(copy: Path, kit: Path) -> list[str]:
    """Puts a backup into the ``state_dir`` of a kit, whose site or server is stopped.

    A run that is there is not lost: its folder gets another name beside, where the next run finds the verdicts of
    people. What has been spent of privacy is never less afterwards, and a longer register stays.

    Args:
        copy: folder of :func:`backup`.
        kit: startup kit of the same site, or of the server.

    Returns:
        What was done, in sentences.

    Raises:
        FedMendError: no backup, one of another site, a damaged one, or the site runs.
    """
    name, state_dir = kit_name(kit), state_of(kit)
    where = f"{name}: restore"
    about = read_document(copy / ABOUT, f"{where}, {ABOUT}", "a folder that fedmend backup made")
    kinds = {"name": str, "made": str, "files": dict}
    if not isinstance(about, dict) or not all(isinstance(about.get(key), kind) for key, kind in kinds.items()):
        raise FedMendError(f"{where}, {ABOUT}: expected name, time and files of a backup, got others")
    if about["name"] != name:
        raise FedMendError(f"{where}: expected a backup of {name}, got one of {about['name']!a:.40}")
    if not (copy / STATE).is_dir():
        raise FedMendError(f"{where}: expected a backup with files in it, got an empty one")
    for file, known in about["files"].items():
        if not (copy / file).is_file() or sha256(copy / file) != known:
            raise FedMendError(f"{where}: expected every file as it was backed up, got a damaged or missing one")
    if any(str(f.relative_to(copy)) not in about["files"] for f in (copy / STATE).rglob("*") if f.is_file()):
        raise FedMendError(f"{where}: expected the files that were backed up alone, got one more")
    refuse_running(kit.resolve(), state_dir, name)
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    done, now = [], time.strftime("%Y%m%dT%H%M%S")
    account = _restore_account(copy / STATE, state_dir, name)  # first: what stops here leaves no site that spends anew
    for entry in sorted((copy / STATE).iterdir()):
        if entry.name in (ACCOUNTS, MARKS, REGISTERS, APPROVALS):
            continue
        goal = state_dir / entry.name
        aside = _free(state_dir / f"{entry.name}.replaced-{now}") if goal.exists() else None
        if entry.is_dir():
            with whole_folder(goal) as temporary:
                shutil.copytree(entry, temporary, dirs_exist_ok=True)
                if aside:  # not before there is a copy in its place
                    os.replace(goal, aside)
        else:
            with write_atomically(goal, before=aside, mode=entry.stat().st_mode & 0o777) as temporary:
                shutil.copyfile(entry, temporary)
        done += [f"{entry.name} was there and is now {aside.name}"] if aside else []
        done.append(f"{entry.name} restored, as of {about['made']}")
    _restore_approvals(copy / STATE / APPROVALS, state_dir / APPROVALS)
    return done + account + _restore_register(copy / STATE / REGISTERS, state_dir / REGISTERS, name)


def _free(place: Path) -> Path:
    """The place, or one beside it where it is taken, as by another restore within the second."""
    names = (place.with_name(f"{place.name}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([place], names) if not name.exists())


def _files_below(folder: Path) -> Iterator[Path]:
    """Those of runs whose folder is a link, as to a larger disk, too; a link back into the folder ends there."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(place) / name for name in names)


def _copy_all(source: Path, goal: Path, name: str) -> None:
    """Copies files in their order; one that a run has removed meanwhile is left out, and so are locks and what is only
    half written."""

    def turn(file: Path) -> tuple:
        return file.parent.name == ACCOUNTS, ORDER.index(file.suffix) if file.suffix in ORDER else len(ORDER), file

    for file in sorted((f for f in _files_below(source) if f.is_file()), key=turn):
        copy = goal / file.relative_to(source)
        if file.name.startswith(".") or file.name == "in_use" or file.suffix == ".lock" or copy.exists():
            continue
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if file.suffix == SQLITE:
                _copy_ledger(file, copy, name)
            elif not file.name.endswith("-journal"):
                shutil.copy(file, copy)  # with its rights: the umask may leave others more


def _copy_ledger(file: Path, copy: Path, name: str) -> None:
    try:
        with (
            contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as source,
            contextlib.closing(sqlite3.connect(copy)) as goal,
        ):
            source.execute("BEGIN")  # the state of one moment
            source.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            source.backup(goal)
        copy.chmod(OWNER)
    except sqlite3.DatabaseError as e:
        raise FedMendError(f"{name}: backup, label ledger: expected one that can be read, got: {e}") from None


def _restore_approvals(source: Path, goal: Path) -> None:
    """Requests of jobs that are not there. Those of audits are asked for again: each approval is good for one, which
    may have been since."""
    for file in source.glob("*/*.json"):
        place = goal / file.relative_to(source)
        if not place.exists() and not file.name.startswith(AUDIT):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)


def _restore_account(copy: Path, state_dir: Path, name: str) -> list[str]:
    """Of each noise and rate the larger number of steps; the sum, where each account knows spendings that the other
    does not, as where the site went on without one before its backup was put back."""
    backed_up, marks = _account(copy, name) or ({}, [])
    there, own = _account(state_dir, name) or (None, [])
    if not backed_up:
        return []
    apart = bool(marks and own) and marks[-1] not in own and own[-1] not in marks
    join = sum if apart else max
    merged = {key: join((backed_up.get(key, 0), (there or {}).get(key, 0))) for key in {**(there or {}), **backed_up}}
    latest = mark_file(state_dir, name)
    known = latest.read_text(encoding="utf-8") if latest.is_file() else ""
    write_account(state_dir, name, [(*key, steps) for key, steps in merged.items()], [*marks, *own])
    if there is None or (known and known not in (*marks, *own)):
        was = "damaged" if there is None else "an older copy"
        lost = "what was spent since the backup is not in it"
        return [f"account of the privacy spent: the one there was {was}; {lost}"]
    if apart:
        return ["account of the privacy spent: the sum of both, as each knows what the other does not"]
    newer = any(steps > backed_up.get(key, 0) for key, steps in there.items())
    return [f"account of the privacy spent: {'the larger numbers of both' if newer else 'restored'}"]


def _account(state_dir: Path, name: str) -> tuple[Mapping[tuple[float, float], int], list[str]] | None:
    """Noise and rate → steps, and the marks; empty: no account; None: a damaged one."""
    try:
        content = json.loads(account_file(state_dir, name).read_text(encoding="utf-8"))
        steps = {(float(noise), float(rate)): int(steps) for noise, rate, steps in content["spent"]}
        return steps, [str(mark) for mark in content.get("marks", [])]
    except FileNotFoundError:
        return {}, []
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _restore_register(source: Path, goal: Path, name: str) -> list[str]:
    file = f"{name}.jsonl"
    if not (source / file).is_file():
        return []
    if (goal / file).is_file() and (goal / file).stat().st_size >= (source / file).stat().st_size:
        return ["register of what left: the one there stays, it is no shorter"]
    goal.mkdir(parents=True, exist_ok=True)
    for part in source.glob(f"{name}.*"):
        shutil.copy(part, goal / part.name)
    return ["register of what left: restored"]
