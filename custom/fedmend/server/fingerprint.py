"""What a run was made by: a job that goes on with it must share that, or name what it changes."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata

from fedmend.basics.files import sha256
from fedmend.errors import FedMendError
from fedmend.learning.bundles import file_of
from fedmend.learning.network_names import plain_name

# The server's; other versions may give other numbers.
PACKAGES = ("fedmend", "nvflare", "torch", "torchvision", "monai", "numpy")
SUBMITTER, WEIGHTS = "submitter", "weights_file"
# The first two name what the job does otherwise, on purpose, and are no differences; the last changes no number.
FREE = ("allow_changes", "without", "share_model")
LEDGERS = "ledgers"  # may be named too: sites go on with the ledgers that they have, see Ledger.check_mark
DATA = {"train": "training_images", "val": "evaluation_data", "test": "evaluation_data"}  # of sites, by split
LONGEST_VALUE = 60  # characters of a value in a sentence

Fingerprint = Mapping[str, object]
Marks = Mapping[str, Mapping[str, str]]  # site → split → mark of its data, see fedmend.messages.SiteResult


def fingerprint(*settings: Mapping[str, object], weights: str = "") -> dict[str, object]:
    """Everything that decides what comes out of a run, by name; ``phantom.images`` is a value inside a mapping.

    Args:
        settings: all settings of both sides, classes of components, submitter; a later mapping wins.
        weights: file of the initial weights, or empty.
    """
    given = {k: v for mapping in settings for k, v in mapping.items()}
    packages = (*PACKAGES, "timm") if plain_name(str(given.get("network", ""))).startswith("timm/") else PACKAGES
    found: dict[str, object] = {name: _version(name) for name in packages}
    file = file_of(weights) if weights else None
    found[WEIGHTS] = sha256(file) if file and file.is_file() else ""
    for name, value in given.items():
        found |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {name: value}
    for name in FREE:
        found.pop(name, None)
    return json.loads(json.dumps(found, default=str))


def versions() -> dict[str, str]:
    """Package → version, of those that decide what comes out of a run."""
    return {name: _version(name) for name in PACKAGES}


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def changes(before: Fingerprint, now: Fingerprint, allowed: Sequence[str], where: str) -> dict[str, list]:
    """What a job changes in the run that it goes on with.

    Args:
        before: of the earlier job.
        now: of this one.
        allowed: names of differences that somebody wants.
        where: the run, for messages.

    Returns:
        Name → value before and now (None: there was none), of the differences that are wanted.

    Raises:
        FedMendError: another submitter, or a difference that nobody named.
    """
    if before.get(SUBMITTER) != now.get(SUBMITTER):
        raise FedMendError(
            f"{where}: expected a job of the person who submitted the run first, got one of another person; choose"
            " another run_name"
        )
    different = sorted(k for k in {*before, *now} if (k in before, before.get(k)) != (k in now, now.get(k)))
    if unnamed := [name for name in different if name not in allowed]:
        said = "; ".join(f"{_shown(k)}: before {_value(k, before)}, now {_value(k, now)}" for k in unnamed)
        names = json.dumps([_shown(name) for name in different])
        raise FedMendError(
            f"{where}: expected the settings of the job before, got others ({said}); choose another run_name, or change"
            f" them on purpose by allow_changes={names}"
        )
    return {name: [_told(name, before), _told(name, now)] for name in different}


def _told(name: str, among: Fingerprint) -> object:
    """A value that the lead may read; the hash of a file of the server would tell what is in any file."""
    value = among.get(name)
    return "a file" if name == WEIGHTS and value else value


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:LONGEST_VALUE]


def _value(name: str, among: Fingerprint) -> str:
    if name not in among:
        return "nothing"
    text = json.dumps(_told(name, among))
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def other_data(before: Marks, now: Marks, allowed: Sequence[str], where: str) -> dict[str, list[str]]:
    """The sites whose data are not those that the run had of them.

    Args:
        before: site → split → mark, of the earlier jobs.
        now: of this one; sites that are new to the run, or that are not there, have changed nothing.
        allowed: names of differences that somebody wants, of those in ``DATA``.
        where: the run, for messages.

    Returns:
        Site → splits that are others than before, one came or went; of the differences that are wanted.

    Raises:
        FedMendError: a difference that nobody named.
    """
    found: dict[str, list[str]] = {}
    for site in sorted({*before} & {*now}):
        if splits := [s for s in DATA if before[site].get(s) != now[site].get(s)]:
            found[site] = splits
    names = sorted({DATA[split] for splits in found.values() for split in splits})
    if not {*names} <= {*allowed}:
        said = "; ".join(f"{site}: {', '.join(splits)}" for site, splits in found.items())
        raise FedMendError(
            f"{where}: expected the images and labels that the run has seen at each site, got others ({said}); have the"
            " earlier ones put back, choose another run_name, or go on with these on purpose by"
            f" allow_changes={json.dumps(names)}"
        )
    return found
