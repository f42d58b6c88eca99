"""What ``import fedmend`` offers: jobs and runs from Python.

It starts the same functions as the console command ``fedmend`` and refuses what they refuse, in the same sentences.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend.basics.checked import NAMES, PATH, PLACE, accepted, shown, whole
from fedmend.basics.json_files import parse_json
from fedmend.basics.words import rounds_text
from fedmend.errors import FedMendError
from fedmend.local.opened_run import Run
from fl_components.job.folder import Changes, changed, check_values, configure_job, job_variants, read_job
from fl_components.job.variants import SHARED

__all__ = ["Job", "Run"]
LOCAL, SIMULATOR, POC = "local", "simulator", "poc"


class Job:
    """A job folder with other settings.

    Args:
        folder: the folder, or the name of one of FedMend's jobs, e.g. ``fedmlp_ich``.
        variants: names of its variants, e.g. ``["paper", "fedavg"]``.
        sites: their number; 0: as in the job.
        variables: settings by name; those inside a mapping as ``**{"phantom.images": 300}``.

    Attributes:
        folder: the folder.
        name: its name.
        run_name: under which a run is kept, with the names of the variants.
        method: short name of the method.
        sites: names of the sites.
        variables: name → value of all settings, the changed ones too.
        variants: name → line of all variants that the job has.

    Raises:
        FedMendError: no job, or one that does not train; unknown variant or setting, or a value of another kind.

    Example::

        run = fedmend.Job("jobs/fedmlp_ich", variants=["fedavg"], num_rounds=4).run()
    """

    def __init__(self, folder: Path | str, /, *, variants: Sequence[str] = (), sites: int = 0, **variables: object):
        self.folder = _found(accepted(folder, [PATH], "job", shown))
        names = accepted(variants, [NAMES], "variants", shown)
        number = _number("sites", sites)
        self._changes = Changes(as_json(variables, "job variable"), names, number)
        settings = read_job(self.folder, self._changes)
        self.name, self.sites, self.variables = settings.name, settings.sites, dict(settings.settings)
        self.run_name, self.method = settings.run["run_name"], settings.run.get("method", "")
        self._rounds = settings.run["num_rounds"]
        self.variants = {name: variant.about for name, variant in job_variants(self.folder).items()}

    def save(self, out: Path | str) -> Path:
        """Writes the job folder with these settings, ready for any of FLARE's ways to submit it.

        Args:
            out: must not exist.

        Raises:
            FedMendError: it exists, or server and sites would refuse the job.
        """
        folder: Path = accepted(out, [PATH], "configure", shown)
        if folder.exists():
            raise FedMendError(f"configure: expected a new folder, {folder} exists")
        configure_job(self.folder, folder, self._changes, strict=True)
        return folder

    def run(
        self,
        place: Path | str = LOCAL,
        workspace: Path | str | None = None,
        *,
        threads: int = 0,
        site: Mapping[str, object] | None = None,
        progress: bool = True,
    ) -> Run:
        """Runs the job and waits for its end.

        Args:
            place: ``local``: in this process, without FLARE; ``simulator``: FLARE's; ``poc``: a federation of this
                machine that exists for this job; else the folder of the startup kit with which to submit it.
            workspace: folder of the run; of a simulation a new one or that of an earlier run, which is emptied; of
                ``poc`` a new or empty one. None: ``runs/`` and ``run_name``; of a startup kit ``runs/results``.
            threads: sites of a simulation that run at the same time; 0: in the simulator one, locally one per core.
            site: fields of ``fedmend.json`` to override, e.g. ``{"data_root": "/data/{SITE_NAME}"}``; not with a
                startup kit: hospitals have their own.
            progress: show a bar over the rounds.

        Returns:
            The run. What it said is in a file beside its workspace.

        Raises:
            FedMendError: a value that no run can have, no such place, or what the commands ``simulate``, ``poc`` and
                ``submit`` refuse.
        """
        site, threads = as_json(site, "site"), _number("threads", threads)
        kit: Path = accepted(place, [PATH], "place", shown)
        check_values(changed(self.folder, self._changes))
        usual = Path("runs") / (self.run_name if place in (LOCAL, SIMULATOR, POC) else "results")
        folder: Path = accepted(usual if workspace is None else workspace, [PATH, PLACE], "--workspace", shown)
        with self._bar(progress) as watch:
            if place in (LOCAL, SIMULATOR):
                return self._simulate(place, folder, threads, site, watch)
            if threads:
                raise FedMendError(f"threads: expected none with a federation, got {threads}")
            from fl_components.console import silenced

            with silenced("nvflare"):
                if place == POC:
                    from fl_components.run.poc import poc

                    says: dict[str, Any] = {"show": lambda _: None, "watch": watch}
                    return Run(poc(self.folder, folder, self._changes, site_settings=site, **says))
                return self._submit(kit, folder, site, watch, progress)

    def _simulate(
        self, place: str, workspace: Path, threads: int, site: Mapping[str, object], watch: Callable | None
    ) -> Run:
        from fedmend.records.run_folder import RUN_FOLDER
        from fl_components.run.local import run_local
        from fl_components.run.simulate import simulate

        start = run_local if place == LOCAL else simulate
        how = {"threads": threads} if threads else {}
        start(self.folder, workspace, self._changes, site_settings=site, quiet=True, watch=watch, **how)
        return Run(workspace / RUN_FOLDER)

    def _submit(self, kit: Path, out: Path, site: Mapping, watch: Callable | None, progress: bool) -> Run:
        from fl_components.run.submit import submit

        if not kit.is_dir():
            raise FedMendError(
                f"place: expected {LOCAL}, {SIMULATOR}, {POC} or the folder of a startup kit, got {str(kit)!r}"
            )
        if site:
            raise FedMendError("site: expected no settings with a startup kit, whose sites have their own fedmend.json")
        announce = print if progress else None
        return Run(submit(self.folder, kit, out, self._changes, show=lambda _: None, announce=announce, watch=watch))

    @contextlib.contextmanager
    def _bar(self, wanted: bool) -> Iterator[Callable[[str], None] | None]:
        from fl_components.run.bars import rounds_bar

        with rounds_bar(self.run_name, self._rounds) if wanted else contextlib.nullcontext() as watch:
            yield watch

    def __repr__(self) -> str:
        chosen = f" with {', '.join(self._changes.variants)}" if self._changes.variants else ""
        return f"job {self.name}{chosen}: {self.method}, {len(self.sites)} sites, {rounds_text(self._rounds)}"

    def __str__(self) -> str:
        """All variables with their values, and all variants with their lines."""
        blocks: dict[str, Mapping] = {"variables": self.variables, "variants": self.variants}
        lines = [line for word, block in blocks.items() for line in (f"{word}:", *_columns(block))]
        return "\n".join([repr(self), *lines])


def as_json(given: Mapping[str, object] | None, word: str) -> dict[str, Any]:
    """Values from Python as a file of JSON holds them: numbers and arrays of NumPy, tuples and paths, too.

    Args:
        given: name → value; None: nothing.
        word: what the values are, for messages.

    Raises:
        FedMendError: no mapping, or a value that JSON cannot hold.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise FedMendError(f"{word}: expected names with values, got {shown(given)}")
    return {name: _plain(f"{word} {name}", value) for name, value in given.items()}


def _number(word: str, given: object) -> int:
    """A whole number from 0 on; 0, as None: the usual one."""
    return accepted(_plain(word, 0 if given is None else given), [whole()], word, shown)


def _plain(place: str, value: object) -> Any:
    try:
        return parse_json(json.dumps(value, default=_simpler))
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise FedMendError(f"{place}: expected a value that JSON can hold, got {shown(value)}") from None


def _simpler(value: Any) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value.tolist()


def _found(folder: Path) -> Path:
    """The folder, or FedMend's own job of this name."""
    own = SHARED.parent / folder
    return own if len(folder.parts) == 1 and not folder.exists() and own.is_dir() else folder


def _columns(block: Mapping[str, object]) -> list[str]:
    width = max(map(len, block), default=0)
    return [f"  {name:{width}}  {value}".rstrip() for name, value in block.items()]
