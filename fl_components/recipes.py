"""FLARE recipes of FedMend's jobs: one for each method that the folder ``jobs`` has, e.g. ``FedMLPRecipe``.

::

    from nvflare.recipe import SimEnv
    from fl_components.recipes import FedMLPRecipe

    recipe = FedMLPRecipe("ich", variants=["fedavg"], num_rounds=4)
    run = recipe.execute(SimEnv(num_clients=5))

A recipe has no numbers of its own: it takes a job folder and changes it as ``fedmend configure`` does.
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.job_def import ALL_SITES
from nvflare.job_config.api import FedJob
from nvflare.job_config.fed_job_config import FedJobConfig
from nvflare.recipe import PocEnv, SimEnv
from nvflare.recipe.run import Run
from nvflare.recipe.spec import ExecEnv, Recipe
from nvflare.tool.poc.poc_commands import get_prod_dir

from fedmend.basics.checked import PATH, PLACE, accepted, shown
from fedmend.basics.files import make_folder
from fedmend.errors import FedMendError
from fl_components.api import Job, as_json
from fl_components.job.folder import all_jobs, read_job
from fl_components.job.reading import read
from fl_components.job.variants import SHARED
from fl_components.kit_state import DEFAULT
from fl_components.run.poc import CHECKOUT, local_project
from fl_components.run.simulate import fresh, lay_policy, local_settings, results_of
from fl_components.run.start import check_paths, in_use, reach_this_machine

ENDING = "Recipe"
LOGIN = 60.0  # seconds that a server may take to start


class FolderConfig(FedJobConfig):
    """What FLARE writes of a job: the configured folder itself.

    FLARE would make it anew from objects. It leaves out arguments that have their default, where our jobs hold every
    value, and copies our classes into ``app/custom``, which would be BYOC: such a job switches the check of classes off
    and is refused by every site.
    """

    def __init__(self, job: Job):
        super().__init__(job_name=job.name, min_clients=len(job.sites))
        self._job = job

    def generate_job_config(self, job_root: str) -> None:
        """Writes the folder into ``job_root``; ``meta.json`` has also what ``set_recipe_meta`` has set.

        Raises:
            FedMendError: no path, it is there already, or server and sites would refuse the job.
        """
        root: Path = accepted(job_root, [PATH, PLACE], "export", shown)
        make_folder(root)
        folder = self._job.save(root / self.job_name)
        if self.meta_props:
            meta = folder / "meta.json"
            meta.write_text(json.dumps({**json.loads(meta.read_text()), **self.meta_props}, indent=2) + "\n")
        read(folder, strict=True)


class FolderJob(FedJob):
    """A job folder as FLARE's environments want it."""

    def __init__(self, job: Job):
        super().__init__(name=job.name, min_clients=len(job.sites))
        self.job = FolderConfig(job)
        self.clients = [ALL_SITES]  # the environment names them

    def to(self, obj: object, target: str, id: str | None = None, **kwargs: object) -> None:
        """Refuses what a recipe would add to the job besides its settings.

        Raises:
            FedMendError: always.
        """
        raise FedMendError("recipe: expected variables and variants alone, got a component, filter, file or parameter")

    def simulator_run(self, workspace: str, *args: Any, **kwargs: Any) -> int:
        """Runs the job as FLARE does, which would give the number of a failure instead of its reason.

        Raises:
            FedMendError: the run is not complete.
        """
        code = super().simulator_run(workspace, *args, **kwargs)
        results_of(Path(workspace), code)
        return code


class JobRecipe(Recipe):
    """A recipe of any job folder.

    The other arguments are those of :class:`fl_components.api.Job`, which refuses what does not fit the job.

    Args:
        site: fields of ``fedmend.json`` to override where all sites are on this machine (SimEnv, PocEnv).

    Attributes:
        settings: the job with its settings.
    """

    def __init__(
        self,
        folder: Path | str,
        /,
        *,
        variants: Sequence[str] = (),
        sites: int = 0,
        site: Mapping[str, object] | None = None,
        **variables: object,
    ):
        self.settings = Job(folder, variants=variants, sites=sites, **variables)
        self._site = as_json(site, "site")
        super().__init__(FolderJob(self.settings))

    def run(self, env: ExecEnv, *args: Any, **kwargs: Any) -> Run:
        """Runs the recipe in an environment; on this machine in a workspace for one run at a time.

        Args:
            env: the environment.
            args: as FLARE's recipes take them.
            kwargs: as FLARE's recipes take them.

        Raises:
            FedMendError: see :meth:`process_env`; no environment, a workspace that FLARE cannot take, or with a run at
                work.
        """
        if not isinstance(env, ExecEnv):
            raise FedMendError(f"recipe: expected an environment of FLARE, such as SimEnv, got {shown(env)}")
        if not isinstance(env, SimEnv | PocEnv):
            return super().run(env, *args, **kwargs)
        simulated = isinstance(env, SimEnv)
        workspace = (Path(env.workspace_root) / self.name if simulated else Path(env.poc_workspace)).resolve()
        self._check_sites(env)
        check_paths(workspace)
        reach_this_machine()
        self._job.clients = [ALL_SITES]  # a simulation puts its sites in their place, which the next one would refuse
        with fresh(workspace, self._site) if simulated else in_use(workspace):
            return super().run(env, *args, **kwargs)

    def process_env(self, env: ExecEnv) -> None:
        """Puts the site policy, without which sites refuse every job, where the environment's sites will look for it.

        Raises:
            FedMendError: an environment of other sites than the job's, or a workspace with other files.
        """
        if isinstance(env, SimEnv | PocEnv):
            self._check_sites(env)
        if isinstance(env, SimEnv):
            lay_policy(Path(env.workspace_root) / self.name, self._site)
        elif isinstance(env, PocEnv):
            self._provide_kits(env)

    def _check_sites(self, env: SimEnv | PocEnv) -> None:
        names, where = env.clients or [f"site-{i + 1}" for i in range(env.num_clients)], type(env).__name__
        if sorted(names) != sorted(self.settings.sites):
            wanted = ", ".join(self.settings.sites)
            raise FedMendError(f"{where}: expected the sites of the job, {wanted}, got {', '.join(names)}")

    def _provide_kits(self, env: PocEnv) -> None:
        """PocEnv makes startup kits and starts them in one go: ours come from our project, whose policy lets the lead
        submit and not, as FLARE's, the project admin."""
        if str(CHECKOUT) not in sys.path:
            sys.path.append(str(CHECKOUT))  # FLARE imports provisioning.policy
        workspace = Path(env.poc_workspace).resolve()
        settings = json.loads(local_settings({"state_dir": DEFAULT, **self._site}))
        project = local_project(workspace, self.settings.sites)
        project["builders"][-1]["args"]["site_settings"] = settings
        (lead,) = (p["name"] for p in project["participants"] if p.get("role") == "lead")
        workspace.mkdir(parents=True, exist_ok=True)
        file = workspace / "fedmend-project.json"  # JSON is YAML
        file.write_text(json.dumps(project, indent=2) + "\n", encoding="utf-8")
        env.project_conf_path, env.username = str(file), lead
        env.extra.setdefault("login_timeout", LOGIN)
        env._get_admin_startup_kit_path = lambda: os.path.join(get_prod_dir(env.poc_workspace, project["name"]), lead)


@functools.cache
def _recipes() -> dict[str, dict[str, Path]]:
    """Name of a method → data set → job folder."""
    found: dict[str, dict[str, Path]] = {}
    for folder in all_jobs(SHARED.parent):
        method, _, dataset = folder.name.partition("_")
        with contextlib.suppress(FedMendError):  # the label audit does not train
            cls = read_job(folder).method.path.rpartition(".")[2]
            if cls.lower() == method:
                found.setdefault(cls, {})[dataset] = folder
    return found


@functools.cache
def _recipe(method: str) -> type[JobRecipe]:
    folders = _recipes()[method]

    def start(self: JobRecipe, dataset: str, /, **settings: Any) -> None:
        if not (isinstance(dataset, str) and dataset in folders):
            raise FedMendError(f"{method}{ENDING}: expected one of {sorted(folders)}, got {dataset!r:.60}")
        JobRecipe.__init__(self, folders[dataset], **settings)

    about = f"The jobs of {method}: data set, one of {', '.join(sorted(folders))}, and settings of :class:`JobRecipe`."
    return type(f"{method}{ENDING}", (JobRecipe,), {"__init__": start, "__doc__": about, "__module__": __name__})


def __getattr__(name: str) -> type[JobRecipe]:
    if name.endswith(ENDING) and name.removesuffix(ENDING) in _recipes():
        return _recipe(name.removesuffix(ENDING))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(f"{method}{ENDING}" for method in _recipes())])
