"""What may stand before a network's name in a job."""

STAGES = "stages/"  # its classifier reads all stages, see fedmend.learning.stage_features
STUDY = "study/"  # it sees the slices of a study, see fedmend.learning.slice_pooling


def plain_name(network: str) -> str:
    """The name of a network without ``stages/`` or ``study/``."""
    return network.removeprefix(STUDY).removeprefix(STAGES)
