import json

import pytest
from factories import refused
from job_factories import write_job

from fl_components.job.folder import Changes, configure_job, configured, read_job

WHERE = "job, meta.json, deploy_map: expected"
REFUSED = {
    "a dot": (
        ["server", "klinik.nord"],
        f"{WHERE} names of letters, digits, - and _, which FLARE needs, got 'klinik.nord'",
    ),
    "a space": (["server", "St 3"], f"{WHERE} names of letters, digits, - and _, which FLARE needs, got 'St 3'"),
    "twice": (["server", "a", "b", "a"], f"{WHERE} each site once, got 'a' 2 times"),
    "no server": (["a", "b"], f"{WHERE} the server and sites, got no server"),
    "no site": (["server"], f"{WHERE} the server and sites, got no site"),
    "all and more": (["@ALL", "a"], f"{WHERE} @ALL alone or the names of server and sites, got both"),
}


def with_meta(job, **fields):
    file = job / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return job


@pytest.mark.parametrize("way", [read_job, lambda job: configured(job).__enter__()], ids=["local", "FLARE"])
@pytest.mark.parametrize(("names", "sentence"), REFUSED.values(), ids=REFUSED)
def test_sites_that_flare_does_not_bear_are_refused_wherever_the_job_starts(tmp_path, names, sentence, way):
    job = with_meta(write_job(tmp_path / "job"), deploy_map={"app": names}, min_clients=1)
    with refused(sentence):
        way(job)


def test_a_site_with_two_apps_is_refused(tmp_path):
    job = with_meta(write_job(tmp_path / "job"), deploy_map={"app": ["server", "a"], "other": ["a", "b"]})
    with refused(f"{WHERE} each site once, got 'a' 2 times"):
        read_job(job)


@pytest.mark.parametrize("needed", [3, 0, "2", True])
def test_more_sites_than_there_are_cannot_be_needed(tmp_path, needed):
    job = with_meta(write_job(tmp_path / "job"), min_clients=needed)
    with refused(f"job, meta.json, min_clients: expected 1 to 2, as deploy_map has 2, got {needed!r}"):
        read_job(job)


def test_capitals_and_underscores_are_names(tmp_path):
    job = with_meta(write_job(tmp_path / "job"), deploy_map={"app": ["server", "Hospital_A", "St-3"]})
    configure_job(job, tmp_path / "out")
    assert read_job(job).sites == ("Hospital_A", "St-3")


def test_the_number_of_sites_that_is_given_counts(tmp_path):
    job = with_meta(write_job(tmp_path / "job"), min_clients=9)
    assert read_job(job, Changes(sites=3)).sites == ("site-1", "site-2", "site-3")
