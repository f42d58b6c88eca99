"""The end of a job with ``refit``: rows of the classifier that sites solve join those that were trained."""

import numpy as np

from fedmend.averaging import CLASSIFIER, average_heads
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION
from fedmend.learning.heads import REFIT
from fedmend.method import Workflow
from fedmend.server.census import Census
from fedmend.server.federation import RunningFederation


def check_refit(workflow: Workflow, census: Census) -> None:
    """Refuses a refit that has nothing to end, or that some site could not take part in, before anything is trained.

    Raises:
        FedMendError: nothing is trained, masks, studies, or a site that keeps differential privacy.
    """
    if not workflow.trains:
        raise FedMendError("job variable refit: expected false in a job that trains nothing, got true")
    if census.kind.name == SEGMENTATION:
        raise FedMendError("job variable refit: expected false for masks, got true")
    if census.preprocessing.study_slices:
        raise FedMendError("job variable refit: expected false for studies, got true")
    if private := sorted(site for site, told in census.described.items() if told.get("privacy")):
        raise FedMendError(f"job variable refit: expected false with differential privacy at {', '.join(private)}")


def refit(fed: RunningFederation, workflow: Workflow) -> None:
    """Puts the mean of trained and solved rows, both of which give the same log-odds, into the global model.

    Args:
        fed: whose rounds are over.
        workflow: says whose labels are trusted, and how far weights have moved the trained rows; where these sites want
            to be among more, the trained rows stay.

    Raises:
        FedMendError: too few valid results.
    """
    trusted = workflow.trusted_sites(fed) or list(fed.sites)
    sites = fed.census.among_enough(trusted)
    if not sites:
        fed.warn(f"refit: the trained classifier stays: {', '.join(trusted)} may solve none alone (min_federation)")
        fed.record("refit", {"sites": [], "classes": []})
        return
    answers = fed.collect(REFIT, sites=sites)
    solved = dict(zip(("weight", "bias"), average_heads({s: a.report for s, a in answers.items()}), strict=True))
    known = solved["weight"].any(1)
    solved["bias"] = solved["bias"] + workflow.logit_shift(fed)
    for name, rows in solved.items():
        trained = fed.model[f"{CLASSIFIER}{name}"]
        rows = np.where(known.reshape(-1, *[1] * (rows.ndim - 1)), (trained + rows) / 2, trained)
        fed.model[f"{CLASSIFIER}{name}"] = rows.astype(trained.dtype)
    fed.record("refit", {"sites": sorted(answers), "classes": [fed.classes[c] for c in np.flatnonzero(known)]})
