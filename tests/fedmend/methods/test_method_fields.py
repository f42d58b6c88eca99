"""Every method of this folder sends what its fields describe and nothing else, and asks for what its workflow sends."""

import inspect

import numpy as np
import pytest
from factories import refused
from torch_factories import SaysMasks, TinyNetwork, make_mask_site, make_single_site, make_site, make_task, make_twin

from fedmend.baselines import cbafed, fedcorr_stages, fedirm, fedrs, fixmatch, moon, rmd
from fedmend.baselines.fedcorr import FedCorr
from fedmend.baselines.fedcorr_masks import FedCorrMasks
from fedmend.baselines.fednoro_masks import FedNoRoMasks
from fedmend.basics.discovery import modules_of
from fedmend.fields import Field, check_fields
from fedmend.kinds import KINDS
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL
from fedmend.learning.training import LocalTrainer
from fedmend.method import LocalMethod, Workflow
from fedmend.methods import (
    baselines,
    closed_form,
    closed_form_sums,
    confident_learning,
    fedia,
    fedlsm,
    fedmlp,
    fednoro,
    labelsets,
)

MODULES = [*modules_of("fedmend.methods"), *modules_of("fedmend.baselines")]
MASKS = np.zeros((4, 8, 8), dtype=np.uint8)
MASKS[:, 2, 3] = 1
SIZES = {  # of the tiny networks and sites below
    MULTILABEL: {"C": 3, "R": 3, "F": TinyNetwork.num_features},
    SINGLELABEL: {"C": 3, "R": 3, "F": TinyNetwork.num_features},
    SEGMENTATION: {"C": 1, "R": 2, "F": 8},
}
PROTOTYPES = np.ones((6, TinyNetwork.num_features), dtype=np.float32)
KNOWLEDGE = {  # what a server sends
    "prototypes": PROTOTYPES,
    "learning_degree": np.float32([1, 0.5, 0]),
    "distillation_weight": np.float32(0.5),
    "pos_weight": np.float32([1, 2, 3]),
    "first_round": np.int64(2),
    "best_completeness": np.float64(1.25),
    "centroids": np.ones((3, TinyNetwork.num_features), dtype=np.float32),
    "folds": np.int64(2),
    "rounds_per_fold": np.int64(1),
    "relation": np.full((3, 3), 0.5, dtype=np.float32),
    "thresholds": np.float32([0.55, 0.7, 0.95]),
    "mean_weights": np.ones((3, TinyNetwork.num_features), dtype=np.float32),
    "mean_biases": np.zeros(3, dtype=np.float32),
    "all_counts": np.int64([99, 99, 99]),
}
# Stages of a method, in their order: (question, stage, role, fields of the report). Default: one without a report.
TRAIN, COLLECT = "train", "collect"
NOTHING, EVERYTHING = (), tuple(fedmlp.FIELDS)
FEDCORR_STAGES = [
    (TRAIN, fedcorr_stages.TURN, "", ("lid",)),
    (COLLECT, fedcorr_stages.CORRECT, fedcorr_stages.NOISY, ("noise_level",)),
    (TRAIN, fedcorr_stages.FINETUNE, "", NOTHING),
    (COLLECT, fedcorr_stages.RELABEL, fedcorr_stages.NOISY, NOTHING),
    (TRAIN, fedcorr_stages.USUAL, "", NOTHING),
]
JUDGED = [
    (COLLECT, closed_form.HEADS, "", tuple(closed_form.HEAD_FIELDS)),
    (COLLECT, closed_form.JUDGE, "", ("class_loss", "class_count")),
]
STAGES = {
    "FedMLP": [
        (TRAIN, fedmlp.WARMUP, "", NOTHING),
        (TRAIN, fedmlp.PROTOTYPE, "", EVERYTHING),
        (TRAIN, fedmlp.DETECT, "", EVERYTHING),
        (TRAIN, fedmlp.DETECT, "", NOTHING),  # the last round
    ],
    "FedNoRo": [
        (TRAIN, fednoro.WARMUP, "", NOTHING),
        (COLLECT, fednoro.DETECT, "", ("class_loss", "class_count")),
        (TRAIN, fednoro.ROBUST, fednoro.NOISY, NOTHING),
        (TRAIN, fednoro.ROBUST, fednoro.CLEAN, NOTHING),
    ],
    "FedNoRoMasks": [
        (TRAIN, fednoro.WARMUP, "", NOTHING),
        (COLLECT, fednoro.DETECT, "", ("class_loss", "class_count")),
        (TRAIN, fednoro.ROBUST, fednoro.NOISY, NOTHING),
    ],
    "DetectionRules": [
        (TRAIN, fednoro.WARMUP, "", NOTHING),
        (COLLECT, fednoro.DETECT, "", ("class_loss", "class_count", "lid", "mean_confidence")),
        *JUDGED,
    ],
    "JudgedFedNoRo": [
        *JUDGED,
        (TRAIN, fednoro.WARMUP, "", NOTHING),
        (TRAIN, fednoro.ROBUST, fednoro.NOISY, NOTHING),
    ],
    "ConfidentLearning": [
        (TRAIN, confident_learning.VALIDATE, "", ("kept",)),
        (TRAIN, confident_learning.VALIDATE, "", ("kept",)),
        (TRAIN, confident_learning.CLEANED, "", ("kept",)),
    ],
    "ClosedForm": [
        (COLLECT, closed_form.HEADS, "", tuple(closed_form.HEAD_FIELDS)),
        (COLLECT, closed_form.CANDIDATES, "", tuple(closed_form.HEAD_FIELDS)),
        (COLLECT, closed_form.JUDGE, "", ("class_loss", "class_count")),
    ],
    "ClosedFormSums": [(COLLECT, closed_form_sums.SUMS, "", tuple(closed_form_sums.FIELDS))],
    "FedIRM": [
        (TRAIN, fedirm.SUPERVISED, "", NOTHING),
        (TRAIN, fedirm.RELATION, "", tuple(fedirm.FIELDS)),
        (TRAIN, fedirm.MATCH, "", tuple(fedirm.FIELDS)),
        (TRAIN, fedirm.MATCH, "", NOTHING),  # the last round
    ],
    "CBAFed": [
        (TRAIN, cbafed.WARMUP, "", ("label_counts",)),
        (TRAIN, cbafed.PSEUDO, "", ("label_counts",)),
    ],
    "FedCorr": FEDCORR_STAGES,
    "RoFL": [(TRAIN, "train", "", ("centroids", "centroid_counts"))] * 2,
    "RHFL": [(TRAIN, "train", "", ("local_loss",))],
    "FedLSM": [(TRAIN, "train", "", ("class_knowledge", "uncertainty"))],
    "Adele": [(TRAIN, "train", "", ("correction",))],
    "FedCorrMasks": FEDCORR_STAGES,
    "FedIA": [
        (TRAIN, fedia.WARMUP, "", ("dice_loss", "correction")),
        (TRAIN, fedia.WARMUP, "", ("dice_loss", "correction")),
        (COLLECT, fedia.COMPLETENESS, "", ("lesions", "iou_line")),
        (TRAIN, fedia.CORRECTION, "", ("dice_loss", "correction")),
        (TRAIN, fedia.CORRECTED, "", ("dice_loss", "correction")),
    ],
}
PLAIN = [(TRAIN, "train", "", NOTHING)]


def classes_of(module, base):
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__
    ]


def concrete(module):
    """Methods that can train."""
    return [m for m in classes_of(module, LocalMethod) if hasattr(m, "ROUND") or m.start is not LocalMethod.start]


METHODS = [method for module in MODULES for method in concrete(module)]
WORKFLOWS = [workflow for module in MODULES for workflow in classes_of(module, Workflow)]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


def make(method):
    """The method with its own settings."""
    return method(**({"local_iterations": 2} if issubclass(method, labelsets.LabelSetMethod) else {}))


def make_workflow(workflow):
    """The workflow with its own settings."""
    settings = {"warmup_rounds": 2, "aggregation": "masked"}
    wanted = inspect.signature(workflow).parameters
    given = {name: value for name, value in settings.items() if name in wanted}
    return workflow(**{name: given[name] for name in given if wanted[name].default is inspect.Parameter.empty})


def site_and_model(method, kind, folder):
    if method is rmd.RMD:
        return make_mask_site(folder, MASKS), make_twin(np.full(MASKS.shape, 0.3), np.full(MASKS.shape, 0.6))
    if kind == SEGMENTATION:
        return make_mask_site(folder, MASKS), SaysMasks(np.full(MASKS.shape, 0.3))
    if kind == SINGLELABEL:
        return make_single_site(folder, [0, 1, 0, 1, 0, 1, 0, 1]), TinyNetwork(3)
    return make_site(folder, [[1, 0, -1], [0, 1, -1]] * 4), TinyNetwork(3)


def reports(method, kind, folder):
    """The report of each of its stages."""
    (site, model), method, round_num = site_and_model(method, kind, folder), make(method), 0
    stages = STAGES.get(type(method).__name__, PLAIN)
    rounds = sum(question == TRAIN for question, *_ in stages)
    for question, stage, role, expected in stages:
        known = {name: KNOWLEDGE[name] for name in method.KNOWLEDGE}
        check_fields(known, method.KNOWLEDGE, SIZES[kind], "knowledge")
        task = make_task(stage, round_num, max(rounds, 2), role=role, **known)
        if question == COLLECT:
            site.add_up = lambda rows: np.sum([row.numpy() for row in rows], axis=0)
            yield expected, method.collect(model, task, site)
            continue
        work = method.start(model, task, site)
        LocalTrainer(learning_rate=1e-3).train(work)
        round_num += 1
        yield expected, work.report()


def test_the_methods_and_workflows_of_this_folder_are_found():
    assert {fedmlp.FedMLP, fednoro.FedNoRo, fedlsm.FedLSM, fedia.FedIA, baselines.FedProx, moon.Moon} < set(METHODS)
    assert {fixmatch.FixMatch, fedrs.FedRS, baselines.SingleLabelFedAvg} < set(METHODS)
    assert {fedmlp.FedMLPWorkflow, labelsets.LabelSetWorkflow, baselines.FedAvgWorkflow} < set(WORKFLOWS)
    assert {m.__name__ for m in METHODS} > set(STAGES)


@every_method
def test_a_method_says_what_kinds_of_labels_it_learns_from(method):
    assert method.KINDS
    assert set(method.KINDS) <= set(KINDS)
    assert len(set(method.KINDS)) == len(method.KINDS)


@pytest.mark.parametrize(
    ("method", "kind"), [(m, k) for m in METHODS for k in m.KINDS], ids=lambda v: getattr(v, "__name__", v)
)
def test_reports_of_every_stage_fit_the_fields_and_all_fields_are_sent(method, kind, tmp_path):
    for package in method.PACKAGES:
        pytest.importorskip(package)
    sent = set()
    for expected, report in reports(method, kind, tmp_path):
        assert set(report) == set(expected)
        check_fields(report, method.FIELDS, SIZES[kind], "report")
        sent |= set(report)
    assert sent == set(method.FIELDS)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.__name__)
def test_all_methods_of_a_workflow_have_the_fields_of_the_one_that_it_names(workflow):
    elsewhere = {
        labelsets.LabelSetWorkflow: [moon.Moon, fixmatch.FixMatch, fedrs.FedRS],
        fednoro.FedNoRoWorkflow: [FedNoRoMasks],
        fedcorr_stages.FedCorrWorkflow: [FedCorr, FedCorrMasks],
    }
    others = {other.METHOD for other in WORKFLOWS if other is not workflow and other.METHOD is not workflow.METHOD}
    own = [method for method in METHODS if method.__module__ == workflow.__module__ and method not in others]
    for method in (*own, *elsewhere.get(workflow, [])):
        assert method.FIELDS == workflow.METHOD.FIELDS
        assert method.KNOWLEDGE == workflow.METHOD.KNOWLEDGE


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.__name__)
def test_a_workflow_needs_fields_that_its_method_reports_and_refuses_a_report_without_one(workflow):
    work = make_workflow(workflow)
    for stage, needed in workflow.NEEDS.items():
        assert set(needed) <= set(workflow.METHOD.FIELDS)
        whole = {name: np.full(2, 2) for name in workflow.METHOD.FIELDS}
        work.check(stage, whole)
        for name in needed:
            with refused(f"report: expected {sorted(needed)}, got none of {[name]}"):
                work.check(stage, {other: value for other, value in whole.items() if other != name})


@every_method
def test_every_field_is_described_in_one_line_for_people_and_has_a_range(method):
    for name, field in {**method.FIELDS, **method.KNOWLEDGE}.items():
        assert isinstance(field, Field), name
        assert field.low < field.high
        assert field.meaning
        assert field.risk
        assert "\n" not in field.meaning + field.risk
        assert field.numbers({"C": 3, "R": 3, "F": 5}) is not None
        assert np.dtype(field.dtype).kind in "fi"


@every_method
def test_what_counts_the_samples_behind_a_field_is_a_field_with_a_number_for_each_row(method):
    for field in method.FIELDS.values():
        if field.counted_by:
            assert method.FIELDS[field.counted_by].shape == field.shape[:1]
            assert method.FIELDS[field.counted_by].dtype == "int64"


def test_what_is_a_mean_over_samples_of_a_class_is_counted():
    counts = {name: field.counted_by for name, field in {**fedmlp.FIELDS, **fednoro.FIELDS}.items()}
    assert counts["prototypes"] == "prototype_counts"
    assert counts["class_loss"] == "class_count"
