"""A made-up job folder whose classes need not exist."""

import json

CLIENT = {
    "format_version": 2,
    "executors": [
        {
            "tasks": ["train"],
            "executor": {
                "path": "fl_components.executor.MethodExecutor",
                "args": {
                    "learning_rate": 0.5,
                    "batch_size": 4,
                    "all_labels": False,
                    "text": "x",
                    "both": 1,
                    "phantom": {"dataset": "ich", "images": 10, "sites": 2},
                },
            },
        }
    ],
    "components": [
        {"id": "method", "path": "fedmend.methods.own.Own", "args": {"steps": 5, "mu": 0.5, "names": ["a"], "share": 1}}
    ],
}
SERVER = {
    "format_version": 2,
    "problem": "shared",
    "server": {"task_request_interval": 0.1},
    "workflows": [
        {
            "id": "rounds",
            "path": "fl_components.controller.WorkflowController",
            "args": {"run_name": "job", "method": "own", "num_rounds": 9, "weights": "", "seed": 0, "both": 1},
        }
    ],
    "components": [
        {"id": "workflow", "path": "fedmend.methods.own.OwnWorkflow", "args": {"warmup_rounds": 3, "share": 2}},
        {"id": "persistor", "path": "fl_components.persistor.ModelFilePersistor"},
        {"id": "tensorboard", "path": "nvflare.tb.Receiver", "args": {"events": ["x"]}},
    ],
}


def write_job(folder, *, client=CLIENT, server=SERVER, **variants):
    """A job folder for two sites, with these variants of its own."""
    (folder / "app" / "config").mkdir(parents=True)
    meta = {"name": folder.name, "min_clients": 2, "deploy_map": {"app": ["server", "site-1", "site-2"]}}
    files = {
        "meta.json": meta,
        "app/config/config_fed_client.json": client,
        "app/config/config_fed_server.json": server,
        **{f"variants/{name}.json": content for name, content in variants.items()},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder
