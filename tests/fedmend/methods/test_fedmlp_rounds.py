"""FedMLP over whole rounds at a site: tags, passes, reports, restarts."""

import dataclasses

import numpy as np
import pytest
import torch
from factories import refused

from fedmend.fields import check_fields
from fedmend.learning.inference import infer
from fedmend.method import RoundTask
from fedmend.methods.fedmlp import DETECT, PROTOTYPE, RULE, WARMUP, FedMLP, global_learning_degree
from fedmend.methods.shared.prototypes import global_prototypes
from fedmend.repairs.verdicts import REJECT, RELABEL, Verdict

VALUES = [10, 250, 30, 240, 20, 200, 180, 220, 40, 230]  # Z falls with darkness: 1 3 9 7 5 6 | 8 2 4 0, four are < 0
LABELS = np.array([[i % 2, -1] for i in range(10)], dtype=np.int8)
AXES = np.tile(np.eye(2, dtype=np.float32), (2, 1))
HALF = {"ratio_negative": 0.5, "ratio_positive": 0.5}
TOTAL = 9


def task(stage, round_num, prototypes=AXES, degree=(1.0, 1.0)):
    knowledge = {"prototypes": prototypes, "learning_degree": np.array(degree, dtype=np.float32)}
    return RoundTask(stage, round_num, TOTAL, knowledge if stage == DETECT else {})


def tags(site):
    """Class 1's tags: samples tagged 0, samples tagged 1."""
    column = site.ledger.repairs()[:, 1]
    return np.flatnonzero(column == 0).tolist(), np.flatnonzero(column == 1).tolist()


def prepared_tags(site, make_net, order=None, **settings):
    FedMLP(**{**HALF, **settings}).start(make_net(2), order or task(DETECT, 4), site)
    return tags(site)


@pytest.mark.parametrize(
    ("settings", "degree", "expected"),
    [
        ({}, 1.0, ([1, 3, 9], [0, 4])),  # .5 * 6, .5 * 4
        ({}, 0.5, ([1], [0])),  # .25 * 6 = 1.5, .25 * 4
        ({"quota_rounding": "ceil"}, 0.5, ([1, 3], [0])),
        ({"st": False}, 0.5, ([1, 3, 9], [0, 4])),
        ({"mld": False}, 1.0, ([], [])),
        ({"ratio_negative": 0.1}, 1.0, ([], [0, 4])),  # no negative tags, the positive ones stay
        ({"ratio_positive": 0.1}, 1.0, ([1, 3, 9], [])),
        ({}, 0.0, ([], [])),
        ({"score": "whitened"}, 1.0, ([1, 3, 9], [0, 4])),
    ],
)
def test_the_most_certain_samples_of_a_missing_class_are_tagged(settings, degree, expected, make_site, make_net):
    site = make_site(LABELS, VALUES)
    found = prepared_tags(site, make_net, task(DETECT, 4, degree=(0.9, degree)), **settings)
    assert tuple(map(sorted, found)) == tuple(map(sorted, expected))
    assert (site.ledger.repairs()[:, 0] == -1).all()


def test_a_tag_is_written_with_rule_round_old_label_and_confidence(make_site, make_net):
    site = make_site(LABELS, VALUES)
    prepared_tags(site, make_net)
    first = site.ledger.history()[0]
    v = VALUES[1] / 255
    assert (first["image"], first["class"], first["old"], first["new"]) == ("1.png", "class 1", -1, 0)
    assert (first["rule"], first["round"]) == (RULE, 4)
    assert first["confidence"] == pytest.approx((2 * v - 1) / np.hypot(v, 1 - v), rel=1e-5)
    positive = next(row for row in site.ledger.history() if row["new"] == 1)
    v = VALUES[0] / 255  # Z is below 0, the confidence is not
    assert (positive["image"], positive["old"]) == ("0.png", -1)
    assert positive["confidence"] == pytest.approx((1 - 2 * v) / np.hypot(v, 1 - v), rel=1e-5)


def test_a_whitened_score_is_written_in_units_of_its_deviation(make_site, make_net):
    site = make_site(LABELS, VALUES)
    prepared_tags(site, make_net, score="whitened")
    values = np.array(VALUES) / 255  # features (v, 1 - v) and prototypes on the axes: Z is 0 at 1/2
    assert site.ledger.history()[0]["confidence"] == pytest.approx((values[1] - 0.5) / values.std(), rel=1e-4)


def test_blanks_in_an_annotated_column_are_never_tagged(make_site, make_net):
    labels = LABELS.copy()
    labels[:4, 0] = -1
    site = make_site(labels, VALUES)
    prepared_tags(site, make_net, ratio_negative=1.0, ratio_positive=1.0)
    assert (site.ledger.repairs()[:, 0] == -1).all()
    assert (site.ledger.repairs()[:, 1] >= 0).all()


def test_tags_are_permanent_and_the_residual_shrinks_to_what_rounding_leaves(make_site, make_net, play):
    site, method = make_site(LABELS, VALUES), FedMLP(**HALF)
    expected = [
        ([1, 3, 9], [0, 4]),
        ([1, 3, 7, 9], [0, 2, 4]),  # .5 of {7 5 6} and of {2 8}
        ([1, 3, 5, 7, 9], [0, 2, 4]),  # .5 of {5 6}; .5 of one sample is none
        ([1, 3, 5, 7, 9], [0, 2, 4]),
    ]
    for round_num, found in enumerate(expected, start=4):
        play(method, make_net(2), task(DETECT, round_num), site)
        assert tags(site) == found
    play(method, make_net(2), task(DETECT, 8, prototypes=AXES[::-1]), site)  # the opposite is now the surest
    assert tags(site) == expected[-1]
    written = [(row["image"], row["class"]) for row in site.ledger.history()]
    assert len(written) == len(set(written)) == 8


def test_a_tag_that_people_rejected_takes_no_place_of_another_and_its_opposite_may_come(make_site, make_net, play):
    site, method = make_site(LABELS, VALUES), FedMLP(**HALF)
    play(method, make_net(2), task(DETECT, 4), site)
    for sample, value in ((1, 0), (0, 1)):  # the surest of each side
        site.ledger.judge(Verdict(sample, 1, REJECT, -1, value, RULE, 4, "AB"))
    play(method, make_net(2), task(DETECT, 5), site)
    assert tags(site) == ([3, 7, 9], [2, 4])  # .5 of {7 5 6} and of {2 8}
    assert not [row for row in site.ledger.history() if row["round"] == 5 and row["image"] in ("0.png", "1.png")]
    play(method, make_net(2), task(DETECT, 6, prototypes=AXES[::-1]), site)
    assert {0, 1} == {*tags(site)[0], *tags(site)[1]} - {2, 3, 4, 7, 9}


def test_a_class_without_prototype_is_not_tagged_and_the_round_goes_on(make_site, make_net, play):
    site, prototypes = make_site(LABELS, VALUES), AXES.copy()
    prototypes[3] = 0
    report = play(FedMLP(**HALF), make_net(2), task(DETECT, 4, prototypes=prototypes), site)
    assert tags(site) == ([], [])
    assert np.isfinite(report["prototypes"]).all()


@pytest.mark.parametrize("name", ["prototypes", "learning_degree"])
def test_knowledge_that_is_not_finite_or_absent_is_refused_in_one_sentence(name, make_site, make_net):
    site, good = make_site(LABELS, VALUES), task(DETECT, 7)
    sizes = {"C": 2, "F": 2}
    check_fields(good.knowledge, FedMLP.KNOWLEDGE, sizes, "knowledge")
    broken = np.array(good.knowledge[name])
    broken.flat[1] = np.nan
    with refused(f"knowledge {name}: expected finite numbers, got NaN or infinity"):
        check_fields({**good.knowledge, name: broken}, FedMLP.KNOWLEDGE, sizes, "knowledge")
    absent = {k: v for k, v in good.knowledge.items() if k != name}
    with refused(f"round 7, {name} from the server: expected an array, got nothing"):
        prepared_tags(site, make_net, dataclasses.replace(good, knowledge=absent))
    assert tags(site) == ([], [])


@pytest.mark.parametrize(
    ("settings", "order", "trained", "inferred"),
    [
        ({}, task(WARMUP, 0), 2, 0),
        ({}, task(PROTOTYPE, 3), 2, 1),
        ({}, task(DETECT, 4), 1, 2),
        ({}, task(DETECT, TOTAL - 1), 1, 1),  # nobody needs the last prototypes
        ({}, task(PROTOTYPE, TOTAL - 1), 2, 1),  # more rounds may follow
        ({"mld": False}, task(DETECT, 4), 1, 1),
        ({"cr": False}, task(DETECT, 4), 1, 2),
        ({"mld": False, "cr": False}, task(DETECT, 4), 1, 0),
        ({"warmup_distillation": 1.0}, task(WARMUP, 0), 2, 2),
        ({"warmup_distillation": 1.0}, task(PROTOTYPE, 3), 2, 3),
    ],
)
def test_forward_passes_per_sample(settings, order, trained, inferred, make_site, make_net, play):
    net = make_net(2)
    play(FedMLP(**HALF, **settings), net, order, make_site(LABELS, VALUES))
    assert (net.samples(training=True), net.samples(training=False)) == (10 * trained, 10 * inferred)


def test_the_report_is_made_from_the_trained_model_and_original_labels(make_site, make_net, play):
    site, net, order = make_site(LABELS, VALUES), make_net(2), task(DETECT, 4)
    report = play(FedMLP(**HALF, low=0.45, high=0.55), net, order, site, learning_rate=0.3)
    assert tags(site) == ([1, 3, 9], [0, 4])
    features, logits = infer(net, site.data.train, site, site.views(order, 1)[0])
    odd = features[1::2].mean(0).tolist()
    assert report["prototypes"][1].tolist() == pytest.approx(odd, rel=1e-5)
    assert report["prototypes"][2:].tolist() == [[0, 0], [0, 0]]  # tags make no prototypes
    assert report["prototype_counts"].tolist() == [5, 5, 0, 0]
    s = logits.sigmoid()
    assert report["learning_degree"].tolist() == pytest.approx(((s < 0.45) | (s > 0.55)).float().mean(0).tolist())


@pytest.mark.parametrize(("stage", "views", "passes"), [(PROTOTYPE, 2, 1), (DETECT, 1, 2)])
def test_all_inferences_of_a_round_see_the_first_view_of_the_training(
    stage, views, passes, make_site, make_net, play, monkeypatch
):
    seen = []

    def spied(model, split, site, view=None):
        seen.append(view)
        return infer(model, split, site, view)

    monkeypatch.setattr("fedmend.methods.fedmlp.infer", spied)
    site, order = make_site(LABELS, VALUES), task(stage, 4)
    play(FedMLP(), make_net(2), order, site)
    assert len(seen) == passes
    assert all(torch.equal(view, site.views(order, views)[0]) for view in seen)


def test_prototypes_are_of_the_labels_as_people_have_corrected_them(make_site, make_net, play):
    site = make_site(LABELS, VALUES)
    site.ledger.judge(Verdict(0, 0, RELABEL, 0, 1, "", -1, "AB"))
    site.ledger.judge(Verdict(0, 1, RELABEL, -1, 1, "", -1, "AB"))  # of a class that nobody annotates here
    report = play(FedMLP(), make_net(2), task(PROTOTYPE, 3), site)
    assert report["prototype_counts"].tolist() == [4, 6, 0, 0]


def test_a_site_sends_no_rows_from_which_a_mean_over_one_sample_follows(make_site, make_net, play):
    labels = LABELS.copy()
    labels[:, 1] = 0
    labels[3, 1] = 1
    site = make_site(labels, VALUES)
    assert play(FedMLP(), make_net(2), task(PROTOTYPE, 3), site)["prototype_counts"].tolist() == [5, 5, 0, 1]


def three_rounds(method, net, sites, play):
    """Prototype round and two stage-2 rounds of two sites that train one after another."""
    knowledge, annotated = {}, {name: site.data.annotated for name, site in sites.items()}
    for round_num, stage in ((3, PROTOTYPE), (4, DETECT), (5, DETECT)):
        order = RoundTask(stage, round_num, TOTAL, knowledge)
        reports = {name: play(method, net, order, site) for name, site in sites.items()}
        samples = dict.fromkeys(reports, 10)
        knowledge = {
            "prototypes": global_prototypes(reports, samples),
            "learning_degree": global_learning_degree(reports, samples, annotated),
        }


def test_labels_stay_as_they_were_over_whole_runs(make_site, make_net, play):
    sites = {"a": make_site(LABELS, VALUES, name="a"), "b": make_site(LABELS[:, ::-1], VALUES, name="b")}
    before = {name: site.data.train.labels.tobytes() for name, site in sites.items()}
    three_rounds(FedMLP(**HALF, low=0.5, high=0.51), make_net(2), sites, play)
    for name, site in sites.items():
        assert (site.ledger.repairs() >= 0).any()
        assert site.data.train.labels.tobytes() == before[name]
        assert not site.data.train.labels.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            site.data.train.labels[0, 0] = 1


@pytest.mark.parametrize("killed", ["between two rounds", "after the tags were written"])
def test_a_site_rebuilt_from_disk_goes_on_bitwise(killed, make_site, make_net, play):
    def start(folder):
        return make_site(LABELS, VALUES, folder=folder), FedMLP(**HALF), make_net(2)

    orders = [task(PROTOTYPE, 3), task(DETECT, 4), task(DETECT, 5), task(DETECT, 6)]
    site, method, net = start("whole")
    for order in orders:
        report = play(method, net, order, site)

    broken, method, other = start("broken")
    for order in orders[:2]:
        play(method, other, order, broken)
    received = {name: value.clone() for name, value in other.state_dict().items()}
    if killed == "after the tags were written":
        method.start(other, orders[2], broken)
        assert len(broken.ledger.history()) > 5
    broken, method, other = start("broken")  # all that is left is on the disk and at the server
    other.load_state_dict(received)
    for order in orders[2:]:
        report_again = play(method, other, order, broken)

    assert np.array_equal(broken.ledger.repairs(), site.ledger.repairs())
    assert tags(site) == ([1, 3, 5, 7, 9], [0, 2, 4])
    for name, value in net.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    for name, value in report.items():
        assert np.array_equal(report_again[name], value)
