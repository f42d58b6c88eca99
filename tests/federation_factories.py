"""A federation at work without FLARE: a workflow, a server's disk, and sites that are a function."""

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import torch
from result_factories import PREPARED
from torch_factories import TinyNetwork

from fedmend.errors import FedMendError
from fedmend.fields import Field
from fedmend.kinds.multilabel import BINS
from fedmend.kinds.segmentation import DICE_UNIT
from fedmend.learning import networks
from fedmend.learning.weights import get_weights
from fedmend.messages import CENSUS, COLLECT, TRAIN, SiteResult
from fedmend.method import LocalMethod, RoundTask, Workflow
from fedmend.server import run_log
from fedmend.server.federation import RunSettings
from fedmend.server.job import ServerJob
from fedmend.server.transport import Transport

SEED = 7


class Sites(Transport):
    """Sites that are the function ``answer(site, question, weights, task, evaluate)``.

    ``answer`` returns a SiteResult, a FedMendError for a message that could not be read, or None for a site that stays
    silent. ``asked`` notes (question, round, stage, sites), ``sent`` (task, sites) by role. Answers arrive in the order
    of ``names``, or backwards. ``saved`` keeps the models, ``streamed`` the numbers for those who watch.
    """

    def __init__(self, names, answer, *, backwards=False):
        self.names, self.answer, self.backwards = list(names), answer, backwards
        self.asked, self.sent, self.saved, self.streamed = [], [], {}, []

    def sites(self):
        return sorted(self.names)

    def exchange(self, question, receive, enough):
        first: RoundTask = next(iter(question.tasks.values()))
        self.asked.append((question.name, first.round_num, first.stage, sorted(question.tasks)))
        by_role = {}
        for site, task in question.tasks.items():
            by_role.setdefault(task.role, (task, []))[1].append(site)
        self.sent += by_role.values()
        for site in reversed(self.names) if self.backwards else self.names:
            if site not in question.tasks:
                continue
            weights = {name: value.copy() for name, value in question.weights.items()}
            result = self.answer(site, question.name, weights, question.tasks[site], question.evaluate)
            if isinstance(result, SiteResult):
                result.site = site
            if result is not None:
                receive(site, result)

    def save_model(self, weights, *, best=False):
        self.saved["best" if best else "global"] = {name: value.copy() for name, value in weights.items()}
        return "best.pt" if best else "global.pt"

    def stream(self, tag, value, step):
        self.streamed.append((tag, value, step))


@contextmanager
def small_world(network=TinyNetwork, *, report=False):
    """The backbone ``tiny``, and no report page where a test is not about it: figures take half a second."""

    def build(classes):
        return network(classes, torch.initial_seed())

    with ExitStack() as stack:
        stack.enter_context(patch.dict(networks.NETWORKS, {"tiny": build}))
        if not report:
            stack.enter_context(patch.object(run_log, "write_report", lambda folder: None))
            stack.enter_context(patch.object(run_log, "summary_text", lambda folder: ""))
        yield


def initial(classes, seed=SEED, network=TinyNetwork):
    """Name → array of the model that a run starts from."""
    with small_world(network):
        model = networks.initial_network("tiny", classes, seed)
    return {name: value.numpy() for name, value in get_weights(model).items()}


class Run:
    """One job: what it left on the server's disk, and what stopped it.

    ``prepare`` is given the transport before the run; other options are fields of :class:`RunSettings`.
    """

    def __init__(
        self,
        folder,
        workflow,
        names,
        answer,
        *,
        backwards=False,
        job="job-1",
        backbone=TinyNetwork,
        report=False,
        prepare=lambda transport: None,
        described=None,
        made_by=None,
        own_machine=False,
        **settings,
    ):
        given = {"run_name": "run-1", "classes": ["a", "b"], "network": "tiny", "num_rounds": 3, "seed": SEED}
        self.settings = RunSettings(**{**given, **settings})
        self.transport = Sites(names, answer, backwards=backwards)
        self.folder, self.stopped, self._backbone = folder / job / "fedmend", "", backbone
        self.job = ServerJob(
            settings=self.settings,
            workflow=workflow,
            transport=self.transport,
            state_dir=folder / "state",
            folder=self.folder,
            app_dir=folder / job,
            weights_dir=folder / "weights",
            described={"note": "as configured"} if described is None else described,
            made_by=made_by or {},
            job_id=job,
            own_machine=own_machine,
        )
        prepare(self.transport)
        with small_world(backbone, report=report):
            try:
                self.job.run()
            except FedMendError as e:
                self.stopped = str(e)

    @property
    def model(self):
        """The final global model."""
        return self.job.federation.model

    @property
    def asked(self):
        """(question, round, stage, sites) of every question."""
        return self.transport.asked

    @property
    def stages(self):
        """(question, round, stage) of every question."""
        return [question[:3] for question in self.asked]

    def rounds(self, question=TRAIN):
        """Rounds in which this was asked."""
        return [r for name, r, *_ in self.asked if name == question]

    def roles(self, stage):
        """Site → roles that it was told in a stage."""
        told = {}
        for task, sites in self.transport.sent:
            if task.stage == stage:
                for site in sites:
                    told.setdefault(site, set()).add(task.role)
        return told

    def knowledge(self, stage):
        """Round → what was sent beside the weights of a stage."""
        return {task.round_num: task.knowledge for task, _ in self.transport.sent if task.stage == stage}

    def moved(self, key="classifier.bias", model=None):
        """How far the run has moved a tensor, one number per row."""
        start = initial(self.settings.classes, self.settings.seed, self._backbone)
        moved = (self.model if model is None else model)[key] - start[key]
        return moved.reshape(len(moved), -1)[:, 0].tolist()

    def content(self, name):
        """A JSON file of the run folder."""
        return json.loads((self.folder / name).read_text())

    def lines(self, name):
        """The lines of a JSON Lines file of the run folder."""
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def decisions(self, what):
        """(rounds done, value) of every decision of this name."""
        return [(line["round"], line["value"]) for line in self.lines("decisions.jsonl") if line["what"] == what]


def failing(answer, *, site, when, error="site-2: train.csv row 3: expected ..., got ..."):
    """``answer``, but one site says ``error``, or nothing where that is empty, ``when(question, round)``."""

    def answers(name, question, weights, task, evaluate):
        if name == site and when(question, task.round_num):
            return SiteResult(error=error) if error else None
        return answer(name, question, weights, task, evaluate)

    return answers


def same_models(one, other):
    """Whether two models have the same bits."""
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


NUMBER = Field((), "int64", 0, 99, "a number", "none")
SCALE = Field(("C",), "float32", 0, 1, "one number per class", "none")


class Told(LocalMethod):
    """What the sites of a :class:`Script` report and are sent."""

    FIELDS: ClassVar = {"number": NUMBER}
    KNOWLEDGE: ClassVar = {"scale": SCALE}


class Script(Workflow):
    """A workflow that is the function ``run(fed)``."""

    METHOD = Told

    @dataclass
    class Memory:
        notes: dict = field(default_factory=dict)

    def __init__(self, run):
        self._run = run

    def run(self, fed):
        self._run(fed)


def in_rounds(step):
    """A workflow that calls ``step(fed, r)`` in every round."""

    def run(fed):
        for r in fed.rounds():
            step(fed, r)

    return run


def histograms(*aucs):
    """(C, 2, BINS) counts whose classes have these AUCs: each of 1, 0.5 or 0."""
    counts = np.zeros((len(aucs), 2, BINS), dtype=np.int64)
    for c, auc in enumerate(aucs):
        counts[c, 0, 400], counts[c, 1, {1: 600, 0.5: 400, 0: 200}[auc]] = 10, 10
    return counts


def confusion(*recalls):
    """(C, C + 2 * BINS) counts of ten samples in each class, of which this share is right and the rest is taken for the
    next class; every AUC is 1."""
    right = np.round(10 * np.array(recalls)).astype(np.int64)
    matrix = np.diag(right) + np.roll(np.diag(10 - right), 1, axis=1)
    return np.hstack([matrix, histograms(*[1] * len(right)).reshape(len(right), -1)])


def dice_counts(round_num):
    """Counts of a test split of ten slices with Dice 0.5 and two volumes with 0.25."""
    return {"test": np.array([[10, 5 * DICE_UNIT, 2, DICE_UNIT // 2, 30, 10, 20]])}


def census(annotated, *, samples=10, round_num=0, positives=4, kind="multilabel"):
    """A census answer of a site that annotates these classes and has this many positives of each."""
    annotated = np.array(annotated, dtype=bool)
    content = {
        "annotated": annotated,
        "positives": annotated * np.minimum(positives, samples),
        "sizes": {"train": samples, "val": 20, "test": 20},
        "data": dict.fromkeys(("train", "val", "test"), "0" * 32),
        "kind": kind,
        "phantom": False,
        "preprocessing": PREPARED.told(),
        "min_federation": 1,
    }
    return SiteResult(round_num=round_num, samples=samples, census=content)


def plain_answers(annotated, *, samples=None, step=None, counts=None, kind="multilabel"):
    """Sites that add their own number to all weights.

    Args:
        annotated: site → flags of the annotated classes.
        samples: site → N_k; default 10 each.
        step: site → number that one round adds to every weight; default 1 each.
        counts: round → split → counts of an evaluated model; default: histograms of val and test with AUC 1.
        kind: kind of labels; ``singlelabel`` needs ``counts``.
    """
    samples, step = samples or dict.fromkeys(annotated, 10), step or dict.fromkeys(annotated, 1.0)
    classes = len(next(iter(annotated.values())))
    counts = counts or (lambda round_num: {s: histograms(*[1] * classes) for s in ("val", "test")})

    def answer(site, question, weights, task, evaluate):
        if question == CENSUS:
            return census(annotated[site], samples=samples[site], kind=kind)
        result = SiteResult(round_num=task.round_num, samples=samples[site])
        result.counts = counts(task.round_num) if evaluate else {}
        if question == TRAIN:
            result.weights = {name: value + np.float32(step[site]) for name, value in weights.items()}
            result.loss = 0.5
        return result

    return answer


def collected_answers(reports, **options):
    """:func:`plain_answers` of sites that know all of two classes, have 20 samples each and report ``reports[site]`` in
    a collection."""
    plain = plain_answers({site: [1, 1] for site in reports}, **{"samples": dict.fromkeys(reports, 20), **options})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == COLLECT:
            result.report = reports[site]
        return result

    return answer
