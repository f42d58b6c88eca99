"""Jobs that wait until somebody of the site has looked at them: ``"approve": "ask"`` in its ``fedmend.json``.

The first task of a job leaves a request in the site's ``state_dir`` and is answered by a fixed sentence, which the lead
reads; the server asks again. What is approved is what was shown first: a task of another run, method or setting under
the same job id is refused, before and after.
"""

import getpass
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey

from fedmend.basics.files import make_folder, write_text
from fedmend.errors import FedMendError
from fedmend.messages import HOLD, WAITS

FOLDER = ".approval"  # in state_dir, beside the folders of runs
AUDIT = "label-audit-"  # begins the names of requests of audits
POLL = 1.0


def check_approved(
    state_dir: Path, site: str, job: str, about: Mapping[str, Any], *, stop: Callable[[], bool], **shown: Any
) -> None:
    """Lets a task of an approved job pass.

    Args:
        state_dir: of the site.
        site: its name.
        job: FLARE's id of the job.
        about: what is shown and then fixed: names, classes, method, settings, who submitted.
        stop: whether the job was aborted.
        shown: what is shown alone, rounds and sites; ``max_rounds`` and ``min_federation`` limit them.

    Raises:
        FedMendError: nobody has approved it yet, or it is not the job that was shown first.
    """
    if not re.fullmatch(r"[\w-]{1,100}", job):
        raise FedMendError(f"{site}: job id: expected letters, digits, '_' or '-', got another name")
    file, fixed = _file(state_dir, site, job), json.loads(json.dumps(about))
    known = _read(file)
    if known is None:
        make_folder(file.parent)
        asked = {"asked": _now(), "about": fixed, "shown": shown, "approved": None}
        write_text(file, json.dumps(asked, indent=1) + "\n")
        raise FedMendError(f"{site}: {WAITS}")
    if known["about"] != fixed:  # a request is never replaced: somebody may be reading it
        raise FedMendError(f"{site}: approval: expected the job as it was first shown, got another under its id")
    end = time.monotonic() + HOLD
    while not known["approved"]:
        if stop() or time.monotonic() > end:
            raise FedMendError(f"{site}: {WAITS}")
        time.sleep(POLL)
        known = _read(file) or known


@contextmanager
def approved_audit(state_dir: Path, site: str, about: Mapping[str, Any]) -> Iterator[None]:
    """Lets a label audit pass that was approved, whatever the id of its job: FLARE's statistics workflow asks once, so
    the lead submits it again. An approval is used up by the audit that succeeds: two tell the difference between them.

    Args:
        state_dir: of the site.
        site: its name.
        about: what is shown and then fixed.

    Raises:
        FedMendError: nobody has approved it yet.
    """
    name = f"{AUDIT}{sha256(json.dumps(about).encode()).hexdigest()[:12]}"
    try:
        check_approved(state_dir, site, name, about, stop=lambda: True)
    except FedMendError as e:
        raise FedMendError(f"{e}; submit the label audit again then") from None
    yield
    _file(state_dir, site, name).unlink()


def submitted(fl_ctx: FLContext) -> dict[str, str]:
    """Name of the job and who submitted it, for ``about``."""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    keys = {"job": JobMetaKey.JOB_NAME, "submitter": JobMetaKey.SUBMITTER_NAME}
    return {name: meta.get(key.value, "") for name, key in keys.items()}


def requests(state_dir: Path, site: str) -> dict[str, dict[str, Any]]:
    """Job id → what is known of it, oldest first.

    Args:
        state_dir: of the site.
        site: its name.
    """
    found = {file.stem: _read(file) for file in (state_dir / FOLDER / site).glob("*.json")}
    return dict(sorted(((job, r) for job, r in found.items() if r is not None), key=lambda pair: pair[1]["asked"]))


def one_site_apart(known: Mapping[str, Mapping[str, Any]], job: str) -> dict[str, str]:
    """Jobs with the same network whose sites are those of a job but for one: the difference of the two models tells
    what that one sent.

    Args:
        known: what :func:`requests` returned.
        job: one of them.

    Returns:
        Job id → the site that takes part in one of both alone.
    """

    def seen(name: str) -> tuple[Any, set[str]]:
        return known[name]["about"].get("network"), {*known[name]["shown"].get("sites", ())}

    network, sites = seen(job)
    apart = {name: sites ^ there for name, (kind, there) in ((n, seen(n)) for n in known) if kind == network}
    return {name: difference.pop() for name, difference in apart.items() if len(difference) == 1}


def approve(state_dir: Path, site: str, job: str) -> None:
    """Lets a job begin.

    Args:
        state_dir: of the site.
        site: its name.
        job: id of a job that waits.

    Raises:
        FedMendError: no job of this id waits, or it has been approved.
    """
    known = requests(state_dir, site)
    if job in known and known[job]["approved"]:
        raise FedMendError(f"{site}: approve: expected a job that waits, this one has been approved")
    if job not in known:
        waiting = [name for name, request in known.items() if not request["approved"]]
        words = f"one of {waiting}" if waiting else "a job that waits, none does"
        raise FedMendError(f"{site}: approve: expected {words}, got {job!r:.100}")
    approved = {"time": _now(), "by": getpass.getuser()}
    write_text(_file(state_dir, site, job), json.dumps({**known[job], "approved": approved}, indent=1) + "\n")


def _file(state_dir: Path, site: str, job: str) -> Path:
    return state_dir / FOLDER / site / f"{job}.json"


def _read(file: Path) -> dict[str, Any] | None:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return known if {"asked", "about", "shown", "approved"} <= set(known) else None
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
