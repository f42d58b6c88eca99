"""What the report of a run shows of differential privacy: what each site that keeps it has spent."""

from collections.abc import Mapping

from fedmend.basics.page import Section, number, section, table
from fedmend.basics.words import in_order
from fedmend.records.run_folder import RunFiles
from fedmend.report.parts import Part

OWN = {"privacy": Mapping}
WORDS = {
    "Differential privacy (epsilon, delta)": "What leaves a site is almost the same with and without any one of its "
    "patients: no answer gets more likely than exp(epsilon) times, but for a chance of delta. Below 1 is strong, "
    "above 10 promises little. Epsilon counts all jobs of the site so far, by the accountant that gives less: PRV "
    "with the bound of its error, or RDP.",
}
NOTE = "Loss, label counts and evaluation of these sites stay there; the number of their images is not protected."


SETTINGS = ("delta", "noise_multiplier", "clip")


def _spent(run: RunFiles) -> Mapping[str, Mapping[str, float]]:
    """Site → the last that it told."""
    told: dict[str, Mapping[str, float]] = {}
    for value in run.decided("privacy", OWN).values():
        told.update(value)
    return {site: told[site] for site in in_order(told)}


def spent(run: RunFiles) -> Section:
    """Sites with epsilon, delta, noise and clipping."""
    if not (found := _spent(run)):
        return Section()
    rows = [
        [site, number(t["epsilon"]), _accountant(t), *(f"{t[name]:.3g}" for name in SETTINGS)]
        for site, t in found.items()
    ]
    head = ["Site", "Epsilon", "Accountant", "Delta", "Noise multiplier", "Clip"]
    return section("privacy", "Differential privacy", table("Spent so far", head, rows) + f"<p class='fine'>{NOTE}</p>")


def spent_lines(run: RunFiles) -> list[str]:
    """A line for each site in the plain text of a report."""
    return [
        f"Privacy, {site}: epsilon {t['epsilon']:.3g} ({_accountant(t)}), delta {t['delta']:.2g}"
        for site, t in _spent(run).items()
    ]


def _accountant(told: Mapping[str, float]) -> str:
    return "PRV" if told["epsilon"] < told.get("epsilon_rdp", 0.0) else "RDP"


PART = Part(place=900, sections=(spent,), lines=spent_lines, own=OWN, words={"privacy": WORDS})
