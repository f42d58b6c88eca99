"""Job folders as a lead sends them, and settings as a lead types them."""

import json
import shutil

import pytest
from factories import ROOT
from fl_factories import reopen_doors
from fuzzing import CHOICES, NASTY, PIECES, PRIVATE, damaged, json_files, number_of_cases, try_all

from fedmend.errors import FedMendError
from fedmend.phantoms.sites import phantom_spec
from fedmend.server.federation import RunSettings
from fl_components.job.folder import read_job
from fl_components.job.settings import assign, job_settings, parse_assignments, parts
from fl_components.job_check import ListedClasses

JOB = ROOT / "jobs" / "fedmlp_ich"
NAMES = ("meta.json", "app/config/config_fed_client.json", "app/config/config_fed_server.json")
FILES = {name: json.loads((JOB / name).read_text()) for name in NAMES}
NOT_PRIVATE = [value for value in NASTY if value is not PRIVATE]  # a lead may read what a lead has written
CONFIG = "app/config/config_fed_client.json"


@pytest.fixture(autouse=True)
def doors(monkeypatch):
    reopen_doors(monkeypatch)


@number_of_cases
def test_any_job_that_arrives_is_accepted_or_refused_in_one_sentence(tmp_path, cases):
    app = tmp_path / "job-1" / "app_site-1"
    for folder in (tmp_path / "local", tmp_path / "startup", app / "config"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "simulator_workspace/local/resources.json", tmp_path / "local/resources.json.default")
    validator = ListedClasses()

    def arrive(content):
        (app / "config" / "config_fed_client.json").write_bytes(content)
        refusal, properties = validator.validate(str(app))
        assert properties == {}
        if refusal:
            raise FedMendError(refusal)
        named = json.loads(content)
        assert isinstance(named, dict)

    try_all(json_files(FILES[CONFIG], NOT_PRIVATE), arrive, cases)


@pytest.mark.parametrize("name", FILES)
@number_of_cases
def test_any_job_folder_is_read_or_refused_in_one_sentence(tmp_path, name, cases):
    job = shutil.copytree(JOB, tmp_path / "job")

    def read(content):
        (job / name).write_bytes(content)
        settings = read_job(job)
        assert settings.sites
        for component in (settings.workflow, settings.method):
            settings.build(component)

    try_all(json_files(FILES[name], NOT_PRIVATE), read, cases)


@number_of_cases
def test_any_setting_is_taken_or_refused_in_one_sentence(cases):
    names = ["learning_rate", "batch_size", "classes", "phantom", "phantom.images", "phantom.x.y", "method.tau", "x"]

    def take(choose):
        client, server = (json.loads(json.dumps(FILES[name])) for name in list(FILES)[1:])
        value = choose.of([*PIECES, *(json.dumps(v).encode() for v in NOT_PRIVATE)]).decode(errors="replace")
        for name, given in parse_assignments([f"{choose.of(names)}={value}"]).items():
            assign(name, given, parts(client, server))
        assert job_settings(client, server)

    try_all(CHOICES, take, cases)


@number_of_cases
def test_any_phantom_is_taken_or_refused_in_one_sentence(cases):
    good = {"dataset": "ich", "images": 10, "sites": 2, "test_share": 0.3, "pixels": 64, "seed": 1}
    try_all(damaged(good, NOT_PRIVATE), phantom_spec, cases)


@number_of_cases
def test_any_settings_of_a_run_are_taken_or_refused_in_one_sentence(cases):
    good = {"run_name": "x", "classes": ["a", "b"], "network": "resnet18", "num_rounds": 3, "min_sites": 0, "seed": 1}

    def take(given):
        if isinstance(given, dict) and set(given) <= set(good):  # FLARE gives its arguments by name
            RunSettings(**given)

    # FLARE shows the words of both, a run without FLARE puts a sentence in front of them
    try_all(damaged(good, NOT_PRIVATE), take, cases, TypeError, ValueError)
