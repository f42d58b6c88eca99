import dataclasses

import numpy as np
import pytest
from factories import CLASSES, LABELS, make_site_folder, refused
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score
from torch_factories import CPU, Says, make_site

from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.kinds import kind_of
from fedmend.kinds.multilabel import (
    BINS,
    MultiLabel,
    best_cuts,
    bins_of,
    multilabel_intervals,
    multilabel_metrics,
    multilabel_thresholds,
    score_histograms,
    temperatures,
    too_few,
)
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.verdicts import REJECT, Verdict

KIND = MultiLabel()
TRUTH = np.maximum(LABELS, 0)
PRIOR, LEAVE_OUT = "(a class prior between 0 and 1)", "leave the column out if the class is not annotated here"


@pytest.fixture
def card(tmp_path):
    return load_card(make_site_folder(tmp_path / "labels", splits=["test"], truth=TRUTH), "site-1")


def opened(card, tmp_path, **options):
    return KIND.load(card, card.classes, Opening(tmp_path / "cache", 8, CPU, **options))


def test_data_is_opened_with_its_ledger_and_truth(card, tmp_path):
    data = opened(card, tmp_path)
    assert (data.kind, data.classes) == ("multilabel", CLASSES)
    assert isinstance(KIND.open_ledger(tmp_path / "l.sqlite", card, data), LabelLedger)
    assert np.array_equal(KIND.load_truth(card, data), TRUTH)


def test_complete_labels_are_checked_as_others_are(card, tmp_path):
    with refused(f"site-1: truth.csv, column fracture: expected both 0 and 1 {PRIOR}, got only 0; {LEAVE_OUT}"):
        opened(card, tmp_path, all_labels=True)


def test_positives_are_labels(card, tmp_path):
    assert KIND.positives(opened(card, tmp_path)).tolist() == [2, 0, 2]


def test_a_folder_is_described_for_the_person_who_prepared_it(card, tmp_path):
    assert KIND.describe(card, opened(card, tmp_path)) == [
        "train, edema: 2 positive, 3 negative, 1 blank",
        "train, fracture: not annotated here",
        "train, nodule: 2 positive, 3 negative, 1 blank",
        "test, edema: 2 positive, 4 negative, 0 blank",
        "test, fracture: 0 positive, 6 negative, 0 blank",
        "test, nodule: 2 positive, 4 negative, 0 blank",
    ]


def test_a_card_tells_the_census_nothing_more(card):
    assert KIND.census_extras(card) == {}


def test_there_is_nothing_to_look_at(tmp_path):
    assert KIND.gallery(make_site(tmp_path, LABELS), None, phantom=False) == ""


def test_a_split_is_evaluated_by_histograms(tmp_path):
    site = make_site(tmp_path, LABELS)
    logits = np.arange(18.0).reshape(6, 3) - 9
    model = Says(logits)
    split = dataclasses.replace(
        site.data.train, images=np.broadcast_to(10 * np.arange(6, dtype=np.uint8)[:, None, None], (6, 8, 8))
    )
    assert np.array_equal(KIND.evaluate(model, split, site), score_histograms(logits, LABELS))


def test_repaired_labels_are_counted(tmp_path):
    site = make_site(tmp_path, LABELS)
    assert KIND.repairs(site, None) == {}
    site.ledger.record("rule", 0, LABELS, Repairs(*np.array([[2, 0, 1, 1], [5, 2, 0, 1]]).T))
    counts = KIND.repairs(site, TRUTH)
    assert (counts["positive"].tolist(), counts["negative"].tolist()) == ([1, 0, 0], [0, 0, 1])
    for sample, label_class, value in ((2, 0, 1), (5, 2, 0)):
        site.ledger.judge(Verdict(sample, label_class, REJECT, -1, value, "rule", 0, "AB"))
    counts = KIND.repairs(site, TRUTH)  # rather than the last counts that the server knows
    assert (counts["positive"].tolist(), counts["negative"].tolist()) == ([0, 0, 0], [0, 0, 0])


@pytest.mark.parametrize(
    ("labels", "columns", "sentence"),
    [
        ([[1, 0, 1]], None, ": expected at least 2 samples, got 1"),
        (LABELS, [], ", header: expected at least one class column, got none"),
        (
            LABELS,
            [0, 1],
            f", column fracture: expected both 0 and 1 {PRIOR}, got only blanks; {LEAVE_OUT}",
        ),
        (
            [[1, -1, 1], [0, -1, 1], [1, -1, -1]],
            None,
            f", column nodule: expected both 0 and 1 {PRIOR}, got only 1; {LEAVE_OUT}",
        ),
    ],
)
def test_training_labels_that_teach_nothing_are_refused(tmp_path, labels, columns, sentence):
    with refused(f"site-1: train.csv{sentence}"):
        opened(load_card(make_site_folder(tmp_path / "s", labels, columns=columns), "site-1"), tmp_path)


def test_leaving_the_only_positive_out_is_refused(tmp_path):
    folder = make_site_folder(tmp_path / "s", [[1], [0], [0]], classes=("a",))
    (folder / "images" / "img0.png").write_bytes(b"")
    with refused(f"site-1: train.csv, column a: expected both 0 and 1 {PRIOR}, got only 0; {LEAVE_OUT}"):
        opened(load_card(folder, "site-1"), tmp_path, max_unreadable=1)


def test_labels_of_the_training_split_are_counted(tmp_path):
    folder = make_site_folder(tmp_path / "site", splits=("val", "test"))
    counts = KIND.label_counts(load_card(folder, "site-1"), CLASSES)
    assert counts.tolist() == [[5, 0, 5], [2, 0, 2], [1, 6, 1]]


def test_classes_are_counted_in_the_order_of_the_job(tmp_path):
    folder = make_site_folder(tmp_path / "site")
    counts = KIND.label_counts(load_card(folder, "site-1"), CLASSES[1:] + CLASSES[:1])
    assert counts[2].tolist() == [6, 1, 1]


def test_other_classes_than_the_job_s_are_refused(tmp_path):
    card = load_card(make_site_folder(tmp_path / "site"), "site-1")
    with refused(
        "site-1: site.json, field classes: expected the job's ['edema'], got ['edema', 'fracture', 'nodule']"
        " (missing here: [], unknown to the job: ['fracture', 'nodule'])"
    ):
        KIND.label_counts(card, ["edema"])


METRICS = {
    "auc": roc_auc_score,
    "ap": average_precision_score,
    "bacc": lambda labels, logits: balanced_accuracy_score(labels, logits > 0),
}


def scores(seed, samples=2000, classes=3, spread=2.0):
    """Logits that lean towards random labels, a fifth of them blank."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((samples, classes)) < [0.5, 0.2, 0.05][:classes]).astype(np.int8)
    logits = rng.normal(size=truth.shape) * spread + truth * 1.5 - 0.5
    return logits, np.where(rng.random(truth.shape) < 0.2, -1, truth).astype(np.int8)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("seed", range(3))
def test_metrics_equal_sklearn_within_a_bin(seed, name):
    logits, labels = scores(seed)
    measured = multilabel_metrics(score_histograms(logits, labels))["per_class"][name]
    for c in range(3):
        known = labels[:, c] >= 0
        expected = METRICS[name](labels[known, c], logits[known, c])
        assert measured[c] == pytest.approx(expected, abs=1e-9 if name == "bacc" else 2e-3)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_sklearn_exactly_when_no_two_logits_share_a_bin(name):
    rng = np.random.default_rng(1)
    logits = rng.permutation(np.linspace(-9.99, 9.99, 999))[:200, None]  # steps of one bin width
    labels = (rng.random((200, 1)) < 0.3 + 0.4 * (logits > 2)).astype(np.int8)
    measured = multilabel_metrics(score_histograms(logits, labels))["per_class"][name][0]
    assert measured == pytest.approx(METRICS[name](labels[:, 0], logits[:, 0]), abs=1e-12)


def test_metrics_of_tied_scores_equal_sklearn():
    logits, labels = np.array([[1.0], [1.0], [1.0], [-1.0], [-1.0]]), np.array([[1], [0], [1], [1], [0]])
    per_class = multilabel_metrics(score_histograms(logits, labels))["per_class"]
    for name, metric in METRICS.items():
        assert per_class[name] == [pytest.approx(metric(labels[:, 0], logits[:, 0]))]


def test_a_model_that_calls_everything_improbable_keeps_its_ranking():
    logits, labels = np.array([[-6.0], [-5.0], [-7.0], [-8.0]]), np.array([[1], [1], [0], [0]])
    metrics = multilabel_metrics(score_histograms(logits, labels))["per_class"]
    assert (metrics["auc"], metrics["ap"], metrics["bacc"]) == ([1.0], [1.0], [0.5])


def test_counts_of_two_sites_add_up_to_those_of_the_pooled_data():
    (first, first_labels), (second, second_labels) = scores(1, 300), scores(2, 500)
    merged = score_histograms(first, first_labels) + score_histograms(second, second_labels)
    pooled = score_histograms(np.concatenate([first, second]), np.concatenate([first_labels, second_labels]))
    assert np.array_equal(merged, pooled)
    assert pooled.shape == (3, 2, BINS)
    assert pooled.dtype == np.int64


def test_blanks_are_not_counted():
    counts = score_histograms(np.zeros((3, 2)), np.array([[1, -1], [0, -1], [-1, 1]]))
    assert counts.sum(-1).tolist() == [[1, 1], [0, 1]]


def test_the_threshold_lies_at_probability_one_half_exactly():
    tiny = 1e-20  # lost when added to the range
    counts = score_histograms(np.array([[0.0], [tiny], [-tiny]]), np.array([[0], [1], [0]]))
    upper = counts[0, :, BINS // 2 :].sum(-1)
    assert upper.tolist() == [0, 1]
    assert multilabel_metrics(counts)["per_class"]["bacc"] == [1.0]


def test_a_logit_on_the_edge_of_two_bins_is_in_the_lower_one():
    # as a threshold at the edge, which only larger probabilities are above, has it
    assert bins_of(np.array([1.0, -1.0, 2.5])).tolist() == [549, 449, 624]


def test_logits_beyond_the_range_share_the_outer_bins():
    counts = score_histograms(np.array([[-1e30], [-10.0], [10.0], [1e30]]), np.array([[0], [0], [1], [1]]))
    assert counts[0, 0, 0] == 2
    assert counts[0, 1, -1] == 2


def ranks(values):
    """Without the calibration error, which has tests of its own."""
    return {name: value for name, value in values.items() if name != "ece"}


def test_a_class_with_one_label_value_has_no_metric_and_does_not_enter_the_mean():
    logits = np.array([[2.0, 1, 1], [-2.0, 1, 1]])
    metrics = multilabel_metrics(score_histograms(logits, np.array([[1, 1, -1], [0, 1, 0]])))
    assert ranks(metrics["per_class"]) == {name: [1.0, None, None] for name in ("auc", "ap", "bacc")}
    assert ranks(metrics["macro"]) == {"auc": 1.0, "map": 1.0, "bacc": 1.0}
    assert metrics["per_class"]["ece"][1:] == [None, None]
    assert (metrics["positives"], metrics["negatives"]) == ([1, 2, 0], [1, 0, 1])


def test_the_mean_is_taken_over_classes():
    logits = np.array([[1.0, 1.0], [-1.0, -1.0]])
    metrics = multilabel_metrics(score_histograms(logits, np.array([[1, 0], [0, 1]])))
    assert ranks(metrics["macro"]) == {"auc": 0.5, "map": 0.75, "bacc": 0.5}


def test_without_any_class_that_can_be_measured_there_is_no_mean():
    metrics = multilabel_metrics(score_histograms(np.zeros((2, 1)), np.ones((2, 1), dtype=int)))
    assert metrics["macro"] == dict.fromkeys(("auc", "map", "bacc", "ece"))
    assert multilabel_intervals(score_histograms(np.zeros((2, 1)), np.ones((2, 1), dtype=int))) == {}


def logit(p):
    return float(np.log(p / (1 - p)))


def test_the_calibration_error_is_the_distance_of_probability_and_frequency():
    # Ten samples at 0.1 of which one is positive, and ten at 0.7 of which five are: 0 and 0.2, half the samples each.
    logits = np.array([[logit(0.1)]] * 10 + [[logit(0.7)]] * 10)
    labels = np.array([[1]] + [[0]] * 9 + [[1]] * 5 + [[0]] * 5)
    metrics = multilabel_metrics(score_histograms(logits, labels))
    assert metrics["macro"]["ece"] == pytest.approx(0.1, abs=0.005)  # a bin is up to 0.005 wide
    # Both in one of the 15 bins, from 10 / 15 to 11 / 15: their mean probability 0.7 is compared with 3 / 4.
    logits = np.array([[logit(0.68)]] * 2 + [[logit(0.72)]] * 2)
    metrics = multilabel_metrics(score_histograms(logits, np.array([[1], [1], [1], [0]])))
    assert metrics["macro"]["ece"] == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("stretch", [0.05, 0.1, 0.25, 1.0, 3.0, 20.0])
def test_the_calibration_error_is_the_same_sum_however_far_logits_are_stretched(stretch):
    # Two negatives at a logit of -9.99, one negative and three positives at 9.99: far apart for every stretch here, so
    # |0 - 2 p| + |3 - 4 (1 - p)| over six samples, where p is the probability of the lower logit.
    counts = np.zeros((1, 2, BINS), dtype=np.int64)
    counts[0, 0, [0, -1]], counts[0, 1, -1] = [2, 1], 3
    p = 1 / (1 + np.exp(9.99 * stretch))
    found = multilabel_metrics(counts, stretch=stretch)["per_class"]["ece"][0]
    assert found == pytest.approx((2 * p + abs(4 * p - 1)) / 6, abs=1e-12)


def test_the_threshold_is_that_of_the_highest_balanced_accuracy_on_validation():
    val = np.zeros((3, 2, BINS), dtype=np.int64)
    val[0, 0, [300, 500]], val[0, 1, [400, 600]] = [8, 2], [5, 5]  # from 400: (1 + 0.8) / 2; from 600: (0.5 + 1) / 2
    val[1, 1, 400] = 14  # no negative: cannot choose
    val[2, 0, 300], val[2, 1, 400] = 10, 10  # anything between is best
    cuts = best_cuts(val)
    assert 300 < cuts[0] <= 400
    assert cuts[1] == BINS // 2
    assert cuts[2] == 351  # 301 to 400
    test = np.zeros((3, 2, BINS), dtype=np.int64)
    test[:, 0, 330], test[:, 1, 420] = 5, 5
    metrics = multilabel_metrics(test, val)
    assert metrics["per_class"]["bacc"] == [0.5] * 3
    assert metrics["per_class"]["bacc_val"] == [1.0, None, 1.0]
    assert metrics["macro"]["bacc_val"] == 1.0


@pytest.mark.parametrize("chosen_by", [(9, 30), (30, 9)])
def test_nine_positives_or_negatives_choose_no_threshold(chosen_by):
    val, test = np.zeros((2, 2, BINS), dtype=np.int64), np.zeros((2, 2, BINS), dtype=np.int64)
    val[0, 0, 300], val[0, 1, 400] = chosen_by
    val[1, 0, 300], val[1, 1, 400] = 10, 10
    test[0, 0, 330], test[0, 1, 420] = 5, 5
    test[1, 0, 420], test[1, 1, 330] = 5, 5  # upside down
    metrics = multilabel_metrics(test, val)
    assert metrics["per_class"]["bacc_val"] == [None, 0.0]
    assert (metrics["per_class"]["auc"], metrics["macro"]["auc"]) == ([1.0, 0.0], 0.5)
    assert metrics["macro"]["bacc_val"] == 0.0  # of the second class alone
    assert multilabel_intervals(test, val)["bacc_val"] == [0, 0]
    found = multilabel_thresholds(val)
    assert (found["threshold"][0], found["not_sure"][0]) == (None, None)
    assert (found["negatives"], found["positives"]) == ([chosen_by[0], 10], [chosen_by[1], 10])
    assert kind_of("multilabel").choosers(val).tolist() == [False, True]


def test_of_thresholds_that_are_equally_good_on_both_sides_of_a_bin_the_middle_one_of_all_is_chosen():
    val = np.zeros((2, 2, BINS), dtype=np.int64)
    val[0, 0, [300, 500]], val[0, 1, [400, 600]] = [5, 5], [5, 5]  # 0.75 from 301 to 400 and from 501 to 600
    val[1, 0, [300, 350]], val[1, 1, [350, 400]] = [5, 1], [1, 5]  # the same share of both at 350: 301 to 400
    assert best_cuts(val) == [501, 351]


def test_no_mean_of_balanced_accuracies_is_told_where_no_class_can_choose_a_threshold():
    counts = np.zeros((1, 2, BINS), dtype=np.int64)
    counts[0, 0, 300], counts[0, 1, 400] = 7, 7
    assert multilabel_metrics(counts, counts)["macro"]["bacc_val"] is None
    assert "bacc_val" not in multilabel_intervals(counts, counts)


def test_the_best_model_is_chosen_by_the_classes_that_have_enough_samples():
    val = np.zeros((3, 2, BINS), dtype=np.int64)
    val[0, 0, 300], val[0, 1, 400] = 10, 10  # AUC 1
    val[1, 0, 400], val[1, 1, 400] = 12, 11  # AUC 0.5
    val[2, 0, 400], val[2, 1, 300] = 20, 4  # AUC 0, of four positives
    assert kind_of("multilabel").choice(val) == 0.75
    assert kind_of("multilabel").choice(val[2:]) is None


def test_intervals_of_a_sensitivity_are_those_of_its_share():
    # 80 of 100 positives and all negatives are right: 0.8 ± 1.96 * 0.04, of which the balanced accuracy has half.
    counts = np.zeros((1, 2, BINS), dtype=np.int64)
    counts[0, 1, [600, 400]], counts[0, 0, 300] = [80, 20], 50
    found = multilabel_intervals(counts, counts)
    assert found["bacc"] == pytest.approx([0.9 - 0.0392, 0.9 + 0.0392], abs=0.006)
    assert (found["auc"], found["bacc_val"]) == ([1, 1], [1, 1])
    assert list(found) == ["auc", "map", "bacc", "ece", "bacc_val"]
    assert multilabel_intervals(counts, counts) == found  # the same every time


def test_thresholds_are_probabilities_that_sort_samples_as_their_bins_do():
    val = np.zeros((4, 2, BINS), dtype=np.int64)
    val[0, 0, [300, 500]], val[0, 1, [400, 600]] = [8, 2], [5, 5]
    val[1, 1, 400] = 14  # no negative: cannot choose
    val[2, 0, 300], val[2, 1, 400] = 100, 100
    val[3, 0, 999], val[3, 1, 0] = 10, 10  # upside down: nothing is better than all or nothing
    found = multilabel_thresholds(val)
    cut = best_cuts(val)[0]
    assert found["threshold"] == [
        pytest.approx(1 / (1 + np.exp(10 - cut / 50))),
        None,
        pytest.approx(1 / (1 + np.exp(2.98))),
        1,
    ]
    assert (found["not_sure"][1], found["not_sure"][2]) == (None, [found["threshold"][2]] * 2)
    low, high = found["not_sure"][0]  # half of the positives at 400: a resample may have fewer of them than negatives
    assert low < 1 / (1 + np.exp(10 - 500 / 50)) < high
    assert multilabel_thresholds(val) == found  # the same every time


def overconfident(samples=4000, times=3.0):
    """Logits that are three times too large, and labels of one class; the other class is told without any."""
    rng = np.random.default_rng(1)
    right = rng.normal(size=(samples, 1))
    labels = (rng.random((samples, 1)) < 1 / (1 + np.exp(-right))).astype(int)
    return np.hstack([times * right, right]), np.hstack([labels, np.zeros_like(labels)])


def test_a_temperature_takes_back_what_is_too_sure_and_keeps_the_ranking():
    logits, labels = overconfident()
    val = score_histograms(logits, labels)
    found = temperatures(val)
    assert found[0] == pytest.approx(3, rel=0.1)
    assert found[1] == 1.0  # one label value only
    before, after = (multilabel_metrics(val, stretch=1 / t)["per_class"]["ece"][0] for t in (1.0, found[0]))
    assert after < before / 3
    raw, cooled = (1 / (1 + np.exp(-logits[:, 0] / t)) for t in (1.0, found[0]))
    assert abs(roc_auc_score(labels[:, 0], raw) - roc_auc_score(labels[:, 0], cooled)) < 1e-12


@pytest.mark.parametrize("times", [0.3, 1.0, 4.0])
def test_a_few_samples_that_are_told_apart_make_no_probability_certain(times):
    labels = np.repeat([0, 1], 18)[:, None]
    logits = times * (2.0 * labels - 1)
    (found,) = temperatures(score_histograms(logits, labels))
    probability = 1 / (1 + np.exp(-logits[-1, 0] / found))
    assert probability == pytest.approx(19 / 20, abs=5e-3) if times < 3 else found == 1.0


def test_a_model_that_is_calibrated_stays_as_it_is():
    logits, labels = overconfident(times=1.0)
    counts = score_histograms(logits, labels)
    before = multilabel_metrics(counts)["per_class"]["ece"][0]
    assert multilabel_metrics(counts, stretch=1 / temperatures(counts)[0])["per_class"]["ece"][0] <= before


def test_a_likelier_temperature_that_does_not_lower_the_calibration_error_is_not_taken():
    counts = np.zeros((1, 2, BINS), dtype=np.int64)
    for logit, negatives, positives in ((-4.0, 1000, 18), (4.0, 18, 1000), (9.0, 1, 19)):
        counts[0, :, bins_of(np.array([logit]))[0]] = negatives, positives
    assert temperatures(counts) == [1.0]  # the likeliest is 1.011; its error is .0006, that of 1 is .0003


def test_a_threshold_is_not_sure_in_the_middle_95_percent_of_its_resamples(monkeypatch):
    monkeypatch.setattr("fedmend.kinds.multilabel.best_cuts", lambda counts, *bins: list(range(len(counts))))
    counts = np.zeros((1, 2, BINS), dtype=np.int64)
    counts[0, 0, 400], counts[0, 1, 600] = 20, 20
    low, high = multilabel_thresholds(counts)["not_sure"][0]
    # 500 resamples with the cuts 0 to 499: places 12.5 and 486.5, where a bin is 0.02 wide and begins at -10
    cuts = [(np.log(p / (1 - p)) + 10) / 0.02 for p in (low, high)]
    assert cuts == pytest.approx([12.5, 486.5], abs=0.6)


def test_calibrated_thresholds_decide_as_before():
    logits, labels = overconfident()
    val = score_histograms(logits, labels)
    val[1, 1, 500] = 10  # the second class, too, has enough of both
    chosen = multilabel_thresholds(val)
    moved = kind_of("multilabel").calibrated(chosen, val, 5)
    assert moved["threshold"][0] != pytest.approx(chosen["threshold"][0], abs=1e-3)
    for c, temperature in enumerate(moved["temperature"]):
        raw, cooled = (1 / (1 + np.exp(-logits[:, c] / t)) for t in (1.0, temperature))
        assert np.array_equal(raw > chosen["threshold"][c], cooled > moved["threshold"][c])
        for old, new in zip(chosen["not_sure"][c], moved["not_sure"][c], strict=True):
            assert np.array_equal(raw > old, cooled > new)
    assert moved["not_fitted"] == ["", ""]
    assert kind_of("singlelabel").calibrated({}, val, 5) == {}


def test_thresholds_that_nothing_reaches_stay_at_their_ends():
    edges = {"threshold": [0.0, 1.0], "not_sure": [[0.0, 0.5], [0.5, 1.0]]}
    logits, labels = overconfident()
    val = score_histograms(logits, labels)
    val[1, 1, 500] = 10
    moved = kind_of("multilabel").calibrated(edges, val, 5)
    assert (moved["threshold"], moved["not_sure"][0][1]) == ([0.0, 1.0], 0.5)


def of_counts(*classes):
    """Histograms of classes with (negatives, positives): half of each at a logit of 5, the others at -5, so that each
    class is right as often as wrong and a fit would cool it as far as it goes."""
    counts = np.zeros((len(classes), 2, BINS), dtype=np.int64)
    for c, pair in enumerate(classes):
        for value, number in enumerate(pair):
            counts[c, value, [249, 749]] = number // 2, number - number // 2
    return counts


def test_a_class_with_fewer_than_ten_of_either_has_temperature_one_and_threshold_one_half():
    val = of_counts((10, 10), (10, 9), (9, 10), (90, 3), (4, 90), (50, 0), (8, 8))
    found = kind_of("multilabel").calibrated(multilabel_thresholds(val), val, 5)
    assert found["temperature"] == [pytest.approx(20, rel=0.01), *[1.0] * 6]
    assert found["threshold"][1:] == [0.5] * 6
    assert found["not_sure"][1:] == [[0.5, 0.5]] * 6
    assert found["not_fitted"] == [
        "",
        "9 positives, 10 needed",
        "9 negatives, 10 needed",
        "1 to 4 positives, 10 needed",
        "1 to 4 negatives, 10 needed",
        "0 positives, 10 needed",
        "8 positives, 10 needed",
    ]
    assert too_few(val, 1)[3] == "3 positives, 10 needed"


def test_a_class_that_is_not_fitted_keeps_its_auc_and_so_does_one_that_is():
    logits, labels = overconfident(400)
    labels[:, 1] = 0
    labels[:9, 1] = 1
    val = score_histograms(logits, labels)
    found = temperatures(val)
    assert (found[0] > 2, found[1]) == (True, 1.0)
    for c, temperature in enumerate(found):
        raw, cooled = (1 / (1 + np.exp(-logits[:, c] / t)) for t in (1.0, temperature))
        assert abs(roc_auc_score(labels[:, c], raw) - roc_auc_score(labels[:, c], cooled)) < 1e-12


def test_a_class_that_is_told_backwards_is_cooled_as_far_as_it_goes():
    logits, labels = overconfident()
    assert temperatures(score_histograms(-logits, labels))[0] == pytest.approx(20, rel=0.01)


def test_a_count_is_told_from_as_many_samples_on_as_a_number_may_describe():
    counts = np.zeros((2, 2, BINS), dtype=np.int64)
    counts[:, 0, 0], counts[:, 1, 0] = 50, (5, 4)
    assert too_few(counts, 5) == ["5 positives, 10 needed", "1 to 4 positives, 10 needed"]
