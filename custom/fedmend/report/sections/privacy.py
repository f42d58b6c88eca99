"""What the report of a run shows of differential privacy: what each site that keeps it has spent."""

from collections.abc import Mapping

from fedmend.basics.page import Section, number, section, table
from fedmend.records.run_folder import RunFiles
from fedmend.report.parts import Part

OWN = {"privacy": Mapping}
WORDS = {
    "Differential privacy (epsilon, delta)": "What leaves a site is almost the same with and without any one of its "
    "patients: no answer gets more likely than exp(epsilon) times, but for a chance of delta. Below 1 is strong, "
    "above 10 promises little. Epsilon counts all jobs of the site so far.",
}
NOTE = "Loss, label counts and evaluation of these sites stay there; the number of their images is not protected."


def _spent(run: RunFiles) -> Mapping[str, Mapping[str, float]]:
    """Site → the last that it told."""
    told: dict[str, Mapping[str, float]] = {}
    for value in run.decided("privacy", OWN).values():
        told.update(value)
    return dict(sorted(told.items()))


def spent(run: RunFiles) -> Section:
    """Sites with epsilon, delta, noise and clipping."""
    if not (found := _spent(run)):
        return Section()
    rows = [
        [site, number(t["epsilon"]), f"{t['delta']:.2g}", f"{t['noise_multiplier']:g}", f"{t['clip']:g}"]
        for site, t in found.items()
    ]
    head = ["Site", "Epsilon", "Delta", "Noise multiplier", "Clip"]
    return section("privacy", "Differential privacy", table("Spent so far", head, rows) + f"<p class='fine'>{NOTE}</p>")


def spent_lines(run: RunFiles) -> list[str]:
    """The same for the plain text."""
    return [f"Privacy, {site}: epsilon {t['epsilon']:.3g}, delta {t['delta']:.2g}" for site, t in _spent(run).items()]


PART = Part(place=900, sections=(spent,), lines=spent_lines, own=OWN, words={"privacy": WORDS})
