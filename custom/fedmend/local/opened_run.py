"""A run opened from Python: its numbers as tables of pandas, its figures, its models with their weights."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.basics.checked import PATH, TEXT, accepted, shown
from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError, not_installed
from fedmend.records.progress import PROGRESS, STOPPED
from fedmend.records.run_folder import BEST_MODEL, MODEL, MODELS, RUN, load_run
from fedmend.report.kinds import shown_as

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.nn import Module

MACRO = "macro"
# Columns of tables, which they have without rows, too.
DECISION = ("time", "round", "what", "value")
COUNTS = ("round", "site", "class", "positive", "negative", "correct_positive", "correct_negative")
ENTRY = ("image", "class", "old", "new", "rule", "round", "confidence", "in_force")
_WHOLE = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff" '  # of a document of its own


class Figure(str):
    """A figure as the text of an SVG document, which notebooks show.

    Attributes:
        alt: what it shows, for a reader who cannot see it.
    """

    alt: str = ""

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return self.alt


class Run:
    """What a run has left behind, or has so far.

    Args:
        folder: its run folder, or one in which there is only this run: the workspace of a simulation, or the folder of
            a result that was fetched.

    Attributes:
        folder: the run folder, with ``report.html`` and the tables.

    Raises:
        FedMendError: no run or several in the folder, or one whose files do not parse.

    Example::

        run = fedmend.Run("runs/fedmlp_ich")
        run.metrics().plot(x="round", y="auc")
    """

    def __init__(self, folder: Path | str):
        place: Path = accepted(folder, [PATH], "run", shown)
        found = [place] if (place / RUN).is_file() else sorted(file.parent for file in place.rglob(RUN))
        if len(found) != 1:
            why = "" if found else _stopped(place)
            raise FedMendError(f"run: expected one {RUN} in {place}, found {len(found) or 'none'}{why and f'; {why}'}")
        self.folder = found[0]
        self._read = load_run(self.folder)

    @property
    def name(self) -> str:
        """Its ``run_name``."""
        return self._read.info["run_name"]

    @property
    def info(self) -> Mapping:
        """Content of ``run.json``: method, classes, sites, all settings, and whether the data are a phantom."""
        return self._read.info

    @property
    def results(self) -> Mapping:
        """Content of ``results.json``; empty while the run goes on."""
        return self._read.results

    @property
    def final(self) -> Mapping:
        """Split → metric → value of the final model, as a mean over classes; empty while the run goes on."""
        return self.results.get("final", {})

    @property
    def report(self) -> Path:
        """The page, a file that needs no network."""
        from fedmend.report.report import REPORT_NAME

        return self.folder / REPORT_NAME

    def metrics(self, *, per_class: bool = False, per_site: bool = False) -> "DataFrame":
        """The metrics of every evaluation.

        Args:
            per_class: a row per class instead of their mean.
            per_site: a row per site, of the model on its samples alone; not together with ``per_class``.

        Returns:
            Columns ``round`` (rounds that the model has seen, 0 = initial model), ``stage``, ``split``, with
            ``per_class`` also ``class``, with ``per_site`` also ``site``, and one per metric, 0 to 1; a metric that a
            class cannot have, or that would describe too few samples of a site, is missing.

        Raises:
            FedMendError: pandas is not installed.
        """
        if per_class and per_site:
            raise FedMendError("metrics: expected per_class or per_site, got both")
        rows: list[dict] = []
        for split, evaluations in self._read.metrics.items():
            for found in evaluations:
                about = {"round": found["round"], "stage": found.get("stage", ""), "split": split}
                if per_class:
                    known = {name: values for name, values in found["per_class"].items() if isinstance(values, list)}
                    for i, name in enumerate(self.info["classes"]):
                        rows.append({**about, "class": name, **{key: values[i] for key, values in known.items()}})
                elif per_site:
                    rows += [{**about, "site": site, **alone} for site, alone in found.get("sites", {}).items()]
                else:
                    rows.append({**about, **found[MACRO]})
        return _frame(rows)

    def decisions(self, what: str = "") -> "DataFrame":
        """What the server decided: columns ``time``, ``round``, ``what``, ``value``.

        Args:
            what: one kind of decision alone, e.g. ``learning_degree``.

        Raises:
            FedMendError: pandas is not installed.
        """
        accepted(what, [TEXT], "decisions", shown)
        return _frame((d for d in self._read.decisions if what in ("", d["what"])), DECISION)

    def repairs(self, site: str = "") -> "DataFrame":
        """What was repaired.

        Args:
            site: a site of a simulation, whose ledger is on this machine; empty: counts of all sites.

        Returns:
            Without a site counts per round, site and class, with those that are right where the truth is known. Of a
            site a row per repaired label: ``image``, ``class``, ``old`` (missing: nobody had annotated it), ``new``,
            ``rule``, ``round`` (from 1), ``confidence`` and whether it is ``in_force``.

        Raises:
            FedMendError: pandas is not installed; no such site; or its ledger is not on this machine.
        """
        if not accepted(site, [TEXT], "repairs", shown):
            return _frame(self._read.repairs, COUNTS)
        from fedmend.repairs.ledger import read_history

        rows = _frame(read_history(self._ledger(site)), ENTRY)
        if len(rows):
            rows["old"] = rows["old"].where(rows["old"] >= 0)
            rows["round"] += 1
            rows["in_force"] = rows["in_force"].astype(bool)
        return rows

    def _ledger(self, site: str) -> Path:
        from fedmend.site.config import CONFIG_NAME, read_site_config

        if site not in self.info["sites"]:
            raise FedMendError(f"repairs: expected one of {sorted(self.info['sites'])}, got {site!r:.60}")
        workspace = self.folder.resolve().parents[2]  # <workspace>/server/simulate_job/fedmend
        settings = workspace / "local" / CONFIG_NAME
        if settings.is_file():
            state = read_site_config(settings, workspace / site, site).state_dir
            if (file := state / self.name / site / "ledger.sqlite").is_file():
                return file
        raise FedMendError(
            f"repairs: expected the ledger of {site} beside this run, not found; after a simulation it is there, of a"
            " federation each site keeps its own"
        )

    def figures(self) -> dict[str, Figure]:
        """Name → figure of the report, in the order of the page; a notebook shows each one."""
        from fedmend.report.parts import find_parts

        found = {}
        for section in (show(self._read) for part in find_parts() for show in part.sections):
            for drawn in section.figures:
                found[drawn.name] = Figure(drawn.svg.replace("<svg ", _WHOLE, 1))
                found[drawn.name].alt = drawn.alt
        return found

    def figure(self, name: str) -> Figure:
        """One figure of the report.

        Raises:
            FedMendError: no name, or there is none of this name.
        """
        if accepted(name, [TEXT], "figure", shown) not in (known := self.figures()):
            raise FedMendError(f"figure: expected one of {sorted(known)}, got {name!r:.60}")
        return known[name]

    def model(self, *, best: bool = False) -> "Module":
        """The global model with its weights, on the CPU, ready to be asked (``eval``).

        Args:
            best: that of the best evaluation instead of the last round.

        Raises:
            FedMendError: no trained model, or a file that does not fit the network.
        """
        from fedmend.learning.networks import build_network
        from fedmend.learning.weights import load_initial

        untrained = [d["value"]["untrained"] for d in self._read.decisions if d["what"] == "untrained_model"]
        file = self.folder.parent / MODELS / (BEST_MODEL if best else MODEL)
        if (untrained and untrained[-1]) or not file.is_file():
            raise FedMendError(f"model: expected a trained global model in {file.parent}, found no {file.name} of one")
        network = self.info["settings"]["network"]
        model = build_network(network, len(self.info["classes"]))
        load_initial(model, network, str(file))
        return model.eval()

    def __repr__(self) -> str:
        shown = self.final.get(self._read.split, {})
        known = [(m.word, shown[m.macro]) for m in shown_as(self._read).metrics if shown.get(m.macro) is not None]
        values = f"{self._read.split} {', '.join(f'{word} {value:.3f}' for word, value in known)}" if known else ""
        phantom = "PHANTOM " if self.info["phantom"] else ""
        done = "finished" if self.results else _stopped(self.folder) or "not finished"
        return f"{phantom}run {self.name} ({self.info['method']}): {values or done}"


def _stopped(folder: Path) -> str:
    """Words for why the run in a folder stopped; none where it did not, or where that is not known."""
    for file in folder.rglob(PROGRESS):
        with contextlib.suppress(OSError, ValueError):
            picture = read_json(file)
            if isinstance(picture, dict) and picture.get("state") == STOPPED:
                return f"the run stopped: {picture.get('reason')}"
    return ""


def _frame(rows: Iterable[Mapping], columns: Sequence[str] = ()) -> "DataFrame":
    """A table that has its columns without rows, too."""
    try:
        import pandas
    except ImportError:
        raise FedMendError(f"table: {not_installed('pandas', 'notebook')}") from None
    found = list(rows)
    return pandas.DataFrame(found) if found else pandas.DataFrame(columns=list(columns))
