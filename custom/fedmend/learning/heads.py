"""What a site sends where classifiers are solved: one row for each class, from the features of the received model.

Any job may end with such a collection (``refit``): the rows of the classifier that were trained and those that are
solved from the features of the trained network are then averaged. A head that is trained while the features move, each
row at a few sites, is behind its features in the end; one exchange catches up.
"""

import numpy as np
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.learning.discriminant import solve_heads
from fedmend.learning.inference import infer
from fedmend.learning.stage_features import StageClassifier
from fedmend.learning.threads import one_thread
from fedmend.method import LocalMethod, Site

REFIT = "refit"  # stage of the collection that ends a job
RIDGE = 1.0  # lambda
HEAD_FIELDS = {
    "head_weights": Field(
        ("C", "F"), "float32", -UNBOUNDED, UNBOUNDED,
        "a linear classifier for each class, solved from the site's features",
        "as the last layer of a trained model: tells in which features the site's classes differ",
        counted_by="head_counts",
    ),
    "head_biases": Field(
        ("C",), "float32", -UNBOUNDED, UNBOUNDED,
        "where each classifier decides", "how frequent a class is at the site", counted_by="head_counts",
    ),
    "head_counts": Field(
        ("C",), "int64", 0, UNBOUNDED,
        "samples with or without the class behind each classifier, the fewer", "counts per class",
        of_samples=True,
    ),
}  # fmt: skip


def head_report(
    model: nn.Module, features: Tensor, labels: np.ndarray, site: Site, *, balanced: bool, ridge: float = RIDGE
) -> Report:
    """A site's heads as it sends them.

    Args:
        model: the received one; where its classifier reads stages, the columns for the backbone's output are 0.
        features: (N, F) of the training split.
        labels: (N, C) of 0 to 1; negative: unknown.
        site: names the table, and its patients.
        balanced: as of :func:`fedmend.learning.discriminant.solve_heads`.
        ridge: lambda.

    Raises:
        FedMendError: no class has two samples with and two without it; or samples are studies, whose logits are not
            linear in their features.
    """
    table, classifier = site.data.train.table, model.get_submodule("classifier")
    if table.slices:
        raise FedMendError(f"{site.name}: {table.file}: expected images for classifiers that are solved, got studies")
    trained = classifier.trained if isinstance(classifier, StageClassifier) else 0
    with one_thread():
        heads = solve_heads(features[:, trained:], labels, ridge, balanced=balanced, patients=table.patients)
    if not heads.counts.any():
        raise FedMendError(
            f"{site.name}: {table.file}: expected at least two samples with and two without a class, got none"
        )
    return {
        "head_weights": np.pad(heads.weights, ((0, 0), (trained, 0))).astype(np.float32),
        "head_biases": heads.biases.astype(np.float32),
        "head_counts": heads.counts,
    }


def refit_report(method: LocalMethod, model: nn.Module, site: Site) -> Report:
    """The heads that end a job with ``refit``.

    Args:
        method: of the job: says what labels they are solved from.
        model: the received global model.
        site: data and ledger.

    Raises:
        FedMendError: as :func:`head_report`.
    """
    features, logits = infer(model, site.data.train, site)
    return head_report(model, features, method.solved_from(logits, site), site, balanced=method.balanced)
