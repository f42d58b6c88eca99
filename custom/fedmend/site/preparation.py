"""How a site prepares its images, as it tells the server at the census."""

from fedmend.data.card import SiteCard
from fedmend.data.site import Split
from fedmend.data.slices import VolumeSplit
from fedmend.preprocessing import MODALITIES, Preprocessing


def preprocessing_of(card: SiteCard, split: Split | VolumeSplit, image_size: int) -> Preprocessing:
    """What a site does with a file.

    Args:
        card: the site's card.
        split: one of the site's, as it was opened.
        image_size: edge length in pixels that every image is resized to.
    """
    mean, deviation = (split.mean, split.deviation) if isinstance(split, Split) else ((0,), (1,))
    return Preprocessing(
        window=card.window,
        color=card.color,
        image_size=image_size,
        pixel_mean=tuple(map(float, (*mean, *mean, *mean)[:3])),  # one number stands for all colours
        pixel_deviation=tuple(map(float, (*deviation, *deviation, *deviation)[:3])),
        modality=card.modality if card.modality in MODALITIES else "",
    )
