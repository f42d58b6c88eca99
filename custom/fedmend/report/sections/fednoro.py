"""What the report of a run shows of FedNoRo: which sites were judged noisy, and what stage 2 did with them."""

from collections.abc import Mapping
from html import escape
from statistics import fmean

from fedmend.basics.page import Figure, Section, heat, number, section, table, td
from fedmend.basics.words import in_order
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import Line, Panel, grid_figure, share_figure
from fedmend.report.parts import Part

OWN = {"noisy_client_detection": Mapping, "distillation_weight": int | float, "aggregation_weights": Mapping}
WORDS = {
    "Noisy site (noisy client)": "A site whose labels are wrong so often that the model fits them badly. It is told "
    "from the clean ones by the mean losses of its classes after the warm-up; no label leaves the site for that. It "
    "is a judgement, not a proof: unusual images raise the losses too.",
    "Normalised loss": "The mean loss of a class at a site on the scale from 0 (lowest of all sites) to 1 "
    "(highest), so that a rare class counts as much as a frequent one.",
    "Detection vote share": "The mixture model that splits sites into clean and noisy is fitted several times from "
    "different starts. This is the share of fits that found exactly the noisy sites reported here; the lower it is, "
    "the less certain they are.",
    "Knowledge distillation weight": "How much a noisy site learns from the answers of the global model, the rest "
    "being from its own labels: 0 is labels only, 1 is the global model only. It grows over rounds.",
    "Distance-aware aggregation": "The average of the sites' models, in which a noisy site counts the less the "
    "further its model is from the nearest clean one. Without it, each site counts by its number of samples.",
}
SHARES = "What each site counts in the average of the models, in per cent of all sites; dotted: by its samples alone."
JUDGED_NOISY, TAKEN_FOR_NOISY = "judged noisy", "not judged, as noisy"


def _judgements(run: RunFiles) -> dict[str, str]:
    """Site → what stage 2 takes it for, in words."""
    found = run.last_decided("noisy_client_detection", OWN)
    if found is None:
        return {}
    noisy, losses = found[1]["noisy"], found[1]["class_loss"]
    words = {site: JUDGED_NOISY if site in noisy else "judged clean" for site in losses}
    return words | {site: TAKEN_FOR_NOISY for site in found[1].get("absent", ()) if site not in losses}


def noisy_sites(run: RunFiles) -> Section:
    """Sites × classes with the losses behind the judgement, and the judgement in words."""
    found = run.last_decided("noisy_client_detection", OWN)
    if found is None:
        return Section()
    round_num, value = found
    noisy, losses = value["noisy"], value["class_loss"]
    mean = {site: fmean(row) for site, row in value["normalised"].items()}
    darkest = max([1.0, *(x for row in value["normalised"].values() for x in row)])  # beyond 1 where not normalised
    kind = "normalised" if darkest <= 1 else "not normalised"
    classes = run.info["classes"]
    heads = {len(classes): classes, len(classes) + 1: ["background", *classes]}  # the latter for masks
    columns = heads.get(len(next(iter(losses.values()), classes)), ["all classes"])
    rows = []
    for site in sorted(in_order(losses), key=lambda site: (site not in noisy, -mean[site])):
        judged = td("⚠ noisy", "bad") if site in noisy else td("clean", "no")
        cells = [
            td("absent", "no") if loss is None else heat(number(loss), shade / darkest)
            for loss, shade in zip(losses[site], value["normalised"][site], strict=True)
        ]
        rows.append([site, judged, *cells, mean[site]])
    absent = [site for site in value.get("absent", ()) if site not in losses]
    rows += [[site, td("not judged", "no"), *(td("–", "no") for _ in columns), None] for site in in_order(absent)]
    words = f"After round {round_num}, none of {len(losses)} sites was judged noisy."
    if noisy:
        named = ", ".join(in_order(noisy))
        words = f"After round {round_num}, {len(noisy)} of {len(losses)} sites were judged noisy: {named}."
    if (share := value.get("vote_share")) is not None:
        most, what = ("", "exactly this") if noisy else ("At most ", "how the sites are to be split")
        words += f" {most}{share:.0%} of the fits of the mixture model agree on {what} (detection vote share)."
    if absent:
        words += f" Not judged, as no losses came from there, and treated as noisy: {', '.join(in_order(absent))}."
    caption = (
        f"Mean loss of each class after the warm-up; shading: {kind}, from 0 (white) to {darkest:.3g};"
        " absent: the site has no sample of the class, which counts as the lowest loss of all sites"
    )
    head = ["Site", "Judged", *columns, f"mean, {kind}"]
    return section("noisy-sites", "Noisy sites", f"<p>{escape(words)}</p>\n{table(caption, head, rows)}")


def noisy_site_lines(run: RunFiles) -> list[str]:
    """The same for the plain text."""
    found = run.last_decided("noisy_client_detection", OWN)
    if found is None:
        return []
    noisy, share = ", ".join(in_order(found[1]["noisy"])), number(found[1].get("vote_share"))
    return [f"Noisy sites: {noisy or 'none'} (detection vote share {share})"]


def second_stage(run: RunFiles) -> Section:
    """Weights of the knowledge distillation and of the aggregation over rounds."""
    blocks: list[str | Figure] = []
    if distillation := run.decided("distillation_weight", OWN):
        words = "How much noisy sites learn from the answers of the global model; the rest is from their own labels."
        figure = _distillation_figure(distillation, run.frame)
        blocks += [f"<h3>Knowledge distillation weight</h3>\n<p>{words}</p>\n", figure]
    if aggregation := run.decided("aggregation_weights", OWN):
        judgements = _judgements(run)
        figure = share_figure(
            run,
            aggregation,
            judgements,
            legend={"main": "clean site, %", "noisy": "noisy site, %"},
            noisy=[site for site, judged in judgements.items() if judged in (JUDGED_NOISY, TAKEN_FOR_NOISY)],
        )
        blocks += [f"<h3>Distance-aware aggregation</h3>\n<p>{SHARES}</p>\n", figure]
    return section("second-stage", "After the detection", *blocks) if blocks else Section()


def _distillation_figure(weights: Mapping[int, float], frame: Mapping) -> Figure:
    """The knowledge distillation weight, from 0 to 1, over rounds."""
    rounds, values = list(weights), list(weights.values())
    return grid_figure(
        "distillation-curves",
        [Panel("noisy sites", [Line(rounds, values, "noisy")])],
        alt=f"Knowledge distillation weight from {values[0]:.2f} in round {rounds[0]}"
        f" to {values[-1]:.2f} in round {rounds[-1]}.",
        ylim=(0.0, 1.0),
        legend={"noisy": "knowledge distillation weight"},
        **frame,
    )


PART = Part(
    place=40,
    sections=(noisy_sites, second_stage),
    lines=noisy_site_lines,
    own=OWN,
    words={"noisy_client_detection": WORDS},
)
