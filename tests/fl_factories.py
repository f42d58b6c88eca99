"""FLARE contexts without FLARE's processes, and sites that answer by a function."""

import json
from unittest.mock import patch

from federation_factories import small_world
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.client import shell_cmd

from fl_components import job_check
from fl_components.persistor import ModelFilePersistor
from fl_components.wire import pack_result, unpack_task

JOB = "job-1"
SETTINGS = {"data_root": "data", "cache_dir": "cache", "state_dir": "state", "min_count": 3, "threads": 1}
JOB_FILES = {  # settings for ``run.json``
    "client": {
        "executors": [{"executor": {"path": "fl_components.executor.MethodExecutor", "args": {"batch_size": 4}}}],
        "components": [{"id": "method", "path": "fedmend.methods.fedmlp.FedMLP", "args": {"mld": True}}],
    },
    "server": {
        "workflows": [
            {"id": "rounds", "path": "fl_components.controller.WorkflowController", "args": {"run_name": "run-1"}}
        ],
        "components": [{"id": "tensorboard", "path": "nvflare.tb.Receiver", "args": {"events": ["x"]}}],
    },
}


class Client:
    def __init__(self, name):
        self.name = name


class Engine:
    """What components ask of FLARE's engine; keeps the events in ``events``."""

    def __init__(self, folder, site, *, components=None, clients=()):
        for name in ("local", "startup", f"{JOB}/app_{site}/config"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._workspace = Workspace(str(folder), site)
        self._components, self._clients = components or {}, [Client(name) for name in clients]
        self.events = []
        self._contexts = FLContextManager(
            self, site, JOB, private_stickers={FLContextKey.WORKSPACE_OBJECT: self._workspace}
        )

    def new_context(self):
        return self._contexts.new_context()

    def get_workspace(self):
        return self._workspace

    def get_component(self, component_id):
        return self._components.get(component_id)

    def get_clients(self):
        return self._clients

    def fire_event(self, event_type, fl_ctx):
        self.events.append((event_type, fl_ctx.get_prop(FLContextKey.EVENT_DATA)))
        for component in self._components.values():
            if hasattr(component, "handle_event"):
                component.handle_event(event_type, fl_ctx)

    def panics(self):
        return [data for event, data in self.events if event == EventType.FATAL_SYSTEM_ERROR]


def write_settings(folder, **changes):
    """``local/fedmend.json`` below ``folder``."""
    (folder / "local").mkdir(parents=True, exist_ok=True)
    (folder / "local" / "fedmend.json").write_text(json.dumps({**SETTINGS, **changes}))


class Federation:
    """A server with a controller, and sites that are the function ``answer(site, task_name, weights, task, evaluate)``.

    ``answer`` returns a SiteResult, or None for a site that stays silent; ``asked`` notes (task name, round, stage,
    sites), ``sent`` (task, sites, all of the message besides the weights). Answers arrive in the order of ``sites``, or
    backwards.
    """

    def __init__(self, folder, controller, workflow, sites, answer, *, backwards=False):
        self.controller, self.answer, self.backwards, self.asked, self.sent = controller, answer, backwards, [], []
        write_settings(folder)
        self.persistor = ModelFilePersistor()
        self.engine = Engine(
            folder, "server", components={"persistor": self.persistor, "workflow": workflow}, clients=sites
        )
        self.app = folder / JOB / "app_server"
        self.records = folder / JOB / "fedmend"
        for side, content in JOB_FILES.items():
            (self.app / "config" / f"config_fed_{side}.json").write_text(json.dumps(content))
        self.fl_ctx = self.engine.new_context()
        self.fl_ctx.set_prop(FLContextKey.APP_ROOT, str(self.app), private=True, sticky=True)
        self.engine.fire_event(EventType.START_RUN, self.fl_ctx)
        controller.broadcast_model = self._broadcast
        controller.get_num_standing_tasks = lambda: 0
        controller.start_controller(self.fl_ctx)

    def run(self, *, report=False):
        with small_world(report=report), patch("gc.collect", return_value=0):  # takes a tenth of a second in each round
            self.controller.control_flow(Signal(), self.fl_ctx)
        return self

    def _broadcast(self, *, task_name, data, targets, timeout, blocking, callback):
        received = unpack_task(FLModelUtils.from_shareable(FLModelUtils.to_shareable(data)), task_name)
        weights, task, _, evaluate = received
        self.asked.append((task_name, task.round_num, task.stage, list(targets)))
        self.sent.append((task, list(targets), data.meta))
        for site in reversed(targets) if self.backwards else targets:
            result = self.answer(site, task_name, weights, task, evaluate)
            if result is not None:
                reply = FLModelUtils.from_shareable(FLModelUtils.to_shareable(pack_result(result)))
                reply.meta["client_name"] = site
                callback(reply)

    def lines(self, name):
        file = self.records / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def decisions(self, what):
        return [(line["round"], line["value"]) for line in self.lines("decisions.jsonl") if line["what"] == what]


def reopen_doors(monkeypatch):
    """What ListedClasses closes in a process is open again after the test."""
    monkeypatch.setattr(shell_cmd, "SHELL_CMD_VALIDATORS", dict(shell_cmd.SHELL_CMD_VALIDATORS))
    monkeypatch.setattr(job_check, "SHELL_CMD_VALIDATORS", shell_cmd.SHELL_CMD_VALIDATORS)
    monkeypatch.setattr(Workspace, "_check_job_id", staticmethod(Workspace._check_job_id))
    monkeypatch.setattr(ConfigFactory, "_fmt2Loader", dict(ConfigFactory._fmt2Loader))
