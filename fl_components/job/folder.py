"""Job folders: copies with other settings, and what a job says, for a run without FLARE."""

import importlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError
from fl_components.job.arguments import (
    CONTROLLER,
    EXECUTOR,
    METHOD,
    METHODS,
    WORKFLOW,
    Part,
    assign,
    job_settings,
    parts,
)
from fl_components.job.shape import check_shape
from fl_components.job.variants import Variant, apply, choose, variants_of
from fl_components.tracking import RECEIVERS


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
    run: Mapping[str, object]
    site: Mapping[str, object]
    workflow: Part
    method: Part
    settings: Mapping[str, object]

    def build(self, component: Part) -> object:
        """An object of the class that a component names.

        Raises:
            FedMendError: no class of FedMend's methods, or one that does not take these arguments.
        """
        from fedmend.method import LocalMethod, Workflow

        module, _, name = component.path.rpartition(".")
        if not component.path.startswith(METHODS):
            known = " or ".join(package.rstrip(".") for package in METHODS)
            raise FedMendError(f"job {self.name}: expected a class of {known}, got {component.path}")
        wanted = {METHOD: LocalMethod, WORKFLOW: Workflow}[component.id]
        try:
            cls = getattr(importlib.import_module(module), name)
            if not (isinstance(cls, type) and cls.__module__ == module and issubclass(cls, wanted)):
                raise FedMendError(
                    f"job {self.name}: expected a {wanted.__name__} as {component.id}, got {component.path}"
                )
            return cls(**component.args)
        except (ImportError, AttributeError):
            raise FedMendError(f"job {self.name}: expected {component.path} in this FedMend, not found") from None
        except (TypeError, ValueError, OverflowError) as e:
            why = ascii(f"{e!s:.500}")[1:-1]
            raise FedMendError(f"job {self.name}: expected arguments of {component.path}, got others: {why}") from None


def configure_job(
    job: Path,
    out: Path,
    variables: Mapping[str, object],
    *,
    variants: Sequence[str] = (),
    sites: int = 0,
    tracking: Sequence[str] = (),
) -> None:
    """Copies a job folder with other settings.

    Args:
        job: job folder.
        out: folder to write; must not exist.
        variables: setting → value, see :func:`fl_components.job.arguments.assign`; set after the variants.
        variants: names of variants, see :mod:`fl_components.job.variants`. ``run_name`` gets their names as an ending,
            always in the same order, unless a variant or ``variables`` sets it.
        sites: number of sites ``site-1`` … in meta.json; 0 keeps what stands there.
        tracking: receivers of metrics to add, see :data:`fl_components.tracking.RECEIVERS`.

    Raises:
        FedMendError: no job, unknown variant, setting or receiver, or a value of another kind than the job's.
    """
    if unknown := set(tracking) - set(RECEIVERS):
        raise FedMendError(f"--tracking: expected some of {', '.join(RECEIVERS)}, got {', '.join(sorted(unknown))}")
    meta, configs = _changed(job, variables, variants, sites)
    _, server = configs.values()
    server.setdefault("components", []).extend({"id": name, "path": RECEIVERS[name]} for name in tracking)
    before_meta, before = _load(job)
    shutil.copytree(job, out)
    for file, config in configs.items():
        if config != before[file]:  # what nobody changes stays as it was written
            (out / file.relative_to(job)).write_text(json.dumps(config, indent=2) + "\n")
    if meta != before_meta:
        (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _changed(
    job: Path, variables: Mapping[str, object], variants: Sequence[str], sites: int
) -> tuple[dict, dict[Path, dict]]:
    """What :func:`_load` gives, with other settings."""
    meta, configs = _load(job)
    client, server = configs.values()
    chosen = choose(variants_of(job, server.get("problem", "")), variants) if variants else []
    among = parts(client, server)
    homes = [part.args for part in among if "run_name" in part.args]
    names = [args["run_name"] for args in homes]
    apply(chosen, client, server)
    for args, name in zip(homes, names, strict=True):
        if args["run_name"] == name:
            args["run_name"] = "_".join([name, *(variant.name for variant in chosen)])
    among = parts(client, server)
    for name, value in variables.items():
        assign(name, value, among)
    if sites:
        names = ["server", *(f"site-{i + 1}" for i in range(sites))]
        meta["deploy_map"], meta["min_clients"] = dict.fromkeys(meta["deploy_map"], names), sites
    return meta, configs


def read_job(
    job: Path, variables: Mapping[str, object] | None = None, *, variants: Sequence[str] = (), sites: int = 0
) -> JobSettings:
    """What a job folder says, or would say with other settings.

    Args:
        job: job folder.
        variables: see :func:`configure_job`.
        variants: see there.
        sites: see there.

    Raises:
        FedMendError: see there; or a job without a method, such as the label audit.
    """
    meta, configs = _changed(job, variables or {}, variants, sites)
    client, server = configs.values()
    found = {part.id: part for part in parts(client, server)}
    name = meta["name"]
    if missing := [part for part in (METHOD, WORKFLOW, CONTROLLER, EXECUTOR) if part not in found]:
        raise FedMendError(f"job {name}: expected a job that trains, found no {missing[0]}; it runs with FLARE alone")
    names = {site for place in meta["deploy_map"].values() for site in place} - {"server"}
    if not names or "@ALL" in names:
        raise FedMendError(f"job {name}: expected named sites in deploy_map, got all that there are; give --sites")
    return JobSettings(
        name=name,
        problem=server.get("problem", ""),
        app=next(iter(configs)).parents[1],
        sites=tuple(sorted(names)),
        run=found[CONTROLLER].args,
        site=found[EXECUTOR].args,
        workflow=found[WORKFLOW],
        method=found[METHOD],
        settings=job_settings(client, server),
    )


def job_parts(job: Path, *, variants: Sequence[str] = ()) -> list[Part]:
    """FedMend's classes in a job with these variants, and their arguments.

    Raises:
        FedMendError: no job, or unknown variants.
    """
    _, configs = _load(job)
    client, server = configs.values()
    apply(choose(variants_of(job, server.get("problem", "")), variants), client, server)
    return parts(client, server)


def list_receivers(job: Path, resources: Path) -> None:
    """Lists the receivers of metrics that a job names in the policy of a simulation, whose server is the person's own.

    Args:
        job: job folder.
        resources: the policy's ``resources.json``, which is written anew.
    """
    _, configs = _load(job)
    named = {part.get("path") for config in configs.values() for part in config.get("components", [])}
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
    _, configs = _load(job)
    _, server = configs.values()
    return variants_of(job, server.get("problem", ""))


def _load(job: Path) -> tuple[dict, dict[Path, dict]]:
    """Content of ``meta.json``, and file → content of the two configurations, first the clients'."""
    if not (job / "meta.json").is_file():
        raise FedMendError(f"job: expected a folder with meta.json, not found in {job}")
    files = [f for side in ("client", "server") for f in sorted(job.glob(f"*/config/config_fed_{side}.json"))]
    if [file.stem[-6:] for file in files] != ["client", "server"]:
        raise FedMendError(f"job: expected one configuration of the server and one of the clients, not found in {job}")
    try:
        meta, configs = read_json(job / "meta.json"), {file: read_json(file) for file in files}
    except ValueError:
        raise FedMendError(f"job: expected JSON files, got one that does not parse in {job}") from None
    check_shape(meta, *configs.values())
    return meta, configs
