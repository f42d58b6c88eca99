"""What the report of a run shows of FedMLP: its learning degrees."""

from collections.abc import Mapping

from fedmend.basics.page import Section, section
from fedmend.records.run_folder import RunFiles
from fedmend.report.figures import Line, Panel, grid_figure
from fedmend.report.parts import Part

OWN = {"learning_degree": Mapping}
WORDS = {
    "Prototype": "The mean internal description (feature vector) that the model gives to images with a finding, or "
    "to images without it. The clearest images get the pseudo-label of the prototype that they resemble more.",
    "Learning degree": "How well the model has learnt a class so far, from 0 to 1: the share of images on which it "
    "is sure. The higher it is, the more pseudo-labels are set in the next round.",
}


def learning_degree(run: RunFiles) -> Section:
    """Learning degree of each class, from 0 to 1, over rounds."""
    found = run.decided("learning_degree", OWN)
    if not found:
        return Section()
    lines = {name: Line([*found], [value.get(name) for value in found.values()]) for name in run.info["classes"]}
    story = [f"{name} {line.values[-1]:.2f}" for name, line in lines.items() if line.values[-1] is not None]
    figure = grid_figure(
        "learning-degree-curves",
        [Panel(name, [line]) for name, line in lines.items()],
        alt=f"Learning degree over rounds, at the end: {'; '.join(story)}.",
        ylim=(0.0, 1.05),
        legend={"main": "learning degree"},
        **run.frame,
    )
    return section("learning-degree", "Learning degree", figure)


PART = Part(place=20, sections=(learning_degree,), own=OWN, words={"learning_degree": WORDS}, words_before="Warm-up")
