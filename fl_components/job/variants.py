"""Variants of jobs: files with settings and components that ``--variant`` puts in place of a job's own.

``paper`` has every number of the paper. Another variant beside it says what is different, so paper gives way to it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmend.basics.checked import OBJECT, TEXT, checked, taking, that
from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError
from fl_components.job.settings import Component, assign, has, parts
from fl_components.job.table_entries import TableEntry

FOLDER = "variants"
SHARED = Path(__file__).resolve().parents[2] / "jobs" / FOLDER  # of the checkout, for copies of jobs elsewhere
PAPER = "paper"


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a component.

    Attributes:
        path: of its class.
        args: its arguments.
        keep: names of arguments that keep the values that they have in the job.
    """

    path: str = taking(TEXT)
    args: Mapping[str, object] = taking(OBJECT, default_factory=dict)
    keep: Sequence[str] = taking(that(lambda names: isinstance(names, list), "a list of names"), default=())


@dataclass(frozen=True)
class Variant:
    """Content of a variant's file.

    Attributes:
        name: the file's name.
        about: what it is, in a line.
        components: id of a component → what takes its place.
        set: setting → value, as for ``--set``.
        with_paper: the same beside ``paper``, where it comes before ``set``.
        own: it belongs to one job, not to all jobs of a problem.
        table: its row in the paper's table; None: it has none.
    """

    name: str
    about: str = taking(TEXT, default="")
    components: Mapping[str, Replacement] = taking(OBJECT, default_factory=dict)
    set: Mapping[str, object] = taking(OBJECT, default_factory=dict)
    with_paper: Mapping[str, object] = taking(OBJECT, default_factory=dict)
    own: bool = False
    table: TableEntry | None = taking(TableEntry, default=None)


def read_variant(file: Path, *, own: bool = False) -> Variant:
    """Reads the file of a variant.

    Raises:
        FedMendError: it does not parse, or has keys or values of another kind.
    """
    where = f"variant {file.stem}"
    variant = checked(Variant, read_document(file, where, "in the folder of variants"), where, name=file.stem, own=own)
    components = {
        name: checked(Replacement, component, where, inside=f"components.{name}")
        for name, component in variant.components.items()
    }
    return replace(variant, components=components)


def variants_of(job: Path, problem: str) -> dict[str, Variant]:
    """Name → variant of all that a job has: those of its problem, and its own, which come before them.

    Raises:
        FedMendError: see :func:`read_variant`.
    """
    job = job.resolve()
    shared = [job.parent / FOLDER / problem, SHARED / problem] if problem else []
    place = next((folder for folder in shared if folder.is_dir()), None)
    files = {file.stem: (file, False) for file in (place.glob("*.json") if place else ())}
    files |= {file.stem: (file, True) for file in (job / FOLDER).glob("*.json")}
    return {name: read_variant(file, own=own) for name, (file, own) in sorted(files.items())}


def choose(known: Mapping[str, Variant], names: Sequence[str]) -> list[Variant]:
    """The variants of these names, always in the same order: those with settings alone, then those with components.

    Raises:
        FedMendError: unknown name, or variants that contradict each other.
    """
    for name in names:
        if name not in known:
            raise FedMendError(f"variant: expected one of {', '.join(sorted(known))}, got {name!r}")
    if len(set(names)) < len(names):
        raise FedMendError(f"variant: expected each variant once, got {','.join(names)}")
    if PAPER in names:
        known = {name: replace(v, set={**v.set, **v.with_paper}) for name, v in known.items()}
    taken = {setting for name in names if name != PAPER for setting in _values(known[name])}
    chosen = sorted(
        (_without(known[name], taken) if name == PAPER else known[name] for name in names),
        key=lambda v: (bool(v.components), not v.own, v.name),
    )
    given: dict[str, tuple[str, object]] = {}  # setting → first variant with it, value
    replaced: dict[str, str] = {}  # component → variant
    for variant in chosen:
        for component in variant.components:
            if other := replaced.get(component):
                raise FedMendError(
                    f"variant: expected one variant that replaces the {component}, got {other} and {variant.name}"
                )
            replaced[component] = variant.name
        for name, value in _values(variant).items():
            other, first = given.setdefault(name, (variant.name, value))
            if value != first:
                values = f"{json.dumps(first)} of {other} and {json.dumps(value)} of {variant.name}"
                raise FedMendError(f"variant: expected one value of {name}, got {values}")
    return chosen


def apply(chosen: Sequence[Variant], client: Mapping, server: Mapping) -> None:
    """Changes both configurations by what :func:`choose` returned.

    Settings are set before components are replaced, so that what a new component keeps has the value of the variants,
    and again afterwards, for those that only the new ones have.

    Raises:
        FedMendError: a setting that the job has neither before nor after, a component or argument that it lacks, or a
            variant without any effect.
    """
    known = {variant.name: _set(variant, parts(client, server)) for variant in chosen}
    for variant in chosen:
        for name, new in variant.components.items():
            _replace(variant.name, name, new, client, server)
    final = parts(client, server)
    for variant in chosen:
        found = _set(variant, final)
        for name in variant.set:
            if name not in {*known[variant.name], *found}:
                assign(name, variant.set[name], final, word=f"--variant {variant.name}")  # says that it is unknown
        if variant.set and not found and not variant.components:
            others = ", ".join(v.name for v in chosen if v.components)
            raise FedMendError(
                f"--variant {variant.name}: expected a setting of the job with {others}, which has none of it"
            )


def _set(variant: Variant, among: Sequence[Component]) -> list[str]:
    """Sets what there is; returns the names."""
    found = [name for name in variant.set if has(name, among)]
    for name in found:
        assign(name, variant.set[name], among, word=f"--variant {variant.name}")
    return found


def _replace(variant: str, name: str, new: Replacement, client: Mapping, server: Mapping) -> None:
    word = f"--variant {variant}, component {name}"
    found = [c for config in (client, server) for c in config.get("components", []) if c.get("id") == name]
    if not found:
        raise FedMendError(f"{word}: expected in this job, not found")
    (component,) = found
    old = component.get("args", {})
    if missing := [key for key in new.keep if key not in old]:
        raise FedMendError(f"{word}: expected {missing[0]} in the component whose place it takes, not found")
    component["path"] = new.path
    component["args"] = {**{key: old[key] for key in new.keep}, **new.args}


def _without(variant: Variant, settings: Collection[str]) -> Variant:
    """The variant without some of its settings."""
    return replace(variant, set={name: value for name, value in variant.set.items() if name not in settings})


def _values(variant: Variant) -> dict[str, object]:
    """Every setting of a variant, those of its components too."""
    args = [component.args for component in variant.components.values()]
    return {name: value for values in (*args, variant.set) for name, value in values.items()}
