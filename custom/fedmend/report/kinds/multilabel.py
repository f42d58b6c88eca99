"""Several labels per image: how results are shown."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import ClassVar

from fedmend.labels import ENOUGH, MULTILABEL
from fedmend.records.run_folder import RunFiles
from fedmend.report.kinds.base import (
    CALIBRATION,
    LABEL_WORDS,
    PSEUDO_LABEL_WORDS,
    KindReport,
    PseudoLabels,
    classes_of_sites,
)
from fedmend.report.metric_figures import Metric

AT_CHOSEN = Metric("bacc_val", "bacc_val", "BACC (val)", "BACC (val)", "BACC (val)")


class MultiLabelReport(KindReport):
    """Each class is there, is not there, or is not annotated."""

    name = MULTILABEL
    metrics = (
        Metric("auc", "auc", "AUC", "AUC", "AUC"),
        Metric("map", "ap", "mAP", "AP", "mAP"),
        Metric("bacc", "bacc", "BACC", "BACC", "BACC"),
    )
    more = (AT_CHOSEN, CALIBRATION)
    macro_words = "macro"
    counted: ClassVar = {"positives": "positive", "negatives": "negative"}
    missing = "one label value only"
    pseudo_labels: ClassVar = {
        "positive": PseudoLabels("positive", "Pseudo-labels, positive"),
        "negative": PseudoLabels("negative", "Pseudo-labels, negative"),
    }
    repair_words: ClassVar = {
        "positive": "pseudo-label positive",
        "negative": "pseudo-label negative",
        "untagged": "no label yet",
    }
    words: ClassVar = {
        "Annotated class": "A finding that a site has labelled in its images, present or absent. The other findings "
        "are unknown there, not absent.",
        "AUC": "Area under the ROC curve: how often a random image with the finding gets a higher score than a "
        "random one without it. 0.5 is guessing, 1 is perfect.",
        "AP, mAP": "Average precision: the share of flagged images that truly have the finding, averaged over all "
        "sensitivities. Guessing gives the share of positive images. mAP is its mean over classes.",
        "BACC": "Balanced accuracy: mean of sensitivity and specificity when a score above 0.5 counts as a finding. "
        "0.5 is guessing.",
        "BACC (val)": "The same at the score of each class that gave the highest value on the validation split, over "
        f"the classes with at least {ENOUGH} positives and {ENOUGH} negatives there; n/a for the others. A model whose "
        "probabilities are too low or too high loses nothing by it.",
        **LABEL_WORDS,
        **PSEUDO_LABEL_WORDS,
        "Warm-up": "The first rounds, in which each site learns from its own annotated classes only.",
    }

    def reason(self, evaluation: Mapping, index: int) -> str:
        """AUC needs samples with the class and without it."""
        empty = [word for key, word in self.counted.items() if key in evaluation and evaluation[key][index] == 0]
        return f"no {empty[0]} sample" if empty else "only one label value"

    @property
    def of_classes(self) -> Sequence[Metric]:
        return [*self.metrics, AT_CHOSEN]

    def choosing(self, run: RunFiles) -> list[tuple[str, Sequence[int]]]:
        val = _choosing(run)
        return [(f"{word} in val", val[key]) for key, word in self.counted.items() if key in val]

    def thresholds(self, runs: Sequence[RunFiles]) -> str:
        counted: dict[str, list[tuple[int, int]]] = {}  # class → (positives, negatives) of each run
        for val in map(_choosing, runs):
            pairs = zip(val.get("positives", ()), val.get("negatives", ()), strict=False)
            for name, pair in zip(runs[0].info["classes"], pairs, strict=False):
                counted.setdefault(name, []).append(pair)
        lacking = [
            f"{name} ({_span([p for p, _ in own])} positives, {_span([n for _, n in own])} negatives)"
            for name, own in counted.items()
            if min(map(min, own)) < ENOUGH
        ]
        if not lacking:
            return ""
        words = f"BACC (val) needs {ENOUGH} positives and {ENOUGH} negatives of a class in the val split"
        return f"{words} and is n/a for {', '.join(lacking)}"

    def sites(self, run: RunFiles) -> tuple[str, str]:
        """Sites × classes: who annotates what, with counts."""
        caption = "✓ annotated (positive training samples, where known); – not annotated (unknown, not absent)"
        body = classes_of_sites(run, caption, "Sites that annotate", " pos.")
        flag = f"No site annotates: {', '.join(run.nowhere)}. The model cannot learn what nobody has labelled."
        flag = f'<p class="flag"><strong>⚠ Check this.</strong> {escape(flag)}</p>' if run.nowhere else ""
        return ("What each site annotates", flag + body) if body else ("", "")


def _choosing(run: RunFiles) -> Mapping:
    """The evaluation of the validation split, with the counts that choose thresholds of the last model; empty where
    nothing is chosen."""
    chosen = run.evaluations and AT_CHOSEN.per_class in run.evaluations[-1]["per_class"]
    return run.metrics["val"][-1] if chosen and run.metrics.get("val") else {}


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
