import numpy as np
import pytest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from fedmend.evaluation import BINS, multilabel_metrics, repair_counts, score_histograms

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


def test_logits_beyond_the_range_share_the_outer_bins():
    counts = score_histograms(np.array([[-1e30], [-10.0], [10.0], [1e30]]), np.array([[0], [0], [1], [1]]))
    assert counts[0, 0, 0] == 2
    assert counts[0, 1, -1] == 2


def test_a_class_with_one_label_value_has_no_metric_and_does_not_enter_the_mean():
    logits = np.array([[2.0, 1, 1], [-2.0, 1, 1]])
    metrics = multilabel_metrics(score_histograms(logits, np.array([[1, 1, -1], [0, 1, 0]])))
    assert metrics["per_class"] == {name: [1.0, None, None] for name in ("auc", "ap", "bacc")}
    assert metrics["macro"] == {"auc": 1.0, "map": 1.0, "bacc": 1.0}
    assert (metrics["positives"], metrics["negatives"]) == ([1, 2, 0], [1, 0, 1])


def test_the_mean_is_taken_over_classes():
    logits = np.array([[1.0, 1.0], [-1.0, -1.0]])
    metrics = multilabel_metrics(score_histograms(logits, np.array([[1, 0], [0, 1]])))
    assert metrics["macro"] == {"auc": 0.5, "map": 0.75, "bacc": 0.5}


def test_without_any_class_that_can_be_measured_there_is_no_mean():
    metrics = multilabel_metrics(score_histograms(np.zeros((2, 1)), np.ones((2, 1), dtype=int)))
    assert metrics["macro"] == {"auc": None, "map": None, "bacc": None}


def test_repairs_are_counted_per_class_and_compared_with_the_truth():
    labels = np.array([[1, -1], [0, -1], [1, -1], [0, -1]])
    repaired = np.array([[-1, 1], [-1, 1], [-1, 0], [-1, -1]])
    truth = np.array([[1, 1], [0, 0], [1, 0], [0, -1]])
    counts = {name: values.tolist() for name, values in repair_counts(repaired, labels, truth).items()}
    assert counts == {
        "positive": [0, 2],
        "negative": [0, 1],
        "untagged": [0, 1],
        "correct_positive": [0, 1],
        "correct_negative": [0, 1],
    }
    assert sorted(repair_counts(repaired, labels, None)) == ["negative", "positive", "untagged"]
