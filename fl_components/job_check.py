"""ListedClasses: a site refuses a job with an unlisted class when the job is deployed, so that the lead reads why.

FLARE compares the classes of a job with ``class_allow_list`` in the job's own process at the site, whose error stays in the site's
log: the lead learns only that a process ended. What an app validator says before that reaches the console. FLARE's check remains
the one that protects the site; it also sees nested components and paths that are job variables.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import JobConstants, WorkspaceConstants
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.config_factory import ConfigFactory


class ListedClasses(AppValidator):
    """Compares executors, components and filters of a site's part of a job with the ``class_allow_list`` of the kit."""

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
        config = ConfigFactory.load_config(JobConstants.CLIENT_JOB_CONFIG, [str(app / "config")]).to_dict()
        kit, authorizer = Workspace(str(app.parents[1])), ComponentPathAuthorizer()
        try:
            for place, component in _components(config):
                if not str(component["path"]).startswith("{"):
                    authorizer.authorize_component_config(component, place, workspace=kit)
        except UnsafeComponentError as e:
            return str(e), {}
        return "", {}


def _components(config: Mapping) -> Iterator[tuple[SimpleNamespace, Mapping]]:
    """What a site builds and, as FLARE writes it, where it stands in the configuration."""
    found = [(f"components.#{i}", part) for i, part in enumerate(config.get("components", []), 1)]
    for i, part in enumerate(config.get("executors", []), 1):
        found.append((f"executors.#{i}.executor", part.get("executor", {})))
    for name in ("task_data_filters", "task_result_filters"):
        for i, part in enumerate(config.get(name, []), 1):
            found += [(f"{name}.#{i}.filters.#{k}", f) for k, f in enumerate(part.get("filters", []), 1)]
    for place, component in found:
        if "path" in component:
            yield SimpleNamespace(path=lambda place=place: place), component
