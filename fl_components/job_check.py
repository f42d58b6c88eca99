"""ListedClasses: what a kit adds to the parent process of its site or server.

It refuses a job when it is deployed, so that the lead reads why: one with files or values that our jobs do not have
(:mod:`fl_components.job.reading`), and one with an unlisted class. FLARE compares the classes of a job with
``class_allow_list`` in the job's own process, whose error stays in the log: the lead learns only that a process ended.
What an app validator says before that reaches the console. FLARE's check remains the one that protects.

A site whose privacy policy lets a result pass without the ReportGuard takes no job: FLARE reads a missing
``privacy.json`` as leave to send everything.

And it closes doors that FLARE leaves open to whoever speaks as the server:

- Shell commands. FLARE lets the admin console run cat, grep or tail at a site, on any file that the site's account can
  read; the site asks for rights only where the request itself says that it must, and takes the name and the role from
  the request. A rogue server could read images, tables and the site's private key.
- Names of runs. FLARE takes any name for a job's id, and with it for a folder of the kit: a command could delete
  ``local`` or ``state``, or put a job in their place.
- Other formats than JSON, which FLARE reads before it asks a validator, and which can include files of this machine.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_def import is_valid_job_id
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.config import ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.client.shell_cmd import SHELL_CMD_VALIDATORS
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError
from fedmend.messages import LONGEST_ERROR
from fl_components.job.reading import CLIENT, CODE, GUARD, components, read_app, refuse_baseline, refuse_encryption


class ListedClasses(AppValidator):
    """Refuses a job with unknown files, values that are not literal, encryption, or classes that are not listed.

    A site compares what its own part builds with the ``class_allow_list`` of its kit, the server both parts.
    """

    def __init__(self) -> None:
        super().__init__()
        SHELL_CMD_VALIDATORS.clear()  # without its validator FLARE runs no command
        Workspace._check_job_id = staticmethod(run_id)  # every path of a run is made there
        for fmt in set(ConfigFormat) - {ConfigFormat.JSON}:
            ConfigFactory._fmt2Loader[fmt] = NoOtherFormat(fmt)

    def validate(self, app_folder: str) -> tuple[str, dict]:
        """Called by FLARE when a job arrives, with its app in the kit; why the job is refused, or "", and no
        properties."""
        app = Path(app_folder)
        if (app / CODE).exists():  # the right byoc decides about a job with code
            return "", {}
        try:
            self._check(app, Workspace(str(app.parents[1])))
        except (FedMendError, UnsafeComponentError) as e:
            return ascii(f"{e!s:.{LONGEST_ERROR}}")[1:-1][:LONGEST_ERROR], {}  # it may have words of the job
        except Exception as e:  # whatever a lead has written, the site answers with a sentence
            return f"job: expected a FLARE configuration, got one that does not read ({type(e).__name__})", {}
        return "", {}

    @staticmethod
    def _check(app: Path, kit: Workspace) -> None:
        configs = read_app(app)
        if Path(kit.get_client_startup_file_path()).is_file():
            check_guarded(Path(kit.get_site_privacy_file_path()))
        refuse_encryption(_filters_of_the_site(kit), "local/privacy.json")
        authorizer = ComponentPathAuthorizer()
        is_server = Path(kit.get_server_startup_file_path()).is_file()
        for name, config in configs.items():
            for place, component in components(config) if is_server or name == CLIENT else ():
                node = SimpleNamespace(path=lambda place=place: place)
                try:
                    authorizer.authorize_component_config(component, node, workspace=kit)
                except UnsafeComponentError:
                    refuse_baseline(str(component.get("path")))
                    raise


def check_guarded(file: Path) -> None:
    """Checks that the privacy policy of a site lets no result pass without the ReportGuard.

    Args:
        file: ``local/privacy.json`` of its kit.

    Raises:
        FedMendError: no such file, one that FLARE cannot use, or a scope whose last filter of results is another.
    """
    where = f"local/{file.name}"
    policy: Any = read_document(file, where, "the privacy policy of this site in its kit")
    try:
        last = {scope["name"]: (scope["task_result_filters"] or [{}])[-1] for scope in policy["scopes"]}
        guarded = {name: (f.get("path"), f.get("direction", "out")) == (GUARD, "out") for name, f in last.items()}
        known = policy["default_scope"] in guarded
    except (TypeError, KeyError, AttributeError):
        raise FedMendError(f"{where}: expected scopes with result filters and a default_scope, got others") from None
    if not known:
        raise FedMendError(f"{where}, default_scope: expected the name of a scope of this file, got another")
    if open_scopes := [name for name, fine in guarded.items() if not fine]:
        raise FedMendError(
            f"{where}, scope {open_scopes[0]!a:.40}: expected ReportGuard as the last result filter, got another"
        )


def _filters_of_the_site(kit: Workspace) -> list[dict]:
    file = Path(kit.get_site_privacy_file_path())
    scopes = json.loads(file.read_text(encoding="utf-8")).get("scopes", []) if file.is_file() else []
    kinds = ("task_result_filters", "task_data_filters")
    return [chosen for scope in scopes for kind in kinds for chosen in scope.get(kind, [])]


def run_id(job_id: object) -> str:
    """The name of a run, which becomes a folder of the kit.

    Raises:
        ValueError: neither an id that FLARE gives nor the name of the simulator's run.
    """
    name = str(job_id)
    if name != SimulatorConstants.JOB_NAME and not (is_valid_job_id(name) and len(name) == 36):
        raise ValueError("job id: expected a UUID as FLARE gives it, got another name")
    return name


class NoOtherFormat(ConfigLoader):
    """Stands in FLARE's list of formats for every one but JSON."""

    def load_config(self, file_path: str) -> None:
        """Refuses, by a ValueError."""
        raise ValueError("job: expected JSON files alone, got another format, which can include files of this machine")

    def load_config_from_str(self, config_str: str) -> None:
        """As :meth:`load_config`."""
        self.load_config("")
