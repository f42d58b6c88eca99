"""By which settings each federation of a comparison has data of its own."""

import copy

import pytest
from factories import ROOT, refused
from job_factories import CLIENT, write_job

from fedmend.phantoms.sites import phantom_spec
from fl_components.compare.runs import SEED
from fl_components.compare.varied_data import varied_settings
from fl_components.job.folder import Changes, read_job
from fl_components.job.settings import parse_assignments

JOBS = ROOT / "jobs"


@pytest.mark.parametrize("name", ["fedmlp_ich", "fedlsm_cxr14", "fedlsm_isic2018", "fedia_ms"])
def test_every_number_draws_another_phantom(name):
    specs = []
    for number in ("0", "1"):
        words = [word.replace(SEED, number) for word in varied_settings(JOBS / name, "", [])]
        specs.append(read_job(JOBS / name, Changes(parse_assignments(words))).site["phantom"])
    assert [phantom_spec(spec).seed for spec in specs] == [0, 1]


def test_partition_and_noise_are_drawn_anew_from_streams_of_their_own():
    words = varied_settings(JOBS / "fednoro_ich", "", [])
    assert words == ["phantom.seed={SEED}", "phantom.noise_seed=1{SEED}", "phantom.partition_seed=2{SEED}"]


def test_a_variant_with_another_phantom_varies_the_seeds_of_that_one():
    words = varied_settings(JOBS / "closed_form", "", [], ["noisy_sites"])
    assert words == ["phantom.seed={SEED}", "phantom.noise_seed=1{SEED}", "phantom.partition_seed=2{SEED}"]


def test_folders_of_sites_need_the_number_in_their_path():
    job = JOBS / "fednoro_ich"
    assert varied_settings(job, "/data/mri-{SEED}", []) == []
    assert varied_settings(job, "", ["threads=1", "data_root=/data/{SEED}/{SITE_NAME}"]) == []
    sentence = "for folders that fedmend prepare wrote with different --seed, got none"
    for data, words in (("/data/mri", []), ("", ["data_root=/data/{SITE_NAME}"])):
        with refused(f"--vary data: expected {{SEED}} in the path of the data, {sentence}"):
            varied_settings(job, data, words)


def test_a_job_without_data_that_could_vary_is_refused(tmp_path):
    client = copy.deepcopy(CLIENT)
    client["executors"][0]["executor"]["args"]["phantom"] = {}
    with refused("--vary data: expected a job with a phantom or --data with {SEED} in it, got neither"):
        varied_settings(write_job(tmp_path / "job", client=client), "", [])
