"""The page of an evaluation: tables, and how far probabilities are frequencies."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedmend.basics.page import Figure, Section, number, phantom_note, section, short_name, table, whole_page
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL

SYNTHETIC = "The model or the images are synthetic; the numbers say nothing about patients."
FOOTER = (
    "Numbers of the whole split are exact. Those of subgroups are held back where they describe fewer than min_count"
    " people, or would give such a number away. A model is judged on data that nobody has trained or chosen it on."
)
CAPTION = "Probabilities against frequencies, in bins of a fifteenth"


def ends(pair: Sequence[float] | None) -> str:
    """An interval as a table shows it."""
    return f"{number(pair[0])} to {number(pair[1])}" if pair else "–"


def evaluation_page(results: Mapping[str, Any]) -> str:
    """The page of one evaluation, see :func:`fedmend.evaluation.evaluate.evaluate`.

    Args:
        results: content of ``evaluation.json``.
    """
    body: str = _whole(results)
    if results["kind"] == SEGMENTATION:
        body += _volumes(results)
    else:
        body += _decisions(results) + _calibration(results)
        body += _studies(results) if "studies" in results else ""
    body += "".join(_column(results, name, groups) for name, groups in results["groups"].items())
    people = f", {results['patients']:,} patients" if results["patients"] else ", no patient is known"
    words = f"Package {results['package']} at {results['site']}, split {results['split']}: "
    words += f"{results['samples']:,} {'slices' if results['kind'] == SEGMENTATION else 'images'}{people}"
    below = f"<p class='sub'>{escape(words)}</p>"
    if results["differs"]:
        below += f"<p class='sub'>{escape('Read as the package says: ' + results['differs'])}.</p>"
    below += phantom_note(SYNTHETIC) if results["phantom"] else ""
    return whole_page("Evaluation", below, body, escape(FOOTER), phantom=results["phantom"])


def _whole(results: Mapping[str, Any]) -> Section:
    metrics, again, of = results["metrics"], results["bootstrap"], results["bootstrap"]["of"]
    rows = [
        [short_name(name), value, ends(metrics["intervals"].get(name)), ends(again["macro"].get(name))]
        for name, value in metrics["macro"].items()
    ]
    head = ["Metric", "Value", "95 % interval, images drawn again", f"{of} drawn again"]
    raw = "; ECE of probabilities before they are calibrated" * results["calibrated"]
    means = table(f"Means over the classes that could be measured{raw}", head, rows)
    counted = [key for key in ("positives", "negatives") if key in metrics]
    names = [name for name, values in metrics["per_class"].items() if isinstance(values, list)]
    with_interval = next((name for name in ("auc", "volume_dice") if name in again["per_class"]), "")
    head = ["Class", *counted, *map(short_name, names), f"{short_name(with_interval)}, {of} drawn again"]
    rows = [
        [
            label,
            *(metrics[key][i] for key in counted),
            *(metrics["per_class"][name][i] for name in names),
            ends(again["per_class"][with_interval][i]) if with_interval else "–",
        ]
        for i, label in enumerate(results["classes"])
    ]
    by_class = table(f"Class by class{raw}", head, rows)
    return section("model", f"The model on the {results['split']} split", means, by_class)


def _decisions(results: Mapping[str, Any]) -> Section:
    words = {MULTILABEL: "At the package's thresholds", SINGLELABEL: "At the class with the highest probability"}
    chosen = zip(results["thresholds"], results["not_fitted"], strict=True)
    cuts = [f"n/a: {reason}" if reason else cut for cut, reason in chosen]
    rows = [
        [name, cuts[i] if results["kind"] == MULTILABEL else "–", *_decided(row)]
        for i, (name, row) in enumerate(zip(results["classes"], results["decisions"], strict=True))
    ]
    caption = f"{words[results['kind']]}; intervals after Wilson, which take images of one patient for independent"
    caption += "; where a threshold is n/a, at 0.5" if any(results["not_fitted"]) else ""
    return section("decisions", "Decisions", table(caption, ["Class", "Threshold", *DECIDED], rows))


DECIDED = ["Found", "Missed", "False alarms", "Sensitivity", "95 %", "Specificity", "95 %", "BACC", "F1"]


def _decided(row: Mapping[str, Any]) -> list[object]:
    counts = [row[name] for name in ("found", "missed", "false_alarms")]
    shares = [[row[name], ends(row[f"{name}_interval"])] for name in ("sensitivity", "specificity")]
    return [*counts, *shares[0], *shares[1], row["bacc"], row["f1"]]


def _calibration(results: Mapping[str, Any]) -> Section:
    found = results["calibration"]
    rows = [[n, row["ece"], row["brier"]] for n, row in zip(results["classes"], found, strict=True)]
    caption = "Probabilities as the network gives them"
    if results["calibrated"]:
        caption = "Probabilities calibrated on the run's validation split"
        missing = [name for name, why in zip(results["classes"], results["not_fitted"], strict=True) if why]
        caption += f", but as the network gives them for {', '.join(missing)}" if missing else ""
    return section(
        "calibration", "Calibration", table(caption, ["Class", "ECE", "Brier score"], rows), _diagram(results, found)
    )


def _diagram(results: Mapping[str, Any], found: Sequence[Mapping]) -> Figure:
    from fedmend.report.figures import Line, Panel, grid_figure

    diagonal = Line([0.0, 1.0], [0.0, 1.0], "reference")
    panels = [
        Panel(name, [diagonal, *[Line([b[0] for b in own], [b[1] for b in own]) for own in [row["bins"]] if own]])
        for name, row in zip(results["classes"], found, strict=True)
    ]
    return grid_figure(
        "reliability",
        panels,
        alt=f"{CAPTION}, class by class",
        ylim=(0.0, 1.0),
        xlim=(0.0, 1.0),
        last_round=1,
        legend={"main": "frequency", "reference": "probability = frequency"},
        xlabel="probability",
        phantom=results["phantom"],
    )


def _studies(results: Mapping[str, Any]) -> Section:
    words = {"max": "highest probability of a study's images", "mean": "mean probability of a study's images"}
    own = "max" if results["kind"] == MULTILABEL else "mean"
    tables = []
    for way, found in results["studies"].items():
        rows = [
            [name, found["auc"][i], *_decided(row)]
            for i, (name, row) in enumerate(zip(results["classes"], found["decisions"], strict=True))
        ]
        same = ", as in studies.csv of a prediction" if way == own else ""
        caption = f"{found['studies']:,} studies, {words[way]}{same}; thresholds are those of images"
        tables.append(table(caption, ["Class", "AUC", *DECIDED], rows))
    return section("studies", "Study by study", *tables)


def _volumes(results: Mapping[str, Any]) -> Section:
    counted = ["lesion_f1", "lesions_found", "lesions_missed", "lesions_false"]
    rows = [
        [name, found["hd95"], f"{found['hd95_volumes']} of {found['volumes']}", *(found[key] for key in counted)]
        for name, found in zip(results["classes"], results["volumes"], strict=True)
    ]
    words = "At the size that the network sees; HD95 of volumes with the class in mask and prediction; a lesion, or"
    words += " a part of a structure, is found where a tenth of the union overlaps"
    head = ["Class", "HD95, mm", "mean of volumes", "F1 of lesions", "Found", "Missed", "False"]
    return section("volumes", "Surfaces and lesions", table(words, head, rows))


def _column(results: Mapping[str, Any], column: str, groups: Mapping[str, Any]) -> Section:
    masks = results["kind"] == SEGMENTATION
    ranked, classes = "volume_dice" if masks else "auc", results["classes"]
    head = ["Group", "Class", "positives", short_name(ranked), "95 %"]
    head += ["F1 of lesions", "HD95, mm"] if masks else ["Sensitivity", "95 %", "Specificity", "95 %", "ECE"]
    rows: list[list[object]] = []
    for name, found in groups.items():
        for i, label in enumerate(classes):
            if isinstance(found, str) or label in found["held_back"]:
                rows.append([name, label, "held back", *["–"] * (len(head) - 3)])
                continue
            drawn = found["intervals"]["per_class"].get(ranked)  # none where nothing could be measured
            ranks = [found["per_class"][ranked][i], ends(drawn[i] if drawn else None)]
            if masks:
                more: list[object] = [found["volumes"][i][key] for key in ("lesion_f1", "hd95")]
            else:
                row = found["decisions"][i]
                more = [row["sensitivity"], ends(row["sensitivity_interval"]), row["specificity"]]
                more += [ends(row["specificity_interval"]), found["calibration"][i]["ece"]]
            rows.append([name, label, f"{found['positives'][i]:,}", *ranks, *more])
    caption = f"By {column}; intervals of {short_name(ranked)}: {results['bootstrap']['of']} drawn again"
    return section(f"group-{[*results['groups']].index(column)}", f"By {column}", table(caption, head, rows))
