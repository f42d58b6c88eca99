"""What goes where: FLARE's chatter not to the simulator's console, pictures of a run to ``log.json`` alone."""

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils.log_utils import JsonFormatter
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

ERROR = re.compile(r"(?:ERROR|CRITICAL) - (?:\[[^\]]*\]: )?(.+)")  # in a line of FLARE's logs
OURS = re.compile(r"fedmend\.errors\.FedMendError: (.+)")  # the last line of a traceback
PICTURES = "fedmend_progress"  # logger


class OwnLinesAndProblems(logging.Filter):
    """Lets FedMend's own lines and everybody's warnings pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """True for what a person wants to see."""
        return record.levelno >= logging.WARNING or record.name.split(".")[0] == "fedmend"


def quiet_console(fl_ctx: FLContext) -> None:
    """Installs the filter on console handlers of this process when it runs in the simulator."""
    if fl_ctx.get_job_id() != SimulatorConstants.JOB_NAME:
        return
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.addFilter(OwnLinesAndProblems())


@contextlib.contextmanager
def silenced(logger: str) -> Iterator[None]:
    """Lets the logger of this name say nothing for a while, whose errors are said in a sentence of ours."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def log_picture(picture: Mapping) -> None:
    """Writes the picture of a run into ``log.json`` alone, which a job's submitter may read while it runs."""
    files = [handler for handler in logging.getLogger().handlers if isinstance(handler.formatter, JsonFormatter)]
    text = json.dumps(picture).replace("]: ", "]:\\u0020")  # inside texts, where FLARE would take it for its own mark
    record = logging.LogRecord(PICTURES, logging.INFO, "", 0, text, None, None)
    for handler in files:
        handler.handle(record)


def last_error(*logs: Path) -> str:
    """What FLARE said last before it gave up.

    Args:
        logs: files of its output, which need not be there; the first with an error counts.

    Returns:
        The last sentence of ours that FLARE wrote down as an exception, which its own errors follow; or the message of
        the last error, or the last line of the last file where none has one, as of a Python that ended with an
        exception; or words for nothing.
    """
    lines: list[str] = []
    for log in logs:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        lines = [plain for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines() if (plain := line.strip())]
        if sentences := [ours[1] for line in lines if (ours := OURS.match(line))]:
            return sentences[-1]
        found = [error[1] for line in lines if (error := ERROR.search(line))]
        if told := [message for message in found if not message.startswith("Traceback (")]:  # follows what it is of
            return told[-1]
    return lines[-1] if lines else "it ended without a word"
