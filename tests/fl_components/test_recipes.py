"""What recipes write and prepare; tests/integration runs them."""

import filecmp
import json
from pathlib import Path

import pytest
import yaml
from factories import ROOT, refused
from nvflare.apis.job_def import JobMetaKey
from nvflare.app_common.filters.convert_weights import ConvertWeights
from nvflare.job_config.api import FedJob
from nvflare.recipe import PocEnv, SimEnv
from nvflare.recipe.utils import set_recipe_meta

from fedmend.errors import FedMendError
from fl_components import recipes
from fl_components.job.folder import Changes, configure_job
from fl_components.recipes import FedMLPRecipe, JobRecipe

JOBS = [("FedMLP", "ich"), ("FedMLP", "cxr14"), ("FedNoRo", "ich"), ("FedNoRo", "isic2019")]
JOBS += [("FedLSM", "cxr14"), ("FedLSM", "isic2018"), ("FedIA", "ms"), ("FedIA", "lung")]
JOBS += [("ConDist", "organs")]
NAMES = [f"site-{i}" for i in range(1, 6)]


def files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_every_job_that_trains_has_a_recipe():
    trained = {f"{method.lower()}_{dataset}" for method, dataset in JOBS}
    others = {"closed_form", "evaluate", "label_audit"}
    assert trained == {f.parent.name for f in (ROOT / "jobs").glob("*/meta.json")} - others
    assert {f"{method}Recipe" for method, _ in JOBS} <= set(dir(recipes))


@pytest.mark.parametrize(("method", "dataset"), JOBS)
def test_an_exported_job_is_the_folder_of_jobs_to_the_byte_and_holds_no_code(tmp_path, method, dataset):
    getattr(recipes, f"{method}Recipe")(dataset).export(str(tmp_path))
    tracked, written = ROOT / "jobs" / f"{method.lower()}_{dataset}", tmp_path / f"{method.lower()}_{dataset}"
    assert files(written) == files(tracked)
    assert filecmp.cmpfiles(written, tracked, files(tracked), shallow=False) == (files(tracked), [], [])
    assert list(tmp_path.rglob("custom")) == list(tmp_path.rglob("*.py")) == []


def test_settings_of_a_recipe_are_those_of_the_command(tmp_path):
    job = ROOT / "jobs" / "fedmlp_ich"
    FedMLPRecipe("ich", variants=["fedavg"], sites=3, num_rounds=2, **{"phantom.images": 9}).export(str(tmp_path / "a"))
    changes = Changes({"num_rounds": 2, "phantom.images": 9}, ["fedavg"], 3)
    configure_job(job, tmp_path / "b" / "fedmlp_ich", changes)
    left, right = tmp_path / "a" / "fedmlp_ich", tmp_path / "b" / "fedmlp_ich"
    assert filecmp.cmpfiles(left, right, files(right), shallow=False) == (files(left), [], [])
    assert not filecmp.cmp(left / "meta.json", job / "meta.json", shallow=False)


def test_a_job_folder_of_your_own_is_a_recipe_too(tmp_path):
    configure_job(ROOT / "jobs" / "fedia_ms", tmp_path / "mine", Changes({"run_name": "spring"}))
    JobRecipe(tmp_path / "mine").export(str(tmp_path / "out"))
    assert files(tmp_path / "out" / "fedia_ms") == files(tmp_path / "mine")


def test_a_recipe_is_one_class_and_unknown_ones_and_data_sets_are_refused():
    assert recipes.FedMLPRecipe is FedMLPRecipe
    assert "ich" in FedMLPRecipe.__doc__
    for other in ("ms", ["ich"]):
        with refused(f"FedMLPRecipe: expected one of ['cxr14', 'ich'], got {other!r}"):
            FedMLPRecipe(other)
    with pytest.raises(AttributeError, match="has no attribute 'LabelRecipe'"):
        _ = recipes.LabelRecipe
    with refused(
        "--set: expected a setting of this job, got 'num_round'; nearest: num_rounds, warmup_rounds, quota_rounding"
    ):
        FedMLPRecipe("ich", num_round=3)


def test_a_folder_that_is_there_is_not_written_over(tmp_path):
    FedMLPRecipe("ich").export(str(tmp_path))
    with refused(f"configure: expected a new folder, {tmp_path / 'fedmlp_ich'} exists"):
        FedMLPRecipe("ich", num_rounds=2).export(str(tmp_path))


@pytest.mark.parametrize(
    "add",
    [
        lambda recipe, out: recipe.add_client_output_filter(ConvertWeights("weights_to_diff"), tasks=["train"]),
        lambda recipe, out: recipe.add_server_config({"x": 1}),
        lambda recipe, out: recipe.add_client_file("code.py"),
        lambda recipe, out: recipe.export(out, server_exec_params={"x": 1}),
    ],
    ids=["filter", "setting", "file", "parameter"],
)
def test_what_is_added_besides_settings_is_refused_and_not_lost(tmp_path, add):
    with refused("recipe: expected variables and variants alone, got a component, filter, file or parameter"):
        add(FedMLPRecipe("ich"), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_environment_or_no_folder_is_refused_in_a_sentence(tmp_path):
    with refused("recipe: expected an environment of FLARE, such as SimEnv, got 'local'"):
        FedMLPRecipe("ich").execute("local")
    with refused("export: expected a path that can be looked up, got None"):
        FedMLPRecipe("ich").export(None)


def test_what_flares_helper_sets_in_the_meta_file_is_written(tmp_path):
    recipe = FedMLPRecipe("ich")
    set_recipe_meta(recipe, JobMetaKey.SCOPE, "percentile")
    recipe.export(str(tmp_path))
    meta = json.loads((tmp_path / "fedmlp_ich" / "meta.json").read_text())
    assert meta == {**json.loads((ROOT / "jobs" / "fedmlp_ich" / "meta.json").read_text()), "scope": "percentile"}


def test_a_job_that_sites_would_refuse_is_refused_before_it_is_sent(tmp_path):
    with pytest.raises(FedMendError, match=r"^job, config_fed_server.json: expected literal values, got "):
        FedMLPRecipe("ich", run_name="{x}").export(str(tmp_path))


def test_the_simulator_gets_our_site_policy_and_the_settings_of_the_recipe(tmp_path):
    FedMLPRecipe("ich", site={"min_count": 7}).process_env(SimEnv(num_clients=5, workspace_root=str(tmp_path)))
    laid, tracked = tmp_path / "fedmlp_ich" / "local", ROOT / "simulator_workspace" / "local"
    for name in ("privacy.json", "resources.json"):
        assert (laid / name).read_bytes() == (tracked / name).read_bytes()
    assert json.loads((laid / "fedmend.json").read_text())["min_count"] == 7


def test_a_recipe_keeps_a_run_from_a_second_start_and_flare_from_paths_that_it_cannot_take(tmp_path, monkeypatch):
    at_work = []

    def deploy(env, job):
        with pytest.raises(FedMendError, match=r"^--workspace: expected one without a run at work, there is one"):
            FedMLPRecipe("ich").run(env)
        at_work.append(json.loads((tmp_path / "fedmlp_ich" / "local" / "fedmend.json").read_text())["min_count"])
        return "id"

    monkeypatch.setattr(SimEnv, "deploy", deploy)
    FedMLPRecipe("ich", site={"min_count": 7}).run(SimEnv(num_clients=5, workspace_root=str(tmp_path)))
    assert at_work == [7]
    with pytest.raises(FedMendError, match=r"^path of the workspace or kit: expected one without blanks"):
        FedMLPRecipe("ich").run(SimEnv(num_clients=5, workspace_root=str(tmp_path / "my runs")))


def test_a_recipe_runs_again_as_when_a_cell_of_a_notebook_is_run_twice(tmp_path, monkeypatch):
    asked = []

    def simulator(job, workspace, n_clients=None, **options):
        job.clients.remove("@ALL")  # FLARE takes a number of sites only where this stands, and writes them over it
        asked.append(n_clients)

    monkeypatch.setattr(recipes.FolderJob, "simulator_run", simulator)
    recipe, env = FedMLPRecipe("ich"), SimEnv(num_clients=5, workspace_root=str(tmp_path))
    recipe.run(env)
    recipe.run(env)
    assert asked == [5, 5]


def test_a_recipe_whose_run_fails_says_what_the_site_said(tmp_path, monkeypatch):
    def simulator(job, workspace, **options):
        log = Path(workspace) / "server" / "log.txt"
        log.parent.mkdir()
        log.write_text("ERROR - run stopped: site-1: site.json: expected, not found\n")
        return 2

    monkeypatch.setattr(FedJob, "simulator_run", simulator)
    with refused("simulator: expected a complete run, got exit code 2: site-1: site.json: expected, not found"):
        FedMLPRecipe("ich").execute(SimEnv(num_clients=5, workspace_root=str(tmp_path)))


@pytest.mark.parametrize("env", [{"num_clients": 2}, {"clients": ["site-1", "site-9"]}])
def test_an_environment_of_other_sites_is_refused(tmp_path, env):
    names = ", ".join(env.get("clients", NAMES[:2]))
    with refused(f"SimEnv: expected the sites of the job, {', '.join(NAMES)}, got {names}"):
        FedMLPRecipe("ich").process_env(SimEnv(**env, workspace_root=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def poc(tmp_path, monkeypatch):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    return PocEnv(num_clients=5)


def test_poc_gets_a_project_with_our_policy_for_this_machine(tmp_path, poc):
    FedMLPRecipe("ich", site={"min_count": 7}).process_env(poc)
    project = yaml.safe_load(Path(poc.project_conf_path).read_text())
    assert [p["name"] for p in project["participants"] if p["type"] == "client"] == NAMES
    assert project["builders"][-1]["path"] == "provisioning.policy.SitePolicyBuilder"
    assert project["builders"][-1]["args"]["baselines"] is True
    settings = project["builders"][-1]["args"]["site_settings"]
    assert (settings["min_count"], settings["data_root"]) == (7, "phantom")
    assert settings["state_dir"] == "../fedmend-state/{SITE_NAME}"


def test_poc_submits_as_the_lead_whom_our_policy_allows_it(tmp_path, poc):
    FedMLPRecipe("ich").process_env(poc)
    lead = "lead@fedmend.example.org"
    (tmp_path / "poc" / "fedmend" / "prod_00").mkdir(parents=True)
    assert (poc.username, poc.get_extra_prop("login_timeout")) == (lead, 60.0)
    assert poc._get_admin_startup_kit_path() == str(tmp_path / "poc" / "fedmend" / "prod_00" / lead)


def test_without_the_checkout_poc_is_refused(tmp_path, poc, monkeypatch):
    monkeypatch.setattr("fl_components.run.poc.PROJECT", tmp_path / "project.yml")
    with refused("provisioning: expected provisioning/project.yml in the FedMend checkout, not found"):
        FedMLPRecipe("ich").process_env(poc)
