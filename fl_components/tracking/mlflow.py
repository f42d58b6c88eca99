"""Metrics for MLflow."""

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read on import

try:
    from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver
except ImportError as e:
    from fedmend.errors import FedMendError, not_installed

    raise FedMendError(f"server: {not_installed(str(e.name), 'mlflow')}") from None
from nvflare.apis.fl_context import FLContext

from fl_components.tracking import EVENTS
from fl_components.tracking.context import Alone


class MLflow(MLflowReceiver):
    """Hands the server's metrics to MLflow: to the tracking server of ``MLFLOW_TRACKING_URI`` in the environment of the
    server, else into ``mlflow.db`` in the job's folder."""

    def __init__(self) -> None:
        arguments = {"experiment_name": "fedmend", "experiment_tags": {}, "run_tags": {}, "run_name": "fedmend"}
        super().__init__(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"), kw_args=arguments, events=EVENTS)

    def initialize(self, fl_ctx: FLContext) -> None:
        """Called by FLARE when the job starts."""
        super().initialize(Alone(fl_ctx))
