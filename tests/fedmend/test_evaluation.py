import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch_factories import one_hot

from fedmend.evaluation import (
    BINS,
    confusion_matrix,
    evaluation_counts,
    mask_repair_counts,
    merged_metrics,
    multilabel_metrics,
    repair_counts,
    score_histograms,
    segmentation_counts,
    segmentation_metrics,
    singlelabel_metrics,
    softmax_log_odds,
)

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


def single_scores(seed, samples=400, classes=4):
    """Logits that lean towards a random class, and the class numbers, a tenth of them -1 = blank."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(classes, samples, p=[0.6, 0.25, 0.1, 0.05][:classes])
    logits = rng.normal(size=(samples, classes)) + 1.2 * np.eye(classes)[truth]
    return logits, np.where(rng.random(samples) < 0.1, -1, truth)


def test_the_confusion_matrix_has_true_classes_as_rows():
    logits = np.array([[2.0, 1, 0], [0, 1, 2], [0, 3, 1], [0, 1, 2]])
    counts = confusion_matrix(logits, one_hot([0, 0, 1, 2], 3))
    assert counts.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert counts.dtype == np.int64


@pytest.mark.parametrize("seed", range(3))
def test_single_label_metrics_equal_sklearn(seed):
    logits, truth = single_scores(seed)
    metrics = singlelabel_metrics(evaluation_counts(logits, one_hot(truth, 4), "singlelabel"))
    known, predicted = truth[truth >= 0], logits[truth >= 0].argmax(1)
    probabilities = softmax(logits[truth >= 0], axis=1)
    macro = {
        "bacc": balanced_accuracy_score(known, predicted),
        "f1": f1_score(known, predicted, average="macro"),
        "auc": roc_auc_score(known, probabilities, multi_class="ovr", average="macro"),
        "precision": precision_score(known, predicted, average="macro"),
        "accuracy": accuracy_score(known, predicted),
    }
    assert list(metrics["macro"]) == list(macro)
    for name, expected in macro.items():
        assert metrics["macro"][name] == pytest.approx(expected, abs=2e-3 if name == "auc" else 1e-12)
    for c, auc in enumerate(metrics["per_class"]["auc"]):
        assert auc == pytest.approx(roc_auc_score(known == c, probabilities[:, c]), abs=2e-3)
    for name, score in (("recall", recall_score), ("precision", precision_score), ("f1", f1_score)):
        assert metrics["per_class"][name] == pytest.approx(score(known, predicted, average=None).tolist(), abs=1e-12)
    assert metrics["positives"] == np.bincount(known).tolist()
    assert sum(map(sum, metrics["confusion"])) == len(known)


def test_single_label_metrics_by_hand():
    # softmax of the true class: 0.62, 0.58, 0.58, 0.11, 0.79; the logits themselves would rank the classes otherwise
    logits = np.array([[4, 4.5, 0], [1, 0, 0], [0, 0, 1], [0, 2, 0], [2, 0, 0]])
    metrics = singlelabel_metrics(evaluation_counts(logits, one_hot([1, 0, 2, 0, 0], 3), "singlelabel"))
    assert metrics == {
        "per_class": {
            "recall": [2 / 3, 1, 1],
            "precision": [1, 1 / 2, 1],
            "f1": [4 / 5, 2 / 3, 1],
            "auc": [4 / 6, 3 / 4, 1],
        },
        "macro": {
            "bacc": pytest.approx(8 / 9),
            "f1": pytest.approx(37 / 45),
            "auc": pytest.approx(29 / 36),
            "precision": pytest.approx(5 / 6),
            "accuracy": 4 / 5,
        },
        "confusion": [[2, 1, 0], [0, 1, 0], [0, 0, 1]],
        "positives": [3, 1, 1],
    }


def test_log_odds_of_the_softmax_keep_the_ranking_of_sure_answers():
    log_odds = softmax_log_odds(np.array([[800, 0, 0], [700, 0, 0], [2, 1, 0]], dtype=np.float32))
    assert log_odds[:2, 0] == pytest.approx([800 - np.log(2), 700 - np.log(2)])
    assert log_odds[:2, 1] == pytest.approx([-800, -700])
    probabilities = softmax([2, 1, 0])
    assert log_odds[2] == pytest.approx(np.log(probabilities / (1 - probabilities)), abs=1e-6)


def test_rows_without_a_label_are_left_out_of_the_confusion_matrix_and_the_histograms():
    logits = np.array([[1.0, 0], [1, 0], [0, 1]])
    assert confusion_matrix(logits, one_hot([0, -1, 1], 2)).tolist() == [[1, 0], [0, 1]]
    counts = evaluation_counts(logits, one_hot([0, -1, 1], 2), "singlelabel")
    assert counts[:, 2:].reshape(2, 2, BINS).sum(-1).tolist() == [[1, 1], [1, 1]]


def test_a_class_without_a_sample_has_no_metric_and_does_not_enter_the_means():
    logits, truth = np.array([[2.0, 1, 0], [2, 1, 0], [0, 2, 1], [0, 1, 2]]), [0, 0, 1, 1]  # class 2: predicted once
    metrics = singlelabel_metrics(evaluation_counts(logits, one_hot(truth, 3), "singlelabel"))
    assert metrics["per_class"]["recall"] == [1.0, 0.5, None]
    assert metrics["per_class"]["precision"] == [1.0, 1.0, None]
    assert metrics["per_class"]["auc"] == [1.0, 0.75, None]  # for class 1, the last is tied with the first two
    f1 = pytest.approx((1 + 2 / 3) / 2)
    assert metrics["macro"] == {"bacc": 0.75, "f1": f1, "auc": 0.875, "precision": 1.0, "accuracy": 0.75}
    assert metrics["macro"]["bacc"] == recall_score(truth, logits.argmax(1), labels=[0, 1], average="macro")
    assert metrics["positives"] == [2, 2, 0]


def test_a_class_that_is_never_predicted_counts_as_zero():
    logits = np.array([[1.0, 0]] * 6)
    metrics = singlelabel_metrics(evaluation_counts(logits, one_hot([0] * 4 + [1] * 2, 2), "singlelabel"))
    values = {"recall": [1.0, 0.0], "precision": [4 / 6, 0.0], "f1": [0.8, 0.0], "auc": [0.5, 0.5]}
    assert metrics["per_class"] == values
    assert (metrics["macro"]["bacc"], metrics["macro"]["precision"]) == (0.5, 2 / 6)


def test_the_only_class_with_samples_has_no_auc():
    metrics = singlelabel_metrics(evaluation_counts(np.eye(2), one_hot([0, 0], 2), "singlelabel"))
    assert metrics["per_class"]["auc"] == [None, None]
    assert metrics["macro"] == {"bacc": 0.5, "f1": pytest.approx(2 / 3), "auc": None, "precision": 1.0, "accuracy": 0.5}


def test_without_any_sample_there_is_no_single_label_metric():
    metrics = singlelabel_metrics(np.zeros((2, 2 + 2 * BINS), dtype=np.int64))
    assert metrics["macro"] == dict.fromkeys(("bacc", "f1", "auc", "precision", "accuracy"))
    assert metrics["per_class"] == {name: [None, None] for name in ("recall", "precision", "f1", "auc")}


def test_single_label_counts_of_two_sites_add_up_to_those_of_the_pooled_data():
    (first, first_truth), (second, second_truth) = sites = single_scores(1, 150), single_scores(2, 250)
    merged = sum(evaluation_counts(logits, one_hot(truth, 4), "singlelabel") for logits, truth in sites)
    labels = one_hot(np.concatenate([first_truth, second_truth]), 4)
    pooled = evaluation_counts(np.concatenate([first, second]), labels, "singlelabel")
    assert np.array_equal(merged, pooled)
    assert pooled.dtype == np.int64


def test_a_site_sends_what_its_kind_of_labels_needs_and_the_server_knows_it_by_its_shape():
    logits, labels = single_scores(0)[0], one_hot(single_scores(0)[1], 4)
    single, multi = (evaluation_counts(logits, labels, task) for task in ("singlelabel", "multilabel"))
    assert (single.shape, multi.shape) == ((4, 4 + 2 * BINS), (4, 2, BINS))
    assert np.array_equal(single[:, :4], confusion_matrix(logits, labels))
    assert np.array_equal(single[:, 4:].reshape(4, 2, BINS), score_histograms(softmax_log_odds(logits) / 2, labels))
    assert np.array_equal(multi, score_histograms(logits, labels))
    assert merged_metrics(single) == singlelabel_metrics(single)
    assert merged_metrics(multi) == multilabel_metrics(multi)


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


# Slices of two volumes: hit pixels, predicted ones, those of the mask. Slice 1 has no lesion, but two false alarms.
HITS, PREDICTED, TRUE, CASE = map(np.array, ([2, 0, 0, 1], [3, 2, 0, 4], [3, 0, 2, 2], [0, 0, 1, 1]))


def test_dice_of_slices_and_volumes_by_hand():
    counts = segmentation_counts(HITS, PREDICTED, TRUE, CASE)
    assert counts.dtype == np.int64
    # Slices with lesion 4/6, 0/2, 2/6; volumes 4/(5 + 3), 2/(4 + 4).
    assert counts.tolist() == [[3, 666667 + 0 + 333333, 2, 500000 + 250000, 3, 6, 4]]
    metrics = segmentation_metrics(counts)
    expected = {"dice": 1 / 3, "volume_dice": 3 / 8, "precision": 3 / 9, "recall": 3 / 7}
    assert metrics == {
        "per_class": {name: [pytest.approx(value, abs=1e-6)] for name, value in expected.items()},
        "macro": {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()},
        "positives": [3],
    }
    assert merged_metrics(counts) == metrics


def test_a_slice_without_lesion_counts_in_the_dice_of_its_volume_alone():
    with_it = segmentation_counts(HITS, PREDICTED, TRUE, CASE)[0]
    kept = [0, 2, 3]
    without = segmentation_counts(HITS[kept], PREDICTED[kept], TRUE[kept], CASE[kept])[0]
    assert with_it[:2].tolist() == without[:2].tolist()
    assert (with_it - without)[2:].tolist() == [0, 500000 - 666667, 0, 2, 0]


def test_a_volume_without_lesion_has_no_dice_but_false_alarms():
    counts = segmentation_counts(*map(np.array, ([0, 5], [7, 5], [0, 5], [0, 1])))
    assert counts.tolist() == [[1, 1000000, 1, 1000000, 5, 7, 0]]


def test_segmentation_counts_of_sites_add_up_to_the_pooled_ones():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 4, 60) * 10
    hits = rng.integers(0, true + 1)
    predicted = hits + rng.integers(0, 20, 60)
    case = np.arange(60) // 6
    pooled = segmentation_counts(hits, predicted, true, case)
    sites = [np.flatnonzero(np.isin(case, cases)) for cases in ([0, 3, 4], [1, 2, 5, 6, 7], [8, 9])]
    parts = [segmentation_counts(hits[s], predicted[s], true[s], case[s]) for s in sites]
    assert np.array_equal(sum(parts), pooled)
    dice = (2 * hits / np.maximum(predicted + true, 1))[true > 0].mean()
    assert merged_metrics(pooled)["macro"]["dice"] == pytest.approx(dice, abs=1e-6)


def test_segmentation_without_any_lesion_has_no_dice():
    nothing = np.zeros(3, dtype=np.int64)
    metrics = merged_metrics(segmentation_counts(nothing, nothing, nothing, np.array([0, 0, 1])))
    assert metrics["per_class"] == {name: [None] for name in ("dice", "volume_dice", "precision", "recall")}
    assert metrics["macro"] == dict.fromkeys(("dice", "volume_dice", "precision", "recall"))
    assert metrics["positives"] == [0]


def test_repaired_pixels_are_counted_and_compared_with_complete_masks():
    masks = np.array([[[1, 0, 0, 0]]], dtype=np.uint8)
    complete = np.array([[[1, 1, 1, 0]]], dtype=bool)
    added = np.array([[[0, 1, 0, 1]]], dtype=bool)
    known = {name: value.tolist() for name, value in mask_repair_counts(added, masks, complete).items()}
    unknown = {"positive": [2], "negative": [0], "untagged": [0]}
    assert known == unknown | {"correct_positive": [1], "correct_negative": [0], "missing": [2]}
    counts = mask_repair_counts(added, masks, None)
    assert {name: value.tolist() for name, value in counts.items()} == unknown
    assert all(value.dtype == np.int64 for value in counts.values())
