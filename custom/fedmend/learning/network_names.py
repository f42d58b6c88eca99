"""What may stand before a network's name in a job."""

STAGES = "stages/"  # its classifier reads all stages, see fedmend.learning.stage_features
PROJECTED = "projected/"  # its features are random sums over all stages, see fedmend.learning.stage_features
STUDY = "study/"  # it sees the slices of a study, see fedmend.learning.slice_pooling
VOLUME = "volume/"  # it sees patches in three dimensions, see fedmend.data.spaced


def plain_name(network: str) -> str:
    """The name of a network without what may stand before it."""
    for before in (VOLUME, STUDY, STAGES, PROJECTED):
        network = network.removeprefix(before)
    return network
