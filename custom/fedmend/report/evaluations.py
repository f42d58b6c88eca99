"""The page of a job that evaluates packages: models against sites, and subgroups."""

from collections.abc import Mapping
from html import escape
from typing import Any

from fedmend.basics.page import number, phantom_note, section, short_name, table, whole_page
from fedmend.basics.words import in_order
from fedmend.records.run_folder import FEW

SYNTHETIC = "A model or the data of a site are synthetic; the numbers say nothing about patients."
FOOTER = (
    f"Only counts have left the sites. A class is left out of the row of a site that has {FEW}. A subgroup is"
    " counted where a site lets it be and has enough people in it; a small one, and what would give it away, stays."
)


def evaluations_page(results: Mapping[str, Any]) -> str:
    """The page of a run.

    Args:
        results: content of ``results.json``.
    """
    packages, best = results["packages"], results["best_metric"]
    splits = sorted({split for found in packages.values() for split in found["splits"]}, reverse=True)
    body = "".join(_matrix(packages, split, best) + _classes(packages, split, results["classes"]) for split in splits)
    body += _groups(packages, results) if any(found["groups"] for found in packages.values()) else ""
    words = f"{len(packages)} packages"
    words += ", each at every site" if not any(_absent(packages, split) for split in splits) else ""
    below = f"<p class='sub'>{escape(words)}</p>" + (phantom_note(SYNTHETIC) if results["phantom"] else "")
    return whole_page("Models at the sites", below, body, escape(FOOTER), phantom=results["phantom"])


def _matrix(packages: Mapping[str, Mapping], split: str, best: str) -> str:
    sites = in_order({s for found in packages.values() for s in found["splits"].get(split, {}).get("sites", ())})
    rows: list[list[object]] = []
    for package, found in packages.items():
        if split not in found["splits"]:
            continue
        whole, alone = found["splits"][split]["all"], found["splits"][split]["sites"]
        ends = whole["intervals"].get(best)
        shown = f"{number(ends[0])} to {number(ends[1])}" if ends else "–"
        rows.append(
            [package, whole["macro"][best], shown, *(alone[s]["macro"][best] if s in alone else None for s in sites)]
        )
    caption = f"{short_name(best)} on the {split} splits, mean over classes; the interval draws images again"
    matrix = table(caption, ["Package", "All sites", "95 %", *sites], rows)
    means = {
        name: found["splits"][split]["all"]["macro"] for name, found in packages.items() if split in found["splits"]
    }
    names = dict.fromkeys(
        name for macro in means.values() for name in macro
    )  # one without a val split chose no threshold
    rows = [[package, *map(macro.get, names)] for package, macro in means.items()]
    every = table("All sites together", ["Package", *map(short_name, names)], rows)
    lacking = "; ".join(f"{package} without {', '.join(found)}" for package, found in _absent(packages, split).items())
    said = (
        "Not every site has answered: {}. Numbers of all sites are of other images there than those of other packages."
    )
    note = f'<p class="flag">{escape(said.format(lacking))}</p>' if lacking else ""
    return section(f"models-{split}", f"Models and sites, {split}", note, matrix, every)


def _absent(packages: Mapping[str, Mapping], split: str) -> dict[str, list[str]]:
    """Package → sites that have told others of a split, and not of this one."""
    told = {package: {*found["splits"].get(split, {}).get("sites", ())} for package, found in packages.items()}
    every = {site for sites in told.values() for site in sites}
    return {package: in_order(every - sites) for package, sites in told.items() if every - sites}


def _classes(packages: Mapping[str, Mapping], split: str, classes: list[str]) -> str:
    tables = []
    for package, found in packages.items():
        if split not in found["splits"]:
            continue
        whole = found["splits"][split]["all"]
        counted = [key for key in ("positives", "negatives") if key in whole]
        names = [name for name, values in whole["per_class"].items() if isinstance(values, list)]
        rows = [
            [label, *(whole[key][i] for key in counted), *(whole["per_class"][name][i] for name in names)]
            for i, label in enumerate(classes)
        ]
        tables.append(table(package, ["Class", *counted, *map(short_name, names)], rows))
    return section(f"classes-{split}", f"Class by class, {split}", *tables)


def _groups(packages: Mapping[str, Mapping], results: Mapping[str, Any]) -> str:
    best = results["best_metric"]
    rows: list[list[object]] = []
    for package, found in packages.items():
        for group in results["subgroups"]:
            if group not in found["groups"]:
                rows.append([package, group, "held back", "–", "–", "–"])
                continue
            told = found["groups"][group]
            ends = told["intervals"].get(best)
            shown = f"{number(ends[0])} to {number(ends[1])}" if ends else "–"
            values = next(v for v in told["per_class"].values() if isinstance(v, list))
            over = f"{sum(v is not None for v in values)} of {len(values)}"
            rows.append([package, group, ", ".join(told["sites"]), over, number(told["macro"][best]), shown])
    caption = f"On the {results['split']} splits of the sites; means are over the classes measured there"
    head = ["Package", "Subgroup", "Told by", "Classes measured", short_name(best), "95 %"]
    return section("groups", "Subgroups", table(caption, head, rows))
