"""One mask per volume: how results are shown."""

from collections.abc import Mapping
from typing import ClassVar

from fedmend.basics.page import Figure, heat, table, td
from fedmend.basics.words import in_order
from fedmend.labels import SEGMENTATION
from fedmend.records.run_folder import RunFiles
from fedmend.report.kinds.base import KindReport, classes_of_sites
from fedmend.report.metric_figures import Metric, metrics_figure

DICE = Metric("dice", "dice", "Dice", "Dice", "Dice (slices)")
VOLUME_DICE = Metric("volume_dice", "volume_dice", "volume Dice", "Volume Dice", "Volume Dice")


class SegmentationReport(KindReport):
    """Lesions are marked pixel by pixel, one class; or several structures, of which a site may mark some.

    Last and best are those of Xiang et al., MICCAI 2024, who report the Dice of slices.
    """

    name = SEGMENTATION
    metrics = (
        DICE,
        VOLUME_DICE,
        Metric("precision", "precision", "precision", "Precision", "Precision"),
        Metric("recall", "recall", "recall", "Recall", "Recall"),
    )
    last_and_best = (DICE, VOLUME_DICE)
    counted: ClassVar = {"positives": "slices with it"}
    missing = "no slice with it"
    main_metric = "dice"
    words: ClassVar = {
        "Dice": "Overlap of the marked and the true lesion pixels of a slice: 0 is none, 1 is perfect. The mean is "
        "over the slices whose true mask has a lesion; false alarms on the others count in precision and volume "
        "Dice.",
        "Volume Dice": "The same overlap of all voxels of a volume at once, averaged over the volumes with a "
        "lesion. Large lesions count more.",
        "Precision": "Of the voxels that the model marks as lesion, the share that truly are.",
        "Recall": "Sensitivity: of the true lesion voxels, the share that the model marks.",
        "Last, Best": "As the FedIA paper reports, Last is the mean of the last ten evaluated rounds, where there are "
        "ten after the warm-up. Best is the highest value over all rounds; it is picked on the split that it is "
        "measured on, so it flatters; Last does not.",
        "Warm-up": "The first rounds, in which every site learns from its masks as they are.",
    }

    def size(self, run: RunFiles) -> str:
        return "segmentation"

    def reason(self, evaluation: Mapping, index: int) -> str:
        """Dice needs slices with a lesion."""
        return self.missing

    def has_classes(self, run: RunFiles) -> bool:
        return len(run.info["classes"]) > 1

    def _never_marked(self, run: RunFiles) -> int:
        """Structures that there are and that the final model never marks."""
        values = run.evaluations[-1]["per_class"] if run.evaluations else {}
        marked = zip(values.get("precision", ()), values.get("recall", ()), strict=True)
        return sum(precision is None and recall is not None for precision, recall in marked)

    def uneven(self, run: RunFiles, key: str) -> bool:
        """A structure that a model never marks has no precision."""
        return key == "precision" and self._never_marked(run) > 0

    def no_curve(self, run: RunFiles, key: str, index: int) -> str:
        """A structure that no model marks has no precision, even where there are slices with it."""
        return "never marked" if key == "precision" and run.evaluations[-1]["positives"][index] else self.missing

    def means_over(self, run: RunFiles) -> str:
        if not run.evaluations:
            return super().means_over(run)
        if self.has_classes(run):
            never = self._never_marked(run)
            words = f" Precision is without {never} that the model never marks." if never else ""
            return super().means_over(run) + words
        return f"Dice: mean over {run.evaluations[-1]['positives'][0]:,} slices with a lesion, {run.split} split."

    def sites(self, run: RunFiles) -> tuple[str, str]:
        """Sites × slices and, where they are known, lesions that the masks were left with; of several structures the
        slices with each."""
        if self.has_classes(run):
            caption = (
                "✓ marked (training slices with it, where known); – not marked (unknown, not absent); splits: slices"
            )
            body = classes_of_sites(run, caption, "Sites that mark it")
            return ("What each site annotates", body) if body else ("", "")
        known, rows = run.info["sites"], []
        splits = [split for split in ("val", "test") if any(site.get(split) for site in known.values())]
        for name in in_order(known):
            site = known[name]
            kept, total = site.get("lesions", (None, None))
            share = [td("n/a", "na n") if not total else heat(f"{kept / total:.0%}", kept / total)]
            slices = [sum(site["positives"].values()) if "positives" in site else None]
            rows.append([name, site.get("train"), *slices, *(site.get(s) for s in splits), kept, total, *share])
        if not rows:
            return "", ""
        totals = [sum(row[i] or 0 for row in rows) for i in range(1, len(splits) + 3)]
        caption = "Slices at each site, and lesions that its masks mark"
        head = ["Site", "training slices", "of these with a marked lesion", *(f"{split} slices" for split in splits)]
        if any("lesions" in site for site in known.values()):
            caption += "; completeness: marked lesions / all lesions of the training volumes, known in experiments only"
            head += ["marked lesions", "all lesions", "completeness"]
            sums = [sum(row[i] or 0 for row in rows if row[-2]) for i in (-3, -2)]
            totals += [*sums, td(f"{sums[0] / sums[1]:.0%}" if sums[1] else "n/a", "n")]
        else:
            rows = [row[:-3] for row in rows]
        return "What each site annotates", table(caption, head, rows, ["All sites", *totals])

    def curves(self, run: RunFiles) -> list[str | Figure]:
        return super().curves(run) if self.has_classes(run) else [metrics_figure(run, self.metrics)]
