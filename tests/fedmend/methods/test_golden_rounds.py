"""A few rounds of every method at tiny sites give the numbers that they have always given."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from federation_factories import Run, census, confusion, dice_counts, histograms, same_models
from torch import nn
from torch_factories import TinyNetwork, make_mask_site, make_single_site, make_site

from fedmend.baselines import (
    adele,
    cbafed,
    elr,
    fedcorr,
    fedcorr_masks,
    fedcorr_stages,
    fedfixmatch,
    fedirm,
    fedlsr,
    fedlsr_multilabel,
    fednoro_masks,
    fednoro_multilabel,
    fedrs,
    fixmatch,
    fpsl,
    fssl,
    moon,
    nr_dice,
    rhfl,
    rmd,
    rofl,
    rscfed,
)
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL
from fedmend.learning.training import LocalTrainer
from fedmend.learning.twin_network import TwinNetwork
from fedmend.learning.weights import get_weights
from fedmend.messages import CENSUS, COLLECT, TRAIN, SiteResult
from fedmend.methods import baselines, candidate_sets, fedia, fedlsm, fedmlp, fednoro, fedpu, labelsets

SITES = [f"site-{i}" for i in range(1, 5)]
STEPS = {"local_iterations": 3}


class MaskNetwork(nn.Module):
    """One hidden layer of 3 x 3 pixels; its encoder has five blocks that a method may drop outputs of."""

    channels, num_features = 1, 4

    def __init__(self, num_classes, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden, self.classifier = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.encoder = nn.ModuleList(nn.Identity() for _ in range(5))

    def forward(self, images):
        features = self.hidden(images).tanh()
        for block in self.encoder:
            features = block(features)
        return features, self.classifier(features)


def twin(num_classes, seed=0):
    seeds = iter((seed, seed + 1))
    return TwinNetwork(lambda classes: MaskNetwork(classes, next(seeds)), num_classes)


NETWORKS = {MULTILABEL: TinyNetwork, SINGLELABEL: TinyNetwork, SEGMENTATION: MaskNetwork}
COUNTS = {
    MULTILABEL: {"val": histograms(1, 1, 1), "test": histograms(1, 1, 1)},
    SINGLELABEL: {"test": confusion(1, 1, 1) // 2},
    SEGMENTATION: dice_counts(0),
}


def site_of(folder, kind, number, *, hidden, samples):
    """A site that annotates other classes than the next one, or marks a part of the lesions.

    ``hidden``: in single-label data, a class whose samples have no label. ``samples``: images of a site with labels;
    one with masks has six slices.
    """
    drawn, name = np.random.default_rng(number), SITES[number]
    if kind == SEGMENTATION:
        masks = np.zeros((6, 16, 16), dtype=np.uint8)
        for plane in masks[number // 2 :]:
            row, column = drawn.integers(0, 11, 2)
            plane[row : row + 5, column : column + 5] = 1
        site = make_mask_site(folder, masks, name=name)
        site.data.train.images[:] = 0.3 * masks + 0.3 * drawn.random(masks.shape)
        return site
    if kind == SINGLELABEL:
        classes = np.concatenate([range(3), drawn.integers(0, 3, samples - 3)])
        return make_single_site(folder, np.where(hidden & (classes == number % 3), -1, classes), name=name, seed=number)
    labels = drawn.integers(0, 2, (samples, 3))
    labels[0], labels[1], labels[:, number % 3] = 0, 1, -1
    return make_site(folder, labels, name=name, seed=number)


def played(folder, method, workflow, kind, rounds, *, samples=14, shaky=False):
    """Mean loss of each round, bias of the final model; repaired entries at all sites; the final model.

    ``shaky``: each task is done at a site that was just opened, as in a new process; answers arrive backwards; and once
    after each of its questions, when the sites have answered, the server stops, and another job goes on.
    """
    network = twin if isinstance(method, rmd.RMD) else NETWORKS[kind]
    hidden = isinstance(method, labelsets.LabelSetMethod)
    options = {"hidden": hidden, "samples": samples}
    sites = {name: site_of(folder / name, kind, number, **options) for number, name in enumerate(SITES)}
    masks = kind == SEGMENTATION
    classes, losses = ["lesion"] if masks else ["a", "b", "c"], {}
    asked, lost = set(), set()  # questions of this job, and of the jobs before it

    def answer(name, question, weights, task, evaluate):
        result = worked(name, question, weights, task, evaluate)
        asked.add(key := (question, task.round_num, task.stage, task.sites))
        return result if not shaky or key in lost else FedMendError("the server stops")

    def worked(name, question, weights, task, evaluate):
        site = site_of(folder / name, kind, SITES.index(name), **options) if shaky else sites[name]
        train, samples = site.data.train, len(site.data.train)
        if question == CENSUS:
            result = census(site.data.annotated, samples=samples, kind=kind)
            result.census["positives"] = np.array([samples]) if masks else (train.labels == 1).sum(0)
            return result
        result = SiteResult(round_num=task.round_num, samples=samples)
        result.counts = COUNTS[kind] if evaluate else {}
        if question not in (TRAIN, COLLECT):
            return result
        model = network(len(classes))
        model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()}, strict=False)
        if question == COLLECT:
            result.report = dict(method.collect(model, task, site))
            return result
        site.ledger.undo(from_round=task.round_num)
        work = method.start(model, task, site)
        result.loss = LocalTrainer(learning_rate=0.05).train(work)
        losses.setdefault(task.round_num, []).append(result.loss)
        result.report, result.weights = dict(work.report()), {k: v.numpy() for k, v in get_weights(model).items()}
        return result

    about = {"classes": classes, "num_rounds": rounds, "eval_every": 99, "max_update_factor": 0}
    while True:
        run = Run(folder, workflow, SITES, answer, backbone=network, backwards=shaky, **about)
        if asked <= lost or not shaky:
            break
        lost |= asked
    assert run.stopped == ""
    bias = next(value for key, value in sorted(run.model.items()) if key.endswith("classifier.bias"))
    entries = sum(sum(row["in_force"] for row in site.ledger.history()) for site in sites.values())
    return [*(float(np.mean(v)) for v in losses.values()), *map(float, bias)], entries, run.model


FEDAVG, ROWS = baselines.FedAvgWorkflow(), labelsets.LabelSetWorkflow(aggregation="masked")
SAMPLES = labelsets.LabelSetWorkflow(aggregation="samples")
CASES = {  # method, workflow, kind, rounds
    "FedMLP": (
        fedmlp.FedMLP(ratio_negative=0.8, ratio_positive=0.8, low=0.45, high=0.55),
        fedmlp.FedMLPWorkflow(warmup_rounds=2),
        MULTILABEL,
        4,
    ),
    "FedNoRo": (fednoro.FedNoRo(), fednoro.FedNoRoWorkflow(warmup_rounds=1), SINGLELABEL, 3),
    "FedLSM": (
        fedlsm.FedLSM(**STEPS, high=3, low=3, pairs=1, tau_positive=0.6, tau_negative=0.4, discount=True),
        fedlsm.FedLSMWorkflow(),
        MULTILABEL,
        3,
    ),
    "FedLSM, one label": (
        fedlsm.FedLSM(**STEPS, high=3, low=3, pairs=1, tau_positive=0.5),
        fedlsm.FedLSMWorkflow(),
        SINGLELABEL,
        3,
    ),
    "FedIA": (fedia.FedIA(gap=0.0, threshold=0.5), fedia.FedIAWorkflow(warmup_rounds=2), SEGMENTATION, 5),
    "FedProx": (baselines.FedProx(mu=1.0), FEDAVG, MULTILABEL, 2),
    "FedPU": (fedpu.FedPU(**STEPS, hidden_share=0.2), SAMPLES, SINGLELABEL, 2),
    "Candidate sets": (candidate_sets.CandidateSets(**STEPS), ROWS, SINGLELABEL, 2),
    "CBAFed": (cbafed.CBAFed(), cbafed.CBAFedWorkflow(warmup_rounds=1), MULTILABEL, 3),
    "FedFixMatch": (fedfixmatch.FedFixMatch(tau_positive=0.55, tau_negative=0.45), FEDAVG, MULTILABEL, 2),
    "FedIRM": (fedirm.FedIRM(), fedirm.FedIRMWorkflow(), MULTILABEL, 3),
    "FedLSR, multi-label": (fedlsr_multilabel.MultiLabelFedLSR(), FEDAVG, MULTILABEL, 2),
    "FedNoRo, multi-label": (fednoro_multilabel.MultiLabelFedNoRo(), FEDAVG, MULTILABEL, 3),
    "RSCFed": (rscfed.RSCFed(), rscfed.RSCFedWorkflow(groups=2), MULTILABEL, 3),
    "FedRS": (fedrs.FedRS(**STEPS, graded=True), SAMPLES, MULTILABEL, 2),
    "FixMatch": (fixmatch.FixMatch(**STEPS, tau_positive=0.6, tau_negative=0.4), ROWS, MULTILABEL, 2),
    "FPSL": (fpsl.FPSL(**STEPS), ROWS, SINGLELABEL, 2),
    "FSSL": (fssl.FSSL(**STEPS), ROWS, MULTILABEL, 2),
    "MOON": (moon.Moon(**STEPS), ROWS, SINGLELABEL, 2),
    "FedCorr": (fedcorr.FedCorr(la=True), fedcorr_stages.FedCorrWorkflow(iterations=1), SINGLELABEL, 2),
    "FedLSR": (fedlsr.FedLSR(), FEDAVG, SINGLELABEL, 2),
    "RHFL": (rhfl.RHFL(), rhfl.RHFLWorkflow(), SINGLELABEL, 3),
    "RoFL": (rofl.RoFL(early_rounds=1), rofl.RoFLWorkflow(), SINGLELABEL, 3),
    "ADELE": (adele.Adele(), adele.AdeleWorkflow(), SEGMENTATION, 2),
    "ELR": (elr.ELR(), FEDAVG, SEGMENTATION, 2),
    "FedCorr, masks": (
        fedcorr_masks.FedCorrMasks(confidence=0.5),
        fedcorr_stages.FedCorrWorkflow(iterations=1),
        SEGMENTATION,
        2,
    ),
    "FedNoRo, masks": (fednoro_masks.FedNoRoMasks(), fednoro.FedNoRoWorkflow(warmup_rounds=1), SEGMENTATION, 3),
    "NR-Dice": (nr_dice.NRDice(), FEDAVG, SEGMENTATION, 2),
    "RMD": (rmd.RMD(weight=0.1), FEDAVG, SEGMENTATION, 2),
}
GOLDEN = {  # loss of each round, then the bias of the final model; repaired entries in force
    "FedMLP": ([0.7759, 0.7266, 0.4877, 0.4711, -0.0323, 0.0225, -0.0617], 1),
    "FedNoRo": ([1.1092, 1.1867, 0.9316, -0.0, -0.2003, -0.0564], 0),
    "FedLSM": ([0.5047, 0.5972, 0.5495, -0.1085, 0.0275, 0.0378], 11),
    "FedLSM, one label": ([1.0276, 1.3826, 1.1794, 0.2166, 0.1067, -0.0456], 3),
    "FedIA": ([0.8595, 0.8389, 0.8171, 0.3835, 0.3123, -0.0486, -0.1812], 18),
    "FedProx": ([1.0197, 1.0004, -0.1427, -0.0828, -0.0179], 0),
    "FedPU": ([1.5377, 1.5013, -0.1349, -0.2266, -0.0364], 0),
    "Candidate sets": ([2.2165, 2.1154, -0.1499, -0.2773, -0.0816], 0),
    "CBAFed": ([1.089, 1.0362, 1.0566, 0.0445, 0.147, 0.1136], 0),
    "FedFixMatch": ([1.8043, 1.7532, 0.0864, 0.0035, 0.0638], 66),
    "FedIRM": ([2.3303, 2.1093, 2.0438, 0.1063, 0.1501, 0.151], 0),
    "FedLSR, multi-label": ([1.1027, 0.9005, -0.1121, -0.0404, 0.0226], 0),
    "FedNoRo, multi-label": ([0.7194, 0.5583, 0.1491, 0.1119, 0.0172, 0.0229], 0),
    "RSCFed": ([1.1628, 1.1006, 1.0139, 0.2044, 0.1762, 0.1958], 0),
    "FedRS": ([0.7109, 0.6863, -0.1479, -0.1051, -0.1463], 0),
    "FixMatch": ([0.4898, 0.5446, 0.0488, -0.0447, -0.1036], 10),
    "FPSL": ([1.9323, 2.4747, 0.1275, -0.1481, 0.1273], 0),
    "FSSL": ([0.4963, 0.7132, 0.0348, -0.0243, -0.0987], 0),
    "MOON": ([1.1643, 1.853, 0.121, -0.1529, 0.126], 0),
    "FedCorr": ([1.2614, 1.2222, 1.0855, 0.033, -0.2042, -0.0272], 24),
    "FedLSR": ([1.7687, 1.7624, 0.0516, -0.2576, -0.2124], 0),
    "RHFL": ([5.7162, 5.9188, 5.6718, 0.2239, -0.3037, -0.3254], 0),
    "RoFL": ([1.6337, 1.5448, 1.2353, 0.2219, -0.4049, -0.2041], 24),
    "ADELE": ([0.4372, 0.3574, 0.4329, -0.6629], 0),
    "ELR": ([-0.1467, -0.91, 0.4357, -0.6657], 0),
    "FedCorr, masks": ([0.3626, 0.288, 0.1453, 0.6901, -0.9198], 22),
    "FedNoRo, masks": ([0.3228, 0.2844, 0.4094, 0.0497, -0.2794], 0),
    "NR-Dice": ([1.1285, 1.0467, 0.0409, -0.2709], 0),
    "RMD": ([1.3199, 1.0285, 0.4336, -0.6636], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_rounds_give_the_numbers_that_they_have_always_given(tmp_path, name):
    numbers, repairs, _ = played(tmp_path, *CASES[name])
    assert numbers == pytest.approx(GOLDEN[name][0], abs=5e-4)
    assert repairs == GOLDEN[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_stops_after_each_of_its_questions_ends_with_the_same_digits(tmp_path, name):
    _, repairs, model = played(tmp_path / "whole", *CASES[name])
    _, again, other = played(tmp_path / "shaky", *CASES[name], shaky=True)
    assert again == repairs
    assert same_models(other, model)


LABELLED = [name for name, (_, _, kind, _) in CASES.items() if kind != SEGMENTATION]


@pytest.mark.parametrize("samples", [3, 5], ids=["fewer than a batch", "a last batch of one"])
@pytest.mark.parametrize("name", LABELLED)
def test_sites_of_any_size_train_to_numbers(tmp_path, name, samples):
    """Batches are of four samples, and the network has BatchNorm, which takes no batch of one."""
    method, workflow, kind, rounds = CASES[name]
    if isinstance(method, fedlsm.FedLSM):
        method = replace(method, high=1, low=1)
    numbers, *_ = played(tmp_path, method, workflow, kind, rounds, samples=samples)
    assert np.isfinite(numbers).all()
    assert len(numbers) >= rounds + 3  # a loss of each round, a bias of each class
