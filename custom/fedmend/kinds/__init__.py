"""The kinds of labels that a site may have, one module each.

Sites, server and methods leave to a kind what differs between kinds. Which one it is, only those ask who show labels to
people: the review and the advice.
"""

from collections.abc import Mapping

from fedmend.kinds.base import Kind
from fedmend.kinds.multilabel import MultiLabel
from fedmend.kinds.segmentation import Segmentation
from fedmend.kinds.singlelabel import SingleLabel

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (MultiLabel(), SingleLabel(), Segmentation())}


def kind_of(name: str) -> Kind:
    """The kind that a site card or a census names; see :attr:`fedmend.data.card.SiteCard.kind`."""
    return KINDS[name]
