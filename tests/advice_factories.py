"""Federations of a few numbers, as a label audit tells them."""

import numpy as np

from fedmend.advice import Facts
from fedmend.advice.label_audit import HELD_BACK, SiteLabels
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL

Q = HELD_BACK
CLASSES = ("edema", "nodule")


def site(*classes, kind=MULTILABEL, samples=400, **more):
    """What a site says, from annotated, positive and missing of each class."""
    return SiteLabels(samples=samples, counts=np.array(classes, dtype=np.int64).T, kind=kind, **more)


def single(*classes, **more):
    return site(*classes, kind=SINGLELABEL, **more)


def masks(**more):
    return site((9, 9, 0), kind=SEGMENTATION, samples=9, **more)


def federation(*sites, classes=None, losses=None):
    """Facts of ``site-1`` … that have said this; by default of the first classes of ``CLASSES``."""
    classes = classes or CLASSES[: sites[0].counts.shape[1] if sites else None]
    return Facts({f"site-{i}": said for i, said in enumerate(sites, 1)}, classes, losses)


FULL = site((400, 80, 0), (400, 80, 0))
GAP = site((400, 80, 0), (0, 0, 400))
OTHER_GAP = site((0, 0, 400), (400, 80, 0))
LABELLED = single((400, 200, 0), (400, 200, 0))
