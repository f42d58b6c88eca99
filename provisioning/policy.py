"""The site policy of every startup kit: which classes a job may name, who may do what, and what leaves a site.

Allow list and ReportGuard have their one home in ``simulator_workspace/local``, which the simulator obeys too.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvflare.lighter.constants import ProvFileName
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.spec import Builder

HERE = Path(__file__).resolve().parent
POLICY = HERE.parent / "simulator_workspace" / "local"
GUARD = "fl_components.guard.ReportGuard"
RECEIVERS = (  # off unless asked for
    "fl_components.tracking.mlflow.MLflow",
    "fl_components.tracking.wandb.WandB",
    "fl_components.tracking.statsd.StatsD",
)
CONVERT = "nvflare.app_common.filters.convert_weights.ConvertWeights"
STATE = "../fedmend-state/{SITE_NAME}"  # beside the kit, in which FLARE makes and deletes folders
SITE_SETTINGS = {"data_root": "", "cache_dir": "cache", "state_dir": STATE, "min_count": 5}  # "" is refused by name
SERVER_SETTINGS = {**SITE_SETTINGS, "data_root": "a server has no data", "state_dir": STATE.format(SITE_NAME="server")}


class SitePolicyBuilder(Builder):
    """Writes the policy into ``local/`` of the server's and of every hospital's kit; stands after StaticFileBuilder.

    It changes FLARE's ``resources.json.default`` and ``authorization.json.default`` in place, so that no kit holds a
    more permissive version to fall back on, and adds ``privacy.json`` and ``fedmend.json``.

    Args:
        server_storage: absolute folder on the server's machine for jobs and snapshots. FLARE's own default is a folder
            of the system's temp directory.
        weight_filters: name of a further privacy scope → stock filter (``path``, ``args``) that its results pass at the
            site. The filter sees the change of the weights in the round, not the weights; ReportGuard is last in every
            scope.
        site_settings: fields of every site's ``fedmend.json``, where all of them are on one machine, as in a trial.
        tracking: full names of classes of ``fl_components.tracking`` that jobs may name at the server, which hands its
            metrics to them.
        baselines: whether jobs may also name the methods that only comparisons need, and sites report their fields.

    Raises:
        ValueError: a storage folder that is not absolute, a filter without a path or with the name of a scope that is
            there, homomorphic encryption, another class, or ``baselines`` that are neither true nor false.
    """

    def __init__(
        self,
        *,
        server_storage: str,
        weight_filters: Mapping[str, Mapping] | None = None,
        site_settings: Mapping[str, object] | None = None,
        tracking: Sequence[str] = (),
        baselines: bool = False,
    ):
        if not isinstance(server_storage, str) or not os.path.isabs(server_storage):
            raise ValueError(f"SitePolicyBuilder, server_storage: expected an absolute folder, got {server_storage!r}")
        if not hasattr(weight_filters or {}, "items"):
            words = "expected names of scopes with path and args"
            raise ValueError(f"SitePolicyBuilder, weight_filters: {words}, got {weight_filters!r}")
        for scope, chosen in (weight_filters or {}).items():
            if not isinstance(chosen, Mapping) or "path" not in chosen:
                raise ValueError(f"SitePolicyBuilder, weight_filters {scope}: expected path and args, got {chosen!r}")
            if re.search(r"\.(he|homomorphic_encryption)\.", str(chosen["path"])):  # the server could check nothing
                raise ValueError(f"SitePolicyBuilder, weight_filters {scope}: expected no homomorphic encryption")
        if isinstance(tracking, str) or not isinstance(tracking, Sequence) or {*map(str, tracking)} - {*RECEIVERS}:
            raise ValueError(
                f"SitePolicyBuilder, tracking: expected a list of some of {', '.join(RECEIVERS)}, got {tracking!r}"
            )
        if not isinstance(baselines, bool):
            raise ValueError(f"SitePolicyBuilder, baselines: expected true or false, got {baselines!r}")
        self._resources, self._privacy = (_read(POLICY / f"{name}.json") for name in ("resources", "privacy"))
        if taken := sorted({scope["name"] for scope in self._privacy["scopes"]} & set(weight_filters or {})):
            raise ValueError(f"SitePolicyBuilder, weight_filters: expected names of further scopes, got {taken}")
        if not baselines:
            _leave_out(_read(HERE / "baselines.json"), self._resources, self._privacy)
        self._storage, self._weight_filters = Path(server_storage), dict(weight_filters or {})
        self._site_settings = {**SITE_SETTINGS, **(site_settings or {})}
        self._tracking = list(tracking)

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Called by FLARE once per provisioning."""
        os.chmod(ctx.get_state_dir(), 0o700)  # holds all private keys in a file that FLARE leaves readable
        for site in project.get_clients():
            self._write(site, ctx, self._site_settings, self._weight_filters)
        # the server filters what arrives: its scopes have the same names, but noise is added once, at the site
        self._write(project.get_server(), ctx, SERVER_SETTINGS, dict.fromkeys(self._weight_filters))
        resources = Path(ctx.get_local_dir(project.get_server())) / ProvFileName.RESOURCES_JSON_DEFAULT
        content = _read(resources)
        content["class_allow_list"] += self._tracking
        content["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(self._storage / "snapshots")
        (jobs,) = (c for c in content["components"] if c["id"] == "job_manager")
        jobs["args"]["uri_root"] = str(self._storage / "jobs")
        _dump(content, resources)

    def _write(
        self,
        participant: Participant,
        ctx: ProvisionContext,
        settings: Mapping[str, object],
        weight_filters: Mapping[str, Mapping | None],
    ) -> None:
        local = Path(ctx.get_local_dir(participant))
        resources = local / ProvFileName.RESOURCES_JSON_DEFAULT
        _dump({**_read(resources), **self._resources}, resources)
        _dump(_read(HERE / "authorization.json"), local / ProvFileName.AUTHORIZATION_JSON_DEFAULT)
        _dump(_with_scopes(self._privacy, weight_filters), local / "privacy.json")
        _dump(settings, local / "fedmend.json")


def _leave_out(baselines: Mapping[str, Sequence[str]], resources: dict, privacy: dict) -> None:
    """Takes the classes and report fields of baselines out of a policy."""
    resources["class_allow_list"] = [c for c in resources["class_allow_list"] if c not in baselines["classes"]]
    for scope in privacy["scopes"]:
        for args in (chosen["args"] for chosen in scope["task_result_filters"] if chosen["path"] == GUARD):
            for kind in ("fields", "counts"):
                args[kind] = {name: told for name, told in args[kind].items() if name not in baselines["fields"]}


def _with_scopes(privacy: Mapping, weight_filters: Mapping[str, Mapping | None]) -> dict:
    """The policy with one more scope per filter: the default scope behind that filter, or without it where it is
    None."""
    (default,) = (scope for scope in privacy["scopes"] if scope["name"] == privacy["default_scope"])
    scopes = list(privacy["scopes"])
    for name, chosen in weight_filters.items():
        to_change, to_weights = (
            {"path": CONVERT, "args": {"direction": direction}} for direction in ("weights_to_diff", "diff_to_weights")
        )
        chain = [to_change, dict(chosen), to_weights] if chosen else []
        scope = {**default, "name": name, "task_result_filters": [*chain, *default["task_result_filters"]]}
        scopes.append(scope)
    return {**privacy, "scopes": scopes}


def _read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def _dump(content: Mapping, file: Path) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
