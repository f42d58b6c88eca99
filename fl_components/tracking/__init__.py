"""FLARE's receivers of metrics besides that of TensorBoard, for a server whose policy lists them; ours lists none.

FLARE's own classes send what they get to an address that an argument names, and write where an argument says, so a job
that may name them decides about both. These take no arguments: the server's environment decides.
"""

RECEIVERS = {
    "mlflow": "fl_components.tracking.mlflow.MLflow",
    "wandb": "fl_components.tracking.wandb.WandB",
    "statsd": "fl_components.tracking.statsd.StatsD",
}
EVENTS = ["analytix_log_stats"]  # the server's own numbers; those that a site might send are not taken
