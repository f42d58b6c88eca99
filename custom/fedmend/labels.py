"""What packages share about labels: the value of a label that nobody gave, the kinds of labels, and how many samples
of a class choose something."""

NOT_ANNOTATED = -1
ENOUGH = 10  # samples with a class, and without it, by which its threshold or temperature or the best model is chosen

KIND_NAMES = MULTILABEL, SINGLELABEL, SEGMENTATION = "multilabel", "singlelabel", "segmentation"
