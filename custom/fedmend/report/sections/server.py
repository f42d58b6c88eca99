"""What every run shows last: refused results, changed data, other decisions of the server, and where the files are."""

from collections.abc import Mapping
from html import escape

from fedmend.basics.page import Markup, Section, compact, section, table, td
from fedmend.records.run_folder import INPUTS, RunFiles, is_own
from fedmend.report.parts import Part, own_decisions
from fedmend.report.tables import TABLES

OWN = {"refused": Mapping, "other_data": Mapping}


def refused(run: RunFiles) -> Section:
    """Results of sites that the server did not use."""
    found = [d for d in run.decisions if d["what"] == "refused" and is_own(d, OWN)]
    rows = [[d["value"].get("site"), d.get("round", "–"), compact(d["value"].get("reason"))] for d in found]
    if not rows:
        return Section()
    return section("refused", "Refused results", table("Not part of the model", ["Site", "Round", "Reason"], rows))


def other_data(run: RunFiles) -> Section:
    """Sites at which the run went on with other images or labels, as its lead wanted."""
    found = [d for d in run.decisions if d["what"] == "other_data" and is_own(d, OWN)]
    rows = [[site, d["round"] + 1, compact(splits)] for d in found for site, splits in d["value"].items()]
    if not rows:
        return Section()
    title = "Metrics of a split from this round on are not of the same samples as before"
    return section("other-data", "Data that changed in the run", table(title, ["Site", "From round", "Splits"], rows))


def decisions(run: RunFiles) -> Section:
    """Every decision of the server that no other section shows."""
    own = own_decisions()
    rows = [
        [d["what"].replace("_", " "), d.get("round", "–"), td(compact(d.get("value")), "wrap")]
        for d in run.decisions
        if not is_own(d, own)
    ]
    body: str = table("Of the server, in the order of time", ["What", "Round", "Value"], rows)
    if len(rows) > 20:
        body = f"<details><summary>{len(rows)} decisions</summary>{body}</details>"
    return section("decisions", "Decisions", body) if rows else Section()


def files(run: RunFiles) -> Section:
    """Where the models and the data behind this page are."""
    here = ", ".join(name for name in INPUTS if (run.folder / name).exists())
    places = {**run.results.get("files", {}), "data of this page, beside it": here}
    if tables := ", ".join(name for name in TABLES if (run.folder / name).exists()):
        places["tables of the final model, beside it"] = tables
    rows = [[name, Markup(f"<td><code>{escape(str(path))}</code></td>")] for name, path in places.items()]
    return section("files", "Where the files are", table("On the server", ["What", "Where"], rows))


def server_lines(run: RunFiles) -> list[str]:
    """The same for the plain text."""
    count = sum(d["what"] == "refused" for d in run.decisions)
    lines = [f"Refused results: {count}"] if count else []
    for d in run.decisions:
        if d["what"] == "other_data" and is_own(d, OWN):
            lines.append(f"Other data than before from round {d['round'] + 1} on: {compact(d['value'])}")
    return lines + [f"{name}: {path}" for name, path in run.results.get("files", {}).items()]


PART = Part(place=1000, sections=(refused, other_data, decisions, files), lines=server_lines, own=OWN)
