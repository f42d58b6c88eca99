"""What goes where: FLARE's chatter not to the simulator's console, pictures of a run to ``log.json`` alone."""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils.log_utils import JsonFormatter
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

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
