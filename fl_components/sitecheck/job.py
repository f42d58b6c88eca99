"""What a job folder asks of a site."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fedmend.errors import FedMendError
from fl_components.job.reading import components, has_code, listed, read
from fl_components.job.settings import EXECUTOR, METHOD, Component, parts


@dataclass(frozen=True, kw_only=True)
class JobNeeds:
    """What a job asks of a site.

    Attributes:
        name: the job's name.
        run: arguments of the server's component that has the classes, which is the controller of a job that trains.
        site: arguments of the executor; empty for that of a job which trains no model.
        method_part: client half of its method, or None.
        phantom: the phantom for sites without data of their own, or None.
        components: every mapping of the client configuration that names a class.
        own_code: it brings code of its own.
    """

    name: str
    run: Mapping[str, Any]
    site: Mapping[str, Any]
    method_part: Component | None
    phantom: Mapping | None
    components: list[Mapping]
    own_code: bool

    @property
    def classes(self) -> tuple[str, ...]:
        """Its classes."""
        return tuple(self.run["classes"])

    def method(self) -> Any:
        """The class of its method, or None of a job without one.

        Raises:
            FedMendError: the installed FedMend does not have it.
        """
        if self.method_part is None:
            return None
        found = self.method_part.find()
        if found is None:
            name = self.method_part.path.rpartition(".")[2]
            raise FedMendError(f"method {name}: expected in FedMend {metadata.version('fedmend')}, not found")
        return found


def read_needs(folder: Path) -> JobNeeds:
    """Reads what a job folder asks of a site.

    Raises:
        FedMendError: no job folder, or one that would be refused when it arrives, see
            :func:`fl_components.job.reading.read`; or one without classes.
    """
    files = read(folder, strict=True)
    client, server = files.configs
    ours = {part.id: part.args for part in parts(client, {})}
    run = next((part.args for part in parts({}, server) if isinstance(part.args.get("classes"), list)), None)
    if run is None:
        raise FedMendError("job: expected a component of the server with a list of classes, got none")
    found = next((component for _, component in listed(client) if component.get("id") == METHOD), None)
    site, wanted = ours.get(EXECUTOR, {}), ("network", "num_rounds", "image_size", "batch_size") if found else ()
    if missing := [name for name in wanted if name not in {**run, **site}]:
        raise FedMendError(f"job: expected {missing[0]} in a job with a method, not found")
    return JobNeeds(
        name=files.meta["name"],
        run=run,
        site=site,
        method_part=Component(METHOD, found.get("path", ""), found.get("args", {})) if found else None,
        phantom=next((args["phantom"] for args in ours.values() if "phantom" in args), None),
        components=[component for _, component in components(client)],
        own_code=has_code(folder),
    )
