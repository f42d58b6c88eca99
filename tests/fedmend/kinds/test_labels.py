import numpy as np

from fedmend.kinds.labels import repair_counts


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
