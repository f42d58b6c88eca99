"""Comparisons: a job and rows of variants or settings over several seeds, each run without FLARE and kept."""

import contextlib
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fedmend
from fedmend.basics.files import locked, write_text
from fedmend.basics.parallel import end_with_ctrl_c
from fedmend.errors import FedMendError
from fedmend.local.metering import Meter
from fedmend.records.run_folder import RUN_FOLDER
from fedmend.site.config import CONFIG_NAME
from fl_components.compare.budget import Budget
from fl_components.compare.cluster import connected
from fl_components.job.folder import Changes, changed, read_job
from fl_components.job.settings import has, parse_assignments, parts
from fl_components.run.bars import Lines
from fl_components.run.local import run_local

SEED = "{SEED}"  # in a setting, as {SITE_NAME} in paths of fedmend.json
DATA_ROOT = "data_root"  # of fedmend.json
PLACES = ("cache_dir", "state_dir")  # fields of fedmend.json on which no number depends


@dataclass(frozen=True)
class Comparison:
    """What is compared, and on what.

    Attributes:
        job: job folder; as it is, it makes the first row.
        rows: words of the other rows: variants and settings joined by ``+``, e.g. ``paper+fedavg`` or
            ``fedavg+learning_rate=0.001``.
        seeds: of the runs of each row.
        variants: variants of all rows.
        words: ``name=value`` of all rows that have the setting, the first one must; ``{SEED}`` in a value becomes the
            number of the federation.
        site_words: ``field=value`` of ``fedmend.json``; ``{SEED}`` as in ``words``.
        sites: see :class:`fl_components.job.folder.Changes`.
        run_name: first word of the names of all runs, before those of their variants; "": the job's.
        per_federation: seeds that share the number of a federation, which is the seed divided by it, rounded down.
    """

    job: Path
    rows: Sequence[str]
    seeds: Sequence[int]
    variants: Sequence[str] = ()
    words: Sequence[str] = ()
    site_words: Sequence[str] = ()
    sites: int = 0
    run_name: str = ""
    per_federation: int = 1

    def number(self, seed: int) -> int:
        """Of the federation on which the runs of a seed are made."""
        return seed // self.per_federation


@dataclass(frozen=True, eq=False)
class Case:
    """One run of a comparison: its row and seed, its workspace, and what :func:`run_local` is given for it."""

    row: str
    seed: int
    workspace: Path
    job: Path
    changes: Changes
    site_settings: Mapping[str, object]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row}, seed {self.seed}"

    @property
    def marker(self) -> Path:
        """The file that says what has run; it is there when the run is complete."""
        return self.workspace.with_name(self.workspace.name + ".json")

    @property
    def cost_file(self) -> Path:
        """The file that says what the run cost; runs of earlier versions have none."""
        return self.workspace.with_name(self.workspace.name + ".cost.json")

    def cost(self) -> dict:
        """What the run cost, by :class:`fedmend.local.metering.Meter` and :func:`effort`; empty where unknown."""
        return json.loads(self.cost_file.read_text(encoding="utf-8")) if self.cost_file.is_file() else {}

    def data(self) -> str:
        """Which data the run is made on: the folder of the sites or, without one, the settings of the phantom; and the
        size of the images that networks see.

        Raises:
            FedMendError: see :func:`fl_components.job.folder.configure_job`.
        """
        site = read_job(self.job, self.changes).site
        about = self.site_settings.get(DATA_ROOT) or site.get("phantom"), site.get("image_size")
        return json.dumps(about, sort_keys=True)

    def wanted(self) -> str:
        """Content of the marker: settings and FedMend's version. The numbers also depend on data and weights files.

        Raises:
            FedMendError: see :func:`fl_components.job.folder.configure_job`.
        """
        content: dict[str, Any] = dict(sorted(changed(self.job, self.changes).content.items()))
        content["fedmend"] = fedmend.__version__
        content["fedmend.json"] = {k: v for k, v in self.site_settings.items() if k not in PLACES}
        return json.dumps(content, indent=2) + "\n"


def cases(comparison: Comparison, out: Path) -> list[Case]:
    """The runs of a comparison, seed after seed.

    Args:
        comparison: what is compared.
        out: every run has a workspace ``out/<row>/seed-<seed>``.

    Raises:
        FedMendError: no job that trains, or two rows of one name.
    """
    rows = [str(read_job(comparison.job).run.get("method") or "method"), *comparison.rows]
    folders = {row: re.sub(r"[^\w.=+-]", "_", row) for row in rows}
    if len({*folders.values()}) < len(rows):
        raise FedMendError(f"--rows: expected different rows, none of them {rows[0]}, got {','.join(rows[1:])}")
    chosen = {row: (*comparison.variants, *(w for w in row.split("+") if "=" not in w)) for row in rows[1:]}
    chosen = {rows[0]: tuple(comparison.variants), **chosen}
    having = {row: parts(*changed(comparison.job, Changes(variants=v)).configs) for row, v in chosen.items()}
    found = []
    for seed, row in itertools.product(comparison.seeds, rows):
        common = [w for w in comparison.words if row == rows[0] or has(w.partition("=")[0], having[row])]
        named = {"run_name": "_".join([comparison.run_name, *chosen[row]])} if comparison.run_name else {}
        number = comparison.number(seed)
        settings = _assigned([*common, *(w for w in row.split("+") if "=" in w)], number)
        changes = Changes(named | settings | {"seed": seed}, chosen[row], comparison.sites)
        workspace = out / folders[row] / f"seed-{seed}"
        found.append(Case(row, seed, workspace, comparison.job, changes, _assigned(comparison.site_words, number)))
    return found


def _assigned(words: Sequence[str], number: int) -> dict[str, object]:
    return parse_assignments([word.replace(SEED, str(number)) for word in words])


def federations(comparison: Comparison) -> dict[int, int]:
    """Seed → the federation of its runs, counted from 0: seeds whose data are the same have one together.

    Raises:
        FedMendError: see :func:`cases`.
    """
    known: dict[str, int] = {}
    found = cases(replace(comparison, rows=[]), Path())
    return {case.seed: known.setdefault(case.data(), len(known)) for case in found}


def compare(
    comparison: Comparison,
    out: Path,
    *,
    processes: int = 1,
    cluster: str = "",
    budget: Budget | None = None,
    failed: dict[str, str] | None = None,
    show: Callable[[str], None] = print,
    progress: Lines | None = None,
) -> dict[str, list[Path]]:
    """Makes the runs of a comparison that an earlier call has not made, all rows of a seed before the next seed.

    Args:
        comparison: what is compared.
        out: folder of the runs; a new one or that of earlier comparisons.
        processes: runs at the same time.
        cluster: address of a Dask scheduler, whose workers make the runs; "": this machine does.
        budget: time for this call.
        failed: gets row → why for each row but the job's own of which a run fails; no more runs of such a row are made,
            and the others go on. None: the first run that fails ends the call.
        show: gets a line after each run.
        progress: takes its place.

    Returns:
        row → run folders, one per seed; first the job's own row. Rows that failed and seeds that the budget has left
        incomplete are not among them.

    Raises:
        FedMendError: a row that the job cannot be given, a run in ``out`` with other settings, of another version or at
            work, or one that failed; a budget too small for one seed; the others that are or become complete are kept.
            Also if ``out`` is the workspace of a simulation, which the next simulation there would empty.
    """
    if (out / "local" / CONFIG_NAME).is_file():
        raise FedMendError("--out: expected a folder for comparisons, got the workspace of a run")
    found, budget, progress = cases(comparison, out), budget or Budget(), progress or Lines(show)
    wanted = {case: case.wanted() for case in found}  # every mistake before the first run
    with locked(out / "in_use", patience=0) as alone:
        if not alone:
            raise FedMendError("--out: expected no other comparison at work in it, there is one")
        todo = {case: content for case, content in wanted.items() if not _is_done(case, content)}
        with connected(cluster, out) if cluster else _pool(processes) as (pool, width):
            left = _make(found, todo, pool, width, budget, progress, failed)
    found = [case for case in found if case.row not in (failed or ())]
    whole = _whole(found, excepting=left)
    if not whole:
        raise FedMendError("--budget: expected time for all rows of one seed, it ran out; complete runs are kept")
    rows = dict.fromkeys(case.row for case in found)
    return {row: [c.workspace / RUN_FOLDER for c in found if c.row == row and c.seed in whole] for row in rows}


def _make(
    found: Sequence[Case],
    todo: Mapping[Case, str],
    pool: Executor,
    width: int,
    budget: Budget,
    progress: Lines,
    failed: dict[str, str] | None,
) -> set[Case]:
    """Makes the runs that are to do, and returns those for which there was no time."""
    for case in found:
        if case not in todo and (seconds := case.cost().get("seconds")):
            budget.note(case.row, seconds)
    if not _whole(found, excepting=todo):
        first = next(iter(todo)).seed
        budget.check([case.row for case in todo if case.seed == first], width)
    left = set(todo)
    progress.begin(len(found), len(found) - len(todo))
    try:
        for case, task in _run_all(todo, left, pool, width, budget):
            try:
                cost = task.result()
            except FedMendError as e:
                if failed is None or case.row == found[0].row:
                    raise
                failed.setdefault(case.row, str(e).removeprefix(f"{case.row}, "))
                left -= {one for one in left if one.row == case.row}
                progress.fail(str(e))
                continue
            left.discard(case)
            budget.note(case.row, cost["seconds"])
            progress.advance(case.name, len(left), budget.together([c.row for c in left], width))
    finally:
        progress.end()
    return left


def _whole(found: Sequence[Case], *, excepting: Container[Case]) -> list[int]:
    """Seeds all of whose runs are complete."""
    missing = {case.seed for case in found if case in excepting}
    return [seed for seed in dict.fromkeys(case.seed for case in found) if seed not in missing]


def _is_done(case: Case, wanted: str) -> bool:
    if not case.marker.is_file():
        return False
    if case.marker.read_text(encoding="utf-8") != wanted:
        raise FedMendError(
            f"--out: expected new runs or the same ones, got one of {case.name}, with other settings or of another"
            " version of FedMend"
        )
    return True


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[tuple[Executor, int]]:
    """What takes runs, and how many at the same time."""
    if processes < 2:
        yield _Here(), 1
        return
    # spawn: the parent may hold threads, which a forked process does not survive reliably
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=end_with_ctrl_c) as pool:
        try:
            yield pool, processes
        except BrokenProcessPool:
            raise FedMendError("--processes: expected runs to end by themselves, one was killed (memory?)") from None
        finally:
            pool.shutdown(cancel_futures=True)


class _Here(Executor):
    """Makes a run at once, in this process."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future:
        task: Future = Future()
        try:
            task.set_result(work(*given, **named))
        except Exception as e:
            task.set_exception(e)
        return task


def _run_all(
    todo: Mapping[Case, str], left: Container[Case], pool: Executor, width: int, budget: Budget
) -> Iterator[tuple[Case, Future]]:
    """The cases as their runs end, those that are begun in time and while they are ``left``."""
    waiting = deque(todo)
    running: dict[Future, Case] = {}
    while True:
        waiting = deque(case for case in waiting if case in left)
        while waiting and len(running) < width and budget.fits(waiting[0].row):
            case = waiting.popleft()
            running[pool.submit(_run, case, todo[case])] = case
        if not running:
            return
        for task in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(task), task


def _run(case: Case, content: str) -> dict:
    """Makes a run and writes its marker: also when another one has failed meanwhile, and nobody waits any more.

    Args:
        case: the run.
        content: of the marker.

    Returns:
        What it cost, see :meth:`Case.cost`.
    """
    case.workspace.parent.mkdir(parents=True, exist_ok=True)  # for the log beside it
    try:
        with Meter() as meter:
            where, settings = case.workspace, case.site_settings
            run_local(case.job, where, case.changes, threads=1, site_settings=settings, quiet=True, meter=meter)
    except FedMendError as e:
        raise FedMendError(f"{case.name}: {e}") from None
    cost = meter.measured() | {"effort": effort(read_job(case.job, case.changes).settings)}
    write_text(case.cost_file, json.dumps(cost, indent=2) + "\n")
    write_text(case.marker, content)
    return cost


def effort(settings: Mapping[str, object]) -> dict[str, object]:
    """What a site is asked to do in a round.

    Args:
        settings: of a job, see :func:`fl_components.job.settings.job_settings`.

    Returns:
        ``unit``: optimiser steps where the job has ``local_iterations``, otherwise epochs; ``per_round``.
    """
    if "local_iterations" in settings:
        return {"unit": "steps", "per_round": settings["local_iterations"]}
    return {"unit": "epochs", "per_round": settings.get("local_epochs", 1)}
