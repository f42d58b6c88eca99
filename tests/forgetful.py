"""Runs without FLARE in which every task of a site is a new process, as it may be in FLARE."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import torch
from factories import ROOT

from fedmend.site.worker import SiteWorker
from fl_components.job.folder import Changes
from fl_components.job.settings import parse_assignments
from fl_components.run.local import run_local

FORK_SERVER = multiprocessing.get_context("forkserver")
IMPORTED = [  # what takes seconds and is the same in every process
    *("fedmend.site.worker", "monai.networks.nets", "torchvision.models", "torch._dynamo", "nibabel"),
]


class ForgetfulSite:
    """A SiteWorker whose every answer is given by a process of its own."""

    def __init__(self, method, settings):
        self._worker = SiteWorker(method, settings)
        FORK_SERVER.set_forkserver_preload(IMPORTED)

    def answer(self, *words, stop):
        with ProcessPoolExecutor(1, mp_context=FORK_SERVER) as pool:
            return pool.submit(self._worker.answer, *words).result()


def run_here(job, workspace, *, sites, settings, variants=(), forgetful=False, site_settings=None, threads=2):
    """A run on one thread in this process; returns its workspace."""
    worker = ForgetfulSite if forgetful else SiteWorker
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the last digit depends on it
    try:
        with mock.patch("fedmend.local.local_federation.SiteWorker", worker):
            run_local(
                ROOT / "jobs" / job,
                workspace,
                Changes(parse_assignments(settings), variants, sites),
                threads=threads,
                site_settings={"threads": 1, **(site_settings or {})},
                quiet=True,
            )
    finally:
        torch.set_num_threads(before)
    return workspace
