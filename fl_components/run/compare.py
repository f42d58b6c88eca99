"""Comparisons: a job and rows of variants or settings over several seeds, each run without FLARE and kept."""

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import fedmend
from fedmend.errors import FedMendError
from fedmend.files import locked, write_text
from fl_components.run.arguments import has, parse_assignments
from fl_components.run.jobs import configure_job, job_parts, read_job
from fl_components.run.local import run_local
from fl_components.run.simulate import RUN_FOLDER

SEED = "{SEED}"  # in a setting, as {SITE_NAME} in paths of fedmend.json
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
            seed.
        site_words: ``field=value`` of ``fedmend.json``; ``{SEED}`` as in ``words``.
        sites: see :func:`fl_components.run.jobs.configure_job`.
    """

    job: Path
    rows: Sequence[str]
    seeds: Sequence[int]
    variants: Sequence[str] = ()
    words: Sequence[str] = ()
    site_words: Sequence[str] = ()
    sites: int = 0


@dataclass(frozen=True, eq=False)
class Case:
    """One run of a comparison: its row and seed, its workspace, and what :func:`run_local` is given for it."""

    row: str
    seed: int
    workspace: Path
    job: Path
    given: Mapping[str, object]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row}, seed {self.seed}"

    @property
    def marker(self) -> Path:
        """The file that says what has run; it is there when the run is complete."""
        return self.workspace.with_name(self.workspace.name + ".json")

    def wanted(self) -> str:
        """Content of the marker: settings and FedMend's version. The numbers also depend on data and weights files.

        Raises:
            FedMendError: see :func:`fl_components.run.jobs.configure_job`.
        """
        given = self.given
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "job"
            configure_job(self.job, out, given["variables"], variants=given["variants"], sites=given["sites"])
            files = sorted([out / "meta.json", *out.glob("*/config/*.json")])
            content = {str(file.relative_to(out)): json.loads(file.read_text(encoding="utf-8")) for file in files}
        content["fedmend"] = fedmend.__version__
        content["fedmend.json"] = {k: v for k, v in given["site_settings"].items() if k not in PLACES}
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
    if len(set(rows)) < len(rows):
        raise FedMendError(f"--rows: expected different rows, none of them {rows[0]}, got {','.join(rows[1:])}")
    chosen = {row: (*comparison.variants, *(w for w in row.split("+") if "=" not in w)) for row in rows[1:]}
    chosen = {rows[0]: tuple(comparison.variants), **chosen}
    components = {row: job_parts(comparison.job, variants=variants) for row, variants in chosen.items()}
    found = []
    for seed, row in itertools.product(comparison.seeds, rows):
        common = [w for w in comparison.words if row == rows[0] or has(w.partition("=")[0], components[row])]
        given = {
            "variables": _assigned([*common, *(w for w in row.split("+") if "=" in w)], seed) | {"seed": seed},
            "variants": chosen[row],
            "sites": comparison.sites,
            "site_settings": _assigned(comparison.site_words, seed),
        }
        workspace = out / re.sub(r"[^\w.=+-]", "_", row) / f"seed-{seed}"
        found.append(Case(row, seed, workspace, comparison.job, given))
    return found


def _assigned(words: Sequence[str], seed: int) -> dict[str, object]:
    return parse_assignments([word.replace(SEED, str(seed)) for word in words])


def compare(
    comparison: Comparison, out: Path, *, processes: int = 1, show: Callable[[str], None] = print
) -> dict[str, list[Path]]:
    """Makes the runs of a comparison that an earlier call has not made.

    Args:
        comparison: what is compared.
        out: folder of the runs; a new one or that of earlier comparisons.
        processes: runs at the same time.
        show: gets a line after each run.

    Returns:
        row → run folders, one per seed; first the job's own row.

    Raises:
        FedMendError: a row that the job cannot be given, a run in ``out`` with other settings, of another version or at
            work, or one that failed; the others that are or become complete are kept.
    """
    found = cases(comparison, out)
    wanted = {case: case.wanted() for case in found}  # every mistake before the first run
    with locked(out / "in_use", patience=0) as alone:
        if not alone:
            raise FedMendError("--out: expected no other comparison at work in it, there is one")
        todo = {case: content for case, content in wanted.items() if not _is_done(case, content)}
        for number, case in enumerate(_run_all(todo, processes), start=1):
            show(f"{case.name}: done, {len(todo) - number} runs to go")
    return {
        row: [c.workspace / RUN_FOLDER for c in found if c.row == row] for row in dict.fromkeys(c.row for c in found)
    }


def _is_done(case: Case, wanted: str) -> bool:
    if not case.marker.is_file():
        return False
    if case.marker.read_text(encoding="utf-8") != wanted:
        raise FedMendError(
            f"--out: expected new runs or the same ones, got one of {case.name}, with other settings or of another"
            " version of FedMend"
        )
    return True


def _run_all(todo: Mapping[Case, str], processes: int) -> Iterator[Case]:
    """The cases as they become complete; each comes with the content of its marker."""
    if processes < 2:
        for case, content in todo.items():
            _run(case, content)
            yield case
        return
    # spawn: the parent may hold threads, which a forked process does not survive reliably
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        tasks = {pool.submit(_run, case, content): case for case, content in todo.items()}
        try:
            for task in as_completed(tasks):
                task.result()
                yield tasks[task]
        except BrokenProcessPool:
            raise FedMendError("--processes: expected runs to end by themselves, one was killed (memory?)") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _run(case: Case, content: str) -> None:
    """Makes a run and writes its marker: also when another one has failed meanwhile, and nobody waits any more."""
    case.workspace.parent.mkdir(parents=True, exist_ok=True)  # for the log beside it
    try:
        run_local(case.job, case.workspace, threads=1, quiet=True, **case.given)
    except FedMendError as e:
        raise FedMendError(f"{case.name}: {e}") from None
    write_text(case.marker, content)
