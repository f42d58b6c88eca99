"""Closed-form heads with differential privacy: the rows of patients, what leaves, and the head of the server."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, collected_answers
from torch_factories import Says, in_several_threads, make_single_site, make_site, make_task

from fedmend.methods.closed_form_sums import (
    ClosedFormSums,
    ClosedFormSumsWorkflow,
    add_sites,
    heads_of,
)
from fedmend.repairs.verdicts import RELABEL, Verdict


def collect(site, table, *, patients=()):
    """The report without noise, the rows behind it, and the model."""
    train, count = site.data.train, len(table)
    grey = np.broadcast_to(10 * np.arange(count, dtype=np.uint8)[:, None, None], (count, 8, 8)).copy()
    named = replace(train.table, patients=patients or train.table.patients)
    site.data = replace(site.data, train=replace(train, images=grey, table=named))
    found, model = [], Says(table)
    model.num_features = len(table[0])

    def add_up(rows):
        found.extend(row.numpy() for row in rows)
        return np.sum(found, axis=0)

    site.add_up = add_up
    return ClosedFormSums().collect(model, make_task("sums", training=False), site), found, model


# ---- the site -------------------------------------------------------------------------------------------------------
def test_sums_of_one_label_per_image_by_hand(tmp_path):
    site = make_single_site(tmp_path, [0, 0, 1, -1])
    report = collect(site, [[0.6, 0.8], [0.0, 0.5], [3.0, 4.0], [1.0, 0.0]])[0]
    # with class 0 the first two, with class 1 the third, of length 1; the one without a label counts in the scatter
    assert report["class_sums"] == pytest.approx(
        np.array([[0.6, 1.3], [0.6, 0.8], [0, 0], [0.6, 0.8], [0.6, 1.3], [1.2, 2.1]])
    )
    assert report["class_sizes"] == pytest.approx([2, 1, 0, 1, 2, 3])
    assert report["scatter"] == pytest.approx(np.array([[0.36 + 0.36 + 1, 0.48 + 0.48], [0.96, 0.64 + 0.25 + 0.64]]))
    assert report["patients"] == pytest.approx([4])


def test_sums_of_several_labels_per_image_by_hand(tmp_path):
    site = make_site(tmp_path, [[1, 0, -1], [1, 1, -1], [0, -1, -1]])
    report = collect(site, [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])[0]
    with_class, without = [[1, 1], [0, 1], [0, 0]], [[0.6, 0.8], [1, 0], [0, 0]]
    assert report["class_sums"] == pytest.approx(np.array(with_class + without))
    assert report["class_sizes"] == pytest.approx([2, 1, 0, 1, 1, 0])


def test_a_label_from_a_review_of_a_class_that_the_site_does_not_annotate_shortens_no_patient(tmp_path):
    site = make_site(tmp_path, [[1, -1], [0, -1]])
    for sample in (0, 1):
        site.ledger.judge(Verdict(sample, 1, RELABEL, -1, 1, reviewer="AB"))
    report, rows, _ = collect(site, [[1.0, 0.0], [0.0, 1.0]])
    assert [np.linalg.norm(row) for row in rows] == pytest.approx([1, 1])
    assert report["class_sizes"] == pytest.approx([1, 0, 1, 0])


def test_a_patient_counts_once_however_many_images_there_are(tmp_path):
    site = make_single_site(tmp_path, [0, 1, 1])
    report, rows, _ = collect(site, [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], patients=("a", "a", "b"))
    assert len(rows) == 2
    assert report["class_sizes"][:2] == pytest.approx([0.5, 1.5])
    assert report["class_sums"][:2] == pytest.approx(np.array([[0.5, 0], [1, 0.5]]))
    assert report["scatter"] == pytest.approx(np.array([[1.5, 0], [0, 0.5]]))
    assert report["patients"] == pytest.approx([2])


@pytest.mark.parametrize("kind", ["one label", "several labels"])
def test_no_row_is_longer_than_1_and_one_that_has_all_it_may_have_is_as_long(tmp_path, kind):
    table = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).double()
    table[0] = torch.tensor([2.0, 0, 0])
    labels = [[1, 1, 1], [1, 0, 0], [0, 0, 0], [-1, -1, -1]] * 2
    site = make_single_site(tmp_path, [0, 1, 2, -1] * 2) if kind == "one label" else make_site(tmp_path, labels)
    rows = collect(site, table.tolist(), patients=("a", *"bbcdefg"))[1]
    lengths = [np.linalg.norm(row) for row in rows]
    assert lengths[0] == pytest.approx(1)
    assert max(lengths) <= 1 + 1e-12


def test_a_row_depends_on_its_own_patient_alone(tmp_path):
    rng = np.random.default_rng(0)
    labels, table = rng.integers(-1, 3, 12), rng.standard_normal((12, 4))
    labels[11] = 2

    def of_first(n):
        site = make_single_site(tmp_path / str(n), labels[:n].tolist(), 4)
        return collect(site, table, patients=tuple("aabbbcddefgh"[:n]))[1]

    all_rows, fewer = of_first(12), of_first(11)
    assert len(all_rows) == len(fewer) + 1
    assert all(np.array_equal(one, other) for one, other in zip(all_rows, fewer, strict=False))


def test_no_image_is_beside_one_of_another_patient_and_the_network_is_not_training(tmp_path):
    model = collect(make_single_site(tmp_path, [0, 1, 1, 0]), np.eye(4), patients=("a", "b", "a", ""))[2]
    assert model.calls == [(False, [0, 2]), (False, [1]), (False, [3])]
    assert model.training


def test_a_site_without_privacy_is_told_so(tmp_path):
    with refused("site-1: local/fedmend.json, field privacy: expected a policy, got none"):
        ClosedFormSums().collect(Says([[1.0]]), make_task("sums", training=False), make_single_site(tmp_path, [0]))


# ---- the server -----------------------------------------------------------------------------------------------------
def sums(with_class, without, scatter, sizes, patients):
    return {
        "class_sums": np.array([with_class, without], dtype=np.float64),
        "class_sizes": np.array(sizes, dtype=np.float64),
        "scatter": np.array(scatter, dtype=np.float64),
        "patients": np.array([patients], dtype=np.float64),
    }


def test_the_head_by_hand():
    # means (.5, 0) and (-.5, .2); A / n = diag(.3, .04), less .5 m m^T twice: [[.05, .05], [.05, .02]]
    total = sums([5, 0], [-5, 2], [[6, 0], [0, 0.8]], [10, 10], 20)
    within = np.array([[0.3 - 0.25, 0.05], [0.05, 0.04 - 0.02]])
    values, axes = np.linalg.eigh(within)
    assert values[0] < 0
    expected = axes @ ((axes.T @ [1.0, -0.2]) / (values.clip(0) - values[0]))
    weights, biases = heads_of(total, balanced=True)
    assert weights[0] == pytest.approx(expected, rel=1e-5)
    assert biases[0] == pytest.approx(-expected @ [0.0, 0.2] / 2, rel=1e-5)


def test_without_noise_the_penalty_is_a_small_share_of_the_mean_eigenvalue():
    total = sums([5, 0], [-5, 0], [[7, 0], [0, 3]], [10, 10], 20)  # S = diag(.1, .15)
    weights, _ = heads_of(total, balanced=True)
    assert weights[0] == pytest.approx([1 / (0.1 + 0.05 * 0.125), 0], rel=1e-5)


def test_log_odds_are_those_of_the_sites_unless_half_is_to_have_the_class():
    total = sums([3, 0], [-9, 0], [[14, 0], [0, 2]], [6, 18], 24)
    assert heads_of(total, balanced=False)[1] - heads_of(total, balanced=True)[1] == pytest.approx([np.log(1 / 3)])


@pytest.mark.parametrize("sizes", [[0.9, 30], [30, 0.9], [-4, 30]])
def test_a_class_with_less_than_an_image_with_or_without_it_has_no_head(sizes):
    weights, biases = heads_of(sums([5, 0], [-5, 2], np.eye(2), sizes, 40), balanced=False)
    assert not weights.any()
    assert not biases.any()


def test_sites_add_up_and_one_with_most_images_counts_for_half_at_most():
    reports = {site: sums([n, 0], [0, n], n * np.eye(2), [n, n], n) for site, n in (("a", 1), ("b", 3), ("c", 100))}
    samples = {"a": 1, "b": 3, "c": 100}
    total, long = add_sites(reports, {**samples, "c": 4}, samples)
    assert long == []
    assert total["class_sizes"].tolist() == [8, 8]
    assert total["scatter"].tolist() == [[8, 0], [0, 8]]
    assert total["patients"].tolist() == [8]


def test_sums_of_a_site_are_no_longer_than_ten_times_its_images():
    honest = sums([6, 0], [0, 8], np.eye(2), [6, 8], 14)
    hostile = {name: 1e9 * value for name, value in honest.items()}
    total, long = add_sites({"a": honest, "b": hostile}, {"a": 14, "b": 14}, {"a": 14, "b": 14})
    assert long == ["b"]
    assert total["class_sums"] == pytest.approx(honest["class_sums"] * (1 + 140 / 8))  # its longest row is 8
    assert total["patients"] == pytest.approx([14 + 140])


def test_the_number_of_threads_changes_no_digit():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 200)) / 14
    total = sums(x[:200].sum(0), x[200:].sum(0), x.T @ x, [200, 200], 400)
    first, second, third = in_several_threads(lambda: heads_of(total, balanced=True))
    assert first == second == third


def told(sign=1.0, sizes=(10, 10, 10, 0.5)):
    """Of two classes and twelve features: the first feature is ``sign`` with class a, and -``sign`` without it."""
    means = np.zeros((4, 12), dtype=np.float32)
    means[[0, 2], 0] = sign, -sign
    fields = {"class_sums": 10 * means, "scatter": 20 * np.eye(12, dtype=np.float32)}
    return fields | {"class_sizes": np.float32(sizes), "patients": np.float32([20])}


def play(folder, reports, **settings):
    made = {"num_rounds": 1, **settings}
    return Run(folder, ClosedFormSumsWorkflow(la=True), [*reports], collected_answers(reports), **made)


def test_one_exchange_makes_the_classifier_and_leaves_the_backbone(tmp_path):
    reports = {"site-1": told(), "site-2": told(3.0), "site-3": told(-1.0)}
    run = play(tmp_path, reports)
    assert not run.stopped
    total, _ = add_sites(reports, dict.fromkeys(reports, 20), dict.fromkeys(reports, 20))
    weights, biases = heads_of(total, balanced=True)
    assert weights[0, 0] > 0
    assert run.model["classifier.weight"].tolist() == weights.tolist()
    assert run.model["classifier.bias"].tolist() == biases.tolist()
    assert run.model["norm.weight"].tolist() == [1.0] * 12
    assert run.decisions("no_head") == [(0, ["b"])]


def test_sums_of_many_classes_are_not_too_long_for_their_images():
    many = {
        "class_sums": np.ones((1000, 1)),
        "class_sizes": np.ones(1000),
        "scatter": np.eye(1),
        "patients": np.ones(1),
    }
    total, long = add_sites({"a": many}, {"a": 1}, {"a": 1})
    assert (total["class_sizes"].tolist(), long) == ([1] * 1000, [])


def test_a_site_whose_sums_are_too_long_for_its_images_is_named(tmp_path):
    erased = told() | {"class_sizes": np.full(4, -1e6, np.float32)}
    run = play(tmp_path, {"site-1": told(), "site-2": told(), "site-3": erased})
    assert run.decisions("sums_shortened") == [(0, ["site-3"])]
    assert run.decisions("no_head") == [(0, ["a", "b"])]
    assert not play(tmp_path / "honest", {"site-1": told(), "site-2": told()}).decisions("sums_shortened")


def test_the_order_in_which_sites_answer_changes_no_digit(tmp_path):
    reports = {f"site-{i}": told(0.1 * i, (1 / i, 7, 9, 0)) for i in range(1, 6)}
    one, other = (play(tmp_path / str(b), reports, backwards=b).model for b in (False, True))
    assert one["classifier.weight"].tobytes() == other["classifier.weight"].tobytes()


def test_a_report_without_a_field_and_a_second_round_are_refused(tmp_path):
    lacking = {name: value for name, value in told().items() if name != "scatter"}
    assert "got none of ['scatter']" in play(tmp_path / "a", {"site-1": lacking}).stopped
    words = "job variable num_rounds: expected 1 for sums with noise, got 2"
    assert words in play(tmp_path / "b", {"site-1": told()}, num_rounds=2).stopped


def test_what_a_site_has_spent_is_on_record(tmp_path):
    promise = {"epsilon": 4.4, "epsilon_rdp": 4.7, "delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0}
    plain = collected_answers({"site-1": told()})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        return replace(result, privacy=promise) if question == "collect" else result

    run = Run(tmp_path, ClosedFormSumsWorkflow(), ["site-1"], answer, num_rounds=1)
    assert run.decisions("privacy") == [(1, {"site-1": promise})]


@pytest.mark.parametrize("classes", [2, 4])
def test_features_that_tell_classes_apart_make_a_head_that_does_and_noise_costs_some_of_it(tmp_path, classes):
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((classes, 8)) / 8**0.5
    labels = rng.integers(0, classes, 400)
    x = centres[labels] + 0.2 * rng.standard_normal((400, 8))
    x[:, 0] += 2 * x[:, 1]  # what S^-1 takes out
    x /= 3

    def accuracy(noise):
        own = np.stack([x[labels == c].sum(0) for c in range(classes)])
        fields = {
            "class_sums": np.concatenate([own, own.sum(0) - own]),
            "class_sizes": np.concatenate([np.bincount(labels), 400 - np.bincount(labels)]).astype(float),
            "scatter": x.T @ x,
            "patients": np.array([400.0]),
        }
        half = noise * np.random.default_rng(1).standard_normal((8, 8))
        fields["scatter"] = fields["scatter"] + np.triu(half) + np.triu(half, 1).T
        fields["class_sums"] = fields["class_sums"] + noise * rng.standard_normal((2 * classes, 8))
        weights, biases = heads_of(fields, balanced=True)
        return (np.argmax(x @ weights.T + biases, 1) == labels).mean()

    assert accuracy(0) > 0.9
    assert accuracy(0) >= accuracy(3) > 1.2 / classes
    assert accuracy(1000) < 0.8
