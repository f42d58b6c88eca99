"""What FedNoRo's server and sites tell each other, whatever the kind of labels: stages, roles and fields.

Equations of Wu et al., IJCAI 2023.
"""

from collections.abc import Mapping

from fedmend.fields import UNBOUNDED, Field

WARMUP, DETECT, ROBUST = "warmup", "detect", "robust"
CLEAN, NOISY = "clean", "noisy"
FIELDS: Mapping[str, Field] = {
    "class_loss": Field(
        ("R",),
        "float32",
        0,
        UNBOUNDED,
        "mean cross-entropy of the training samples (of masks: the pixels) of each class, once (Eq. 3)",
        "means over at least min_count samples",
        counted_by="class_count",
    ),
    "class_count": Field(
        ("R",), "int64", 0, UNBOUNDED, "training samples (of masks: slices) with each class", "counts per class"
    ),
}
KNOWLEDGE: Mapping[str, Field] = {
    "distillation_weight": Field((), "float32", 0, 1, "lambda of Eq. (5)", "none: it depends on the round alone")
}
