"""A hospital's own numbers: how the model does on its own samples, in a page that stays there.

The server learns the same counts and adds them up; here they are measured alone, so that nobody has to ask the lead.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from fedmend.basics.files import OWNER, write_text
from fedmend.basics.page import number, phantom_note, section, short_name, table, whole_page
from fedmend.basics.words import rounds_text
from fedmend.kinds import Kind

PAGE, NUMBERS = "site_report.html", "site_results.json"
REPAIRED = {"positive": "made positive", "negative": "made negative", "untagged": "still open"}
SYNTHETIC = "Every image of this site is synthetic; the numbers say nothing about patients."
STAYS = "This page stays at the site: it is in the folder of its state, and no task sends it."


@dataclass(frozen=True)
class OwnResults:
    """What a site knows of a model and of its own labels after a round.

    Attributes:
        site: its name.
        run_name: of the job.
        classes: C names.
        round_num: rounds that the model has seen.
        sizes: split → samples.
        counts: split → (C, ...) int64 counts of the model, see :meth:`fedmend.kinds.Kind.evaluate`.
        repairs: name → (C,) counts of repaired labels.
        phantom: whether the data are synthetic.
    """

    site: str
    run_name: str
    classes: Sequence[str]
    round_num: int
    sizes: Mapping[str, int]
    counts: Mapping[str, np.ndarray]
    repairs: Mapping[str, np.ndarray]
    phantom: bool

    def measured(self, kind: Kind) -> dict[str, dict]:
        """Split → metrics as :meth:`fedmend.kinds.Kind.site_metrics` gives them, nothing held back, and ``intervals``:
        metric → ends of its 95 % interval."""
        return {
            split: kind.site_metrics(counts) | {"intervals": kind.intervals(counts)}
            for split, counts in self.counts.items()
        }

    def write(self, kind: Kind, folder: Path) -> None:
        """Writes the page and, for programs, the numbers in it.

        Args:
            kind: of the labels.
            folder: of the run at this site.
        """
        measured = self.measured(kind)
        about = {"site": self.site, "run_name": self.run_name, "phantom": self.phantom, "round": self.round_num}
        repairs = {name: np.asarray(found).tolist() for name, found in self.repairs.items()}
        facts = {"classes": list(self.classes), "samples": dict(self.sizes), "metrics": measured, "repairs": repairs}
        write_text(folder / NUMBERS, json.dumps(about | facts, indent=2), mode=OWNER)
        write_text(folder / PAGE, self._page(measured, kind), mode=OWNER)

    def _page(self, measured: Mapping[str, Mapping], kind: Kind) -> str:
        body = "".join(self._split(name, found) for name, found in measured.items())
        if not measured:
            body = section("model", "The model here", "<p>This site evaluates no split: it has none, or keeps it.</p>")
        body += self._repaired(kind)
        sizes = ", ".join(f"{count:,} in {split}" for split, count in self.sizes.items())
        below = (
            f"<p class='sub'>{escape(f'Run {self.run_name}, model after {rounds_text(self.round_num)}; {sizes}')}</p>"
        )
        below += phantom_note(SYNTHETIC) if self.phantom else ""
        return whole_page(f"The model at {self.site}", below, body, escape(STAYS), phantom=self.phantom)

    def _split(self, split: str, found: Mapping) -> str:
        rows = []
        for name, value in found["macro"].items():
            ends = found["intervals"].get(name)
            rows.append([short_name(name), value, f"{number(ends[0])} to {number(ends[1])}" if ends else "–"])
        body = table("Means over the classes that could be measured", ["Metric", "Value", "95 % interval"], rows)
        counted = [key for key in ("positives", "negatives") if key in found]
        names = [name for name, values in found["per_class"].items() if isinstance(values, list)]
        rows = [
            [label, *(found[key][i] for key in counted), *(found["per_class"][name][i] for name in names)]
            for i, label in enumerate(self.classes)
        ]
        each = table("Class by class", ["Class", *counted, *map(short_name, names)], rows)
        return section(split, f"The model on the {split} split", body, each)

    def _repaired(self, kind: Kind) -> str:
        known = {name: word for name, word in REPAIRED.items() if name in self.repairs}
        if not known:
            return section("repairs", "Repairs", f"<p>No {escape(kind.unit)} are repaired here.</p>")
        rows = [[label, *(int(self.repairs[name][i]) for name in known)] for i, label in enumerate(self.classes)]
        caption = f"Repaired {kind.unit} of the training split; the original ones are unchanged"
        return section("repairs", "Repairs", table(caption, ["Class", *known.values()], rows))


def line(kind: Kind, counts: Mapping[str, np.ndarray]) -> str:
    """The macro metrics of the received model in a log line, e.g. ``test AUC 0.734 mAP 0.250``; of the test split where
    there is one.

    Args:
        kind: of the labels.
        counts: split → (C, ...) int64 counts of the model.
    """
    split = "test" if "test" in counts else next(iter(counts), "")
    macro = kind.site_metrics(counts[split])["macro"] if split else {}
    shown = [f"{short_name(name)} {value:.3f}" for name, value in macro.items() if value is not None and name != "ece"]
    return " ".join([split, *shown]) if shown else ""
