"""Sites judged by the heads that all others made: nobody judges its own labels, so none can have learned its own noise.

Every site solves a linear classifier for each of its classes on the features of the received model
(:mod:`fedmend.learning.heads`). Then each tells the mean loss of its classes under the heads of all others. A site is
given the sums over all sites and takes its own part out itself. So a class that one other site alone knows has that
site's head, and of a class that it and one other know a site can tell the other's.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import average_heads
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.labels import NOT_ANNOTATED
from fedmend.learning.heads import head_report
from fedmend.method import Federation, RoundTask, Site
from fedmend.methods.shared.class_losses import class_losses
from fedmend.methods.shared.dimensions import MIN_SITES
from fedmend.methods.shared.singlelabel import class_numbers

HEADS, JUDGE = "heads", "judge"  # stages
OWN_HEADS = "own_heads"  # what a site sent, in its state
SUM = "mean over the sites that know a class: one that is alone gives its own value, of two each tells the other's"
KNOWLEDGE = {
    "mean_weights": Field(("C", "F"), "float32", -UNBOUNDED, UNBOUNDED, "mean of the sites' classifiers", SUM),
    "mean_biases": Field(("C",), "float32", -UNBOUNDED, UNBOUNDED, "mean of where they decide", SUM),
    "all_counts": Field(("C",), "int64", 0, UNBOUNDED, "sum of the sites' counts", SUM),
}


def heads_to_judge_by(model: nn.Module, features: Tensor, site: Site) -> Report:
    """A site's heads of the classes of which it has an image, as it sends and keeps them.

    Args:
        model: the received one.
        features: (N, F) of the training split.
        site: single-label data.

    Raises:
        FedMendError: a sample without a label, or no class with two samples with and two without it.
    """
    labels = site.labels()
    class_numbers(site, labels)
    told = np.where((labels == 1).any(0), labels, NOT_ANNOTATED)
    report = head_report(model, features, told, site, balanced=True)
    keep_heads(report, site)
    return report


def keep_heads(report: Report, site: Site) -> None:
    """Keeps the heads that a site sends, without which it is judged."""
    site.state.save(OWN_HEADS, {name: torch.from_numpy(value) for name, value in report.items()})


def judged(features: Tensor, task: RoundTask, site: Site) -> Report:
    """Mean loss of each class under the heads of all other sites; count 0: no image, or no other head.

    Args:
        features: (N, F) of the training split.
        task: with the knowledge of :data:`KNOWLEDGE`.
        site: whose labels are judged.
    """
    own: dict[str, Any] = {name: value.numpy() for name, value in (site.state.load(OWN_HEADS) or {}).items()}
    every = task.word("all_counts")
    sent = own.get("head_counts", np.zeros_like(every))
    sent = np.where(sent >= site.min_count, sent, 0)  # fewer never left the site
    others = every - sent
    known = others > 0
    share = np.where(known, sent / np.maximum(others, 1), 0.0)
    rows = np.column_stack([task.word("mean_weights"), task.word("mean_biases")]).astype(np.float64)
    rows *= (1 + share)[:, None]  # every / others
    if own:
        rows -= share[:, None] * np.column_stack([own["head_weights"], own["head_biases"]])
    scores = features.double() @ torch.from_numpy(rows[known, :-1]).T + torch.from_numpy(rows[known, -1])
    labels = site.labels()[:, known] == 1
    told = class_losses(scores[torch.from_numpy(labels.any(1))], np.nonzero(labels)[1])  # a sample has one class
    report = {name: np.zeros(len(every), dtype=value.dtype) for name, value in told.items()}
    for name, value in told.items():
        report[name][known] = value
    return report


def judged_losses(fed: Federation, heads: Mapping[str, Report]) -> dict[str, Report]:
    """Site → what it tells of its labels under the heads of all others.

    Args:
        fed: whose sites are asked.
        heads: site → its heads.

    Raises:
        FedMendError: too few valid results.
    """
    weights, biases = average_heads(heads, most=1.0)
    counts = np.sum([report["head_counts"] for report in heads.values()], axis=0)
    known = {"mean_weights": weights, "mean_biases": biases, "all_counts": counts}
    answers = fed.collect(JUDGE, sites=sorted(heads), knowledge=known, at_least=MIN_SITES)
    return {site: answer.report for site, answer in answers.items()}
