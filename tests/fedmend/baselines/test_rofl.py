"""RoFL: centroids, kept samples and pseudo-labels at a site, merged centroids at the server."""

import numpy as np
import pytest
import torch
from federation_factories import Run, confusion, plain_answers
from torch_factories import Says, make_task

from fedmend.baselines.rofl import RULE, RoFL, RoFLWorkflow, class_means, merged_centroids, moved, nearest, smallest
from fedmend.messages import TRAIN
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, Verdict

# Rows are features and logits at once. The fourth sample has label 0, but looks like class 1.
TABLE = [[2.0, 0, 0], [0, 3, 0], [0, 0, 2], [0, 2, 1]]
CLASSES = [0, 1, 2, 0]
ALL = torch.arange(4)
CENTROIDS = np.eye(3, dtype=np.float32)


def start(site_of, number, *, total=20, table=TABLE, labels=CLASSES, known=True, **options):
    order = make_task(round_num=number, total_rounds=total, **({"centroids": CENTROIDS} if known else {}))
    work = RoFL(**options).start(Says(table), order, site_of(labels))
    list(work.batches(0))
    return work


def log_softmax(row):
    return np.array(row) - np.log(np.exp(row).sum())


def expected_loss(samples, targets):
    rows = [log_softmax(TABLE[i]) for i in samples]
    ce = np.mean([-row[t] for row, t in zip(rows, targets, strict=True)])
    return ce + 0.8 * np.mean([-(np.exp(row) * row).sum() for row in rows])


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_the_mean_feature_of_a_class_without_a_sample_is_0():
    means, counts = class_means(torch.tensor([[1.0, 2], [3, 6], [5, 5]]), torch.tensor([2, 2, 0]), 3)
    assert means.tolist() == [[5, 5], [0, 0], [2, 4]]
    assert counts.tolist() == [1, 0, 2]


@pytest.mark.parametrize(("share", "places"), [(1.0, [1, 3, 0, 2]), (0.8, [1, 3, 0]), (0.5, [1, 3]), (0.1, [1])])
def test_the_share_with_the_smallest_losses_is_kept(share, places):
    assert smallest(torch.tensor([0.3, 0.1, 0.9, 0.2]), share).tolist() == places


def test_rounding_drops_no_sample():
    assert 0.57 * 100 < 57
    assert len(smallest(torch.arange(100.0), 0.57)) == 57


def test_the_nearest_centroid_has_the_largest_cosine_and_an_unknown_one_is_nobody_s():
    centroids = torch.tensor([[9.0, 0], [0, 0], [0.1, 0.1]])
    features = torch.tensor([[1.0, 0.1], [0.1, 1], [-1, -1.1]])
    assert nearest(centroids, features).tolist() == [0, 2, 0]  # the last: cosines -0.67 and -0.999, never class 1


def test_a_centroid_moves_by_the_square_of_its_cosine():
    centroids, means = torch.tensor([[1.0, 0], [1, 0], [0, 0]]), torch.tensor([[1.0, 1], [0, 0], [3, 4]])
    found = moved(centroids, means)
    assert found[0].tolist() == pytest.approx([1, 0.5])  # a^2 = 1/2
    assert found[1:].tolist() == [[1, 0], [0, 0]]


def test_mixed_precision_leaves_means_and_cosines_in_32_bits():
    features = torch.tensor([[1.001, 0.0], [1.003, 0.0]])
    with torch.autocast("cpu", torch.bfloat16):
        means, _ = class_means(features, torch.tensor([0, 0]), 1)
        close = nearest(torch.tensor([[1.0, 0.001], [1.0, 0.0]]), features)
    assert means[0, 0].item() == pytest.approx(1.002, rel=1e-6)
    assert close.tolist() == [1, 1]


# ---- at a site ------------------------------------------------------------------------------------------------------


def test_in_the_first_rounds_all_samples_are_kept_with_their_labels(site_of):
    work = start(site_of, 0)
    assert work.loss(ALL).item() == pytest.approx(expected_loss([0, 1, 2, 3], CLASSES), rel=1e-5)


def test_later_a_fifth_is_dropped_and_who_disagrees_gets_the_label_of_the_received_model(site_of):
    work = start(site_of, 19)  # int(0.8 * 4) = 3, the fourth has the largest loss
    assert work.loss(ALL).item() == pytest.approx(expected_loss([0, 1, 2], [0, 1, 2]), rel=1e-5)
    alone = torch.tensor([3])
    assert work.loss(alone).item() == pytest.approx(expected_loss([3], [1]), rel=1e-5)


@pytest.mark.parametrize(
    ("number", "total", "kept"), [(0, 100, 10), (3, 100, 9), (9, 100, 8), (50, 100, 8), (0, 8, 8), (1, 20, 8)]
)
def test_the_forget_rate_rises_over_the_early_rounds(site_of, number, total, kept):
    rows = [[2.0, 0, 0]] * 10
    work = start(site_of, number, total=total, table=rows, labels=[0] * 10)
    work.loss(torch.arange(10))
    assert work.report()["centroid_counts"].sum() == kept  # f = 0.2 min(r, 9) / 9; a run of 8 rounds has T = 1


@pytest.mark.parametrize(
    ("number", "total", "target"), [(9, 100, 0), (10, 100, 1), (1, 20, 0), (2, 20, 1), (9, 300, 0)]
)
def test_labels_change_from_round_t_on_which_is_a_tenth_of_a_short_run(site_of, number, total, target):
    work = start(site_of, number, total=total)
    work.loss(torch.tensor([3]))
    work.report()
    assert work.site.ledger.apply(work.site.data.train.labels).argmax(1).tolist() == [0, 1, 2, target]


def test_the_means_of_the_last_epoch_leave(site_of):
    work = start(site_of, 0)
    work.loss(torch.tensor([0, 3]))
    work.loss(torch.tensor([0, 1]))
    report = work.report()
    assert report["centroids"].dtype == np.float32
    np.testing.assert_allclose(report["centroids"], [[4 / 3, 2 / 3, 1 / 3], [0, 3, 0], [0, 0, 0]], rtol=1e-6)
    assert report["centroid_counts"].tolist() == [3, 1, 0]
    list(work.batches(1))
    work.loss(torch.tensor([2]))
    assert work.report()["centroid_counts"].tolist() == [0, 0, 1]  # of the last epoch alone


def test_the_pull_to_the_centroids_is_off_unless_asked_for(site_of):
    plain, pulled = (start(site_of, 1, centroid_gradient=on) for on in (False, True))
    losses = [work.loss(torch.tensor([0, 1])).item() for work in (plain, pulled)]
    assert losses[1] - losses[0] == pytest.approx(0.5 * (3 - 1) ** 2, rel=1e-4)  # round 1 of T = 2; one is kept


def test_changed_labels_are_in_the_ledger_and_leave_it_when_they_change_back(site_of):
    site, labels = site_of(CLASSES), None
    for number, part in ((5, [3]), (6, [0])):
        order = make_task(round_num=number, total_rounds=20, centroids=CENTROIDS)
        work = RoFL().start(Says(TABLE), order, site)
        list(work.batches(0))
        work.loss(torch.tensor(part))
        work.report()
        labels = site.ledger.apply(site.data.train.labels).argmax(1).tolist()
        assert labels == ([0, 1, 2, 1] if number == 5 else CLASSES)
        work.report()  # a repeated report adds nothing
    assert {row["rule"] for row in site.ledger.history()} == {RULE}
    assert [row["confidence"] for row in site.ledger.history()][:2] == pytest.approx(
        [np.exp(2) / (1 + np.e + np.exp(2))] * 2
    )
    assert (site.ledger.repairs() == -1).all()


@pytest.mark.parametrize(
    ("label_class", "word", "rule", "target"),
    [(0, ACCEPT, "", 0), (2, RELABEL, "", 2), (1, REJECT, RULE, 0), (2, REJECT, RULE, 1)],
)
def test_what_people_have_fixed_or_rejected_stands_above_the_received_model(site_of, label_class, word, rule, target):
    site = site_of(CLASSES)
    site.ledger.judge(Verdict(3, label_class, word, -1, 1, rule, 0, "AB"))
    work = RoFL().start(Says(TABLE), make_task(round_num=19, total_rounds=20, centroids=CENTROIDS), site)
    list(work.batches(0))
    loss = work.loss(torch.tensor([3]))
    work.report()
    assert loss.item() == pytest.approx(expected_loss([3], [target]), rel=1e-5)
    assert site.ledger.apply(site.data.train.labels).argmax(1).tolist() == [0, 1, 2, target]
    assert len(site.ledger.in_force()) == (2 if target == 1 else 0)


# ---- the server -----------------------------------------------------------------------------------------------------


def report(rows, counts=None):
    rows = np.float32(rows)
    return {"centroids": rows, "centroid_counts": np.array([5] * len(rows) if counts is None else counts)}


def test_the_first_centroids_are_plain_means_over_the_sites_that_have_one():
    found = merged_centroids(None, {"a": report([[2, 0], [1, 1]]), "b": report([[0, 4], [0, 0]], [9, 0])})
    assert found.tolist() == [[1, 2], [1, 1]]
    assert found.dtype == np.float32


def test_later_ones_weigh_by_their_cosine_with_the_one_before_and_opposites_not_at_all():
    before = np.float32([[1, 0], [1, 0], [0, 0], [1, 0]])
    reports = {
        "a": report([[2, 0], [-1, 0], [3, 3], [0, 0]], [5, 5, 5, 0]),  # cosine 1, -1
        "b": report([[3, 3], [2, 2], [1, 1], [0, 0]], [5, 5, 5, 0]),  # cosine 1/sqrt 2 twice
    }
    a, b = 1, 0.5**0.5
    found = merged_centroids(before, reports)
    assert found[0].tolist() == pytest.approx([(2 * a + 3 * b) / (a + b), 3 * b / (a + b)])
    np.testing.assert_allclose(found[1:], [[2, 2], [2, 2], [1, 0]], rtol=1e-6)


SITES = ["site-1", "site-2"]


def answers():
    counts = lambda round_num: {"test": confusion(0.5, 1)}  # noqa: E731
    plain = plain_answers({s: [1, 1] for s in SITES}, counts=counts, kind="singlelabel")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN:
            rows = np.zeros((2, 12), dtype=np.float32)
            rows[0], rows[1, task.round_num] = 1 + task.round_num, 1
            result.report = report(rows)
        return result

    return answer


def test_merged_centroids_go_out_from_the_second_round_on(tmp_path):
    run = Run(tmp_path, RoFLWorkflow(), SITES, answers(), num_rounds=3, max_update_factor=0)
    assert run.stopped == ""
    sent = run.knowledge("train")
    assert sent[0] == {}
    assert sent[1]["centroids"][:, 0].tolist() == [1, 1]
    assert sent[2]["centroids"][0].tolist() == [2] * 12
    assert sent[2]["centroids"][1].tolist() == [1] + [0] * 11  # orthogonal: as before
