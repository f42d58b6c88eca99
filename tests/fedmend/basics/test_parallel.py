import math
import os
import subprocess
import sys
import threading
import time

import pytest
from factories import ROOT

from fedmend.basics import parallel
from fedmend.basics.parallel import ALLOWED, cores, mapped, threaded


@pytest.fixture
def always(monkeypatch):
    """Processes are worth their start."""
    monkeypatch.setattr(parallel, "SAMPLE", 0)
    monkeypatch.setattr(parallel, "WORTH", 0)


def process(_):
    return os.getpid()


def slow(number):
    time.sleep(0.01)
    return number


def test_results_come_in_order_from_here_and_from_processes(always):
    assert list(mapped(math.factorial, range(9), processes=2)) == [math.factorial(n) for n in range(9)]


def test_the_first_result_is_made_here_and_the_others_in_processes(always):
    here, *others = mapped(process, range(8), processes=2)
    assert here == os.getpid()
    assert here not in others
    assert len(set(others)) <= 2


def test_short_work_and_work_for_one_process_stays_here(monkeypatch):
    assert set(mapped(process, range(50), processes=2)) == {os.getpid()}
    monkeypatch.setattr(parallel, "SAMPLE", 0)
    monkeypatch.setattr(parallel, "WORTH", 0)
    assert set(mapped(process, range(5), processes=1)) == {os.getpid()}


def test_work_that_takes_long_enough_leaves_this_process(monkeypatch):
    monkeypatch.setattr(parallel, "SAMPLE", 0.03)
    monkeypatch.setattr(parallel, "WORTH", 0.1)
    started = []
    monkeypatch.setattr(parallel, "ProcessPoolExecutor", lambda *given, **_: started.append(given) or _Here())
    assert list(mapped(slow, range(60), processes=2)) == list(range(60))
    assert started == [(2,)]


class _Here:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def map(self, work, items, chunksize):
        return map(work, items)


SCRIPT = """
import sys
from operator import neg
from fedmend.basics import parallel

print("script runs")
parallel.SAMPLE = parallel.WORTH = 0
print(*parallel.mapped(neg, range(4), processes=2))
print(__file__ == sys.argv[0], __spec__)
"""


def test_a_script_without_a_guard_does_not_run_again_in_the_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "custom")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.stdout.splitlines() == ["script runs", "0 -1 -2 -3", "True None"]


def test_nothing_gives_nothing(always):
    assert list(mapped(process, [], processes=2)) == list(threaded(process, [])) == []


def test_a_site_has_the_cores_that_it_allows():
    assert 1 <= cores() <= os.cpu_count()
    token = ALLOWED.set(3)
    try:
        assert cores() == 3
    finally:
        ALLOWED.reset(token)


def test_threads_give_their_results_in_order_and_work_side_by_side():
    token = ALLOWED.set(2)
    both = threading.Barrier(2, timeout=5)

    def wait_for_the_other(number):
        both.wait()
        return number

    try:
        assert list(threaded(wait_for_the_other, range(6))) == list(range(6))
    finally:
        ALLOWED.reset(token)


def test_after_an_error_of_a_thread_few_others_are_made():
    made = []

    def fail(number):
        made.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        list(threaded(fail, range(1000)))
    assert len(made) <= cores() + 1
