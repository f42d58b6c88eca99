"""Metrics for Weights & Biases."""

import os

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

try:
    from nvflare.app_opt.tracking.wandb.wandb_receiver import WandBReceiver
except ImportError as e:
    from fedmend.errors import FedMendError, not_installed

    raise FedMendError(f"server: {not_installed(str(e.name), 'wandb')}") from None
from nvflare.apis.fl_context import FLContext

from fl_components.tracking import EVENTS
from fl_components.tracking.context import Alone

# Numbers alone: nothing about the machine, its code and its console.
NUMBERS_ALONE: dict[str, object] = {"console": "off", "save_code": False, "x_save_requirements": False}
SWITCHED_OFF = ("disable_git", "disable_code", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
NUMBERS_ALONE |= dict.fromkeys(SWITCHED_OFF, True)


class WandB(WandBReceiver):
    """Writes the server's metrics for W&B below the job's folder. Only where the environment of the server says
    ``WANDB_MODE=online`` do they go to W&B's computers, or to those that ``WANDB_BASE_URL`` names."""

    def __init__(self) -> None:
        arguments = {"project": "fedmend", "name": "fedmend", "group": "", "job_type": "server"}
        super().__init__(arguments | {"settings": NUMBERS_ALONE}, os.environ.get("WANDB_MODE", "offline"), EVENTS)

    def initialize(self, fl_ctx: FLContext) -> None:
        """Called by FLARE when the job starts."""
        self.wandb_args["dir"] = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
        super().initialize(Alone(fl_ctx))
