"""FLARE contexts without FLARE's processes, and sites that answer by a function."""

import json
from unittest.mock import patch

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmend.evaluation import BINS
from fl_components.payload import CENSUS, TRAIN, SiteResult, pack_result, unpack_task
from fl_components.persistor import ModelFilePersistor

JOB = "job-1"
SETTINGS = {"data_root": "data", "cache_dir": "cache", "state_dir": "state", "min_count": 3, "threads": 1}


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


def histograms(*aucs):
    """(C, 2, BINS) counts whose classes have these AUCs: each of 1, 0.5 or 0."""
    counts = np.zeros((len(aucs), 2, BINS), dtype=np.int64)
    for c, auc in enumerate(aucs):
        counts[c, 0, 400], counts[c, 1, {1: 600, 0.5: 400, 0: 200}[auc]] = 10, 10
    return counts


def confusion(*recalls):
    """(C, C + 2 * BINS) counts of ten samples in each class, of which this share is right and the rest is taken for the next
    class; every AUC is 1."""
    right = np.round(10 * np.array(recalls)).astype(np.int64)
    matrix = np.diag(right) + np.roll(np.diag(10 - right), 1, axis=1)
    return np.hstack([matrix, histograms(*[1] * len(right)).reshape(len(right), -1)])


class Federation:
    """A server with a controller, and sites that are the function ``answer(site, task_name, weights, task, evaluate)``.

    ``answer`` returns a SiteResult, or None for a site that stays silent; ``asked`` notes (task name, round, stage, sites),
    ``sent`` (task, sites, all of the message besides the weights). Answers arrive in the order of ``sites``, or backwards.
    """

    def __init__(self, folder, controller, sites, answer, *, backwards=False):
        self.controller, self.answer, self.backwards, self.asked, self.sent = controller, answer, backwards, [], []
        write_settings(folder)
        self.persistor = ModelFilePersistor()
        self.engine = Engine(folder, "server", components={"persistor": self.persistor}, clients=sites)
        self.app = folder / JOB / "app_server"
        self.records = folder / JOB / "fedmend"
        (self.app / "config" / "config_fed_server.json").write_text(
            json.dumps({"format_version": 2, "note": "as configured", "workflows": [], "components": []})
        )
        self.fl_ctx = self.engine.new_context()
        self.fl_ctx.set_prop(FLContextKey.APP_ROOT, str(self.app), private=True, sticky=True)
        self.engine.fire_event(EventType.START_RUN, self.fl_ctx)
        controller.broadcast_model = self._broadcast
        controller.get_num_standing_tasks = lambda: 0
        controller.start_controller(self.fl_ctx)

    def run(self):
        with patch("gc.collect", return_value=0):  # takes a tenth of a second in each round
            self.controller.control_flow(Signal(), self.fl_ctx)
        return self

    def _broadcast(self, *, task_name, data, targets, timeout, blocking, callback):
        received = unpack_task(FLModelUtils.from_shareable(FLModelUtils.to_shareable(data)))
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


def census(annotated, *, samples=10, round_num=0, positives=4, task="multilabel"):
    """A census answer of a site that annotates these classes and has this many positives of each."""
    annotated = np.array(annotated, dtype=bool)
    content = {
        "annotated": annotated,
        "positives": annotated * np.minimum(positives, samples),
        "sizes": {"train": samples, "val": 20, "test": 20},
        "task": task,
        "phantom": False,
    }
    return SiteResult(round_num=round_num, samples=samples, census=content)


def plain_answers(annotated, *, samples=None, step=None, counts=None, task="multilabel"):
    """Sites that add their own number to all weights.

    Args:
        annotated: site → flags of the annotated classes.
        samples: site → N_k; default 10 each.
        step: site → number that one round adds to every weight; default 1 each.
        counts: round → split → counts of an evaluated model; default: histograms of val and test with AUC 1.
        task: kind of labels; ``singlelabel`` needs ``counts``.
    """
    samples, step = samples or dict.fromkeys(annotated, 10), step or dict.fromkeys(annotated, 1.0)
    classes, kind = len(next(iter(annotated.values()))), task
    counts = counts or (lambda round_num: {s: histograms(*[1] * classes) for s in ("val", "test")})

    def answer(site, task_name, weights, task, evaluate):
        if task_name == CENSUS:
            return census(annotated[site], samples=samples[site], task=kind)
        result = SiteResult(round_num=task.round_num, samples=samples[site])
        result.counts = counts(task.round_num) if evaluate else {}
        if task_name == TRAIN:
            result.weights = {name: value + np.float32(step[site]) for name, value in weights.items()}
            result.loss = 0.5
        return result

    return answer
