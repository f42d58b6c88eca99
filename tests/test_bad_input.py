"""Every fault of what a site or a job gives, and the one sentence that a person reads.

A row is a name, a function of an empty folder that meets the fault, and the whole sentence.
"""

import errno
import os
from unittest.mock import patch

import numpy as np
import pytest
import torch
from factories import make_site_folder, refused
from federation_factories import Run, plain_answers, small_world
from torch_factories import CPU, TinyNetwork, make_single_site, make_site, make_task

from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.errors import FedMendError
from fedmend.kinds import kind_of
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.messages import CENSUS, COLLECT, TRAIN, Question, RunSpec
from fedmend.method import RoundTask
from fedmend.methods.fedlsm import FedLSM, FedLSMWorkflow
from fedmend.methods.fedmlp import DETECT, FedMLP, FedMLPWorkflow
from fedmend.methods.fednoro import NOISY, ROBUST, FedNoRo, FedNoRoWorkflow
from fedmend.repairs.label_ledger import LabelLedger
from fedmend.site.config import SiteConfig, read_site_config
from fedmend.site.worker import SiteSettings, SiteWorker

JOB_CLASSES = ("edema", "fracture", "nodule")
PRIOR = "(a class prior between 0 and 1)"
LEAVE_OUT = "leave the column out if the class is not annotated here"
NO_PIXELS = "expected readable DICOM pixels, got a corrupt or truncated file"


def train_on(folder, classes=JOB_CLASSES):
    card = load_card(folder, "site-1")
    kind_of(card.kind).load(card, classes, Opening(folder / "cache", 8, CPU))


def other_classes(folder):
    train_on(make_site_folder(folder / "s"), ("edema", "fracture", "pneumonia"))


def replaced(folder, old, new):
    site = make_site_folder(folder / "s")
    text = (site / "train.csv").read_text()
    assert old in text
    (site / "train.csv").write_text(text.replace(old, new))
    train_on(site)


def odd_label(folder):
    replaced(folder, "img3.png,p3,0", "img3.png,p3,yes")


def two_rows(folder):
    replaced(folder, "img4.png,p4,1,1", "img1.png,p4,1,1")


def missing_image(folder):
    site = make_site_folder(folder / "s")
    (site / "images" / "img3.png").unlink()
    train_on(site)


def dicom_with(change):
    def fault(folder):
        site = make_site_folder(folder / "s", suffix=".dcm", window=(40, 80))
        path = site / "images" / "img2.dcm"
        path.write_bytes(change(path.read_bytes()))
        train_on(site)

    return fault


def labelled(labels):
    return lambda folder: train_on(make_site_folder(folder / "s", labels, classes=("edema",)), ("edema",))


def other_ledger(folder):
    for digit in "ab":
        LabelLedger(
            folder / "ledger.sqlite", fingerprint=digit * 64, images=["x.png"], classes=JOB_CLASSES, site="site-1"
        )


def full_disk(folder):
    site = make_site_folder(folder / "s")
    with patch.object(os, "posix_fallocate", side_effect=OSError(errno.ENOSPC, "no space left on device")):
        train_on(site)


def weights_with(change):
    def fault(folder):
        state = get_weights(initial_network("resnet18", JOB_CLASSES, 0))
        torch.save(change(state), folder / "weights.pt")
        initial_network("resnet18", JOB_CLASSES, 0, str(folder / "weights.pt"))

    return fault


def asked(method, labels=None, *, batch_size=4, question=CENSUS, task=None):
    """A site that answers a question of the server."""

    def fault(folder):
        site = make_site_folder(folder / "s") if labels is None else make_site_folder(folder / "s", labels)
        worker = SiteWorker(method, SiteSettings.of(learning_rate=0.1, batch_size=batch_size, image_size=32))
        given = task or RoundTask(question, 0, 3)
        with small_world():
            model = get_weights(initial_network("tiny", JOB_CLASSES, 0))
            weights = {name: value.numpy() for name, value in model.items()}
            asked = Question(question, weights, {"site-1": given}, RunSpec("run-1", JOB_CLASSES, "tiny", 0))
            result = worker.answer("site-1", asked, SiteConfig(site, folder / "cache", folder / "state"))
        assert (result.weights, result.report) == ({}, {})
        raise FedMendError(result.error)

    return fault


def told(method, stage, labels=None, *, role="", **knowledge):
    """A site that is asked to train with what the server says beside the weights."""
    return asked(method, labels, question=TRAIN, task=make_task(stage, 4, 9, role=role, **knowledge))


def class_nowhere(folder):
    answer = plain_answers({"site-1": [True, True, False]})
    run = Run(folder, FedMLPWorkflow(warmup_rounds=1), ["site-1"], answer, classes=list(JOB_CLASSES))
    raise FedMendError(run.stopped)


def single_label(labels):
    return lambda folder: train_on(make_site_folder(folder / "s", labels))


def unknown_label_name(folder):
    site = make_site_folder(folder / "s", [0, 1, 2, 0])
    text = (site / "train.csv").read_text()
    (site / "train.csv").write_text(text.replace("fracture", "break"))
    train_on(site)


def blank_label(folder):
    FedNoRo().start(TinyNetwork(3), make_task(), make_single_site(folder, [0, 1, -1]))


def fednoro(*, sites=4, change=lambda result: None):
    """A run of FedNoRo in which site-4 answers the detection otherwise."""

    def fault(folder):
        names = {f"site-{i}": [True] * 3 for i in range(1, sites + 1)}
        plain = plain_answers(names)

        def answer(site, task_name, *rest):
            result = plain(site, task_name, *rest)
            if task_name == COLLECT:
                losses = np.full(3, float(site[-1]), dtype=np.float32)
                result.report = {"class_loss": losses, "class_count": np.full(3, 9)}
            if site == "site-4" and task_name in (COLLECT, TRAIN):
                change(result)
            return result

        workflow = FedNoRoWorkflow(warmup_rounds=1)
        raise FedMendError(Run(folder, workflow, list(names), answer, classes=list(JOB_CLASSES), num_rounds=2).stopped)

    return fault


def detection(**fields):
    return lambda result: result.report and result.report.update(fields)


def fedlsm_site(labels, **options):
    """A site that starts a round of FedLSM; class numbers make it single-label."""

    def fault(folder):
        site = (make_single_site if np.ndim(labels) == 1 else make_site)(folder, labels)
        task = make_task(round_num=4, pos_weight=np.ones(2, dtype=np.float32))
        FedLSM(local_iterations=1, **options).start(TinyNetwork(site.data.train.labels.shape[1]), task, site)

    return fault


def fedlsm_run(*, known=((1, 1, 1), (1, 0, 0)), change=lambda result: None):
    """A run of FedLSM in which site-2 answers otherwise."""

    def fault(folder):
        names = {f"site-{i}": flags for i, flags in enumerate(known, 1)}
        plain = plain_answers(names)

        def answer(site, task_name, *rest):
            result = plain(site, task_name, *rest)
            if task_name == TRAIN:
                result.report = {"class_knowledge": np.ones(3, dtype=np.float32)}
                if site == "site-2":
                    change(result)
            return result

        run = Run(folder, FedLSMWorkflow(), list(names), answer, classes=list(JOB_CLASSES), num_rounds=2)
        raise FedMendError(run.stopped)

    return fault


def reported(**fields):
    return lambda result: result.report.update(fields)


HALF_KNOWN = [[1, -1], [0, -1], [0, -1]]
TWO_NEEDED = "train of round 0: expected valid results from 2 sites, got 1: site-2: "
FINITE = "expected finite numbers, got NaN or infinity"
THREE_NUMBERS = "expected float32 of shape (3,), got float32 of shape (4,)"
FOUR_NEEDED = "collect of round 1: expected valid results from 4 sites, got 3: "

FAULTS = [
    (
        "no fedmend.json",
        lambda folder: read_site_config(folder / "fedmend.json", folder, "site-1"),
        "site-1: local/fedmend.json: expected in the workspace (data_root, cache_dir, state_dir), not found",
    ),
    (
        "fewer samples than a batch",
        asked(FedMLP(), batch_size=16),
        "site-1: train.csv: expected at least 16 samples (batch_size), got 6",
    ),
    (
        "a class annotated nowhere",
        class_nowhere,
        "census: expected every class of the job to be annotated at a site, got none for ['nodule']",
    ),
    (
        "prototypes with NaN",
        told(FedMLP(), DETECT, prototypes=np.full((6, 12), np.nan, np.float32), learning_degree=np.ones(3, np.float32)),
        "site-1: round 4, knowledge of the server, prototypes: expected finite numbers, got NaN or infinity",
    ),
    (
        "a server that says nothing of prototypes",
        told(FedMLP(), DETECT, learning_degree=np.ones(3, np.float32)),
        "site-1: round 4, prototypes from the server: expected an array, got nothing",
    ),
    (
        "class names that differ from the job's",
        other_classes,
        "site-1: site.json, field classes: expected the job's ['edema', 'fracture', 'pneumonia'], got ['edema',"
        " 'fracture', 'nodule'] (missing here: ['pneumonia'], unknown to the job: ['nodule'])",
    ),
    (
        "a label other than 1, 0 or blank",
        odd_label,
        "site-1: train.csv row 5, column edema: expected 1, 0 or blank, got text of 3 characters",
    ),
    (
        "two rows for one image with different labels",
        two_rows,
        "site-1: train.csv row 6: expected the labels of row 3, which names the same image, got others",
    ),
    (
        "an image file that is missing",
        missing_image,
        "site-1: train.csv row 5, column image: expected a file below image_root, not found",
    ),
    (
        "a corrupt DICOM file",
        dicom_with(lambda content: b"\0" * len(content)),
        "site-1: train.csv row 4: expected a DICOM file, got something else (max_unreadable allows 0, got 1)",
    ),
    (
        "a truncated DICOM file",
        dicom_with(lambda content: content[:-50]),
        f"site-1: train.csv row 4: {NO_PIXELS} (ValueError) (max_unreadable allows 0, got 1)",
    ),
    (
        "no positive of the only class",
        labelled([[0], [0], [0]]),
        f"site-1: train.csv, column edema: expected both 0 and 1 {PRIOR}, got only 0; {LEAVE_OUT}",
    ),
    (
        "a class prior of 1",
        labelled([[1], [1], [-1]]),
        f"site-1: train.csv, column edema: expected both 0 and 1 {PRIOR}, got only 1; {LEAVE_OUT}",
    ),
    ("a site with one sample", labelled([[1]]), "site-1: train.csv: expected at least 2 samples, got 1"),
    (
        "the ledger of another data set",
        other_ledger,
        "site-1: label ledger: expected the ledger of this data set, got that of another; choose another run_name or"
        " put the earlier labels back",
    ),
    ("a full disk", full_disk, "site-1: train.csv: cache_dir: expected 1 MB of free space, got a full disk"),
    (
        "fewer than four sites",
        fednoro(sites=3),
        "census: expected at least 4 sites for the method of this job, got 3",
    ),
    (
        "losses with NaN",
        fednoro(change=detection(class_loss=np.array([1, np.nan, 1], dtype=np.float32))),
        f"{FOUR_NEEDED}site-4: result of round 1, report field class_loss: {FINITE}",
    ),
    (
        "losses of another number of classes",
        fednoro(change=detection(class_loss=np.ones(4, dtype=np.float32))),
        f"{FOUR_NEEDED}site-4: result of round 1, report field class_loss: {THREE_NUMBERS}",
    ),
    (
        "no class with enough samples",
        fednoro(change=detection(class_count=np.zeros(3, dtype=np.int64))),
        f"{FOUR_NEEDED}site-4: report field class_count: expected at least one class with enough samples, got none",
    ),
    (
        "an unknown label name",
        unknown_label_name,
        "site-1: train.csv row 3, column label: expected one of ['edema', 'fracture', 'nodule'] or blank, got text of 5"
        " characters",
    ),
    (
        "single-label data of one class",
        single_label([1, 1, 1]),
        "site-1: train.csv, column label: expected at least 2 classes, got 1",
    ),
    ("an empty single-label site", single_label([]), "site-1: train.csv: expected at least 2 samples, got 0"),
    (
        "a blank single label",
        blank_label,
        "site-1: train.csv row 4, column label: expected a class name, got a blank",
    ),
    (
        "multi-label data for a single-label method",
        asked(FedNoRo()),
        "site-1: site.json, field task: expected 'singlelabel' for the method of this job, got 'multilabel'",
    ),
    (
        "no distillation weight from the server",
        told(FedNoRo(), ROBUST, [0, 1, 2, 0], role=NOISY),
        "site-1: round 4, distillation_weight from the server: expected an array, got nothing",
    ),
    (
        "a distillation weight beyond 1",
        told(FedNoRo(), ROBUST, [0, 1, 2, 0], role=NOISY, distillation_weight=np.array(1.5, np.float32)),
        "site-1: round 4, knowledge of the server, distillation_weight: expected numbers from 0 to 1, got 1.5 to 1.5",
    ),
    (
        "more uncertain and confident samples than there are",
        fedlsm_site(HALF_KNOWN, high=500, low=2000),
        "site-1: train.csv: expected at least high + low = 500 + 2000 samples, got 3",
    ),
    (
        "a multi-label site that knows no class",
        fedlsm_site([[-1, -1], [-1, -1]]),
        "site-1: train.csv: expected labels of at least one class, got none",
    ),
    (
        "a single-label site that knows no class",
        fedlsm_site([-1, -1]),
        "site-1: train.csv: expected labels of at least one class, got none",
    ),
    (
        "weights of positive terms with NaN",
        told(FedLSM(local_iterations=1), TRAIN, pos_weight=np.full(3, np.nan, np.float32)),
        "site-1: round 4, knowledge of the server, pos_weight: expected finite numbers, got NaN or infinity",
    ),
    (
        "a class of FedLSM that no site identifies",
        fedlsm_run(known=((1, 1, 0), (1, 0, 0))),
        "census: expected every class of the job to be annotated at a site, got none for ['nodule']",
    ),
    (
        "no knowledge of the classes",
        fedlsm_run(change=lambda result: result.report.clear()),
        f"{TWO_NEEDED}report: expected ['class_knowledge'], got none of ['class_knowledge']",
    ),
    (
        "knowledge of another number of classes",
        fedlsm_run(change=reported(class_knowledge=np.ones(4, dtype=np.float32))),
        f"{TWO_NEEDED}result of round 0, report field class_knowledge: {THREE_NUMBERS}",
    ),
    (
        "knowledge of the classes with NaN",
        fedlsm_run(change=reported(class_knowledge=np.array([1, np.nan, 1], dtype=np.float32))),
        f"{TWO_NEEDED}result of round 0, report field class_knowledge: {FINITE}",
    ),
    (
        "a weights file with other keys",
        weights_with(lambda state: {f"module.{name}": value for name, value in state.items()}),
        "weights file: expected backbone.conv1.weight with shape (64, 3, 7, 7) for resnet18, got nothing",
    ),
    (
        "a weights file for other classes",
        weights_with(lambda state: state | {"classifier.weight": torch.zeros(5, 512)}),
        "weights file: expected classifier.weight with shape (3, 512) for resnet18, got (5, 512)",
    ),
]


@pytest.mark.parametrize(("fault", "sentence"), [pytest.param(*row[1:], id=row[0]) for row in FAULTS])
def test_bad_input_is_said_in_one_sentence(tmp_path, fault, sentence):
    with refused(sentence):
        fault(tmp_path)
