"""The kinds of labels that a site may have, one module each; nothing else asks which kind it has to do with."""

from collections.abc import Mapping

from fedmend.kinds.base import Kind
from fedmend.kinds.multilabel import MultiLabel
from fedmend.kinds.segmentation import Segmentation
from fedmend.kinds.singlelabel import SingleLabel

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (MultiLabel(), SingleLabel(), Segmentation())}


def kind_of(name: str) -> Kind:
    """The kind that a site card or a census names; see :attr:`fedmend.data.card.SiteCard.kind`."""
    return KINDS[name]
