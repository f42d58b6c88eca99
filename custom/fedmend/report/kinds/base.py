"""What the report shows of a run, as far as it depends on the kind of its labels."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fedmend.basics.page import Figure, table, td
from fedmend.basics.words import in_order
from fedmend.report.metric_figures import Metric, metric_figure

if TYPE_CHECKING:
    from fedmend.records.run_folder import RunFiles

SPLITS = ("train", "val", "test")
CALIBRATION = Metric("ece", "ece", "calibration error", "Calibration error", "Calibration error")
LABEL_WORDS = {
    "Calibration error": "How far probabilities are from frequencies, class by class: of the images that get 70 % "
    "for a class, 70 % should have it. 0 is perfect. A small split makes it look larger than it is.",
    "95 % interval": "Where the value would mostly lie for other samples of the same kind, by drawing those of the "
    "split again and again. Samples are drawn one by one, so that several of one patient make it look too narrow.",
    "Macro": "Plain mean over the classes that could be measured, each counting the same however rare it is.",
}
PSEUDO_LABEL_WORDS = {
    "Pseudo-label": "A label that the method sets at a site for a finding the site has not annotated. It is used "
    "for training only, stays at the site and never replaces an expert's label.",
    "Precision of pseudo-labels": "Share of pseudo-labels that agree with the truth. It needs the true labels, so "
    "it is known in experiments only.",
}


class PseudoLabels(NamedTuple):
    """Words of one sort of pseudo-labels.

    Attributes:
        column: in the table.
        line: in the plain text.
    """

    column: str
    line: str


class KindReport(ABC):
    """The presentation of one kind; it has no state, so that one object serves all runs.

    Attributes:
        name: as in ``run.json``.
        metrics: what is shown, in this order.
        more: metrics that the key numbers show besides.
        macro_words: added to the words of metrics whose means over classes are shown and do not say so themselves.
        last_and_best: metrics whose mean over the last rounds and highest value are shown too, as papers report them.
        counted: key of counts per class in ``metrics.jsonl`` → its column in the table of classes.
        missing: why a class has no curve.
        main_metric: key of the metric that comparison tables show for each class.
        table_words: key of a metric → its word in comparison tables, where it is another one than usual.
        one_label: each sample has one class, so that one without a label of a class has no label at all.
        pseudo_labels: key of counts in ``repairs.jsonl`` → words of what is shown; empty where repairs are no labels.
        repair_words: key of counts in ``repairs.jsonl`` → word of the area in the figure of pseudo-labels.
        words: word → meaning, for a clinician.
    """

    name: ClassVar[str]
    metrics: ClassVar[Sequence[Metric]]
    more: ClassVar[Sequence[Metric]] = ()
    macro_words: ClassVar[str] = ""
    last_and_best: ClassVar[Sequence[Metric]] = ()
    counted: ClassVar[Mapping[str, str]]
    missing: ClassVar[str]
    main_metric: ClassVar[str] = "auc"
    table_words: ClassVar[Mapping[str, str]] = {}
    one_label: ClassVar[bool] = False
    pseudo_labels: ClassVar[Mapping[str, PseudoLabels]] = {}
    repair_words: ClassVar[Mapping[str, str]] = {}
    words: ClassVar[Mapping[str, str]]

    def size(self, run: "RunFiles") -> str:
        """What is learnt, in two words."""
        return f"{len(run.info['classes'])} classes"

    def left_out(self, run: "RunFiles") -> dict[str, str]:
        """Class → why the last evaluation has no number for it."""
        if not run.evaluations:
            return {}
        last = run.evaluations[-1]
        values = last["per_class"].get(self.metrics[0].per_class, ())
        return {
            name: f"{self.reason(last, i)} in the {run.split} split"
            for i, (name, value) in enumerate(zip(run.info["classes"], values, strict=False))
            if value is None
        }

    @abstractmethod
    def reason(self, evaluation: Mapping, index: int) -> str:
        """Why an evaluation has no number for the class ``index``: what the split lacks."""

    def has_classes(self, run: "RunFiles") -> bool:
        """Whether there is something to say class by class."""
        return True

    @property
    def of_classes(self) -> Sequence[Metric]:
        """The metrics in the table of classes."""
        return self.metrics

    def choosing(self, run: "RunFiles") -> list[tuple[str, Sequence[int]]]:
        """Columns of the table of classes, (word, C counts), with the samples that chose a threshold."""
        return []

    def thresholds(self, runs: Sequence["RunFiles"]) -> str:
        """A sentence without its full stop about the classes of which too few samples can choose a threshold; "" where
        there are none."""
        return ""

    def uneven(self, run: "RunFiles", key: str) -> bool:
        """Whether the final mean of a metric leaves out a class that other runs on the same data may have in theirs."""
        return False

    def means_over(self, run: "RunFiles") -> str:
        """What the means in the key numbers are taken over."""
        total = len(run.info["classes"])
        return f"Means over {total - len(self.left_out(run))} of {total} classes, {run.split} split."

    @abstractmethod
    def sites(self, run: "RunFiles") -> tuple[str, str]:
        """Title and HTML of the section that shows what each site has; the HTML is empty without a site."""

    def curves(self, run: "RunFiles") -> list[str | Figure]:
        """Blocks with the metrics over rounds; there is at least one evaluation."""
        blocks: list[str | Figure] = []
        for metric in self.metrics:
            if any(m["macro"].get(metric.macro) is not None for m in run.evaluations):
                missing = partial(self.no_curve, run, metric.macro)
                blocks += [f"<h3>{metric.curve}</h3>\n", metric_figure(run, metric, missing=missing)]
        return blocks

    def no_curve(self, run: "RunFiles", key: str, index: int) -> str:
        """Why the class ``index`` has no value of a metric in any evaluation."""
        return self.missing

    def confusion(self, evaluation: Mapping, classes: Sequence[str], title: str, caption: str) -> str:
        """The confusion matrix of an evaluation; "" where none is counted."""
        return ""

    def glossary(self, run: "RunFiles") -> dict[str, str]:
        """The words that a run of this kind needs."""
        return {word: meaning for word, meaning in self.words.items() if word != "Warm-up" or run.warmup}


def classes_of_sites(run: "RunFiles", caption: str, total: str, unit: str = "") -> str:
    """The table of sites × classes: who annotates what, with counts, and the sizes of the splits; "" without a site.

    Args:
        run: its records.
        caption: of the table.
        total: word of the last row, which counts the sites of each class.
        unit: what comes after a count.
    """
    known, classes = run.info["sites"], run.info["classes"]
    rows: list[list[object]] = []
    for name in in_order(known):
        site = known[name]
        count = site.get("positives", {})
        yes = {c: f"✓ {count[c]:,}{unit}" if count.get(c) is not None else "✓" for c in site.get("annotated", ())}
        cells = [td(yes[c], "yes") if c in yes else td("–", "no") for c in classes]
        rows.append([name, *cells, *(site.get(split) for split in SPLITS)])
    if not rows:
        return ""
    sites = [sum(c in site.get("annotated", ()) for site in known.values()) for c in classes]
    totals = [td(f"{n} of {len(rows)}" if n else "⚠ none", "yes" if n else "bad") for n in sites]
    sums = [sum(site.get(split) or 0 for site in known.values()) for split in SPLITS]
    return table(caption, ["Site", *classes, *SPLITS], rows, [total, *totals, *sums])
