"""Closed-form heads with differential privacy: sums over patients, with noise once, and one classifier of the total.

A head that a site solves from its own sums with noise is mostly noise. So sites send the sums, and the server solves
one head from the total, in which the noise of S sites has grown by sqrt(S) and what it hides by S. Of image i, v_i (F,)
are the features, shortened to length 1 if they are longer, and y_ic is its label of class c, 1 or 0, if it has one:

    s_c1 = sum_i y_ic v_i,   n_c1 = sum_i y_ic,   s_c0 and n_c0 with 1 - y_ic,   A = sum_i v_i v_i^T,   n = sum_i 1

With the means m_cj = s_cj / n_cj and the shares p_cj = n_cj / (n_c0 + n_c1), the head is a ridge discriminant:

    w_c = (S_c + lambda_c I)^-1 (m_c1 - m_c0),   b_c = -w_c (m_c1 + m_c0) / 2,   S_c = A / n - sum_j p_cj m_cj m_cj^T

Noise makes eigenvalues of S_c negative. The lowest says how far it may be wrong in any direction, and lambda_c is that.

A patient's sums are the means over the patient's images. If an image counts in K classes (all that its site annotates;
one, where an image has one label), their length is at most sqrt((K + 1)(1 + COUNT^2)): counts are multiplied by COUNT,
as they need fewer digits. Divided by this length they are what :attr:`fedmend.method.Site.add_up` takes.

Noise on the sums that a linear model is made from is sufficient statistics perturbation (Wang, "Revisiting
differentially private linear regression", UAI 2018), for a covariance "Analyze Gauss" (Dwork et al., STOC 2014). Sums
of sites for one closed-form head, without noise, are in Fed3R (Fanì et al., ICML 2024).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import CLASSIFIER, LARGEST_SHARE, capped
from fedmend.errors import FedMendError
from fedmend.fields import OF_PRIVACY, UNBOUNDED, Field, Report
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.inference import Stopped, mixed_precision
from fedmend.learning.patient_steps import patients_of
from fedmend.learning.threads import one_thread
from fedmend.method import Federation, LocalMethod, RoundTask, Site, Workflow
from fedmend.methods.shared.settings import Settings
from fedmend.methods.shared.without_training import NoRound

SUMS = "sums"  # a stage
COUNT = 0.3  # by which counts are multiplied
SMALLEST_PENALTY = 0.05  # of the mean eigenvalue, where noise is small
LARGEST_SUM = 10.0  # largest length of a row of a site's sums, in units of its images; without noise it is at most 1
FEWEST = 1.0  # images with a class, and without it, by counts with noise
_NOISY = "a sum over all patients with noise of the site's privacy: tells hardly more than without any one of them"
FIELDS = {
    "class_sums": Field(
        ("2C", "F"), "float32", -UNBOUNDED, UNBOUNDED,
        "summed features of the images with each class, then of those without it", _NOISY, allowed_by=OF_PRIVACY,
    ),
    "class_sizes": Field(
        ("2C",), "float32", -UNBOUNDED, UNBOUNDED, "how many these are", _NOISY, allowed_by=OF_PRIVACY
    ),
    "scatter": Field(
        ("F", "F"), "float32", -UNBOUNDED, UNBOUNDED,
        "summed products of each two features of all images", _NOISY, allowed_by=OF_PRIVACY,
    ),
    "patients": Field((1,), "float32", -UNBOUNDED, UNBOUNDED, "number of patients", _NOISY, allowed_by=OF_PRIVACY),
}  # fmt: skip


# ---- the site -------------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class ClosedFormSums(Settings, LocalMethod):
    """Client half of closed-form heads with differential privacy. An image without a label takes part in the scatter
    alone."""

    FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    KINDS: ClassVar[tuple[str, ...]] = (MULTILABEL, SINGLELABEL)
    ROUND = NoRound

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """The sums, with noise.

        Raises:
            FedMendError: a site that keeps no differential privacy.
        """
        if site.add_up is None:
            raise FedMendError(f"{site.name}: local/fedmend.json, field privacy: expected a policy, got none")
        one_label = site.data.kind == SINGLELABEL
        labels = np.where(site.data.annotated, site.labels(), NOT_ANNOTATED)  # a review may give others
        sides = labels == 1 if one_label else np.hstack([labels == 1, labels == 0])
        classes = 1 if one_label else int(site.data.annotated.sum())
        longest = float(np.sqrt((classes + 1) * (1 + COUNT**2)))
        total = site.add_up(_rows(model, sides, longest, site)) * longest
        features: Any = model.num_features
        return _report(total, site.data.annotated, features, one_label=one_label)


@torch.no_grad()
def _rows(model: nn.Module, sides: np.ndarray, longest: float, site: Site) -> Iterator[Tensor]:
    """For each patient (D,) float64 of a length of at most 1: counts of the M ``sides`` (N, M) bool and of patients,
    their M * F sums, and the upper half of the scatter.

    Images of one patient are never beside those of another: in a batch, one changes the last digits of the others,
    which weights made for it could magnify.
    """
    train, mode = site.data.train, model.training
    features: Any = model.num_features
    upper = _upper(features)
    times = torch.from_numpy(_times(upper))
    model.eval()
    try:
        for images in patients_of(train.table):
            parts = []
            for index in images.split(site.batch_size):
                if site.stop():
                    raise Stopped
                with mixed_precision(site):
                    parts.append(model(train.view(index))[0])
            v = torch.cat(parts).double().cpu()
            v /= v.norm(dim=1, keepdim=True).clamp(min=1)
            has = torch.from_numpy(sides[images.numpy()]).double()
            counts = COUNT * torch.cat([has.sum(0), torch.tensor([float(len(images))])])
            products = (v.T @ v)[tuple(upper)] * times
            yield torch.cat([counts, (has.T @ v).flatten(), products]) / (len(images) * longest)
    finally:
        model.train(mode)


def _upper(features: int) -> np.ndarray:
    """(2, F (F + 1) / 2) rows and columns of the upper half of a matrix."""
    return np.stack(np.triu_indices(features))


def _times(upper: np.ndarray) -> np.ndarray:
    """By what the numbers of an upper half are multiplied, so that they are as long together as the whole matrix."""
    return np.where(upper[0] == upper[1], 1.0, 2**0.5)


def _report(total: np.ndarray, annotated: np.ndarray, features: int, *, one_label: bool) -> Report:
    """The fields of a sum of rows, for each class that the site annotates; of the others they are 0."""
    num_classes = len(annotated)
    sides = num_classes if one_label else 2 * num_classes
    counts, rest = total[: sides + 1] / COUNT, total[sides + 1 :]
    sums, products = rest[: sides * features].reshape(sides, features), rest[sides * features :]
    sizes = counts[:-1]
    if one_label:  # without a class are the images with another one
        sums = np.concatenate([sums, sums.sum(0) - sums])
        sizes = np.concatenate([sizes, sizes.sum() - sizes])
    known = np.concatenate([annotated, annotated])
    upper, scatter = _upper(features), np.zeros((features, features))
    scatter[tuple(upper)] = scatter[tuple(upper[::-1])] = products / _times(upper)
    return {
        "class_sums": np.where(known[:, None], sums, 0).astype(np.float32),
        "class_sizes": np.where(known, sizes, 0).astype(np.float32),
        "scatter": scatter.astype(np.float32),
        "patients": counts[-1:].astype(np.float32),
    }


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class ClosedFormSumsWorkflow(Settings, Workflow):
    """One exchange: adds up the sums of all sites, and solves a head for each class from them.

    Args:
        la: log-odds of a population in which half has the class, as logit adjustment does for trained methods.
    """

    METHOD = ClosedFormSums
    trains: ClassVar[bool] = False
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {SUMS: tuple(FIELDS)}

    la: bool = False

    def run(self, fed: Federation) -> None:
        """The exchange.

        Raises:
            FedMendError: several rounds.
        """
        if fed.num_rounds > 1:
            raise FedMendError(f"job variable num_rounds: expected 1 for sums with noise, got {fed.num_rounds}")
        for _ in fed.rounds():
            reports = {site: answer.report for site, answer in fed.collect(SUMS).items()}
            samples = {site: fed.sites[site].samples for site in reports}
            total, long = add_sites(reports, capped(samples, LARGEST_SHARE), samples)
            if long:
                fed.record("sums_shortened", long)
                fed.warn(f"sums of {', '.join(long)} are too long for so few images, or are mostly noise: shortened")
            weights, biases = heads_of(total, balanced=self.la)
            if nobody := [fed.classes[c] for c in np.flatnonzero(~weights.any(1))]:
                fed.record("no_head", nobody)
                fed.warn(f"too few images with and without {', '.join(nobody)} for the noise: no score tells it apart")
            fed.model |= {f"{CLASSIFIER}weight": weights, f"{CLASSIFIER}bias": biases}


def add_sites(
    reports: Mapping[str, Report], counted: Mapping[str, int], samples: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The sums over all sites, in sorted order; those of a site with a row longer than :data:`LARGEST_SUM` are
    shortened.

    Args:
        reports: site → fields.
        counted: site → samples as they count, see :func:`fedmend.averaging.capped`.
        samples: site → samples.

    Returns:
        The fields, summed; and the sites with a field that was shortened.
    """
    total: dict[str, np.ndarray] = {}
    long = []
    for site in sorted(reports):
        fields = {name: np.asarray(reports[site][name], dtype=np.float64) for name in FIELDS}
        lengths = {name: np.linalg.norm(told.reshape(len(told), -1), axis=1).max() for name, told in fields.items()}
        most = LARGEST_SUM * samples[site]
        if max(lengths.values()) > most:
            long.append(site)
        for name, told in fields.items():
            share = min(1.0, most / max(float(lengths[name]), 1e-12)) * counted[site] / samples[site]
            total[name] = total.get(name, 0.0) + share * told
    return total, long


def heads_of(total: Mapping[str, np.ndarray], *, balanced: bool) -> tuple[np.ndarray, np.ndarray]:
    """w_c and b_c of the module.

    Args:
        total: the fields, summed over sites.
        balanced: as of :func:`fedmend.learning.discriminant.solve_heads`.

    Returns:
        (C, F) and (C,) float32; 0 for a class with fewer images with it, or without, than :data:`FEWEST`.
    """
    num_classes, features = len(total["class_sizes"]) // 2, total["class_sums"].shape[1]
    weights, biases = np.zeros((num_classes, features), np.float32), np.zeros(num_classes, np.float32)
    products = torch.from_numpy(total["scatter"] / max(float(total["patients"][0]), FEWEST))
    for c in range(num_classes):
        sizes = total["class_sizes"][[c, num_classes + c]]
        if sizes.min() < FEWEST:
            continue
        means = torch.from_numpy(total["class_sums"][[c, num_classes + c]] / sizes[:, None])
        shares = torch.from_numpy(sizes / sizes.sum())
        with one_thread():
            values, axes = torch.linalg.eigh(products - (means.T * shares) @ means)
            found = values.clamp(min=0)
            penalty = max(SMALLEST_PENALTY * float(found.mean()), -float(values.min()))
            row = axes @ ((axes.T @ (means[0] - means[1])) / (found + penalty))
            border = float(row @ means.sum(0)) / 2
        weights[c] = row.numpy()
        biases[c] = (0.0 if balanced else float(np.log(sizes[0] / sizes[1]))) - border
    return weights, biases
