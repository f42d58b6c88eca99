"""What faults at a site in the middle of a round do to a piece of work on a provisioned federation, see
``docs/faults.md``.

Every fault strikes a site between its repairs of a round and its result, and at most one job more, under the same
run name, finishes the work. Killed processes are in ``test_killed_processes.py``; rogue sites, which send worse
than a damaged result, in ``tests/test_security.py``.
"""

import json
import re
import threading
import time

import psutil
import pytest
from deployment import JOB, SITES, deployed, until
from fault_factories import PHANTOM, ROUND, STRUCK, Undisturbed, Work, files_of, in_force, model, strike

from fedmend.phantoms.sites import ensure_phantom, phantom_spec

pytestmark = pytest.mark.slow
DEADLINE = (
    60  # seconds of a round; much longer than any round of two works side by side, the start of processes included
)
DAMAGE = """
from pathlib import Path
import numpy as np
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
class Damage(Filter):
    def process(self, shareable, fl_ctx):
        if not Path(__file__).with_name(fl_ctx.get_job_id()).exists():
            return shareable
        dxo = from_shareable(shareable)
        name = sorted(dxo.data)[0]
        dxo.data[name] = np.full_like(dxo.data[name], np.nan)
        return dxo.update_shareable(shareable)
"""


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return ensure_phantom(tmp_path_factory.mktemp("hospitals"), phantom_spec(PHANTOM))


@pytest.fixture(scope="module")
def deployment(hospitals, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    with deployed(folder, data_root=str(hospitals / "{SITE_NAME}")) as running:
        local = running.federation.kits / STRUCK / "local"
        (local / "custom").mkdir(exist_ok=True)
        (local / "custom" / "damage.py").write_text(DAMAGE)
        privacy = json.loads((local / "privacy.json").read_text())
        privacy["scopes"][0]["task_result_filters"].insert(0, {"path": "damage.Damage"})
        (local / "privacy.json").write_text(json.dumps(privacy))
        yield running
    assert running.federation.processes() == {}


@pytest.fixture(scope="module")
def originals(hospitals):
    return files_of(hospitals)


@pytest.fixture(scope="module")
def side_by_side(deployment, originals):
    """Three works at once, the last with another seed."""
    works = [Work(deployment, "undisturbed"), Work(deployment, "beside"), Work(deployment, "other_seed", seed=1)]
    for work in works:
        work.submit()
    until(lambda: all(deployment.processes(STRUCK, JOB, work.jobs[-1]) for work in works))
    return works


@pytest.fixture(scope="module")
def undisturbed(side_by_side, originals, tmp_path_factory):
    work = side_by_side[0]
    lines, sentence = work.end()
    assert sentence == ""
    corrected = "Corrected: site-1 in round 4, site-2 in round 4"
    assert any(line.endswith(corrected) for line in lines), "\n".join(lines)
    return Undisturbed(work, model(work, tmp_path_factory.mktemp("undisturbed")), originals)


def test_works_at_once_on_the_same_sites_do_not_mix(side_by_side, undisturbed, tmp_path):
    _, same, other = side_by_side
    assert [same.end()[1], other.end()[1]] == ["", ""]
    undisturbed.check(same, model(same, tmp_path))
    assert all(in_force(other, site) != in_force(same, site) for site in SITES)


def check_resumed(end):
    """The job did the struck round and what follows, and not what came before."""
    lines, sentence = end
    assert sentence == ""
    assert "".join(line.split("round ")[1][0] for line in lines if " | received model: " in line) == "45"


def hang(work, process):
    """It stays suspended until FLARE ends it."""


def hang_for_a_round(work, process):
    """It comes back in the round after the one that went on without it."""
    timer = threading.Timer(DEADLINE + 5, process.resume)
    timer.daemon = True
    timer.start()


def fill_disk(work, process):
    """From now on every write of the process fails, as on a full disk."""
    process.rlimit(psutil.RLIMIT_FSIZE, (0, process.rlimit(psutil.RLIMIT_FSIZE)[1]))
    process.resume()


def damage(work, process):
    (work.kits / STRUCK / "local" / "custom" / work.jobs[-1]).touch()
    process.resume()


ENDING = {
    "hung": (hang, {"round_timeout": DEADLINE}, f"{STRUCK}: train: expected a result within {DEADLINE} s"),
    "disk_full": (fill_disk, {}, f"{STRUCK}: train: expected a result, got none"),
    "damaged": (damage, {}, f"{STRUCK}: result of round {ROUND}, weights"),
}


@pytest.fixture(scope="module")
def struck(deployment, undisturbed):
    """Works that ran side by side (FLARE runs four at a time), each with its fault.

    Returns:
        Name → work, end of its first job, end of its second one, which those of ``ENDING`` need.
    """
    hung_for_a_round = Work(deployment, "hung_for_a_round", round_timeout=DEADLINE, min_sites=1)
    faults = {Work(deployment, name, **settings): fault for name, (fault, settings, _) in ENDING.items()}
    hung = next(work for work in faults if work.name == "hung")
    strike({hung_for_a_round: hang_for_a_round, hung: hang})  # alone: with four at once, a first round may be late
    strike({work: fault for work, fault in faults.items() if work is not hung})
    first = {}
    for work in reversed(faults):  # the hung one ends last
        first[work] = work.end()
        work.submit()
    again = {work: work.end() for work in faults}
    ends = {work.name: (work, first[work], again[work]) for work in faults}
    return {**ends, hung_for_a_round.name: (hung_for_a_round, hung_for_a_round.end(), None)}


@pytest.mark.parametrize("name", ENDING)
def test_a_fault_ends_the_job_with_a_sentence_and_the_next_job_goes_on_to_the_same_model(
    struck, undisturbed, tmp_path, name
):
    work, (_, sentence), again = struck[name]
    assert ENDING[name][2] in sentence
    check_resumed(again)
    undisturbed.check(work, model(work, tmp_path))


def test_a_round_goes_on_without_a_site_that_hangs_where_min_sites_allows_it(struck, undisturbed, tmp_path):
    work, (lines, sentence), _ = struck["hung_for_a_round"]
    assert sentence == ""
    sites = [re.search(r"(\d) sites \|", line)[1] for line in lines if " | received model: " in line]
    assert sites == ["2", "2", "2", "1", "2"]
    assert any(f"{STRUCK}: train: expected a result within {DEADLINE} s" in line for line in lines)
    undisturbed.check(work, model(work, tmp_path), same_model=False)


def test_a_site_that_freezes_for_half_a_minute_takes_part_again_as_if_nothing_had_happened(
    deployment, undisturbed, tmp_path
):
    work = Work(deployment, "cut")

    def cut(work, _):
        running = [process for process, owner in deployment.federation.processes().items() if owner == STRUCK]
        for process in running:
            process.suspend()
        time.sleep(30)
        for process in running:
            process.resume()

    strike({work: cut})
    lines, sentence = work.end()
    assert sentence == ""
    assert not any("expected a result" in line for line in lines)
    undisturbed.check(work, model(work, tmp_path))
