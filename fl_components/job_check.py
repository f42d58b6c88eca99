"""ListedClasses: what a kit adds to the parent process of its site.

It refuses a job with an unlisted class when the job is deployed, so that the lead reads why.

FLARE compares the classes of a job with ``class_allow_list`` in the job's own process at the site, whose error stays in
the site's log: the lead learns only that a process ended. What an app validator says before that reaches the console.
FLARE's check remains the one that protects the site; it also sees nested components and paths that are job variables.

And it takes the shell commands away. FLARE lets the admin console run cat, grep or tail at a site, on any file that the
site's account can read; the site asks for rights only where the request itself says that it must, and takes the name
and the role from the request. A rogue server could read images, tables and the site's private key.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.private.fed.client.shell_cmd import SHELL_CMD_VALIDATORS

from fedmend.results import LONGEST_ERROR

CONFIG = "config_fed_client.json"


class ListedClasses(AppValidator):
    """Compares executors, components and filters of a site's part of a job with the ``class_allow_list`` of the kit.

    The configuration must be JSON: FLARE's other formats can include files and environment variables of the site.
    """

    def __init__(self):
        super().__init__()
        SHELL_CMD_VALIDATORS.clear()  # without its validator FLARE runs no command

    def validate(self, app_folder: str) -> tuple[str, dict]:
        """Called by FLARE when a job arrives.

        Args:
            app_folder: the app below the job's folder in the kit.

        Returns:
            Why the job is refused, or ""; no properties.
        """
        app = Path(app_folder)
        if (app / WorkspaceConstants.CUSTOM_FOLDER_NAME).exists():  # the right byoc decides about a job with code
            return "", {}
        found = {file.name for file in (app / "config").glob("config_fed_client.*")}
        if found - {CONFIG}:
            return f"job: expected a site's configuration in {CONFIG} alone, got another file too or instead", {}
        if not found:  # the server's part of a job with an app for each site
            return "", {}
        kit, authorizer = Workspace(str(app.parents[1])), ComponentPathAuthorizer()
        try:
            for place, component in _components(json.loads((app / "config" / CONFIG).read_text())):
                if not str(component.get("path")).startswith("{"):
                    authorizer.authorize_component_config(component, place, workspace=kit)
        except UnsafeComponentError as e:
            return ascii(f"{e!s:.{LONGEST_ERROR}}")[1:-1][:LONGEST_ERROR], {}  # it has the words of the job
        except Exception as e:  # whatever a lead has written, the site answers with a sentence
            return f"job, {CONFIG}: expected a FLARE configuration, got one that does not read ({type(e).__name__})", {}
        return "", {}


def _components(config: Mapping) -> Iterator[tuple[SimpleNamespace, Mapping]]:
    """What a site builds and, as FLARE writes it, where it stands in the configuration."""
    found = [(f"components.#{i}", part) for i, part in enumerate(config.get("components", []), 1)]
    for i, part in enumerate(config.get("executors", []), 1):
        found.append((f"executors.#{i}.executor", part["executor"]))
    for name in ("task_data_filters", "task_result_filters"):
        for i, part in enumerate(config.get(name, []), 1):
            found += [(f"{name}.#{i}.filters.#{k}", f) for k, f in enumerate(part.get("filters", []), 1)]
    for place, component in found:
        if component.keys() & {"path", "class_path", "name"}:
            yield SimpleNamespace(path=lambda place=place: place), component
