"""Work on many files, on several cores where it takes long enough."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
SAMPLE, WORTH = 0.2, 5.0  # seconds of work: timed here; that other processes must save, as each needs one to start
HIDING = threading.Lock()  # of the script, by one thread at a time
SHARES = 16  # messages to each process, so that none waits long for the last one

ALLOWED: ContextVar[int] = ContextVar("threads of the site", default=0)  # 0: any number


def cores() -> int:
    """Cores that this site may use."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ALLOWED.get() or there


def end_with_ctrl_c() -> None:
    """Called in a process of a pool: Ctrl-C, which reaches all processes of a terminal, ends it without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def mapped(work: Callable[[T], R], items: Sequence[T], *, processes: int | None = None) -> Iterator[R]:
    """The results of ``work``, in the order of ``items``.

    The first ones are made here and timed; where the others would take long, processes make them.

    Args:
        work: a function that other processes can import, thus none of the person's script, or a partial of one.
        items: what it is called with.
        processes: at most; None: one per core that this site may use.
    """
    spent, done = 0.0, 0
    processes = processes or cores()
    for done, item in enumerate(items, 1):
        started = time.monotonic()
        result = work(item)
        spent += time.monotonic() - started
        yield result
        if processes > 1 and spent > SAMPLE and spent / done * (len(items) - done) * (1 - 1 / processes) > WORTH:
            break
    if rest := items[done:]:
        # spawn: the caller may hold threads and CUDA, which a fork would not survive
        context, chunk = multiprocessing.get_context("spawn"), max(1, len(rest) // (processes * SHARES))
        width = min(processes, len(rest))
        with ProcessPoolExecutor(width, mp_context=context, initializer=end_with_ctrl_c) as pool:
            with _script_hidden():
                results = pool.map(work, rest, chunksize=chunk)  # starts all processes
            yield from results


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Processes that start meanwhile would begin by running the person's script, which would do its work again."""
    with HIDING:
        main = sys.modules["__main__"]
        hidden: dict[str, Any] = {name: main.__dict__[name] for name in ("__file__", "__spec__") if name in vars(main)}
        main.__dict__.pop("__file__", None)
        main.__spec__ = None
        try:
            yield
        finally:
            main.__dict__.update(hidden)


def threaded(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results of ``work``, in the order of ``items``, by a thread per core that this site may use.

    For work that leaves Python most of the time. Few items are in the making at once, also when an error comes.
    """
    count = cores()
    with ThreadPoolExecutor(count) as pool:
        pending: deque = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
