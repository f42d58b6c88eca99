"""MethodExecutor: runs any LocalMethod at a site."""

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmend.annotation import Annotation, annotation_of
from fedmend.data.manifest import load_card
from fedmend.datasets.phantom_sites import phantom_spec
from fedmend.errors import FedMendError
from fedmend.files import locked
from fedmend.methods.base import LocalMethod, RoundTask, Site
from fedmend.networks import build_network, get_weights, set_weights
from fedmend.state import StateStore
from fedmend.training import LocalTrainer, Stopped
from fl_components.console import quiet_console
from fl_components.payload import (
    CENSUS,
    COLLECT,
    EVALUATE,
    LONGEST_ERROR,
    TASKS,
    TRAIN,
    RunCard,
    SiteResult,
    pack_result,
    unpack_task,
)
from fl_components.site_config import SiteConfig, load_site_config, site_folder

LOG = logging.getLogger("fedmend.executor")
LEDGER_NAME, GALLERY_NAME = "ledger.sqlite", "gallery.html"
# What a job may ask a site to hold; no honest job comes near it, and more would fill memory or disk.
PREDECESSOR = 30.0  # seconds until the process of an earlier job has ended
LARGEST_IMAGE = 2048
LARGEST_BATCH = 2**28  # pixels


class MethodExecutor(Executor):
    """Executes the tasks ``census``, ``train``, ``collect`` (a report without training) and ``evaluate`` with one method of the client configuration.

    Args:
        method_id: id of the method among the ``components`` of the client configuration.
        learning_rate: Adam's learning rate in the first round.
        learning_rate_decay: what each round multiplies it by.
        weight_decay: L2 coefficient.
        local_epochs: epochs per round.
        second_momentum: Adam's beta_2.
        keep_moments: Adam's moments go on over rounds.
        batch_size: samples per step.
        image_size: edge length in pixels that every image is resized to.
        all_labels: train on the complete labels kept for evaluation (upper bound of a comparison).
        phantom: the phantom that sites use whose ``data_root`` is the word ``phantom``; fields of
            the classes in :mod:`fedmend.datasets.phantom_sites`.
    """

    def __init__(
        self,
        *,
        method_id: str,
        learning_rate: float,
        batch_size: int,
        image_size: int,
        learning_rate_decay: float = 1.0,
        weight_decay: float = 5e-4,
        local_epochs: int = 1,
        second_momentum: float = 0.999,
        keep_moments: bool = False,
        all_labels: bool = False,
        phantom: dict | None = None,
    ):
        super().__init__()
        if batch_size < 2 or image_size < 32:
            raise ValueError(f"expected batch_size >= 2 and image_size >= 32, got {batch_size} and {image_size}")
        if image_size > LARGEST_IMAGE or batch_size * image_size**2 > LARGEST_BATCH:
            raise ValueError(
                f"expected image_size <= {LARGEST_IMAGE} and batch_size * image_size^2 <= {LARGEST_BATCH}, got"
                f" image_size {image_size} and batch_size {batch_size}"
            )
        self._method_id, self._batch_size, self._image_size, self._all_labels = (
            method_id,
            batch_size,
            image_size,
            all_labels,
        )
        self._trainer = LocalTrainer(
            learning_rate=learning_rate,
            learning_rate_decay=learning_rate_decay,
            weight_decay=weight_decay,
            local_epochs=local_epochs,
            second_momentum=second_momentum,
            keep_moments=keep_moments,
        )
        self._phantom = phantom_spec(phantom) if phantom else None
        self._method: LocalMethod | None = None
        self._opened: tuple[RunCard, Site, Annotation, np.ndarray | None] | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Looks the method up when the run starts."""
        if event_type == EventType.START_RUN:
            quiet_console(fl_ctx)
            self._method = fl_ctx.get_engine().get_component(self._method_id)
            if not isinstance(self._method, LocalMethod):
                self.system_panic(f"client configuration: expected a method with id {self._method_id!r}", fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Runs one task. Bad input becomes a result that carries one sentence; nothing is raised into FLARE."""
        name = fl_ctx.get_identity_name()
        if task_name not in TASKS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            weights, task, run, evaluate = unpack_task(FLModelUtils.from_shareable(shareable))
            with self._alone(name, run, fl_ctx):
                result = self._run(task_name, weights, task, run, evaluate, fl_ctx, abort_signal)
        except Stopped:
            return make_reply(ReturnCode.TASK_ABORTED)
        except FedMendError as e:
            message = str(e) if str(e).startswith(name) else f"{name}: {e}"
            self.log_error(fl_ctx, message)
            result = SiteResult(error=message[:LONGEST_ERROR])
        except Exception as e:  # a type name is all that leaves; the words of the error may name a patient's file
            steps = [f"{Path(s.filename).name}:{s.lineno} {s.name}" for s in traceback.extract_tb(e.__traceback__)]
            self.log_error(fl_ctx, f"{task_name} failed with {type(e).__name__} at {' > '.join(steps)}")
            self.log_debug(fl_ctx, traceback.format_exc())
            message = f"{name}: {task_name} failed with {type(e).__name__}; see the log of this site"
            if isinstance(e, OSError) and e.errno:  # the system's own words, e.g. of a full disk, name no file
                message = (
                    f"{name}: {task_name}: expected files that can be read and written, got: {os.strerror(e.errno)}"
                )
            result = SiteResult(error=message)
        return FLModelUtils.to_shareable(pack_result(result))

    @staticmethod
    @contextlib.contextmanager
    def _alone(name: str, run: RunCard, fl_ctx: FLContext) -> Iterator[None]:
        """Keeps a process of an earlier job that froze and wakes up from writing beside this one."""
        folder = load_site_config(fl_ctx).state_dir / run.run_name / name
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "in_use", patience=PREDECESSOR) as alone:
            if not alone:
                raise FedMendError(
                    f"{name}: run_name {run.run_name!r}: expected no other task of this run at this site, one is still going on"
                )
            yield

    def _run(
        self, task_name, weights, task: RoundTask, run: RunCard, evaluate: bool, fl_ctx, abort_signal
    ) -> SiteResult:
        started = time.monotonic()
        config = load_site_config(fl_ctx)
        if config.threads:
            torch.set_num_threads(config.threads)
        name = fl_ctx.get_identity_name()
        site, annotation, truth = self._open(name, run, config)
        phantom = annotation.card.phantom
        site.memory.clear()
        site.stop = lambda: abort_signal.triggered
        result = SiteResult(round_num=task.round_num, samples=len(site.data.train))
        if task_name == CENSUS:
            result.census = self._census(site, annotation, phantom, self._all_labels)
            return result
        model = build_network(run.network, len(run.classes)).to(site.device)
        if site.device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)
        set_weights(model, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in weights.items()})
        if evaluate:
            for split, data in site.data.evaluation.items():
                result.counts[split] = annotation.evaluate(model, data, site)
        if task_name == TRAIN:
            site.ledger.undo(from_round=task.round_num)  # a repeated round starts from what the rounds before it left
            self._method.prepare(model, task, site)
            result.loss = self._trainer.train(model, self._method, task, site)
            result.report = self._method.report(model, task, site)
            result.weights = {k: v.numpy() for k, v in get_weights(model).items()}
        elif task_name == COLLECT:
            result.report = self._method.report(model, task, site)
        elif task_name == EVALUATE and (config.gallery or phantom):
            self._show(annotation.gallery(site, truth, phantom=phantom), run, config, name)
        result.repairs = dict(annotation.repairs(site, truth))
        repaired = sum(int(result.repairs[kind].sum()) for kind in ("positive", "negative") if result.repairs)
        LOG.info(
            "%s%s: round %d %s, %d samples, %s%s%.1f s",
            "PHANTOM " if phantom else "",
            name,
            task.round_num + 1 if task_name == TRAIN else task.round_num,
            task_name if task_name == EVALUATE else task.stage,
            result.samples,
            f"loss {result.loss:.4f}, " if task_name == TRAIN else "",
            f"{repaired} {annotation.unit} repaired so far, " if repaired else "",
            time.monotonic() - started,
        )
        return result

    @staticmethod
    def _show(page: str, run: RunCard, config: SiteConfig, name: str) -> None:
        """Writes the gallery beside the ledger, where only the site sees it."""
        if page:
            (config.state_dir / run.run_name / name / GALLERY_NAME).write_text(page, encoding="utf-8")

    def _open(self, name: str, run: RunCard, config: SiteConfig) -> tuple[Site, Annotation, np.ndarray | None]:
        """The site's data, ledger and state; kept while the process lives."""
        if self._opened is None or self._opened[0] != run:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            torch.backends.cudnn.deterministic = True  # same seed, same numbers
            annotation = annotation_of(load_card(site_folder(name, config, self._phantom), name))
            if annotation.card.task not in self._method.TASKS:
                known = " or ".join(map(repr, self._method.TASKS))
                raise FedMendError(
                    f"{name}: site.json, field task: expected {known} for the method of this job, got {annotation.card.task!r}"
                )
            data = annotation.load(
                run.classes,
                cache_dir=config.cache_dir,
                image_size=self._image_size,
                device=device,
                max_unreadable=config.max_unreadable,
                all_labels=self._all_labels,
            )
            if len(data.train) < self._batch_size:
                raise FedMendError(
                    f"{name}: {data.train.file}: expected at least {self._batch_size} samples (batch_size), got {len(data.train)}"
                )
            state_dir = config.state_dir / run.run_name / name
            ledger = annotation.open_ledger(state_dir / LEDGER_NAME, data)
            site = Site(name, device, data, ledger, StateStore(state_dir), self._batch_size)
            self._opened = (run, site, annotation, annotation.load_truth(data))
        return self._opened[1:]

    @staticmethod
    def _census(site: Site, annotation: Annotation, phantom: bool, all_labels: bool) -> dict:
        splits = {"train": site.data.train, **site.data.evaluation}
        return {
            "annotated": site.data.annotated,
            "positives": annotation.positives(site.data),
            "sizes": {k: len(v) for k, v in splits.items()},
            "task": site.data.task,
            "phantom": phantom,
            **({} if all_labels else annotation.lesions()),
        }
