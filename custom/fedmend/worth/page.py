"""``worth.html``: a hospital's own model, the federated one, and that one trained on there, on its test split."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from fedmend.basics.files import make_folder, write_text
from fedmend.basics.page import phantom_note, section, short_name, table, whole_page
from fedmend.errors import FedMendError
from fedmend.learning.networks import initial_network
from fedmend.package import Package
from fedmend.records.package_files import SUFFIX
from fedmend.worth.home import Home
from fedmend.worth.paired import RESAMPLES, Compared, Difference, check_units, compare
from fedmend.worth.personal import EPOCHS, check_out, given_model, personalise, settings_of, write_personal
from fedmend.worth.training import ALL, Trained, plan_of, solve_at, train_at

PAGE, NUMBERS = "worth.html", "worth.json"
ALONE, FEDERATED, PERSONALISED = "alone", "federated", "personalised"
WORDS = {
    ALONE: "trained here, on this hospital's labels alone, as long as a site of the federation trained",
    FEDERATED: "the model of the package as it came",
    PERSONALISED: "the model of the package, trained on here",
}
SYNTHETIC = "Every image of this site is synthetic; the numbers say nothing about patients."
STAYS = "This page stays where it was written; no command sends it."
CHOSEN = (
    "The epochs of the models trained here were chosen on the validation split. All numbers below are of the test"
    " split, which chose nothing. The page recommends no model: whoever chooses one by these numbers needs other"
    " samples to say how good it is."
)


@dataclass(frozen=True)
class Worth:
    """What a federated model is worth at a hospital.

    Attributes:
        site: its name.
        package: name of the package.
        phantom: the data are synthetic.
        alone: the hospital's own training.
        personal: the training on.
        layers: that the latter trained.
        repaired: training labels that are not the site's own.
        started: what the run of the package started from, if not from random weights; empty: from random ones, as
            the hospital's own model.
        unknown: classes of which no training label is known here.
        compared: the three models on the test split.
    """

    site: str
    package: str
    phantom: bool
    alone: Trained
    personal: Trained
    layers: str
    repaired: int
    started: str
    unknown: Sequence[str]
    compared: Compared


def worth(
    package: Package, home: Home, out: Path, *, layers: str = ALL, epochs: int = EPOCHS, weights: str = ""
) -> Worth:
    """Trains a model of the hospital's own and the package's model on, and writes page, numbers and package.

    Args:
        package: the federated model.
        home: the hospital.
        out: folder for ``worth.html``, ``worth.json`` and the package of the hospital.
        layers: as of :func:`fedmend.worth.training.train_at`.
        epochs: of the training on, at most.
        weights: file that the hospital's own model starts from; empty: random weights.

    Raises:
        FedMendError: no test split, or as the trainings raise.
    """
    test = home.site.data.evaluation.get("test")
    if test is None:
        raise FedMendError(f"{home.site.name}: site.json, field splits: expected test to compare models on, got none")
    check_units(home.site.name, test)  # before hours of training
    goal = out / f"{package.name}-personal{SUFFIX}"
    check_out(goal)
    settings = settings_of(package)
    federated = given_model(package, home)
    alone = _alone(package, home, weights)
    personal = personalise(package, home, layers=layers, epochs=epochs)
    models = {ALONE: alone.model, FEDERATED: federated, PERSONALISED: personal.model}
    started = "" if weights or not alone.epochs else str(settings.get("weights") or "")
    compared = compare(home.kind, models, test, home.site)
    about = (home.site.name, package.name, home.phantom, alone, personal, layers, home.repaired)
    unknown = [name for name, known in zip(package.classes, home.site.data.annotated, strict=True) if not known]
    found = Worth(*about, started=started, unknown=unknown, compared=compared)
    make_folder(out)
    write_personal(goal, package, home, personal, layers=layers)
    write_text(out / NUMBERS, json.dumps(_numbers(found), indent=2) + "\n")
    write_text(out / PAGE, page(found))
    return found


def _alone(package: Package, home: Home, weights: str) -> Trained:
    """The hospital's own model, which came about as that of the run."""
    settings = settings_of(package)
    if (package.info.get("provenance") or {}).get("trains") is False:
        if weights:
            words = "expected none for a package of heads, whose network was not trained"
            raise FedMendError(f"--weights: {words}, got a file")
        return solve_at(home, given_model(package, home), settings)
    name, seed = str(package.info["network"]["name"]), int(settings.get("seed", 0))
    own = initial_network(name, package.classes, seed, weights).to(home.site.device)
    return train_at(home, own, plan_of(settings, package.name, home), from_start=True)


def _numbers(found: Worth) -> dict:
    trained = {
        name: {key: value for key, value in vars(t).items() if key != "model"}
        for name, t in ((ALONE, found.alone), (PERSONALISED, found.personal))
    }
    keys = ("site", "package", "phantom", "layers", "repaired", "started", "unknown")
    return {**{key: getattr(found, key) for key in keys}, "split": "test", "trained": trained, **asdict(found.compared)}


def page(found: Worth) -> str:
    """The page as HTML."""
    compared = found.compared
    metrics = list(next(iter(compared.metrics.values())))
    rows = [[name, *(_with_interval(values[m]) for m in metrics)] for name, values in compared.metrics.items()]
    apart = "samples" if compared.units == compared.samples else "volumes"
    unit = "patients" if compared.by_patient else f"{apart}, as patients are not known"
    caption = (
        f"The test split of {found.site}: {compared.samples:,} samples; 95 % intervals over {compared.units:,} {unit}"
    )
    head = ["Model", *map(short_name, metrics)]
    body: str = section("test", "Three models on the same test split", table(caption, head, rows))
    rows = [[f"{d.first} − {d.second}", *(_judged(d.metrics[m]) for m in metrics)] for d in compared.differences]
    caption = f"Paired differences; the same {RESAMPLES} resamples for both models"
    said = "".join(f"<li>{escape(line)}</li>" for line in sentences(compared.differences, metrics[0]))
    head[0] = "Difference"
    body += section("differences", "Was it worth it?", f"<ul>{said}</ul>", table(caption, head, rows))
    body += section("trained", "How the models came about", _trained(found))
    below = f"<p class='sub'>{escape(f'Package {found.package} at {found.site}')}</p>"
    below += phantom_note(SYNTHETIC) if found.phantom else ""
    below += f"<p>{escape(CHOSEN)}</p>"
    return whole_page(f"Worth at {found.site}", below, body, escape(STAYS), phantom=found.phantom)


def sentences(differences: Sequence[Difference], metric: str) -> list[str]:
    """A sentence about each difference in one metric, which says whether its interval leaves out 0."""
    lines = []
    for d in differences:
        found = d.metrics[metric]
        if found is None:
            lines.append(f"{d.first} against {d.second}: {short_name(metric)} cannot be measured")
            continue
        value, low, high = found
        # A bootstrap may leave the value itself out of its interval, and then nothing is certain either.
        verdict = "higher" if min(value, low) > 0 else "lower" if max(value, high) < 0 else "not certain"
        ends = f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(f"{d.first} against {d.second}: {short_name(metric)} {ends}, {verdict}")
    return lines


def _trained(found: Worth) -> str:
    lines = [f"{name}: {words}" for name, words in WORDS.items()]
    metric = f"{short_name(found.alone.metric)} on validation"
    if found.alone.epochs:
        lines[0] += f"; epoch {found.alone.chosen} of {found.alone.epochs}, chosen by {metric}"
    else:
        lines[0] = f"{ALONE}: heads solved here, from this hospital's labels alone, on the network of the package"
    personal = found.personal
    lines[2] += f", layers: {found.layers}; epoch {personal.chosen} of {personal.epochs}, chosen by {metric}"
    if not personal.chosen:
        lines[2] += "; no epoch was better on validation, so this is the model as it came"
    if found.unknown:
        lines.append(
            f"Nobody has labelled {', '.join(found.unknown)} here: training on may forget them, which a validation"
            " split without them cannot see"
        )
    if found.started:
        lines.append(
            f"The run started from weights ({found.started}) that the hospital's own model did not have, which helps"
            " the other two: --weights gives it a file"
        )
    lines.append(
        f"{found.repaired:,} training labels (of masks pixels) were as repaired or judged, not as in the table"
    )
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _with_interval(value: tuple[float, float, float] | None) -> str:
    return "n/a" if value is None else f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"


def _judged(value: tuple[float, float, float] | None) -> str:
    return "n/a" if value is None else f"{value[0]:+.3f} ({value[1]:+.3f} to {value[2]:+.3f})"
