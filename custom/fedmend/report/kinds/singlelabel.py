"""One label per image: how results are shown."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from fedmend.basics.page import heat, table, td
from fedmend.basics.words import in_order
from fedmend.labels import SINGLELABEL
from fedmend.records.run_folder import RunFiles
from fedmend.report.kinds.base import CALIBRATION, LABEL_WORDS, PSEUDO_LABEL_WORDS, SPLITS, KindReport, PseudoLabels
from fedmend.report.metric_figures import Metric

BACC = Metric("bacc", "recall", "BACC", "Recall", "BACC (macro), recall (classes)")


class SingleLabelReport(KindReport):
    """Each sample has one class, so that a confusion matrix is counted.

    Last and best are those of Table 1, Wu et al., IJCAI 2023.
    """

    name = SINGLELABEL
    metrics = (
        BACC,
        Metric("f1", "f1", "macro F1", "F1", "F1"),
        Metric("auc", "auc", "macro AUC", "AUC", "AUC"),
        Metric("precision", "precision", "macro precision", "Precision", "Precision"),
        Metric("accuracy", "", "accuracy", "", "Accuracy"),
    )
    more = (CALIBRATION,)
    last_and_best = (BACC,)
    counted: ClassVar = {"positives": "samples"}
    missing = "no sample"
    table_words: ClassVar = {"bacc": "Recall (BACC)"}  # the balanced accuracy is the mean recall
    one_label = True
    # "Not this class" follows from the class that an image was given.
    pseudo_labels: ClassVar = {"positive": PseudoLabels("pseudo-labels", "Pseudo-labels")}
    repair_words: ClassVar = {
        "positive": "pseudo-label of the class",
        "negative": "pseudo-label of another class",
        "untagged": "no label yet",
    }
    words: ClassVar = {
        "Recall": "Sensitivity: the share of the samples of a class that the model finds. Guessing one of C classes "
        "at random finds 1/C of them.",
        "Precision": "Of the samples that the model assigns to a class, the share that truly belong to it.",
        "F1": "Harmonic mean of recall and precision of a class: high only when both are. Macro F1 is its mean over "
        "classes.",
        "AUC": "Area under the ROC curve of one class against the rest: how often a random sample of the class gets "
        "a higher probability of it than a random sample of the other classes. 0.5 is guessing, 1 is perfect.",
        "BACC": "Balanced accuracy: the mean recall over classes, each counting the same however rare it is. The "
        "model's answer is the class with the highest score. Guessing gives 1 divided by the number of classes.",
        "Accuracy": "Share of all samples that the model gets right. Frequent classes dominate it.",
        **LABEL_WORDS,
        "Last, Best": "As the FedNoRo paper reports: Last is the mean BACC of the last ten evaluated rounds, "
        "where there are ten after the warm-up; Best is the highest BACC over all rounds. Best is picked on the split "
        "that it is measured on, so it flatters; Last does not.",
        "Confusion matrix": "How many samples of each true class (row) the model assigns to each class (column). "
        "Right answers are on the diagonal.",
        "Warm-up": "The first rounds, in which every site learns from its labels as they are.",
    }

    def reason(self, evaluation: Mapping, index: int) -> str:
        """Recall needs samples of the class."""
        return "no sample"

    def sites(self, run: RunFiles) -> tuple[str, str]:
        """Sites × classes: training labels, where every site may have all classes."""
        classes, known = run.info["classes"], run.info["sites"]
        splits = [split for split in SPLITS if any(site.get(split) for site in known.values())]
        counts = {name: [known[name].get("positives", {}).get(c) for c in classes] for name in in_order(known)}
        blank = {  # n/a where the counts of labels stay at the site
            name: (known[name].get("train") or 0) - sum(n or 0 for n in row) if "positives" in known[name] else None
            for name, row in counts.items()
        }
        blank = blank if any(blank.values()) else {}
        rows = []
        for name, row in counts.items():
            total = sum(n or 0 for n in row)
            cells: list[object] = [td(n) if n is None else heat(f"{n:,}", n / total if total else None) for n in row]
            cells += [blank[name]] if blank else []
            rows.append([name, *cells, *(known[name].get(split) for split in splits)])
        sums = [sum(n or 0 for n in column) for column in zip(*counts.values(), strict=True)]
        hidden = any("positives" not in site for site in known.values())
        totals: list[object] = [td(f"{n:,}") if n else td(None) if hidden else td("⚠ none", "bad") for n in sums]
        totals += [sum(n or 0 for n in blank.values())] if blank else []
        totals += [sum(site.get(split) or 0 for site in known.values()) for split in splits]
        caption = "Training samples by the labels at the site, which may be wrong; shading: share of the site's labels"
        head = ["Site", *classes, *(["no label"] if blank else []), *splits]
        return "What each site has", table(caption, head, rows, ["All sites", *totals])

    def confusion(self, evaluation: Mapping, classes: Sequence[str], title: str, caption: str) -> str:
        """Rows are true classes, columns predicted ones."""
        counts, rows = evaluation["confusion"], []
        for i, (name, row) in enumerate(zip(classes, counts, strict=True)):
            total = sum(row)
            cells = []
            for j, n in enumerate(row):
                share = n / total if total else None
                below = "" if share is None else f"{share:.0%}"
                cells.append(heat(f"{n:,}", share, below=below, style="hit" if i == j else ""))
            rows.append([name, *cells, total])
        sums = [heat(f"{sum(column):,}", None) for column in zip(*counts, strict=True)]
        caption += "; row: true class; column: predicted class; % and shading: share of the row"
        head = ["True ↓ predicted\u00a0→", *classes, "samples"]
        return f"<h3>{title}</h3>\n{table(caption, head, rows, ['All', *sums, sum(map(sum, counts))])}"

    def glossary(self, run: RunFiles) -> dict[str, str]:
        return super().glossary(run) | (PSEUDO_LABEL_WORDS if run.repairs else {})
