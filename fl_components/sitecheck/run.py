"""Runs the checks of a site in order and prints a line for each."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedmend.basics.words import printable
from fedmend.errors import FedMendError
from fl_components.kit_state import kit_name
from fl_components.sitecheck import connection, data, machine, settings
from fl_components.sitecheck.site import FAIL, OK, SKIP, WARN, CheckedSite, Result

COLORS = {OK: 32, WARN: 33, FAIL: 31, SKIP: 2}  # ANSI: green, yellow, red, faint
CHECKS = {**machine.CHECKS, **settings.CHECKS, **data.CHECKS, **connection.CHECKS}


def sitecheck(
    folder: Path | None,
    *,
    kit: Path | None = None,
    job: Path | None = None,
    classes: Sequence[str] = (),
    max_unreadable: int | None = None,
    sheet: Path | None = None,
    policy: str | None = None,
    show: Callable[[str], object] = print,
    color: bool = False,
) -> None:
    """Runs all checks of one site and shows one line each as they end.

    Args:
        folder: the site folder; None: what ``data_root`` of the kit's ``fedmend.json`` names.
        kit: the site's startup kit, or None.
        job: a job folder, or None.
        classes: the job's classes where there is no job folder; empty: those of the card.
        max_unreadable: tolerated unreadable images per split; None: what ``fedmend.json`` says, or none.
        sheet: a PNG file to write with some training images as the network will see them; None: none.
        policy: the hash that ``fedmend policy --hash`` gave the lead; None: the kit's policy is not compared.
        show: takes a line.
        color: with the colours of a terminal.

    Raises:
        FedMendError: neither folder nor kit, no startup kit of a site, or a check failed.
    """
    if folder is None and kit is None:
        raise FedMendError("sitecheck: expected a site folder or --kit, got neither")
    if kit and not ((kit / "startup" / "fed_client.json").is_file() and (kit / "local").is_dir()):
        raise FedMendError(
            "--kit: expected the startup kit of a site, with startup/fed_client.json and local, got another folder"
        )
    name = kit_name(kit) if kit else (folder or Path()).resolve().name
    statuses: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as cache:
        site = CheckedSite(name, folder, kit, job, tuple(classes), max_unreadable, sheet, policy, Path(cache))
        for title, result in _results(site):
            start, end = (f"\033[{COLORS[result.status]}m", "\033[0m") if color else ("", "")
            show(f"{start}{result.status:<4}{end}  {title}: {printable(result.text)}")
            for line in result.details:
                show(f"        {printable(line)}")
            statuses[result.status] += 1
    if statuses[FAIL]:
        raise FedMendError(f"{name}: expected every check to pass, got {statuses[FAIL]} that failed")
    show(f"{name}: ready ({statuses[OK]} ok, {statuses[WARN]} warnings, {statuses[SKIP]} skipped)")


def _results(site: CheckedSite) -> Iterator[tuple[str, Result]]:
    """Check → what it found, in order."""
    yield "python", _try(machine.python, site)
    packages = _try(machine.packages, site)
    yield "packages", packages
    if packages.status == FAIL:
        yield "all other checks", Result(SKIP, "need the packages")
        return
    for title, check in CHECKS.items():
        yield title, _try(check, site)


def _try(check: Callable[[CheckedSite], Result], site: CheckedSite) -> Result:
    try:
        return check(site)
    except FedMendError as e:
        return Result(FAIL, str(e).removeprefix(f"{site.name}: "))
    except OSError as e:  # its message holds a path
        return Result(FAIL, f"expected files and folders that can be read, got an error ({type(e).__name__})")
