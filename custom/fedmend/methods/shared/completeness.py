"""How complete a site's marks are, and the average that follows it, Eqs. (3)-(4), Xiang et al., MICCAI 2024."""

from collections.abc import Mapping

import numpy as np

from fedmend.averaging import Contributions

LOWEST_LOSS = 1e-3  # of Eq. (4): below it a model is perfect, and exp(a / l) is beyond all numbers


def completeness(lesions: np.ndarray) -> float:
    """a of Eq. (3), Xiang et al., MICCAI 2024: lesions in the annotation / lesions that theta_T predicts.

    Args:
        lesions: (2,) counts; without a predicted lesion the completeness is 0 (D1).
    """
    return float(lesions[0]) / float(lesions[1]) if lesions[1] else 0.0


def completeness_aware(
    estimates: Mapping[str, float], contributions: Contributions, *, temperature: float = 0.0
) -> dict[str, float]:
    """:func:`completeness_weights` of contributions whose reports have ``dice_loss``."""
    losses = {site: float(c.report["dice_loss"][0]) for site, c in contributions.items()}
    return completeness_weights(estimates, losses, temperature=temperature)


def completeness_weights(
    estimates: Mapping[str, float], losses: Mapping[str, float], *, temperature: float = 0.0
) -> dict[str, float]:
    """Share of each site in the average, Eq. (4), Xiang et al., MICCAI 2024: exp(a / l), normalised.

    Computed from differences to the largest exponent, so that nothing overflows.

    Args:
        estimates: site → a; a site without an estimate counts as the least complete one.
        losses: site → l in 0..1.
        temperature: 0: as published. Above: exp((a / largest a) / (l / mean l) / temperature), which does not sharpen
            as losses shrink.

    Returns:
        site → share; they sum to 1.
    """
    sites = sorted(losses)
    least = min(estimates.values(), default=0.0)
    a = np.array([estimates.get(site, least) for site in sites])
    loss = np.array([max(losses[site], LOWEST_LOSS) for site in sites])
    if temperature > 0:
        a, loss = a / max(a.max(), np.finfo(float).tiny), loss / loss.mean() * temperature
    exponent = a / loss
    weight = np.exp(exponent - exponent.max())
    return dict(zip(sites, (weight / weight.sum()).tolist(), strict=True))
