"""Runs of jobs in this process, without FLARE: the same numbers, and the same files at the same places."""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.local.local_federation import run_locally
from fedmend.local.metering import Meter
from fedmend.site.config import CONFIG_NAME, SiteConfig, read_site_config
from fl_components.job.folder import UNCHANGED, Changes, read_job
from fl_components.run.simulate import fresh, refused_results
from fl_components.run.start import check_threads

ALONE = threading.Lock()  # PyTorch's random state and the log belong to the process: one run of it at a time


def run_local(
    job: Path,
    workspace: Path,
    changes: Changes = UNCHANGED,
    *,
    threads: int = 0,
    site_settings: Mapping[str, object] | None = None,
    quiet: bool = False,
    watch: Callable[[str], None] | None = None,
    meter: Meter | None = None,
) -> dict:
    """Runs one job without FLARE and returns its ``results.json``; another thread's run is waited for.

    Args as of :func:`fl_components.run.simulate.simulate`, except for:

    Args:
        threads: sites that run at the same time; 0 = as many as there are cores.
        watch: gets the picture of the run as JSON whenever it has changed, see :mod:`fedmend.records.progress`.
        meter: counts what travels and what sites do.

    Raises:
        FedMendError: the workspace holds other files, the job does not train, or it or a site's result is refused.
    """
    workspace = workspace.resolve()
    settings = read_job(job, changes)
    workflow, method = settings.build(settings.workflow), settings.build(settings.method)
    check_threads(threads or 1)
    log = workspace.with_name(workspace.name + ".log") if quiet else None
    with fresh(workspace, site_settings or {}), ALONE, _output_to(log):  # a mistyped setting leaves no folder behind
        records = run_locally(
            workflow=workflow,
            method=method,
            run=settings.run,
            site=settings.site,
            sites=settings.sites,
            workspace=workspace,
            config_of=partial(site_config, workspace),
            settings=settings.settings,
            threads=threads or os.cpu_count() or 1,
            app_dir=settings.app.resolve(),
            meter=meter,
            watch=(lambda picture: watch(json.dumps(picture))) if watch else None,
        )
        if refused := refused_results(records):
            raise FedMendError(f"run: expected a complete run, got a refused result: {refused[0]}")
        return json.loads((records / "results.json").read_text(encoding="utf-8"))


def site_config(workspace: Path, site: str) -> SiteConfig:
    """Settings of a site, or of the server, as FLARE's simulator lays them out: one file, a folder for each.

    Args:
        workspace: absolute.
        site: its name.

    Raises:
        FedMendError: see :func:`fedmend.site.config.read_site_config`.
    """
    return read_site_config(workspace / "local" / CONFIG_NAME, workspace / site, site)


@contextlib.contextmanager
def _output_to(log: Path | None) -> Iterator[None]:
    """Log lines go to this file alone, or where they went."""
    if log is None:
        yield
        return
    root, ours = logging.getLogger(), logging.getLogger("fedmend")
    before, level, file = root.handlers[:], ours.level, logging.FileHandler(log, "w", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root.handlers[:] = [file]
    ours.setLevel(logging.INFO)  # also where nobody has set up logging, as in a notebook
    try:
        yield
    finally:
        root.handlers[:] = before
        ours.setLevel(level)
        file.close()
