"""A federation in one process gives the simulator's numbers, repairs, models and ledgers to the last digit."""

import json

import pytest
import torch
from simulation import LOCAL, global_model, ledger, lines, metrics_without_seconds, records, without_time

pytestmark = pytest.mark.slow
JOBS = {  # fixture → threads of the simulator's run that another test looks at too, sites
    "fedmlp": (3, 3),
    "fednoro": (4, 4),
    "fedlsm": (3, 3),
    "fedia": (2, 2),
}


@pytest.fixture(params=JOBS)
def workspaces(request):
    """Workspace of the run without FLARE, that of the simulator, and the sites."""
    simulated, (threads, sites) = request.getfixturevalue(request.param), JOBS[request.param]
    return simulated(LOCAL)[0], simulated(threads)[0], [f"site-{i + 1}" for i in range(sites)]


def test_without_flare_a_run_is_that_of_the_simulator(workspaces):
    local, flare, sites = workspaces
    assert metrics_without_seconds(local) == metrics_without_seconds(flare)
    assert lines(local, "repairs.jsonl") == lines(flare, "repairs.jsonl")
    assert without_time(local, "decisions.jsonl") == without_time(flare, "decisions.jsonl")
    weights = global_model(flare)
    assert global_model(local).keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in global_model(local).items())
    for site in sites:
        assert ledger(local, site) == ledger(flare, site)
    of_local, of_flare = ({f.name for f in records(workspace).iterdir()} for workspace in (local, flare))
    assert of_local == of_flare
    told = [json.loads((records(workspace) / "run.json").read_text()) for workspace in (local, flare)]
    assert [t.pop("started") != "" for t in told] == [True, True]
    assert told[0] == told[1]
