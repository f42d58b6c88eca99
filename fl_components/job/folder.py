"""Job folders: copies with other settings, and what a job says, for a run without FLARE."""

import codecs
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmend.basics.checked import shown
from fedmend.basics.files import copy_folder, make_folder, whole_folder
from fedmend.errors import FedMendError
from fl_components.job.reading import JobFiles, components, read
from fl_components.job.settings import (
    CONTROLLER,
    EXECUTOR,
    METHOD,
    METHODS,
    WORKFLOW,
    Component,
    assign,
    job_settings,
    parts,
)
from fl_components.job.sites import check_sites
from fl_components.job.variants import Variant, apply, choose, variants_of
from fl_components.tracking import RECEIVERS

MOST_SITES = 10_000  # their names fit into meta.json


@dataclass(frozen=True)
class Changes:
    """How a job differs from what its folder says.

    Attributes:
        variables: setting → value, see :func:`fl_components.job.settings.assign`; set after the variants.
        variants: names of variants, see :mod:`fl_components.job.variants`. ``run_name`` gets their names as an ending,
            always in the same order, unless a variant or ``variables`` sets it.
        sites: number of sites ``site-1`` … in meta.json; 0 keeps what stands there.
        tracking: receivers of metrics to add, see :data:`fl_components.tracking.RECEIVERS`.
    """

    variables: Mapping[str, object] = field(default_factory=dict)
    variants: Sequence[str] = ()
    sites: int = 0
    tracking: Sequence[str] = ()


UNCHANGED = Changes()


@dataclass(frozen=True)
class JobSettings:
    """What a job folder says.

    Attributes:
        name: the job's name.
        problem: the folder of variants that it shares with other jobs.
        app: its app folder.
        sites: names of the sites that it is deployed to.
        run: arguments of the controller.
        site: arguments of the executor.
        workflow: server half of the method.
        method: client half.
        settings: all arguments by name, see :func:`job_settings`.
    """

    name: str
    problem: str
    app: Path
    sites: tuple[str, ...]
    run: Mapping[str, Any]
    site: Mapping[str, Any]
    workflow: Component
    method: Component
    settings: Mapping[str, Any]

    def build(self, component: Component) -> Any:
        """An object of the class that a component names.

        Raises:
            FedMendError: no class of FedMend's methods, or one that does not take these arguments.
        """
        return build(component, self.name)


def build(component: Component, job: str) -> Any:
    """An object of the class that a component of the job of this name has as method or workflow.

    Raises:
        FedMendError: no class of FedMend's methods, or one that does not take these arguments.
    """
    from fedmend.method import LocalMethod, Workflow

    if not component.path.startswith(METHODS):
        *others, last = [package.rstrip(".") for package in METHODS]
        known = f"{', '.join(others)} or {last}"
        raise FedMendError(f"job {job}: expected a class of {known}, got {component.path}")
    wanted, cls = {METHOD: LocalMethod, WORKFLOW: Workflow}[component.id], component.find()
    if cls is None:
        raise FedMendError(f"job {job}: expected {component.path} in this FedMend, not found")
    here = isinstance(cls, type) and cls.__module__ == component.path.rpartition(".")[0]
    if not (here and issubclass(cls, wanted)):
        raise FedMendError(f"job {job}: expected a {wanted.__name__} as {component.id}, got {component.path}")
    return made_of(component, cls, job)


def made_of(component: Component, make: Callable[..., Any], job: str) -> Any:
    """What a class or function makes of a component's arguments.

    Raises:
        FedMendError: it does not take them.
    """
    try:
        return make(**component.args)
    except (AttributeError, TypeError, ValueError, OverflowError) as e:
        why = ascii(f"{e!s:.500}")[1:-1]
        raise FedMendError(f"job {job}: expected arguments of {component.path}, got others: {why}") from None


def configure_job(job: Path, out: Path, changes: Changes = UNCHANGED, *, strict: bool = False) -> None:
    """Copies a job folder with other settings.

    Args:
        job: job folder.
        out: folder to write; must not exist.
        changes: other settings.
        strict: refuse a job that server and sites would refuse, see :func:`fl_components.job.reading.read`.

    Raises:
        FedMendError: no job, unknown variant, setting or receiver, a value of another kind than the job's, or one that
            no run can have.
    """
    before, after = read(job), changed(job, changes, strict=strict)
    check_values(after)
    make_folder(out.parent)
    with whole_folder(out) as temporary:  # half of it would be a job with the settings of the other one
        copy_folder(job, temporary)
        for name, content in after.content.items():
            marked = (temporary / name).read_bytes().startswith(codecs.BOM_UTF8)  # which FLARE cannot read
            if marked or content != before.content[name]:  # what nobody changes stays as it was written
                (temporary / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def configured(job: Path, changes: Changes = UNCHANGED, *, strict: bool = False) -> Iterator[Path]:
    """A copy as :func:`configure_job` makes it, for as long as it is needed; it refuses what that refuses."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / job.resolve().name
        configure_job(job, out, changes, strict=strict)
        yield out


def changed(job: Path, changes: Changes = UNCHANGED, *, strict: bool = False) -> JobFiles:
    """What the files of a job folder would say with other settings.

    Raises:
        FedMendError: see :func:`configure_job`, which writes them.
    """
    if unknown := set(changes.tracking) - set(RECEIVERS):
        raise FedMendError(f"--tracking: expected some of {', '.join(RECEIVERS)}, got {', '.join(sorted(unknown))}")
    files = read(job, strict=strict)
    client, server = files.configs
    chosen = choose(variants_of(job, server.get("problem", "")), changes.variants) if changes.variants else []
    homes = [part.args for part in parts(client, server) if "run_name" in part.args]
    names = [args["run_name"] for args in homes]
    apply(chosen, client, server)
    for args, name in zip(homes, names, strict=True):
        if args["run_name"] == name and isinstance(name, str):  # what else it is, is refused where it is read
            args["run_name"] = "_".join([name, *(variant.name for variant in chosen)])
    among = parts(client, server)
    for name, value in changes.variables.items():
        assign(name, value, among)
    if changes.sites > MOST_SITES:
        raise FedMendError(f"sites: expected at most {MOST_SITES}, got {shown(changes.sites)}")
    if changes.sites:
        names = ["server", *(f"site-{i + 1}" for i in range(changes.sites))]
        files.meta["deploy_map"] = dict.fromkeys(files.meta["deploy_map"], names)
        files.meta["min_clients"] = changes.sites
    server.setdefault("components", []).extend({"id": name, "path": RECEIVERS[name]} for name in changes.tracking)
    files = files.read_again()
    check_sites(files)
    return files


def check_values(files: JobFiles) -> None:
    """Refuses values that no run can have: where FLARE's processes meet them, they end without saying why. A job of
    other classes than FedMend's is left to whom they belong.

    Raises:
        FedMendError: a component does not take its arguments.
    """
    from fedmend.server.federation import RunSettings
    from fedmend.site.worker import SiteSettings

    all_parts, job = parts(*files.configs), files.meta["name"]
    halves = [part for part in all_parts if part.id in (METHOD, WORKFLOW)]
    if not halves or any(part.find() is None for part in halves):
        return
    for part in halves:
        build(part, job)
    settings: dict[str, Callable[..., Any]] = {CONTROLLER: RunSettings, EXECUTOR: SiteSettings.of}
    for part in all_parts:
        if make := settings.get(part.id):
            made_of(part, make, job)
        if part.id == CONTROLLER:
            _check_network(part.args["network"], len(part.args["classes"]))


def _check_network(name: str, num_classes: int) -> None:
    """Builds a network of ours without its memory; the library of another one need not be installed here."""
    import torch

    from fedmend.learning.network_names import plain_name
    from fedmend.learning.networks import MONAI, TIMM, build_network

    if not plain_name(name).startswith((TIMM, MONAI)):
        with torch.device("meta"):
            build_network(name, num_classes)


def read_job(job: Path, changes: Changes = UNCHANGED) -> JobSettings:
    """What a job folder says, or would say with other settings.

    Raises:
        FedMendError: see :func:`configure_job`; or a job without a method, such as the label audit.
    """
    files = changed(job, changes)
    client, server = files.configs
    found = {part.id: part for part in parts(client, server)}
    name = files.meta["name"]
    if missing := [part for part in (METHOD, WORKFLOW, CONTROLLER, EXECUTOR) if part not in found]:
        how = "it runs only with FLARE, without --local"
        raise FedMendError(f"job {name}: expected a job that trains, found no {missing[0]}; {how}")
    if not files.sites or "@ALL" in files.sites:
        raise FedMendError(f"job {name}: expected named sites in deploy_map, got all that there are; give --sites")
    return JobSettings(
        name=name,
        problem=server.get("problem", ""),
        app=files.app,
        sites=tuple(files.sites),
        run=found[CONTROLLER].args,
        site=found[EXECUTOR].args,
        workflow=found[WORKFLOW],
        method=found[METHOD],
        settings=job_settings(client, server),
    )


def list_receivers(job: Path, resources: Path) -> None:
    """Lists the receivers of metrics that a job names in ``resources.json`` of the policy of a simulation, whose server
    is the person's own."""
    named = {part.get("path") for config in read(job).configs for _, part in components(config)}
    policy = json.loads(resources.read_text(encoding="utf-8"))
    policy["class_allow_list"] += [path for path in RECEIVERS.values() if path in named]
    resources.write_text(json.dumps(policy, indent=2) + "\n", encoding="utf-8")


def all_jobs(folder: Path) -> list[Path]:
    """The job folders in a folder, by name."""
    return sorted(file.parent for file in folder.glob("*/meta.json"))


def job_variants(job: Path) -> dict[str, Variant]:
    """Name → variant of all that a job has.

    Raises:
        FedMendError: no job, or a variant that does not parse.
    """
    _, server = read(job).configs
    return variants_of(job, server.get("problem", ""))
