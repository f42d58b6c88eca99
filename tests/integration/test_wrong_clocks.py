"""A site whose clock is hours behind or ahead, on a provisioned federation, see ``docs/faults.md``.

TLS reads the clock in C, so it is a small library of C that puts the clock of the site's processes wrong.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from unittest import mock

import psutil
import pytest
from deployment import SITES, deployed, tiny_job, until
from factories import ROOT

from fl_components.run.local import run_local
from fl_components.run.poc import ProvisionedFederation
from fl_components.run.submit import connected_sites, fetch, job_state, named_sites, submit_job, who_is_there

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler, which makes the wrong clock"),
]
HOUR = 3600
WRONG = SITES[1]


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    """Seconds → variables of the environment for processes whose clock is ahead by them."""
    library = tmp_path_factory.mktemp("clock") / "wrong_clock.so"
    words = ["cc", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tests" / "wrong_clock.c"), "-ldl"]
    subprocess.run(words, check=True)
    return lambda seconds: {"LD_PRELOAD": str(library), "CLOCK_WRONG_BY": str(seconds)}


class WithoutOne(ProvisionedFederation):
    """Does not wait for the site whose clock is wrong."""

    def start(self, *names):
        super().start(*(names or (self.server, SITES[0])))

    def wait_until_ready(self, session, show=print):
        until(lambda: SITES[0] in connected_sites(session))


@pytest.fixture(scope="module")
def deployment(clock, tmp_path_factory):
    """Its kits were made three hours ago."""

    def provisioned(*args, **options):
        with mock.patch.dict(os.environ, clock(-3 * HOUR)):
            return WithoutOne(*args, **options)

    with deployed(tmp_path_factory.mktemp("deployed"), provisioned=provisioned) as running:
        yield running
    assert running.federation.processes() == {}


def start(deployment, variables):
    """Starts the site, again where it runs, with these variables."""
    running = [p for p, name in deployment.federation.processes().items() if name == WRONG]
    for process in running:
        process.kill()
    psutil.wait_procs(running, 10)
    with mock.patch.dict(os.environ, variables):
        deployment.federation.start(WRONG)


def hours_off(deployment):
    """How far the last lines of the logs of both sites are apart, in whole hours."""
    logs = [(deployment.federation.kits / site / "log.txt").read_text() for site in (SITES[0], WRONG)]
    right, wrong = (datetime.fromisoformat(re.findall(r"^(\S+ \S+),\d+ - ", log, re.MULTILINE)[-1]) for log in logs)
    return round((wrong - right).total_seconds() / HOUR)


def final(deployment, job_id, folder):
    records = fetch(deployment.session, job_id, folder) / "workspace" / "fedmend"
    return json.loads((records / "results.json").read_text())["final"]


def test_a_clock_behind_the_certificate_is_named_and_two_hours_either_way_change_no_digit(deployment, clock, tmp_path):
    session, kit, behind = deployment.session, deployment.federation.kits / WRONG, clock(-4 * HOUR)
    start(deployment, behind)
    with tiny_job("fedmlp_ich") as job:
        waiting = submit_job(session, job)
        until(lambda: "connected sites (1) < min_sites (2)" in job_state(session.get_job_meta(waiting)))
        said = who_is_there(connected_sites(session), named_sites(session.get_job_meta(waiting)))
        assert said.startswith(f"connected sites: {SITES[0]}; missing: {WRONG} (not started, cut off, ")
        assert "or with a clock behind its certificate: fedmend sitecheck --kit says which" in said

        words = [sys.executable, "-m", "fl_components.cli", "sitecheck", "--kit", str(kit)]
        checked = subprocess.run(words, env={**os.environ, **behind}, capture_output=True, text=True)
        (line,) = (line for line in checked.stdout.splitlines() if "  clock: " in line)
        form = r"fail  clock: expected (\S+ \S+) to (\S+ \S+) UTC, when the certificate is valid, got (\S+ \S+) UTC"
        begins, ends, now = re.fullmatch(form, line).groups()
        assert now < begins < ends
        assert "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid" in checked.stderr

        start(deployment, clock(-2 * HOUR))
        assert deployment.end_of(waiting)[1] == ""  # it has waited and starts by itself
        assert hours_off(deployment) == -2
        alone = run_local(job, tmp_path / "alone", site_settings={"cache_dir": str(tmp_path / "cache")})["final"]
    assert final(deployment, waiting, tmp_path / "behind") == alone

    start(deployment, clock(2 * HOUR))
    until(lambda: len(connected_sites(session)) == 2)
    with tiny_job("fedmlp_ich", run_name="ahead") as job:
        job_id = submit_job(session, job)
        assert deployment.end_of(job_id)[1] == ""
    assert hours_off(deployment) == 2
    assert final(deployment, job_id, tmp_path / "ahead") == alone
