"""What people say about labels counts in every method that learns from labels."""

import numpy as np
import pytest
import torch
from torch_factories import Says, SaysMasks, make_mask_site, make_task, one_hot

from fedmend.baselines.cbafed import CBAFed
from fedmend.baselines.fedfixmatch import FedFixMatch
from fedmend.baselines.fedlsr import FedLSR
from fedmend.baselines.fedlsr_multilabel import MultiLabelFedLSR
from fedmend.baselines.fednoro_multilabel import MultiLabelFedNoRo
from fedmend.baselines.fixmatch import FixMatch
from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvg, FedAvgPL, FedProx, SingleLabelFedAvg, SingleLabelFedProx
from fedmend.methods.fedia import FedIA
from fedmend.methods.fedlsm import FedLSM
from fedmend.methods.fedmlp import RULE, WARMUP, FedMLP
from fedmend.methods.fednoro import FedNoRo
from fedmend.methods.labelsets import LabelSetFedAvg
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, Verdict

MULTI = [[1, 0], [0, 1], [0, 1], [1, 0], [0, 0], [1, 1]]
SINGLE = [0, 1, 2, 0, 1, 2]
WEIGHT = {"pos_weight": np.ones(2, dtype=np.float32)}


def said(word, sample, label_class, value, rule="r"):
    return Verdict(sample, label_class, word, -1, value, rule if word == REJECT else "", 0, "AB")


def learnt(method, site, net, play, stage="train"):
    play(method, net, RoundTask(stage, 0, 4, WEIGHT if method.KNOWLEDGE.get("pos_weight") else {}), site)
    return [p.detach().numpy() for p in net.parameters()]


@pytest.mark.parametrize(
    ("method", "stage"),
    [
        *((m, "train") for m in (FedAvg(), FedAvgPL(), FedProx(), MultiLabelFedLSR(), CBAFed(), FedFixMatch())),
        (MultiLabelFedNoRo(), "train"),
        (FedMLP(warmup_distillation=0.0), WARMUP),
        (LabelSetFedAvg(local_iterations=3), "train"),
        (FixMatch(local_iterations=3), "train"),
        (FedLSM(local_iterations=3, pairs=1, high=1, low=1), "train"),
    ],
    ids=lambda m: type(m).__name__ if not isinstance(m, str) else m,
)
def test_a_label_that_a_person_gives_counts_like_one_in_the_table(make_site, make_net, play, method, stage):
    corrected = np.array(MULTI)
    corrected[0, 1] = 1
    by_table = make_site(corrected, folder="table")
    by_word = make_site(MULTI, folder="word")
    by_word.ledger.judge(said(RELABEL, 0, 1, 1))
    a, b, c = (learnt(method, s, make_net(2), play, stage) for s in (by_table, by_word, make_site(MULTI, folder="o")))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize(
    "method", [SingleLabelFedAvg(la=True), SingleLabelFedProx(), FedLSR(), FedNoRo()], ids=lambda m: type(m).__name__
)
def test_a_class_that_a_person_gives_counts_like_one_in_the_table(site_of, make_net, play, method):
    by_table, by_word = site_of([1, *SINGLE[1:]], folder="table"), site_of(SINGLE, folder="word")
    by_word.ledger.judge(said(RELABEL, 0, 1, 1))
    assert by_word.labels().tolist() == one_hot([1, *SINGLE[1:]], 3).tolist()
    a, b, c = (learnt(method, s, make_net(3), play) for s in (by_table, by_word, site_of(SINGLE, folder="o")))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(a, c, strict=True))


def test_a_label_that_fedmlp_tagged_and_a_person_rejected_is_missing_again(make_site):
    site = make_site([[1, -1], [0, -1], [1, -1], [0, -1]])
    site.ledger.judge(said(REJECT, 0, 1, 1, RULE))
    site.ledger.judge(said(ACCEPT, 1, 1, 1))
    assert site.ledger.repairs()[:, 1].tolist() == [-1, 1, -1, -1]


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.baselines.fixmatch.weak", lambda images, generator: images)
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def test_a_rejected_pseudo_label_of_several_is_not_trained_on(site_of, plain):
    site, table = site_of([[1, -1], [0, -1]]), np.array([[0.0, 9.0], [0.0, 9.0]])
    site.ledger.judge(said(REJECT, 0, 1, 1))
    net = Says(table)
    work = FixMatch(local_iterations=1).start(net, RoundTask("train", 0, 4, WEIGHT), site)
    work.loss(torch.arange(2)).backward()
    assert net.table.grad[:2, 1].ne(0).tolist() == [False, True]
    assert work.pseudo.labels[:, 1].tolist() == [-1, 1]


def test_a_rejected_pseudo_label_of_one_takes_the_whole_sample_out(site_of, plain):
    site, table = site_of([0, 1, -1, -1]), np.array([[9.0, 0, 0], [0, 9.0, 0], [0, 0, 9.0], [0, 0, 9.0]])
    site.ledger.judge(said(REJECT, 2, 2, 1))
    net = Says(table)
    work = FixMatch(local_iterations=1).start(net, RoundTask("train", 0, 4), site)
    work.loss(torch.arange(4)).backward()
    assert net.table.grad[2:4].ne(0).any(1).tolist() == [False, True]


@pytest.mark.parametrize("method", [CBAFed(), FedFixMatch()], ids=lambda m: type(m).__name__)
def test_a_rejected_pseudo_label_of_a_missing_class_is_not_trained_on(make_site, make_net, method):
    site, net = make_site([[1, -1], [0, -1]], annotated=[True, False]), make_net(2)
    with torch.no_grad():
        net.classifier.weight.zero_()
        net.classifier.bias.copy_(torch.tensor([9.0, 9.0]))
    task = RoundTask("pseudo", 0, 4, {"thresholds": np.full(2, 0.9, dtype=np.float32)})
    for rejected in (0, 1):
        site.ledger.judge(said(REJECT, rejected, 1, 1))
        work = method.start(net, task, site)
        list(work.batches(0))
        net.zero_grad()
        work.loss(torch.arange(2)).backward()
        work.report()
        assert (site.ledger.repairs()[:, 1] == 1).tolist() == [False, rejected == 0]
        assert bool(net.classifier.bias.grad[1]) == (rejected == 0)


# ---- masks ----------------------------------------------------------------------------------------------------------
MASKS = np.zeros((4, 16, 16), dtype=np.uint8)
MASKS[0, 2, 2:4] = 1


def with_accepted_lesions(folder, count):
    """A site that has marked one lesion of two pixels, and whose people accepted as many more in another run."""
    site, change = make_mask_site(folder, MASKS), np.zeros(MASKS.shape, dtype=np.int8)
    change[1, 1 : 1 + 2 * count : 2, 2:4] = 1
    site.ledger.record("of another run", 0, change, np.full(len(MASKS), 0.9))
    if count:
        site.ledger.judge(Verdict(1, 0, ACCEPT, -1, 1, "", 0, "AB"))
    site.ledger.undo(from_round=0)
    return site


def fedia_at(site, found, **options):
    """The method and its state after a warm-up that found these lesions."""
    method, net = FedIA(**options), SaysMasks(np.where(found, 0.9, 0.1))
    site.state.save("fedia", {"iou": {0: 0.5, 1: 0.5}})
    return method, net, method.collect(net, make_task("completeness", 2), site)["lesions"].tolist()


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_lesions_that_people_accepted_make_a_site_more_complete(tmp_path, accepted):
    found = np.zeros(MASKS.shape, dtype=bool)
    found[0, 2, 2:4] = found[1, 1:9:2, 2:4] = True  # five
    assert fedia_at(with_accepted_lesions(tmp_path, accepted), found)[2] == [1 + accepted, 5]


def test_what_people_accepted_counts_as_marked_where_a_correction_may_be_too_large_and_by_volume(tmp_path):
    found = np.zeros(MASKS.shape, dtype=bool)
    found[0, 2, 2:4] = found[1, 1:9:2, 2:4] = True
    site = with_accepted_lesions(tmp_path / "limit", 2)  # 6 pixels are marked, 4 more are found
    method, net, lesions = fedia_at(site, found, most_added=0.7)
    assert method.correct_masks(net, make_task(round_num=2), site, lesions)
    site = with_accepted_lesions(tmp_path / "volume", 2)
    method, net, lesions = fedia_at(site, found, volume_prior=True)  # a = 3 / 5: 4 pixels are missing
    method.correct_masks(net, make_task(round_num=2), site, lesions)
    assert site.ledger.apply(MASKS).sum() == 10
