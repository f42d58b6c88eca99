"""What a site does with a question of the server: the same code in FLARE's process and without FLARE."""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from fedmend.basics.files import OWNER, locked, sweep, write_text
from fedmend.basics.parallel import ALLOWED
from fedmend.basics.state import StateStore
from fedmend.data.card import SiteCard, load_card
from fedmend.data.inputs import Inputs
from fedmend.errors import FedMendError, check_variables, said_by
from fedmend.fields import check_fields
from fedmend.kinds import Kind, kind_of
from fedmend.labels import SEGMENTATION
from fedmend.learning.heads import REFIT, refit_report
from fedmend.learning.inference import Stopped
from fedmend.learning.local_norm import check_norm, keep_norm, put_norm
from fedmend.learning.network_names import VOLUME
from fedmend.learning.networks import build_network
from fedmend.learning.training import LocalTrainer
from fedmend.learning.weights import get_weights, set_weights
from fedmend.messages import CENSUS, COLLECT, EVALUATE, KEEP_MODEL, LONGEST_ERROR, TRAIN, Question, RunSpec, SiteResult
from fedmend.method import LocalMethod, RoundTask, Site
from fedmend.phantoms.sites import PhantomSpec, phantom_spec
from fedmend.repairs.site_run import GALLERY_NAME, LEDGER_NAME, OPINIONS, save_opened, take_over_verdicts
from fedmend.repairs.verdicts import verdict_counts
from fedmend.site import own_results
from fedmend.site.beginning import begin
from fedmend.site.config import SiteConfig
from fedmend.site.data_marks import data_marks
from fedmend.site.devices import RESIDENT, device_of, free_bytes, inference_batch, prepare, with_resident_images
from fedmend.site.folder import site_folder
from fedmend.site.gpu_settings import BF16
from fedmend.site.limits import Clock, check_question, check_step, count_task, known_step_bytes
from fedmend.site.own_results import OwnResults
from fedmend.site.preparation import check_preparation, preprocessing_of
from fedmend.site.privacy import OverBudget
from fedmend.site.private_site import WITHHELD, PrivateSite, check_bearable, of_sums, secret_views, withhold
from fedmend.site.unexpected import log_unexpected

LOG = logging.getLogger("fedmend.executor")
PREDECESSOR = 30.0  # seconds until the process of an earlier job has ended


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """The job's settings of the sites.

    Attributes:
        trainer: trains for a round.
        inputs: what the network sees.
        batch_size: samples per step.
        all_labels: train on the complete labels kept for evaluation (upper bound of a comparison).
        pixel_mean: of labelled pictures, 0 to 1: one number, or one for each colour; empty: ImageNet's. Not for
            volumes or a network of timm, which have their own.
        pixel_deviation: of the same pictures, > 0; as many numbers as means.
        phantom: the phantom that sites use whose ``data_root`` is the word ``phantom``.
    """

    trainer: LocalTrainer
    inputs: Inputs
    batch_size: int
    all_labels: bool = False
    pixel_mean: Sequence[float] = ()
    pixel_deviation: Sequence[float] = ()
    phantom: PhantomSpec | None = None

    def __post_init__(self) -> None:
        image_size, batch_size = self.inputs.image_size, self.batch_size
        if batch_size < (1 if self.inputs.patch else 2) or image_size < 32:
            raise ValueError(f"expected batch_size >= 2 and image_size >= 32, got {batch_size} and {image_size}")
        self.inputs.check_batch(batch_size)
        mean, deviation = self.pixel_mean, self.pixel_deviation
        good = _finite(mean) and len(mean) in (0, 1, 3)
        check_variables(good, "a list of no number, 1 or 3", pixel_mean=mean)
        good = _finite(deviation) and len(deviation) == len(mean) and min(deviation, default=1) > 0
        check_variables(good, f"a list of {len(mean)} number(s) > 0", pixel_deviation=deviation)

    @classmethod
    def of(cls, *, phantom: Mapping | None = None, **arguments: Any) -> "SiteSettings":
        """The settings that stand side by side in a job.

        Args:
            phantom: fields of the classes in :mod:`fedmend.phantoms.sites`.
            arguments: the other fields of this class, and those of trainer and inputs in the place of these.

        Raises:
            FedMendError, TypeError, ValueError: a setting that there is not, or one that cannot be.
        """
        training = {f.name: arguments.pop(f.name) for f in fields(LocalTrainer) if f.name in arguments}
        seen = {f.name: arguments.pop(f.name) for f in fields(Inputs) if f.name in arguments}
        made = phantom_spec(phantom) if phantom else None
        return cls(trainer=LocalTrainer(**training), inputs=Inputs(**seen), phantom=made, **arguments)


@dataclass(frozen=True)
class OpenSite:
    """A site's opened data.

    Attributes:
        site: what the method may touch.
        kind: its kind of labels.
        card: its card.
        truth: complete training labels or masks, or None; never given to a method.
        private: of a site that keeps differential privacy.
    """

    site: Site
    kind: Kind
    card: SiteCard
    truth: np.ndarray | None
    private: PrivateSite | None


class SiteWorker:
    """Answers the questions of the server with one method; opened data are kept while the worker lives.

    Args:
        method: client half.
        settings: the job's settings of the sites.
    """

    def __init__(self, method: LocalMethod, settings: SiteSettings):
        self._method, self._settings = method, settings
        self._clock = Clock()
        self._opened: tuple[tuple, OpenSite] | None = None
        self._silent: set[str] = set()  # private sites at which a task of this job has failed

    def answer(
        self, name: str, question: Question, config: SiteConfig, *, stop: Callable[[], bool] = lambda: False
    ) -> SiteResult:
        """Does one task. Bad input becomes a result that carries one sentence, which names no patient and no path.

        Args:
            name: the site's name.
            question: what is asked, of this site among others.
            config: the site's settings.
            stop: asked before every batch.

        Raises:
            Stopped: ``stop`` said so.
        """
        try:
            return self._within_limits(name, question, config, stop)
        except FedMendError as e:
            message = said_by(name, e)
            LOG.error("%s", message)
            return SiteResult(error=message[:LONGEST_ERROR])
        except Stopped:
            raise
        except Exception as e:  # a type name is all that leaves; the words of the error may name a patient's file
            log_unexpected(name, question.name, e)
            where = f"{name}: {question.name}"
            if isinstance(e, OSError) and e.errno:  # the system's own words, e.g. of a full disk, name no file
                reason = os.strerror(e.errno)
                return SiteResult(error=f"{where}: expected files that can be read and written, got: {reason}")
            return SiteResult(error=f"{where} failed with {type(e).__name__}; see the log of this site")

    def _within_limits(self, name: str, question: Question, config: SiteConfig, stop: Callable[[], bool]) -> SiteResult:
        """Works alone on the run, and no longer than the hours that the site gives a job."""
        if question.name != CENSUS:
            self._clock.start()
        self._clock.check(name, config)
        check_question(name, config, question, self._settings.trainer.local_epochs, self._method.FIELDS)
        with locked(config.state_dir / question.run.run_name / name / "in_use", patience=PREDECESSOR) as alone:
            if not alone:  # a process of an earlier job that froze and wakes up must not write beside this one
                run = f"run_name {question.run.run_name!r}"
                raise FedMendError(f"{run}: expected no other task of this run at this site, one is still going on")
            work = self._work_in_silence if config.privacy and question.name != CENSUS else self._work
            try:
                result = work(name, question, config, lambda: stop() or self._clock.over(config))
            except Stopped:
                if not stop():  # the hours are over, which is said in a sentence
                    self._clock.check(name, config)
                raise
            return withhold(result, self._method.FIELDS) if config.privacy else result

    def _work_in_silence(
        self, name: str, question: Question, config: SiteConfig, stop: Callable[[], bool]
    ) -> SiteResult:
        """Works at a private site. Whether and how a task fails may depend on one patient, so all that is told is one
        sentence, the same for every error, and the first one ends the job at this site: no second question is left."""
        withheld = FedMendError(f"{name}: {WITHHELD}")
        if name in self._silent:
            raise withheld
        try:
            return self._work(name, question, config, stop)
        except (Stopped, OverBudget):  # the account knows steps, and no patient
            raise
        except Exception as e:
            self._silent.add(name)
            if isinstance(e, FedMendError):
                LOG.error("%s", said_by(name, e))
            else:
                log_unexpected(name, question.name, e)
            raise withheld from None

    def _work(self, name: str, question: Question, config: SiteConfig, stop: Callable[[], bool]) -> SiteResult:
        started = time.monotonic()
        if config.threads:
            torch.set_num_threads(config.threads)
        ALLOWED.set(config.threads)
        run, task, asked = question.run, question.tasks[name], question.name
        opened = self._open(name, run, config)
        site, kind, private = opened.site, opened.kind, opened.private
        site.stop = stop
        site.ledger.check_mark(task.ledger_mark)
        result = SiteResult(round_num=task.round_num, samples=len(site.data.train))
        trainer, method = self._settings.trainer, self._method
        if asked == CENSUS:
            more = {"min_federation": config.min_federation} | ({KEEP_MODEL: True} if config.keep_model else {})
            result.census = self._census(opened) | more
            if private:
                result.privacy = private.announce(trainer.local_epochs, task.total_rounds)
            return result
        count_task(name, config, site.state, asked)
        model = self._model(opened, question)
        begin(site, run.mark, task.ledger_mark)  # a message that does not fit takes nothing away
        put_norm(trainer.norm, model, task, site)
        if question.evaluate:
            evaluated = method.evaluated(model, task, site)
            for split, data in site.data.evaluation.items():
                result.counts[split] = kind.evaluate(evaluated, data, site)
        if asked == TRAIN:
            site.ledger.undo(from_round=task.round_num)  # a repeated round starts from what the rounds before it left
            if private:
                result.privacy = private.spend(trainer.local_epochs)
                site.ledger.leave_mark()  # a state_dir that is put back as a whole lacks what the server knows
            work = method.start(model, task, site)
            result.loss = trainer.train(work, private.steps if private else None)
            result.report = dict(work.report())
            result.weights = {k: v.numpy() for k, v in get_weights(model).items()}
            result.weights |= keep_norm(trainer.norm, model, question.weights, task, site)
        elif asked == COLLECT:
            solving = task.stage == REFIT
            result.report = dict(refit_report(method, model, site) if solving else method.collect(model, task, site))
            if private and (told := private.released()):
                result.privacy = told
                site.ledger.leave_mark()
        elif asked == EVALUATE and not private:
            self._leave_for_review(opened, model, run, config)
        result.repairs, result.ledger_mark = dict(kind.repairs(site, opened.truth)), site.ledger.mark()
        if result.repairs and config.share_verdicts:
            judged, classes = site.ledger.verdicts(), len(run.classes)
            result.repairs |= verdict_counts(judged, classes, one_label=kind.one_label, min_count=config.min_count)
        if asked == EVALUATE and task.round_num == task.total_rounds:
            self._own_results(opened, run, task, result).write(kind, config.state_dir / run.run_name / name)
        self._log(opened, asked, task, result, time.monotonic() - started)
        return result

    def _model(self, opened: OpenSite, question: Question) -> torch.nn.Module:
        """The received model on the site's device; what the server says beside it is checked."""
        site, run = opened.site, question.run
        model = build_network(run.network, len(run.classes)).to(site.device)
        features: Any = model.num_features
        letters = {"C": len(run.classes), "R": len(opened.kind.row_names(run.classes)), "F": features}
        where = f"{site.name}: round {question.tasks[site.name].round_num}, knowledge of the server,"
        check_fields(question.tasks[site.name].knowledge, self._method.KNOWLEDGE, letters, where)
        if site.device.type == "cuda":
            deep = run.network.startswith(VOLUME)
            model = model.to(memory_format=torch.channels_last_3d if deep else torch.channels_last)
        set_weights(model, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in question.weights.items()})
        return model

    @staticmethod
    def _leave_for_review(opened: OpenSite, model: torch.nn.Module, run: RunSpec, config: SiteConfig) -> None:
        """Keeps at the site what its people may look at. An error, which may tell of training data, is for its log."""
        site, kind = opened.site, opened.kind

        def opinions() -> None:
            site.state.save(OPINIONS, torch.from_numpy(kind.opinions(model, site)))

        def gallery() -> None:
            page = kind.gallery(site, opened.truth, phantom=opened.card.phantom)
            if page:  # beside the ledger, where only the site sees it
                write_text(config.state_dir / run.run_name / site.name / GALLERY_NAME, page, mode=OWNER)

        for left in (opinions, gallery) if config.gallery or opened.card.phantom else (opinions,):
            try:
                left()
            except FedMendError as e:
                LOG.warning("%s: no %s for a review: %s", site.name, left.__name__, e)
            except Stopped:
                raise
            except Exception as e:
                log_unexpected(site.name, left.__name__, e)

    @staticmethod
    def _own_results(opened: OpenSite, run: RunSpec, task: RoundTask, result: SiteResult) -> OwnResults:
        data = opened.site.data
        return OwnResults(
            site=opened.site.name,
            run_name=run.run_name,
            classes=run.classes,
            round_num=task.round_num,
            sizes={"train": len(data.train), **{split: len(held) for split, held in data.evaluation.items()}},
            counts=result.counts,
            repairs=result.repairs,
            phantom=opened.card.phantom,
        )

    @staticmethod
    def _log(opened: OpenSite, question: str, task: RoundTask, result: SiteResult, seconds: float) -> None:
        repaired = sum(int(result.repairs[sign].sum()) for sign in ("positive", "negative") if result.repairs)
        who = f"{'PHANTOM ' if opened.card.phantom else ''}{opened.site.name}"
        round_num, loss = task.round_num, ""
        if question == TRAIN:
            round_num, loss = round_num + 1, f"loss {result.loss:.4f}, "
        stage = question if question == EVALUATE else task.stage
        repairs = f"{repaired} {opened.kind.unit} repaired so far, " if repaired else ""
        measured = own_results.line(opened.kind, result.counts)
        model = f"received model {measured}, " if measured else ""
        text = "%s: round %d %s, %d samples, %s%s%s%.1f s"
        LOG.info(text, who, round_num, stage, result.samples, loss, repairs, model, seconds)

    def _open(self, name: str, run: RunSpec, config: SiteConfig) -> OpenSite:
        wanted = (name, run, config.privacy)
        if self._opened is None or self._opened[0] != wanted:
            self._opened = (wanted, self._open_site(name, run, config))
        return self._opened[1]

    def _open_site(self, name: str, run: RunSpec, config: SiteConfig) -> OpenSite:
        chosen, scaling = self._settings, (self._settings.pixel_mean, self._settings.pixel_deviation)
        device = device_of(name, config.gpu)
        prepare(device, config.gpu)
        card = load_card(site_folder(name, config, chosen.phantom), name)
        if card.kind not in self._method.KINDS:
            known = f"{' or '.join(map(repr, self._method.KINDS))} for the method of this job"
            raise FedMendError(f"{name}: site.json, field task: expected {known}, got {card.kind!r}")
        check_preparation(card, run.network, scaling, chosen.inputs, type(self._method))
        if config.privacy:
            check_bearable(name, self._method, run.network, decay=chosen.trainer.decay)
        check_norm(name, chosen.trainer.norm, self._method, run.network, private=config.privacy is not None)
        kind = kind_of(card.kind)
        state_dir = config.state_dir / run.run_name / name
        sweep(state_dir)  # under the lock of the run
        state = StateStore(state_dir)
        images, shape = chosen.inputs.step(chosen.batch_size)
        step = {"network": run.network, "num_classes": len(run.classes), "images": images, "shape": shape}
        need = known_step_bytes(state, {**step, "masks": card.kind == SEGMENTATION})
        check_step(name, config, device, need)
        how = {"max_unreadable": config.max_unreadable, "all_labels": chosen.all_labels}
        opening = chosen.inputs.opening(config.cache_dir, device, **how)
        data = kind.load(card, run.classes, opening)
        if scaling[0]:
            data = data.scaled(*map(tuple, scaling))
        if len(data.train) < chosen.batch_size:
            least = f"at least {chosen.batch_size} samples (batch_size)"
            raise FedMendError(f"{name}: {data.train.file}: expected {least}, got {len(data.train)}")
        if config.privacy:
            data = replace(data, evaluation={})  # what a model does on patients of val and test stays here
        ledger = kind.open_ledger(state_dir / LEDGER_NAME, card, data)
        take_over_verdicts(ledger, state_dir / LEDGER_NAME)
        autocast = config.gpu.precision == BF16
        site = Site(name, device, data, ledger, state, chosen.batch_size, autocast=autocast)
        site.evaluate_by, site.min_count = config.evaluate_by, config.min_count
        if device.type == "cuda":
            site.data = with_resident_images(data, RESIDENT * free_bytes(device, config.gpu))
            if not config.gpu.deterministic:
                site.inference_batch = inference_batch(need, chosen.batch_size, free_bytes(device, config.gpu))
        save_opened(state, card, run.classes, opening, data.train)
        private = None
        if config.privacy:
            sums = of_sums(self._method)
            private = PrivateSite(name, config.privacy, config.state_dir, data.train, chosen.batch_size, sums=sums)
            site.draw, site.add_up = secret_views, private.add_up
        return OpenSite(site, kind, card, kind.load_truth(card, data), private)

    def _census(self, opened: OpenSite) -> dict:
        data, kind = opened.site.data, opened.kind
        splits = {"train": data.train, **data.evaluation}
        return {
            "annotated": data.annotated,
            "positives": kind.positives(data),
            "sizes": {k: len(v) for k, v in splits.items()},
            "data": data_marks(opened.site.state, splits),
            "kind": kind.name,
            "phantom": opened.card.phantom,
            "preprocessing": preprocessing_of(opened.card, data.train, self._settings.inputs).told(),
            **({} if self._settings.all_labels else kind.census_extras(opened.card)),
        }


def _finite(values: Any) -> bool:
    """Whether it is a list of finite numbers."""
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    return listed and all(type(v) in (int, float) and math.isfinite(v) for v in values)
