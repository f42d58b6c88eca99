"""The arguments that a job gives to FedMend's classes, found by name: what ``--set`` changes and a report lists."""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from fedmend.basics.json_files import parse_json
from fedmend.errors import FedMendError
from fedmend.phantoms.sites import phantom_spec
from fl_components.job.reading import BASELINES, listed

OURS = ("fedmend.", "fl_components.")  # arguments of FLARE's own components are wiring, not settings
METHOD, WORKFLOW, CONTROLLER = "method", "workflow", "rounds"  # ids of components in every job that trains
EXECUTOR = "executor"  # FLARE gives executors no id
# Importing runs code: nothing else that a job names is imported without FLARE's check.
METHODS = ("fedmend.methods.", BASELINES, "fedmend.evaluation.")
# Type of an argument's value: what it is called, which may take its place.
KINDS: dict[type, tuple[str, set[type]]] = {
    bool: ("true or false", {bool}),
    int: ("a whole number", {int}),
    float: ("a number", {int, float}),
    str: ("text", {str}),
    list: ("a list", {list}),
    dict: ("a mapping or null", {dict, type(None)}),
}


@dataclass(frozen=True)
class Component:
    """One of FedMend's classes in a job.

    Attributes:
        id: its id in the configuration; ``executor`` for what FLARE gives no id.
        path: the class.
        args: its arguments, the mapping in the configuration itself: to change it is to change the job.
    """

    id: str
    path: str
    args: dict[str, Any]

    def find(self) -> Any:
        """What its path names among FedMend's methods; None: there is nothing of this name."""
        module, _, name = self.path.rpartition(".")
        if self.path.startswith(METHODS):
            with suppress(ImportError, AttributeError):
                return getattr(importlib.import_module(module), name)
        return None


Home = tuple[Component, dict, str]  # component, mapping that holds the value, key in it


def parts(client: Mapping, server: Mapping) -> list[Component]:
    """FedMend's executors, workflows and components of ``config_fed_client.json`` and ``config_fed_server.json``."""
    found = [entry for config in (client, server) for entry in listed(config)]
    return [
        Component(part.get("id", EXECUTOR if place.startswith("executors") else ""), part["path"], part.get("args", {}))
        for place, part in found
        if part.get("path", "").startswith(OURS) and not place.startswith("task_")
    ]


def job_settings(client: Mapping, server: Mapping) -> dict[str, Any]:
    """All arguments of :func:`parts` by name; ``id.name`` where a name has several values."""
    found: dict[str, list[tuple[str, object]]] = {}
    for part in parts(client, server):
        for name, value in part.args.items():
            found.setdefault(name, []).append((part.id, value))
    settings: dict[str, Any] = {}
    for name, homes in found.items():
        clash = any(value != homes[0][1] for _, value in homes)
        settings |= {f"{home}.{name}" if clash else name: value for home, value in homes}
    return settings


def parse_assignments(pairs: Sequence[str]) -> dict[str, object]:
    """``name=value`` words → mapping; a value that parses as JSON becomes what it says, any other is text.

    Raises:
        FedMendError: a word without ``=``.
    """
    parsed = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise FedMendError(f"--set: expected name=value, got {pair!r}")
        try:
            parsed[name] = parse_json(text)
        except ValueError:
            parsed[name] = text
    return parsed


def has(name: str, among: Sequence[Component]) -> bool:
    """Whether an argument of this name can be set."""
    return bool(_homes(name, among))


def assign(name: str, value: object, among: Sequence[Component], *, word: str = "--set") -> None:
    """Changes an argument wherever it stands.

    Args:
        name: of the argument; ``phantom.images`` reaches into a mapping, ``method.la`` names one of several places.
        value: new value.
        among: parts of the job, whose arguments are changed.
        word: what the person typed, for messages.

    Raises:
        FedMendError: unknown name, a name with several values, or a value of another kind than the job's.
    """
    homes = _homes(name, among)
    if not homes:
        raise FedMendError(f"{word}: expected a setting of this job, got {name!r}; {_nearest(name, among)}")
    if _values_differ(homes):
        places = ", ".join(f"{part.id}.{name}" for part, _, _ in homes)
        raise FedMendError(f"{word}: expected one of {places}, got {name!r}, which has several values in this job")
    for part, container, key in homes:
        if container is part.args:
            check_kind(name, container[key], value)
        container[key] = value
        phantom = part.args.get("phantom")
        if phantom and (key == "phantom" or container is phantom):
            _check_phantom(phantom)


def check_kind(name: str, old: object, new: object) -> None:
    """Refuses a value of another kind than the one whose place it takes.

    Raises:
        FedMendError: e.g. text for a number.
    """
    if type(old) in KINDS and type(new) not in KINDS[type(old)][1]:
        raise FedMendError(f"job variable {name}: expected {KINDS[type(old)][0]}, got {new!r:.100}")


def _homes(name: str, among: Sequence[Component]) -> list[Home]:
    head, dot, rest = name.partition(".")
    if not dot:
        return [(part, part.args, name) for part in among if name in part.args]
    mapped = [(part, part.args[head], rest) for part in among if isinstance(part.args.get(head), dict)]
    return mapped or _homes(rest, [part for part in among if part.id == head])


def _values_differ(homes: Sequence[Home]) -> bool:
    values = [container if container is not part.args else container[key] for part, container, key in homes]
    return any(value != values[0] for value in values)


def _nearest(name: str, among: Sequence[Component]) -> str:
    plain = sorted({key for part in among for key in part.args})
    dotted = {f"{part.id}.{key}" for part in among for key in part.args}
    dotted |= {f"{k}.{field}" for part in among for k, v in part.args.items() if isinstance(v, dict) for field in v}
    near = get_close_matches(name, sorted(dotted) if "." in name else plain)
    return f"nearest: {', '.join(near)}" if near else f"its settings: {', '.join(plain)}"


def _check_phantom(given: Mapping[str, Any]) -> None:
    cls: Any = type(phantom_spec(given))
    usual = asdict(cls())
    for field, value in given.items():
        check_kind(f"phantom.{field}", usual[field], value)
