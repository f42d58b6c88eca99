"""MethodExecutor: any method at a site of FLARE."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmend.errors import FedMendError, said_by
from fedmend.learning.inference import Stopped
from fedmend.messages import KEEP, LONGEST_ERROR, QUESTIONS, Question, SiteResult
from fedmend.method import LocalMethod
from fedmend.site.config import SiteConfig
from fedmend.site.keeping import keep
from fedmend.site.worker import SiteSettings, SiteWorker
from fl_components.approval import check_approved, submitted
from fl_components.console import quiet_console
from fl_components.job.settings import METHOD
from fl_components.signing import trust_of
from fl_components.wire import CLASSES, RUN_NAME, pack_result, unpack_task
from fl_components.workspace import load_site_config


class MethodExecutor(Executor):
    """Answers the tasks ``census``, ``train``, ``collect`` (a report without training) and ``evaluate`` with the method
    that stands under the id ``method`` in the client configuration; ``keep`` leaves the model at a site that wants it.

    Args:
        settings: arguments of :meth:`fedmend.site.worker.SiteSettings.of`.
    """

    def __init__(self, **settings: Any):
        super().__init__()
        self._settings, self._told = SiteSettings.of(**settings), settings
        self._worker: SiteWorker  # from the start of the run on: the method is another component

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begins to work with the job's method when the run starts."""
        if event_type == EventType.START_RUN:
            quiet_console(fl_ctx)
            method = fl_ctx.get_engine().get_component(METHOD)
            if not isinstance(method, LocalMethod):
                self.system_panic(f"client configuration: expected a method with id {METHOD!r}", fl_ctx)
            else:
                self._method = f"{type(method).__module__}.{type(method).__qualname__}"
                self._arguments = {name: value for name, value in vars(method).items() if not name.startswith("_")}
                self._worker = SiteWorker(method, self._settings)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Runs one task. Bad input becomes a result that carries one sentence; nothing is raised into FLARE."""
        if task_name not in QUESTIONS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        name = fl_ctx.get_identity_name()
        try:
            weights, task, run, evaluate = unpack_task(FLModelUtils.from_shareable(shareable), task_name)
            for key, value in ((CLASSES, len(run.classes)), (RUN_NAME, run.run_name)):
                fl_ctx.set_prop(key, value, private=True, sticky=False)
            config, question = load_site_config(fl_ctx), Question(task_name, weights, {name: task}, run, evaluate)
            if config.approve == "ask":
                self._check_approved(name, question, config, fl_ctx, lambda: abort_signal.triggered)
            if task_name == KEEP:
                kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
                result = keep(name, question, config, trust_of(kit))
            else:
                result = self._worker.answer(name, question, config, stop=lambda: abort_signal.triggered)
        except Stopped:
            return make_reply(ReturnCode.TASK_ABORTED)
        except FedMendError as e:
            message = said_by(name, e)
            self.log_error(fl_ctx, message)
            result = SiteResult(error=message[:LONGEST_ERROR])
        except Exception as e:  # a message that is none of FedMend's may break anything
            self.log_error(fl_ctx, f"{task_name}: the server's message failed with {type(e).__name__}")
            result = SiteResult(error=f"{name}: {task_name} failed with {type(e).__name__}; see the log of this site")
        return FLModelUtils.to_shareable(pack_result(result))

    def _check_approved(
        self, name: str, question: Question, config: SiteConfig, fl_ctx: FLContext, stop: Callable[[], bool]
    ) -> None:
        run, task = question.run, question.tasks[name]
        about = {
            **submitted(fl_ctx),
            "run_name": run.run_name,
            "method": self._method,
            "arguments of the method": self._arguments,
            "network": run.network,
            "classes": list(run.classes),
            "settings": self._told,
        }
        shown = {"rounds": task.total_rounds, "sites": list(task.sites)}
        check_approved(config.state_dir, name, fl_ctx.get_job_id(), about, stop=stop, **shown)
