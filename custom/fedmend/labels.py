"""The words of labels that all packages share: the value of a label that nobody gave, and the kinds of labels."""

NOT_ANNOTATED = -1

KIND_NAMES = MULTILABEL, SINGLELABEL, SEGMENTATION = "multilabel", "singlelabel", "segmentation"
