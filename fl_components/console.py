"""Keeps FLARE's chatter out of the simulator's console; its log files hold everything."""

import logging

from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants


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
