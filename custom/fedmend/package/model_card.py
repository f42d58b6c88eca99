"""The card of a model: what its package, and the run that it lies in, know of it, and what people still have to write.

``model_card.schema.json`` describes the card as JSON. ``checklists.json`` has the items of two reporting guidelines,
CLAIM (update of 2024) and TRIPOD+AI, in words of our own, and which part of the card answers each.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fedmend.basics.files import make_folder, write_text
from fedmend.basics.page import compact, phantom_note, section, table, whole_page
from fedmend.basics.words import markdown
from fedmend.errors import FedMendError
from fedmend.package.card_evaluation import read_evaluation
from fedmend.package.opened import OpenedPackage
from fedmend.records.run_folder import FEW, RUN, RunFiles, load_run
from fedmend.records.signature import SIGNATURE

FORMAT = 1
CHECKLISTS = Path(__file__).with_name("checklists.json")
YOURS = "you must write this"
SYNTHETIC_HERE = "The model or the images are synthetic; the numbers say nothing about patients."
SYNTHETIC = "Every image behind this model is synthetic; the numbers say nothing about patients."
MIXED = "Some images behind this model are synthetic, others of patients; the numbers say nothing about either."
PARAPHRASED = "Items are paraphrased; the guideline itself says what each of them asks for."
CHOSEN = (
    "Thresholds were chosen on the validation splits of the sites that trained it; check them on your own data first."
)
LIMITS = (
    "No approval as a medical device.",
    CHOSEN,
    "The metrics are of the same sites: they say nothing about other hospitals, scanners or groups of patients.",
    "Repaired labels are an aid to training, and no annotations.",
)
PEOPLE = ("purpose", "users", "patients", "not for", "contact")  # of the intended use, left to people


class Part(NamedTuple):
    """A part of the card for readers.

    Attributes:
        anchor: its name in the card.
        title: its heading.
        words: sentences, or items of a list.
        head: heads of the columns of a table; none: no table.
        rows: cells.
    """

    anchor: str
    title: str
    words: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


def model_card(package: OpenedPackage, evaluation: Path | None = None) -> dict[str, Any]:
    """The card as JSON can hold it, every number as it stands in the files.

    Args:
        package: one that lies in the folder of its run has metrics of each site and verdicts of people, too.
        evaluation: what ``fedmend evaluate`` wrote about the package, folder or file; None: the card has none.

    Raises:
        FedMendError: a file of the run or of the evaluation cannot be read, or the evaluation is of another package.
    """
    info, run = package.info, _run_of(package)
    provenance, of_sites = info.get("provenance", {}), run if info.get("model") == "final" else None
    card: dict[str, Any] = {
        "format": FORMAT,
        "title": f"{'PHANTOM ' if package.phantom else ''}Model card of {package.name}",
        "phantom": package.phantom,
        "signed": (package.folder / SIGNATURE).is_file(),
        "model": {key: info.get(key) for key in ("name", "model", "round", "kind", "classes", "network")}
        | {"digest": package.digest},
        "data": info.get("sites", {}),
        "labels": {
            "rule": str(provenance.get("method", "")),
            "repaired": info.get("repaired", {}),
            "judged": _judged(run) if run else [],
        },
        "metrics": {
            split: _measured(macro, info.get("intervals", {}).get(split, {}))
            for split, macro in info.get("metrics", {}).items()
        },
        "site_metrics": _of_sites(of_sites) if of_sites else {},
        "held_back": _held_back(of_sites) if of_sites else {},
        "evaluation": read_evaluation(evaluation, package) if evaluation else {},
        "thresholds": _thresholds(info.get("thresholds", {})),
        "preprocessing": info.get("preprocessing", {}),
        "settings": provenance.get("settings", {}),
        "versions": info.get("versions", {}),
        "lineage": _lineage(info.get("parent")),
        "intended_use": dict.fromkeys(PEOPLE, YOURS),
        "limits": [words for words in LIMITS if words is not CHOSEN or _some_chosen(info.get("thresholds", {}))],
    }
    return card | {"checklists": _checklists(card)}


def write_card(package: OpenedPackage, out: Path, evaluation: Path | None = None) -> list[Path]:
    """Writes the card of a package as JSON, Markdown and HTML.

    Args:
        package: the model.
        out: folder, made when missing.
        evaluation: as of :func:`model_card`.

    Returns:
        The three files.

    Raises:
        FedMendError: as :func:`model_card`; or fields of the package or of the run that FedMend would not write.
    """
    stem = f"{package.folder.stem}-card"
    try:
        card = model_card(package, evaluation)
        texts = {".json": json.dumps(card, indent=2) + "\n", ".md": _markdown(card), ".html": _page(card)}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # a package that somebody else made
        where = f"package {package.folder.name}"
        raise FedMendError(f"{where}: expected fields as a run of FedMend writes them, got others") from None
    make_folder(out)
    for suffix, text in texts.items():
        write_text(out / f"{stem}{suffix}", text)
    return [out / f"{stem}{suffix}" for suffix in texts]


def _run_of(package: OpenedPackage) -> RunFiles | None:
    """The run whose folder the package lies in, if it is the one that made it."""
    folder, made = package.folder.resolve().parent, package.info.get("provenance", {})
    if not (folder / RUN).is_file():
        return None
    run = load_run(folder)
    same = all(run.info.get(key) == made.get(key) for key in ("run_name", "started"))
    return run if same else None


def _judged(run: RunFiles) -> list[dict[str, Any]]:
    """What people have judged, class by class, at the sites that tell it."""
    latest = {(line["site"], line["class"]): line for line in run.repairs}
    keys = ("site", "class", "accepted", "rejected")
    told = [line for _, line in sorted(latest.items()) if "accepted" in line]
    return [{key: line[key] for key in keys} for line in told if line["accepted"] + line["rejected"]]


def _measured(macro: Mapping, intervals: Mapping) -> dict[str, dict]:
    return {name: {"value": value, "interval": intervals.get(name)} for name, value in macro.items()}


def _of_sites(run: RunFiles) -> dict[str, dict]:
    return {
        split: {site: _measured(said["macro"], said.get("intervals", {})) for site, said in sites.items()}
        for split, sites in run.results.get("sites", {}).items()
    }


def _held_back(run: RunFiles) -> dict[str, dict[str, list[str]]]:
    """Split → site → the classes that its means are without, as a few samples there have the class or lack it."""
    found: dict[str, dict[str, list[str]]] = {}
    for split, sites in run.results.get("sites", {}).items():
        for site, said in sites.items():
            flags = zip(run.info["classes"], said["held_back"], strict=True)
            if names := [name for name, flag in flags if flag]:
                found.setdefault(split, {})[site] = names
    return found


def _some_chosen(chosen: Mapping[str, list]) -> bool:
    """Whether a validation split has chosen the threshold of any class; masks and single labels have none."""
    reasons = chosen.get("not_fitted") or [""] * len(chosen.get("threshold", ()))
    return "" in reasons


def _thresholds(chosen: Mapping[str, list]) -> dict[str, list]:
    """What was fitted, class by class; None where it was not, for the reason in ``not_fitted``."""
    reasons = chosen.get("not_fitted")
    if reasons is None:
        return dict(chosen)
    fitted = {name: values for name, values in chosen.items() if name != "not_fitted"}
    known = {n: [None if why else v for v, why in zip(values, reasons, strict=True)] for n, values in fitted.items()}
    return {**known, "not_fitted": reasons}


def _lineage(parent: Any) -> list[dict[str, Any]]:
    found = []
    while isinstance(parent, Mapping):
        found.append({key: parent.get(key) for key in ("name", "model", "round", "digest")})
        parent = parent.get("parent")
    return found


def _checklists(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items; one whose part of the card is empty is left to people."""
    known = json.loads(CHECKLISTS.read_text(encoding="utf-8"))
    for checklist in known:
        for item in checklist["items"]:
            if item["from"] and not card[item["from"]]:
                item |= {"answer": YOURS, "from": ""}
    return known


def _parts(card: Mapping[str, Any]) -> list[Part]:
    labels, thresholds = card["labels"], card["thresholds"]
    began = [
        f"Began with {p['name']} ({p['model']}, round {p['round']}, digest {p['digest']})." for p in card["lineage"]
    ]
    signed = "Signed: fedmend package verify says by whom." if card["signed"] else "Unsigned."
    repaired = [[name, *counts.values()] for name, counts in labels["repaired"].items()]
    some = any(n for _, *counts in repaired for n in counts)
    rule = f"Repaired by the rule of {labels['rule']}." if some else f"None was repaired; method: {labels['rule']}."
    words = next((list(counts) for counts in labels["repaired"].values()), [])
    rows = [
        [split, site, metric, _value(said["value"]), _ends(said["interval"])]
        for split, pooled in card["metrics"].items()
        for site, metrics in {"all": pooled, **card["site_metrics"].get(split, {})}.items()
        for metric, said in metrics.items()
    ]
    judged = [[j["site"], j["class"], j["accepted"], j["rejected"]] for j in labels["judged"]]
    behind = [
        f"{split}, {site}: the means are without {', '.join(names)}. A class is held back where a site has {FEW}."
        for split, sites in card["held_back"].items()
        for site, names in sites.items()
    ]
    return [
        Part(
            "model",
            "The model",
            [signed, *began],
            ["", ""],
            _pairs(card["model"] | {"network": card["model"]["network"]["name"]}),
        ),
        Part("intended_use", "Intended use", [], ["", ""], list(card["intended_use"].items())),
        Part("data", "Data", [], ["site", ""], [[site, compact(said)] for site, said in card["data"].items()]),
        Part("labels", "Labels", [rule], ["class", *words], repaired),
        Part("judged", "Repairs that people judged", [], ["site", "class", "confirmed", "rejected"], judged),
        Part("metrics", "Metrics", behind, ["split", "site", "metric", "value", "95 % interval"], rows),
        *_evaluated(card["evaluation"]),
        Part(
            "thresholds",
            "Thresholds",
            [],
            ["class", "threshold", "not sure", "temperature"],
            _cuts(card["model"]["classes"], thresholds),
        ),
        Part("preprocessing", "Preparation of images", [], ["", ""], _pairs(card["preprocessing"])),
        Part("settings", "Settings", [], ["", ""], _pairs(card["settings"])),
        Part("versions", "Software", [], ["", ""], _pairs(card["versions"])),
        Part("limits", "Limits", card["limits"]),
        *(_checked(number, checklist) for number, checklist in enumerate(card["checklists"])),
    ]


def _evaluated(found: Mapping[str, Any]) -> list[Part]:
    """The part about an evaluation, if the card has one."""
    if not found:
        return []
    people = f"{found['patients']:,} patients" if found["patients"] else "no patient is known"
    words = [
        f"{found['samples']:,} samples, {people}. Intervals: {found['drawn']} drawn again; of sensitivity and"
        " specificity after Wilson. The numbers of the whole split are exact.",
        *([SYNTHETIC_HERE] if found["phantom"] else []),
        *([f"Read as the package says: {found['differs']}."] if found["differs"] else []),
    ]
    if found["groups"]:
        words.append(
            f"A number of a group is held back where it, or the rest, describes 1 to {found['min_count'] - 1} people."
        )
    rows = _measures("all", "mean", found["metrics"])
    for name, said in found["classes"].items():
        rows += _measures("all", name, said)
    for column, groups in found["groups"].items():
        for group, classes in groups.items():
            for name, said in classes.items():
                where = f"{column} {group}"
                rows += _measures(where, name, said) if isinstance(said, Mapping) else [[where, name, said, "", ""]]
    title = f"{'PHANTOM ' if found['phantom'] else ''}Evaluated at {found['site']}, {found['split']} split"
    return [Part("evaluation", title, words, ["group", "class", "metric", "value", "95 % interval"], rows)]


def _checked(number: int, checklist: Mapping[str, Any]) -> Part:
    words = f"{checklist['source']}. {PARAPHRASED}"
    rows = [[*item.values()] for item in checklist["items"]]
    return Part(f"checklist{number}", checklist["name"], [words], ["item", "about", "answer", "part"], rows)


def _measures(group: str, name: str, said: Mapping[str, Mapping]) -> list[list[object]]:
    return [[group, name, metric, _value(m["value"]), _ends(m["interval"])] for metric, m in said.items()]


def _cuts(classes: Sequence[str], thresholds: Mapping[str, list]) -> list[list[str]]:
    """Class, threshold, band and temperature, or the reason why there are none."""
    if not thresholds:
        return []
    blank = [""] * len(classes)
    columns = [thresholds.get(name, blank) for name in ("threshold", "not_sure", "temperature", "not_fitted")]
    return [
        [name, f"n/a: {why}", "", ""] if why else [name, _value(cut), _ends(band), "" if t == "" else _value(t)]
        for name, cut, band, t, why in zip(classes, *columns, strict=True)
    ]


def _pairs(values: Mapping[str, object]) -> list[list[str]]:
    return [[name, compact(value)] for name, value in values.items()]


def _value(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _ends(ends: Sequence[float] | None) -> str:
    return f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""


def _markdown(card: Mapping[str, Any]) -> str:
    lines = [f"# {markdown(card['title'])}", ""]
    lines += [f"**PHANTOM data.** {_synthetic(card)}", ""] if card["phantom"] else []
    for part in _parts(card):
        if not part.words and not part.rows:
            continue
        lines += [f"## {markdown(part.title)}", "", *(f"- {markdown(word)}" for word in part.words), ""]
        if part.rows:
            lines += [_row(part.head), _row(["---"] * len(part.head)), *map(_row, part.rows), ""]
    return "\n".join(lines)


def _synthetic(card: Mapping[str, Any]) -> str:
    real = any(said.get("phantom") is False for said in card["data"].values())
    return MIXED if real else SYNTHETIC


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(markdown(cell) for cell in cells)} |"


def _page(card: Mapping[str, Any]) -> str:
    body = ""
    for part in _parts(card):
        if part.words or part.rows:
            words = "".join(f"<p>{escape(word)}</p>" for word in part.words)
            body += section(
                part.anchor, part.title, words, table(part.title, part.head, part.rows) if part.rows else ""
            )
    below, name = phantom_note(_synthetic(card)) if card["phantom"] else "", card["model"]["name"]
    return whole_page(f"Model card of {name}", below, body, "FedMend model card", phantom=card["phantom"])
