"""What a job may ask of a site: memory of a training step, rounds, epochs, hours; the site's ``fedmend.json`` decides.

The memory is estimated before any data are opened, by a forward pass without numbers (PyTorch's meta device) that adds
up what the backward pass will need. ``docs/your_data.md`` says how near it comes to what is really used.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import torch

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.fields import OF_PRIVACY, Field
from fedmend.learning.heads import HEAD_FIELDS, REFIT
from fedmend.learning.networks import build_network
from fedmend.messages import CENSUS, COLLECT, TRAIN, Question
from fedmend.method import RoundTask
from fedmend.site.config import CONFIG_NAME, SiteConfig
from fedmend.site.devices import free_bytes
from fedmend.site.gpu_settings import BF16, GB

HOUR = 3600  # seconds
TASKS, STEP = "tasks", "training_step"  # in a run's state: numbers of tasks, memory that a step needs
REPEATS = 2  # a run that is interrupted repeats rounds
HALF = 0.5  # on a GPU most of what is kept is in bfloat16
MODELS = 6  # copies of the weights: the model, its gradient, Adam's two moments, a teacher, what was received


def step_bytes(network: str, num_classes: int, images: int, shape: Sequence[int], masks: bool | None = None) -> int:
    """Estimated memory of a training step in float32, of a batch of ``images`` of a ``shape``: rows and columns, before
    them the slices of a patch.

    Args:
        network: name of the job's network.
        num_classes: its classes.
        images: of a batch.
        shape: of each.
        masks: whether the job learns masks, which needs a network with logits for each pixel; None: not known.

    Returns:
        Bytes: the weights :data:`MODELS` times, the images twice, all tensors kept for the backward pass, and twice the
        largest of these, for the gradients on their way.

    Raises:
        FedMendError: unknown network, or one that cannot be built, or cannot take images of this size, without numbers,
            or one for masks in a job with labels, or the reverse.
    """
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address comes twice
    try:
        with torch.device("meta"):
            model = build_network(network, num_classes).train().requires_grad_(True)  # an upper bound if frozen
            channels: Any = model.channels
            batch = torch.empty((images, channels, *shape))
        weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                kept[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = model(batch)
            of_pixels = outputs[1].ndim > 2
    except FedMendError:
        raise
    except Exception as e:  # libraries raise many types, e.g. for a pooling of 7 x 7 on a map of 2 x 2
        raise FedMendError(
            f"job variables network, {'image_size' if len(shape) == 2 else 'patch'}: expected a network that takes"
            f" images of {' x '.join(map(str, shape))} pixels in a trial without numbers, got {network}, which fails"
            f" with {type(e).__name__}"
        ) from None
    if masks is not None and masks != of_pixels:
        raise FedMendError(
            f"job variable network: expected one for {'masks' if masks else 'labels'}, got {network:.60}, which is for"
            f" {'masks' if of_pixels else 'labels'}"
        )
    sizes = [storage.nbytes() for storage in kept.values()]
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    return MODELS * held + 2 * batch.nbytes + sum(sizes) + 2 * max(sizes, default=0) + sum(o.nbytes for o in outputs)


def known_step_bytes(state: StateStore, step: Mapping[str, Any]) -> int:
    """:func:`step_bytes`, estimated once in a run: PyTorch imports its compiler for it, which takes 2 seconds in each
    new process.

    Args:
        state: of the run at the site.
        step: arguments of that function.

    Raises:
        FedMendError: as there.
    """
    known = state.load(STEP)
    if known is None or known["step"] != step:
        known = {"step": dict(step), "bytes": step_bytes(**step)}
        state.save(STEP, known)
    return known["bytes"]


def check_step(name: str, config: SiteConfig, device: torch.device, need: float) -> None:
    """Refuses a job whose training step needs more memory, ``need`` bytes by :func:`step_bytes`, than it gets.

    Raises:
        FedMendError: they are above ``memory_gb``, or where that is 0 above the memory that is free now.
    """
    if device.type == "cuda" and config.gpu.precision == BF16:
        need *= HALF
    limit, word = config.memory_gb * GB, f"memory_gb of this site's {CONFIG_NAME}"
    if not limit:
        free = free_bytes(device, config.gpu) if device.type == "cuda" else psutil.virtual_memory().available
        limit, word = free, "free at this site"
    if need > limit:
        raise FedMendError(
            f"{name}: job variables network, batch_size, image_size: expected a training step of at most"
            f" {limit / GB:.1f} GB ({word}), got one of about {need / GB:.1f} GB"
        )


def check_question(name: str, config: SiteConfig, question: Question, epochs: int, fields: Mapping[str, Field]) -> None:
    """Refuses what the site takes no part in, before any data are opened.

    Args:
        name: of the site.
        config: its settings.
        question: that it is asked.
        epochs: of a round of the job.
        fields: that the job's method reports.

    Raises:
        FedMendError: as :func:`check_order`, :func:`check_fields_wanted` and :func:`check_federation`.
    """
    check_order(name, config, question.tasks[name], epochs)
    solving = question.tasks[name].stage == REFIT
    if solving and config.privacy:
        where = f"{name}: local/{CONFIG_NAME}, field privacy"
        raise FedMendError(f"{where}: expected a job with refit=false, since classifiers are solved without noise")
    check_fields_wanted(name, config, HEAD_FIELDS if solving else fields)
    if question.name in (CENSUS, TRAIN, COLLECT):  # of reports, too, a model may be made
        check_federation(name, config, question.tasks[name].sites)


def check_order(name: str, config: SiteConfig, task: RoundTask, epochs: int) -> None:
    """Refuses a job of more rounds, or more ``epochs`` of a round, than the site takes part in.

    Raises:
        FedMendError: names the job's setting and the site's.
    """
    rounds = max(task.total_rounds, task.round_num)
    for setting, asked, field in (("num_rounds", rounds, "max_rounds"), ("local_epochs", epochs, "max_epochs")):
        most = getattr(config, field)
        if most and asked > most:
            limit = f"{most} ({field} of this site's {CONFIG_NAME})"
            raise FedMendError(f"{name}: job variable {setting}: expected at most {limit}, got {asked}")


def check_federation(name: str, config: SiteConfig, sites: Sequence[str]) -> None:
    """Refuses a job, or a round of training or reports, of fewer ``sites`` than the site wants to be among. An honest
    server says who they are, and goes on with no fewer results than each of them wants.

    Raises:
        FedMendError: they are fewer than ``min_federation``, or this site is none of them.
    """
    if sites and name not in sites:
        raise FedMendError(f"{name}: expected a task that names this site among those of the round, got another")
    if sites and len(sites) < config.min_federation:
        limit = f"{config.min_federation} sites (min_federation of this site's {CONFIG_NAME})"
        raise FedMendError(f"{name}: expected to train together with others, at least {limit}, got {len(sites)}")


def check_fields_wanted(name: str, config: SiteConfig, fields: Mapping[str, Field]) -> None:
    """Refuses a job whose method reports one of ``fields`` that the site lets nobody have, or sums with the noise of a
    privacy that it does not keep.

    Raises:
        FedMendError: names them, or the setting.
    """
    if not config.privacy and any(field.allowed_by == OF_PRIVACY for field in fields.values()):
        raise FedMendError(
            f"{name}: local/{CONFIG_NAME}, field privacy: expected a policy for a job of sums with noise, got none"
        )
    if refused := sorted({*fields} & {*config.refuse_fields}):
        without = f"without the report fields that this site keeps (refuse_fields of its {CONFIG_NAME})"
        raise FedMendError(f"{name}: expected a method {without}, got one that reports {', '.join(refused)}")


def count_task(name: str, config: SiteConfig, state: StateStore, asked: str) -> None:
    """Counts the tasks of a kind over all jobs of a run, before they are done, and refuses one beyond the limit: a
    round that is asked for again and again is no other round, and still work and an answer.

    Args:
        name: of the site.
        config: its settings.
        state: of the run at the site.
        asked: kind of the task.

    Raises:
        FedMendError: there were :data:`REPEATS` times as many as ``max_rounds`` allows rounds.
    """
    if not config.max_rounds:
        return
    counts, most = state.load(TASKS, {}), REPEATS * config.max_rounds
    count = counts.get(asked, 0) + 1
    if count > most:
        limit = f"{most} tasks {asked} of one run ({REPEATS} times max_rounds of this site's {CONFIG_NAME})"
        raise FedMendError(f"{name}: expected at most {limit}, repeated rounds included, got more")
    state.save(TASKS, {**counts, asked: count})


class Clock:
    """How long a job has been at work at a site, from the first task after the census on: until then sites may wait
    for people who have to approve the job, here or elsewhere."""

    def __init__(self) -> None:
        self._began: float | None = None

    def start(self) -> None:
        """Begins, if it has not."""
        if self._began is None:
            self._began = time.monotonic()

    def over(self, config: SiteConfig) -> bool:
        """Whether the site's ``max_hours`` are over."""
        began = self._began
        return bool(config.max_hours) and began is not None and time.monotonic() - began > config.max_hours * HOUR

    def check(self, name: str, config: SiteConfig) -> None:
        """Refuses to go on when the hours are over.

        Raises:
            FedMendError: says which setting decides.
        """
        if self.over(config):
            limit = f"{config.max_hours:g} hours (max_hours of this site's {CONFIG_NAME})"
            raise FedMendError(f"{name}: expected a job of at most {limit}, got a longer one")
