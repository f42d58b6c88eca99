"""How a site prepares its images, as it tells the server at the census."""

from collections.abc import Sequence

from fedmend.data.card import SiteCard
from fedmend.data.inputs import Inputs
from fedmend.data.site import Split, check_samples
from fedmend.data.slices import VolumeSplit
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION
from fedmend.learning.network_names import STUDY, VOLUME, plain_name
from fedmend.learning.networks import TIMM
from fedmend.method import LocalMethod
from fedmend.preprocessing import MODALITIES, Preprocessing


def preprocessing_of(card: SiteCard, split: Split | VolumeSplit, inputs: Inputs) -> Preprocessing:
    """What a site does with a file.

    Args:
        card: the site's card.
        split: one of the site's, as it was opened.
        inputs: what the network sees.
    """
    mean, deviation = (split.mean, split.deviation) if isinstance(split, Split) else ((0,), (1,))
    return Preprocessing(
        window=card.window,
        color=card.color,
        image_size=inputs.image_size,
        pixel_mean=tuple(map(float, (*mean, *mean, *mean)[:3])),  # one number stands for all colours
        pixel_deviation=tuple(map(float, (*deviation, *deviation, *deviation)[:3])),
        modality=card.modality if card.modality in MODALITIES else "",
        study_slices=inputs.study_slices,
        spacing=tuple(map(float, inputs.spacing)),
        patch=tuple(inputs.patch),
    )


def check_preparation(
    card: SiteCard, network: str, scaling: tuple[Sequence, Sequence], inputs: Inputs, method: type[LocalMethod]
) -> None:
    """Refuses a job whose settings do not fit its network, its method or the site's data, before these are opened.

    Args:
        card: the site's card.
        network: the job's.
        scaling: its ``pixel_mean`` and ``pixel_deviation``.
        inputs: what the network sees.
        method: of the job.

    Raises:
        FedMendError: names the job's variables, or the card's field.
    """
    if card.kind != SEGMENTATION:
        check_samples(card, inputs.study_slices)
    if card.kind == SEGMENTATION and len(card.classes) > 1 and not method.STRUCTURES:
        raise FedMendError(
            f"{card.site}: site.json, field classes: expected one class of masks for the method of this job, got"
            f" {len(card.classes)}"
        )
    if network.startswith(VOLUME) != bool(inputs.spacing):
        raise FedMendError(
            f"{card.site}: job variables network, spacing: expected a spacing for a network behind {VOLUME} and for no"
            f" other, got {network:.60} and {list(inputs.spacing)}"
        )
    if inputs.spacing and not (card.kind == SEGMENTATION and method.VOLUMES):
        words = f"a method for masks that takes volumes, got {method.__name__} on {card.kind}"
        raise FedMendError(f"{card.site}: job variable spacing: expected {words}")
    if network.startswith(STUDY) != bool(inputs.study_slices):
        raise FedMendError(
            f"{card.site}: job variables network, study_slices: expected slices for a network behind {STUDY} and"
            f" for no other, got {network:.60} and {inputs.study_slices}"
        )
    if scaling[0] and (card.kind == SEGMENTATION or plain_name(network).startswith(TIMM)):
        got = "volumes" if card.kind == SEGMENTATION else network
        raise FedMendError(
            f"{card.site}: job variables pixel_mean, pixel_deviation: expected empty lists for volumes and for networks"
            f" of timm, which have their own scaling, got {list(scaling[0])}, {list(scaling[1])} for {got}"
        )
