"""What a run costs, measured while it goes on: seconds, bytes that travel, optimiser steps, images that networks are
trained on, memory; and what it began with, as a digest of the initial weights, so that runs can be held against each
other."""

import contextlib
import hashlib
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from fedmend.learning.networks import Network
from fedmend.messages import TRAIN, Question, SiteResult

PEAK, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """Measures one run in this process, between its ``with`` and its end.

    Attributes:
        initial: SHA-256 of the first model that sites were sent; "": none was.
        sites: site → ``rounds`` that it trained in, optimiser ``steps`` that it made, ``images`` that went
            through a network with gradients (each view and each pass anew), bytes that it ``received`` and ``sent``:
            weights, knowledge, reports and counts, without what a protocol adds.
    """

    def __init__(self) -> None:
        self.initial = ""
        self.sites: dict[str, dict[str, int]] = {}
        self._here = threading.local()  # the site that a thread works for
        self._started = time.monotonic()

    def __enter__(self) -> "Meter":
        reset_peak()
        self._started = time.monotonic()
        self._hooks = [
            register_optimizer_step_post_hook(lambda *_: self._count("steps", 1)),
            register_module_forward_hook(self._passed),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def asked(self, question: Question) -> None:
        """Counts what goes to the sites."""
        if question.weights and not self.initial:
            self.initial = digest(question.weights)
        for site, task in question.tasks.items():
            found = self.sites.setdefault(site, {"rounds": 0, "steps": 0, "images": 0, "received": 0, "sent": 0})
            found["rounds"] += question.name == TRAIN
            found["received"] += _size(question.weights) + _size(task.knowledge)

    @contextlib.contextmanager
    def working(self, site: str) -> Iterator[None]:
        """The optimiser steps and images of this thread are the site's."""
        self._here.site = site
        try:
            yield
        finally:
            self._here.site = None

    def answered(self, site: str, result: SiteResult) -> None:
        """Counts what a site sends back."""
        parts = (result.weights, result.report, result.counts, result.repairs)
        self.sites[site]["sent"] += sum(map(_size, parts))

    def measured(self) -> dict:
        """Everything so far, as JSON values."""
        return {
            "seconds": time.monotonic() - self._started,
            "peak_memory": peak_memory(),
            "initial_model": self.initial,
            "sites": {site: dict(found) for site, found in sorted(self.sites.items())},
        }

    def _passed(self, module: torch.nn.Module, given: tuple, _: object) -> None:
        if isinstance(module, Network) and torch.is_grad_enabled():
            self._count("images", len(given[0]))

    def _count(self, what: str, number: int) -> None:
        site = getattr(self._here, "site", None)
        if site is not None:
            self.sites[site][what] += number


def digest(weights: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, types, shapes and values of a model."""
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        array = np.ascontiguousarray(value)
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.data)
    return found.hexdigest()


def reset_peak() -> None:
    """The peak begins anew with the memory that this process holds now, where the system can do that."""
    with contextlib.suppress(OSError):
        RESET.write_text("5")


def peak_memory() -> int:
    """Most bytes that this process has held, since :func:`reset_peak` or, elsewhere than on Linux, since it began."""
    with contextlib.suppress(OSError):
        for line in PEAK.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _size(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(np.asarray(value).nbytes for value in arrays.values())
