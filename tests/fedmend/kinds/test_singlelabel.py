import numpy as np
import pytest
from factories import CLASSES, make_site_folder, refused
from scipy.special import softmax
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch_factories import CPU, one_hot

from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.data.tables import write_table
from fedmend.kinds.multilabel import BINS, score_histograms
from fedmend.kinds.singlelabel import (
    SingleLabel,
    confusion_matrix,
    singlelabel_counts,
    singlelabel_intervals,
    singlelabel_metrics,
    softmax_log_odds,
)

KIND = SingleLabel()


def opened(folder, **options):
    card = load_card(folder, "site-1")
    return KIND.load(card, CLASSES, Opening(folder / "cache", 8, CPU, **options))


def test_data_is_opened(tmp_path):
    data = opened(make_site_folder(tmp_path / "s", [0, 1, 1, -1]))
    assert (data.kind, data.annotated.tolist(), KIND.positives(data).tolist()) == ("singlelabel", [True] * 3, [1, 2, 0])


@pytest.mark.parametrize(("labels", "found"), [([1, 1, 1], 1), ([1, -1, -1], 1), ([-1, -1], 0)])
def test_a_single_label_site_with_less_than_two_classes_is_refused(tmp_path, labels, found):
    with refused(f"site-1: train.csv, column label: expected at least 2 classes, got {found}"):
        opened(make_site_folder(tmp_path / "s", labels))


def test_a_single_label_site_with_one_sample_is_refused(tmp_path):
    with refused("site-1: train.csv: expected at least 2 samples, got 1"):
        opened(make_site_folder(tmp_path / "s", [1]))


def test_leaving_the_only_sample_of_the_second_class_out_is_refused(tmp_path):
    folder = make_site_folder(tmp_path / "s", [0, 0, 1])
    (folder / "images" / "img2.png").write_bytes(b"")
    with refused("site-1: train.csv, column label: expected at least 2 classes, got 1"):
        opened(folder, max_unreadable=1)


def test_a_split_for_evaluation_may_have_one_class_and_blanks(tmp_path):
    folder = make_site_folder(tmp_path / "s", [0, 1], splits=("test",))
    write_table(folder / "test.csv", ["img0.png", "img1.png"], np.array([2, -1]), CLASSES)
    assert opened(folder).evaluation["test"].labels.tolist() == [[0, 0, 1], [-1, -1, -1]]


def test_one_label_per_sample_counts_for_all_classes(tmp_path):
    folder = make_site_folder(tmp_path / "site", [0, 0, 2, -1])
    assert KIND.label_counts(load_card(folder, "site-1"), CLASSES).tolist() == [[3, 3, 3], [2, 0, 1], [1, 1, 1]]


def test_a_site_sends_the_confusion_matrix_and_the_histograms_of_the_log_odds():
    logits, labels = single_scores(0)[0], one_hot(single_scores(0)[1], 4)
    counts = singlelabel_counts(logits, labels)
    assert counts.shape == (4, 4 + 2 * BINS)
    assert np.array_equal(counts[:, :4], confusion_matrix(logits, labels))
    assert np.array_equal(counts[:, 4:].reshape(4, 2, BINS), score_histograms(softmax_log_odds(logits) / 2, labels))
    assert KIND.metrics(counts) == singlelabel_metrics(counts)


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
    metrics = singlelabel_metrics(singlelabel_counts(logits, one_hot(truth, 4)))
    known, predicted = truth[truth >= 0], logits[truth >= 0].argmax(1)
    probabilities = softmax(logits[truth >= 0], axis=1)
    macro = {
        "bacc": balanced_accuracy_score(known, predicted),
        "f1": f1_score(known, predicted, average="macro"),
        "auc": roc_auc_score(known, probabilities, multi_class="ovr", average="macro"),
        "precision": precision_score(known, predicted, average="macro"),
        "accuracy": accuracy_score(known, predicted),
    }
    assert list(metrics["macro"]) == [*macro, "ece"]
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
    metrics = singlelabel_metrics(singlelabel_counts(logits, one_hot([1, 0, 2, 0, 0], 3)))
    assert metrics == {
        "per_class": {
            "recall": [2 / 3, 1, 1],
            "precision": [1, 1 / 2, 1],
            "f1": [4 / 5, 2 / 3, 1],
            "auc": [4 / 6, 3 / 4, 1],
            "ece": metrics["per_class"]["ece"],
        },
        "macro": {
            "bacc": pytest.approx(8 / 9),
            "f1": pytest.approx(37 / 45),
            "auc": pytest.approx(29 / 36),
            "precision": pytest.approx(5 / 6),
            "accuracy": 4 / 5,
            "ece": metrics["macro"]["ece"],
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
    counts = singlelabel_counts(logits, one_hot([0, -1, 1], 2))
    assert counts[:, 2:].reshape(2, 2, BINS).sum(-1).tolist() == [[1, 1], [1, 1]]


def test_a_class_without_a_sample_has_no_metric_and_does_not_enter_the_means():
    logits, truth = np.array([[2.0, 1, 0], [2, 1, 0], [0, 2, 1], [0, 1, 2]]), [0, 0, 1, 1]  # class 2: predicted once
    metrics = singlelabel_metrics(singlelabel_counts(logits, one_hot(truth, 3)))
    assert metrics["per_class"]["recall"] == [1.0, 0.5, None]
    assert metrics["per_class"]["precision"] == [1.0, 1.0, None]
    assert metrics["per_class"]["auc"] == [1.0, 0.75, None]  # for class 1, the last is tied with the first two
    f1 = pytest.approx((1 + 2 / 3) / 2)
    values = {"bacc": 0.75, "f1": f1, "auc": 0.875, "precision": 1.0, "accuracy": 0.75}
    assert metrics["macro"].items() >= values.items()
    assert metrics["macro"]["bacc"] == recall_score(truth, logits.argmax(1), labels=[0, 1], average="macro")
    assert metrics["positives"] == [2, 2, 0]


def test_a_class_that_is_never_predicted_counts_as_zero():
    logits = np.array([[1.0, 0]] * 6)
    metrics = singlelabel_metrics(singlelabel_counts(logits, one_hot([0] * 4 + [1] * 2, 2)))
    values = {"recall": [1.0, 0.0], "precision": [4 / 6, 0.0], "f1": [0.8, 0.0], "auc": [0.5, 0.5]}
    # Every sample gets 1 / (1 + e) = 0.2689 for class 1 and the rest for class 0; a third of them are of class 1.
    assert metrics["per_class"].pop("ece") == pytest.approx([1 / 3 - 0.2689] * 2, abs=0.005)  # width of a bin
    assert metrics["per_class"] == values
    assert (metrics["macro"]["bacc"], metrics["macro"]["precision"]) == (0.5, 2 / 6)


def test_the_only_class_with_samples_has_no_auc():
    metrics = singlelabel_metrics(singlelabel_counts(np.eye(2), one_hot([0, 0], 2)))
    assert metrics["per_class"]["auc"] == [None, None]
    values = {"bacc": 0.5, "f1": pytest.approx(2 / 3), "auc": None, "precision": 1.0, "accuracy": 0.5, "ece": None}
    assert metrics["macro"] == values


def test_without_any_sample_there_is_no_single_label_metric():
    metrics = singlelabel_metrics(np.zeros((2, 2 + 2 * BINS), dtype=np.int64))
    assert metrics["macro"] == dict.fromkeys(("bacc", "f1", "auc", "precision", "accuracy", "ece"))
    assert metrics["per_class"] == {name: [None, None] for name in ("recall", "precision", "f1", "auc", "ece")}
    assert singlelabel_intervals(np.zeros((2, 2 + 2 * BINS), dtype=np.int64)) == {}


def test_intervals_of_a_recall_are_those_of_its_share():
    # 80 of 100 samples of class 0 are found, 0.8 ± 1.96 * 0.04, and all of class 1: the mean moves by half.
    logits = np.eye(3)[[0] * 80 + [1] * 20 + [1] * 50]
    found = singlelabel_intervals(singlelabel_counts(logits, one_hot([0] * 100 + [1] * 50, 3)))
    assert found["bacc"] == pytest.approx([0.9 - 0.0392, 0.9 + 0.0392], abs=0.006)
    assert list(found) == ["bacc", "f1", "auc", "precision", "accuracy", "ece"]


def test_single_label_counts_of_two_sites_add_up_to_those_of_the_pooled_data():
    (first, first_truth), (second, second_truth) = sites = single_scores(1, 150), single_scores(2, 250)
    merged = sum(singlelabel_counts(logits, one_hot(truth, 4)) for logits, truth in sites)
    labels = one_hot(np.concatenate([first_truth, second_truth]), 4)
    pooled = singlelabel_counts(np.concatenate([first, second]), labels)
    assert np.array_equal(merged, pooled)
    assert pooled.dtype == np.int64


def test_the_interval_of_the_calibration_error_is_of_probabilities_as_the_error_is():
    labels = np.tile(np.eye(2, dtype=np.int8), (40, 1))
    counts = singlelabel_counts(np.where(labels == 1, 2.0, 0.0), labels)
    # Always right with probability sigmoid(2) = .88: the error is .12 in every resample, up to half a bin.
    assert singlelabel_metrics(counts)["macro"]["ece"] == pytest.approx(1 / (1 + np.exp(2)), abs=0.003)
    assert singlelabel_intervals(counts)["ece"] == pytest.approx([1 / (1 + np.exp(2))] * 2, abs=0.003)
