"""Every job folder: what its JSON names exists, is allowed, can be built, and no variable is missing or idle."""

import copy
import inspect
import json
import re

import pytest
from factories import ROOT
from nvflare.apis.controller_spec import ControllerSpec
from nvflare.apis.executor import Executor
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.class_utils import instantiate_class, load_class
from nvflare.fuel.utils.json_scanner import JsonScanner
from nvflare.fuel.utils.wfconf import resolve_var_refs

from fedmend.methods.base import LocalMethod
from fl_components.simulate import STRUCTURE

JOBS = sorted(f.parent for f in ROOT.glob("jobs/*/meta.json"))
VARIANTS = [(job, f.stem) for job in JOBS for f in [None, *sorted(job.glob("variants/*.json"))] if f] + [
    (job, "") for job in JOBS
]
POLICY = ROOT / "simulator_workspace" / "local"
REFERENCE = re.compile(r"\{([A-Za-z_]\w*)\}")


def load(job, variant=""):
    """App → configuration file → content, with a variant's variables."""
    changes = json.loads((job / "variants" / f"{variant}.json").read_text()) if variant else {}
    configs = {f: json.loads(f.read_text()) for f in sorted(job.glob("*/config/config_fed_*.json"))}
    for config in configs.values():
        config.update({k: v for k, v in changes.items() if k in config})
    return configs


def resolved(config):
    """What FLARE makes of ``{variable}``."""
    config = copy.deepcopy(config)
    resolve_var_refs(JsonScanner(config), copy.deepcopy(config))
    return config


def walk(value):
    yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(child)


def components(config):
    """All mappings that name a class, nested ones too."""
    structure = {k: v for k, v in resolved(config).items() if k in STRUCTURE}
    return [v for v in walk(structure) if isinstance(v, dict) and "path" in v]


def variables(config):
    return set(config) - STRUCTURE


def references(value):
    return {name for text in walk(value) if isinstance(text, str) for name in REFERENCE.findall(text)}


job_parameters = pytest.mark.parametrize("job", JOBS, ids=lambda j: j.name)
variant_parameters = pytest.mark.parametrize(
    ("job", "variant"), VARIANTS, ids=lambda v: getattr(v, "name", v) or "as it is"
)


def test_there_are_jobs():
    assert JOBS
    assert [j for j in (ROOT / "jobs").iterdir() if j.is_dir() and j not in JOBS] == []


@variant_parameters
def test_every_class_that_a_job_names_can_be_built(job, variant):
    for file, config in load(job, variant).items():
        found = components(config)
        assert found, file.name
        for component in found:
            built = instantiate_class(component["path"], component.get("args", {}))
            assert type(built) is load_class(component["path"])
            settings = inspect.signature(type(built)).parameters.values()
            assert settings or not component.get("args")


@variant_parameters
def test_every_class_that_a_job_names_is_allowed_by_the_site_policy(job, variant):
    authorizer = ComponentPathAuthorizer()
    resources = json.loads((POLICY / "resources.json").read_text())
    allowed, mode, default = authorizer._get_policy_from_resources(resources)
    assert mode == "enforce"
    assert default is False
    assert "*" not in allowed
    for config in load(job, variant).values():
        for component in components(config):
            path = authorizer._get_component_path(component)
            assert any(authorizer._path_matches_prefix(path, prefix) for prefix in allowed), path


@job_parameters
def test_the_parts_of_a_job_are_what_flare_takes_them_for(job):
    for config in load(job).values():
        config = resolved(config)
        for workflow in config.get("workflows", []):
            assert issubclass(load_class(workflow["path"]), ControllerSpec)
        for entry in config.get("executors", []):
            assert issubclass(load_class(entry["executor"]["path"]), Executor)


@variant_parameters
def test_the_chosen_method_is_among_the_components(job, variant):
    for config in load(job, variant).values():
        for entry in resolved(config).get("executors", []):
            if chosen := entry["executor"].get("args", {}).get("method_id"):
                (component,) = [c for c in resolved(config)["components"] if c["id"] == chosen]
                assert issubclass(load_class(component["path"]), LocalMethod)


@variant_parameters
def test_every_variable_has_a_value(job, variant):
    for file, config in load(job, variant).items():
        missing = references(config) - variables(config)
        assert not missing, f"{file.name}: {missing}"
        assert not references([c.get("args") for c in components(config)])


@job_parameters
def test_every_variable_is_used(job):
    for file, config in load(job).items():
        idle = variables(config) - references({k: v for k, v in config.items() if k in STRUCTURE})
        assert not idle, f"{file.name}: {idle}"


@job_parameters
def test_a_variable_of_both_files_has_one_value(job):
    server, client = (c for _, c in sorted(load(job).items(), key=lambda item: "client" in item[0].name))
    for name in variables(server) & variables(client):
        assert server[name] == client[name], name


@variant_parameters
def test_a_variant_changes_known_variables_only(job, variant):
    known = set().union(*map(variables, load(job).values()))
    changes = json.loads((job / "variants" / f"{variant}.json").read_text()) if variant else {}
    assert set(changes) <= known


@job_parameters
def test_the_sites_of_the_meta_file_are_those_that_the_job_needs(job):
    meta = json.loads((job / "meta.json").read_text())
    (sites,) = meta["deploy_map"].values()
    assert sites[0] == "server"
    assert meta["min_clients"] == len(sites) - 1
    for config in load(job).values():
        if "phantom" in config:
            assert config["phantom"]["sites"] == len(sites) - 1


def test_the_guard_of_the_site_policy_knows_the_fields_that_methods_declare():
    (scope,) = json.loads((POLICY / "privacy.json").read_text())["scopes"]
    (guard,) = scope["task_result_filters"]
    instantiate_class(guard["path"], guard["args"])
    declared = set()
    for job in JOBS:
        for config in load(job).values():
            for component in components(config):
                declared |= set(getattr(load_class(component["path"]), "REPORT_FIELDS", ()))
    assert set(guard["args"]["fields"]) == declared
    assert {*guard["args"]["counts"], *guard["args"]["counts"].values()} <= declared


PAPERS = {  # rounds, rounds of the warm-up, batch size, pixels, learning rate
    "fedia_lung": (300, 40, 4, 256, 1e-4),
    "fedia_ms": (300, 10, 4, 256, 1e-4),
    "fedlsm_cxr14": (50, None, 60, 320, 1e-4),
    "fedlsm_isic2018": (50, None, 60, 224, 1e-4),
    "fedmlp_cxr14": (500, 50, 32, 224, 3e-5),
    "fedmlp_ich": (500, 50, 32, 224, 3e-5),
    "fednoro_ich": (100, 10, 16, 128, 3e-4),
    "fednoro_isic2019": (300, 20, 16, 224, 3e-4),
}


@pytest.mark.parametrize("job", PAPERS)
def test_the_paper_preset_has_the_schedule_of_the_paper(job):
    (server, client) = (
        next(c for f, c in load(ROOT / "jobs" / job, "paper").items() if end in f.name) for end in ("server", "client")
    )
    names = ("batch_size", "image_size", "learning_rate")
    got = (server["num_rounds"], server.get("warmup_rounds"), *(client[name] for name in names))
    assert got == PAPERS[job]


def test_every_job_that_trains_has_a_paper_preset_that_is_pinned():
    assert {job.name for job in JOBS} - {"label_audit"} == set(PAPERS)
