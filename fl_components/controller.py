"""WorkflowController: any workflow over FLARE."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.utils.memory_utils import cleanup_memory

from fedmend.errors import FedMendError
from fedmend.messages import CENSUS, HOLD, Question, SiteResult
from fedmend.method import Workflow
from fedmend.server.federation import RunSettings
from fedmend.server.fingerprint import SUBMITTER
from fedmend.server.job import ServerJob
from fedmend.server.transport import Transport
from fl_components.console import log_picture, quiet_console
from fl_components.job.reading import CLIENT, SERVER, read_app
from fl_components.job.settings import WORKFLOW, job_settings, parts
from fl_components.kit_state import is_kit
from fl_components.run.start import check_paths
from fl_components.signing import sign_with_kit
from fl_components.wire import pack_task, unpack_result
from fl_components.workspace import load_site_config

LOG = logging.getLogger("fedmend.run")
RESULTS_FOLDER = "fedmend"
POLL = 0.1  # seconds


class WorkflowController(ModelController):
    """Runs the workflow that stands under the id ``workflow`` in the server's configuration.

    Args:
        settings: fields of :class:`fedmend.server.federation.RunSettings`.
    """

    def __init__(self, **settings: Any):
        super().__init__(ignore_result_error=True, task_check_period=0.1)
        self.settings = RunSettings(**settings)

    def run(self) -> None:
        """Does the rounds; bad input ends the job with its sentence alone."""
        quiet_console(self.fl_ctx)
        prefix = ""
        try:
            workflow = self.engine.get_component(WORKFLOW)
            if not isinstance(workflow, Workflow):
                raise FedMendError(f"server configuration: expected a workflow with id {WORKFLOW!r}")
            root = Path(self.fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            check_paths(root)
            config = load_site_config(self.fl_ctx)
            job = ServerJob(
                settings=self.settings,
                workflow=workflow,
                transport=FlareTransport(self),
                state_dir=config.state_dir,
                folder=Path(self.get_run_dir()) / RESULTS_FOLDER,
                app_dir=Path(self.get_app_dir()),
                weights_dir=config.weights_dir,
                described=job_settings(*self._configs()),
                made_by=self._made_by(),
                job_id=self.fl_ctx.get_job_id() or "",
                own_machine=not is_kit(root),  # a simulation
            )
            try:
                job.run()
            finally:
                prefix = job.prefix
        except FedMendError as e:
            LOG.error("%srun stopped: %s", prefix, e)
            self.panic(str(e))

    def _configs(self) -> list[dict]:
        """Both configurations of the job, as far as the server can see them."""
        found = read_app(Path(self.get_app_dir()), strict=False)
        return [found.get(name, {}) for name in (CLIENT, SERVER)]

    def _made_by(self) -> dict[str, str]:
        """Classes of the job's components, and the person who submitted it; FLARE took the name from the
        certificate."""
        meta = self.fl_ctx.get_prop(FLContextKey.JOB_META) or {}
        classes = {f"{part.id}.class": part.path for part in parts(*self._configs())}
        return {**classes, SUBMITTER: meta.get(JobMetaKey.SUBMITTER_NAME.value, "")}


class FlareTransport(Transport):
    """Questions as FLARE tasks, which the controller sends."""

    def __init__(self, controller: WorkflowController):
        self._controller = controller

    def sites(self) -> list[str]:
        return sorted(client.name for client in self._controller.engine.get_clients())

    def exchange(
        self, question: Question, receive: Callable[[str, SiteResult | FedMendError], None], enough: Callable[[], bool]
    ) -> None:
        """One message per role and mark of a ledger, all at the same time, as no site may learn those of another."""
        cleanup_memory()  # FLARE leaves models in reference cycles, and its threads would keep what was freed
        controller, settings, started = self._controller, self._controller.settings, time.monotonic()
        replies: deque[FLModel] = deque()  # filled by FLARE's threads
        alike: dict[tuple[str, str], list[str]] = {}
        for site, task in question.tasks.items():
            alike.setdefault((task.role, task.ledger_mark), []).append(site)
        # People of a site may use up HOLD of the census; what it does afterwards has its whole time.
        waited, limit = HOLD if question.name == CENSUS else 0, settings.round_timeout
        for _, sites in sorted(alike.items()):
            task = question.tasks[sites[0]]
            controller.broadcast_model(
                task_name=question.name,
                data=pack_task(question.weights, task, question.run, evaluate=question.evaluate),
                targets=sites,
                timeout=limit and limit + waited,
                blocking=False,
                callback=replies.append,
            )

        def hand_over() -> None:
            while replies:
                reply = replies.popleft()
                site = reply.meta["client_name"]
                try:
                    answer: SiteResult | FedMendError = unpack_result(reply, site)
                except FedMendError as e:
                    answer = e
                receive(site, answer)

        # Who is cut off from the census is out of the whole job.
        grace = 0 if question.name == CENSUS else settings.grace_period
        enough_since = None
        while controller.get_num_standing_tasks() and not controller.abort_signal.triggered:
            hand_over()
            now = time.monotonic()
            if enough_since is None and enough():
                enough_since = now
            if grace and enough_since is not None and now - enough_since >= grace:
                controller.cancel_all_tasks()
            time.sleep(POLL)
        if controller.abort_signal.triggered:
            raise FedMendError(f"{question.name}: the job was aborted")
        hand_over()
        if limit and time.monotonic() - started >= limit + waited:
            for site in question.tasks:  # of whom has answered, the first answer counts
                late = f"{site}: {question.name}: expected a result within {limit} s (round_timeout), got none"
                receive(site, FedMendError(late))

    def save_model(self, weights: Mapping[str, np.ndarray], *, best: bool = False) -> str:
        controller, persistor = self._controller, self._controller.persistor
        if best:
            learnable = make_model_learnable(dict(weights), {})
            controller.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=True)
            controller.event(AppEventType.GLOBAL_BEST_MODEL_AVAILABLE)
            name = persistor.best_global_model_file_name
        else:
            controller.save_model(FLModel(params=dict(weights), params_type=ParamsType.FULL))
            name = persistor.global_model_file_name
        return str(Path(persistor.log_dir or controller.get_app_dir()) / name)

    def stream(self, tag: str, value: float, step: int) -> None:
        dxo = create_analytic_dxo(tag=tag, value=float(value), data_type=AnalyticsDataType.SCALAR, global_step=step)
        with self._controller.engine.new_context() as fl_ctx:
            send_analytic_dxo(self._controller, dxo, fl_ctx)

    def sign(self, package: Path) -> None:
        sign_with_kit(Path(self._controller.fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()), package)

    def show(self, picture: Mapping[str, object]) -> None:
        log_picture(picture)
