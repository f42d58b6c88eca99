"""A site whose clock is two hours behind or ahead, on a provisioned federation, see ``docs/faults.md``.

TLS reads the clock in C, so it is a small library of C that puts the clock of the site's processes wrong.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from deployment import SITES, Deployment, deployed, tiny_job, until
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
    """Does not wait for the site that is not there yet."""

    def start(self, *names):
        super().start(*(names or (self.server, SITES[0])))

    def wait_until_ready(self, session, show=print):
        until(lambda: SITES[0] in connected_sites(session))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("deployed"), provisioned=WithoutOne) as running:
        yield running
    assert running.federation.processes() == {}


def start(deployment: Deployment, variables):
    with mock.patch.dict(os.environ, variables):
        deployment.federation.start(WRONG)


def test_a_site_whose_clock_is_behind_its_certificate_is_named_and_two_hours_ahead_change_no_digit(
    deployment, clock, tmp_path
):
    federation, session, behind = deployment.federation, deployment.session, clock(-2 * HOUR)
    start(deployment, behind)
    with tiny_job("fedmlp_ich") as job:
        job_id = submit_job(session, job)
        until(lambda: "connected sites (1) < min_sites (2)" in job_state(session.get_job_meta(job_id)))
        said = who_is_there(connected_sites(session), named_sites(session.get_job_meta(job_id)))
        assert said.startswith(f"connected sites: {SITES[0]}; missing: {WRONG} (not started, cut off, ")
        assert said.endswith(
            "or with a clock behind its certificate: fedmend sitecheck --kit says which, on the site's machine)"
        )

        words = [sys.executable, "-m", "fl_components.cli", "sitecheck", "--kit", str(federation.kits / WRONG)]
        checked = subprocess.run(words, env={**os.environ, **behind}, capture_output=True, text=True)
        (line,) = (line for line in checked.stdout.splitlines() if "  clock: " in line)
        form = r"fail  clock: expected (\S+ \S+) to (\S+ \S+) UTC, when the certificate is valid, got (\S+ \S+) UTC"
        begins, ends, now = re.fullmatch(form, line).groups()
        assert now < begins < ends
        assert "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid" in checked.stderr

        for process, name in federation.processes().items():
            if name == WRONG:
                process.kill()
        start(deployment, clock(2 * HOUR))
        assert deployment.end_of(job_id)[1] == ""  # it has waited and starts by itself
        ahead = (federation.kits / WRONG / "log.txt").read_text().splitlines()[-1][:13]
        assert ahead > (federation.kits / SITES[0] / "log.txt").read_text().splitlines()[-1][:13]
        records = fetch(session, job_id, tmp_path / "out") / "workspace" / "fedmend"
        alone = run_local(job, tmp_path / "alone", site_settings={"cache_dir": str(tmp_path / "cache")})
    assert json.loads((records / "results.json").read_text())["final"] == alone["final"]
