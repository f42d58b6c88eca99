import json

import pytest
from factories import ROOT, refused
from job_factories import CLIENT, SERVER, write_job

from fedmend.errors import FedMendError
from fedmend.learning.networks import NETWORKS
from fl_components.job import folder
from fl_components.job.folder import Changes, all_jobs, configure_job, read_job
from fl_components.job.settings import Component


@pytest.fixture
def job(tmp_path):
    return write_job(tmp_path / "job")


def configs(job):
    return tuple(
        json.loads((job / "app" / "config" / f"config_fed_{w}.json").read_text()) for w in ("client", "server")
    )


def test_nothing_changes_without_variables(job, tmp_path):
    configure_job(job, tmp_path / "out")
    assert configs(tmp_path / "out") == (CLIENT, SERVER)


def test_a_file_that_nobody_changes_is_copied_to_the_byte(job, tmp_path):
    configure_job(job, tmp_path / "out", Changes({"num_rounds": 3}))
    client = "app/config/config_fed_client.json"
    for name in ("meta.json", client):
        assert (tmp_path / "out" / name).read_bytes() == (job / name).read_bytes()


def test_settings_are_changed_in_the_copy_alone(job, tmp_path):
    configure_job(job, tmp_path / "out", Changes({"num_rounds": 3, "phantom.images": 300}))
    client, server = configs(tmp_path / "out")
    assert server["workflows"][0]["args"]["num_rounds"] == 3
    assert client["executors"][0]["executor"]["args"]["phantom"]["images"] == 300
    assert configs(job) == (CLIENT, SERVER)


def test_a_refused_setting_leaves_no_copy(job, tmp_path):
    with refused("job variable num_rounds: expected a whole number, got 'x'"):
        configure_job(job, tmp_path / "out", Changes({"num_rounds": "x"}))
    assert not (tmp_path / "out").exists()


def test_a_copy_that_was_stopped_halfway_is_no_job_with_the_settings_of_the_other_one(job, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(folder.json, "dumps", stopped)
    with pytest.raises(KeyboardInterrupt):
        configure_job(job, tmp_path / "out", Changes({"num_rounds": 7}))
    monkeypatch.undo()
    assert not list(tmp_path.glob("out*"))


def test_sites_are_named_in_the_meta_file(job, tmp_path):
    configure_job(job, tmp_path / "out", Changes(sites=3))
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "site-1", "site-2", "site-3"]}
    assert meta["min_clients"] == 3


def test_a_folder_without_a_job_is_refused(tmp_path):
    with refused(f"job {tmp_path.name}: expected a folder with meta.json, such as jobs/fedmlp_ich, not found"):
        configure_job(tmp_path, tmp_path / "out")


def test_a_job_without_one_of_the_configurations_is_refused(job):
    (job / "app" / "config" / "config_fed_client.json").unlink()
    with refused("job: expected one configuration of the server and one of the clients, got others"):
        read_job(job)


def test_a_job_that_does_not_parse_is_refused(job):
    (job / "app" / "config" / "config_fed_client.json").write_text("{")
    with refused("job, config_fed_client.json: expected JSON with each name once, got a file that does not parse"):
        read_job(job)


def test_a_job_says_what_runs_where(job):
    found = read_job(job)
    assert (found.name, found.problem, found.app, found.sites) == ("job", "shared", job / "app", ("site-1", "site-2"))
    assert (found.run["num_rounds"], found.site["batch_size"]) == (9, 4)
    assert (found.method.path, found.workflow.args["warmup_rounds"]) == ("fedmend.methods.own.Own", 3)
    assert found.settings["mu"] == 0.5


def test_a_job_says_what_it_would_be_with_other_settings(job):
    found = read_job(job, Changes({"num_rounds": 3}, sites=3))
    assert (found.run["num_rounds"], found.sites) == (3, ("site-1", "site-2", "site-3"))
    assert read_job(job).run["num_rounds"] == 9


def test_a_job_that_does_not_train_is_refused(tmp_path):
    job = write_job(tmp_path / "audit", client={**CLIENT, "components": []})
    with refused("job audit: expected a job that trains, found no method; it runs only with FLARE, without --local"):
        read_job(job)


def build(job, path, **args):
    return read_job(job).build(Component("method", path, args))


def test_a_method_is_built_with_its_arguments(job):
    assert build(job, "fedmend.baselines.fixmatch.FixMatch", local_iterations=3, tau_positive=0.9, tau_negative=0.1)


@pytest.mark.parametrize("path", ["os.system", "fedmend.learning.networks.build_network", "fedmend.methodsx.A"])
def test_nothing_but_methods_is_imported(job, path):
    with refused(f"job job: expected a class of fedmend.methods, fedmend.baselines or fedmend.evaluation, got {path}"):
        build(job, path)


@pytest.mark.parametrize("path", ["fedmend.methods.nowhere.A", "fedmend.baselines.fixmatch.Nothing"])
def test_a_method_that_is_not_there_is_named(job, path):
    with refused(f"job job: expected {path} in this FedMend, not found"):
        build(job, path)


def test_a_method_that_does_not_take_an_argument_is_named(job):
    with pytest.raises(
        FedMendError, match=r"expected arguments of fedmend.baselines.fixmatch.FixMatch, got others: .*'x'"
    ):
        build(job, "fedmend.baselines.fixmatch.FixMatch", x=3)


def test_the_jobs_of_a_folder_are_listed_by_name(job, tmp_path):
    write_job(tmp_path / "another")
    (tmp_path / "variants").mkdir()
    assert [j.name for j in all_jobs(tmp_path)] == ["another", "job"]


@pytest.mark.parametrize(
    "name", ["baselines.moon.set_weights", "baselines.fixmatch.PseudoLabelMethod", "methods.baselines.FedAvgWorkflow"]
)
def test_what_is_no_method_of_its_module_is_not_called(job, name):
    path = f"fedmend.{name}"
    with refused(f"job job: expected a LocalMethod as method, got {path}"):
        build(job, path)


def test_a_job_for_all_sites_that_there_are_does_not_say_which_to_play(tmp_path):
    job = write_job(tmp_path / "open")
    meta = json.loads((job / "meta.json").read_text())
    (job / "meta.json").write_text(json.dumps({**meta, "deploy_map": {"app": ["@ALL"]}}))
    with refused("job open: expected named sites in deploy_map, got all that there are; give --sites"):
        read_job(job)


def test_a_run_name_that_is_a_number_is_left_to_the_server_to_refuse(job):
    file = job / "app" / "config" / "config_fed_server.json"
    server = json.loads(file.read_text())
    for workflow in server["workflows"]:
        workflow["args"]["run_name"] = 2147483648
    file.write_text(json.dumps(server))
    assert read_job(job).run["run_name"] == 2147483648


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"warmup_rounds": -1}, "job variable warmup_rounds: expected at least 1, got -1"),
        (
            {"num_rounds": 0},
            "job fedmlp_ich: expected arguments of fl_components.controller.WorkflowController, got others: expected"
            " num_rounds and eval_every >= 1, got 0 and 1",
        ),
        (
            {"batch_size": 0},
            "job fedmlp_ich: expected arguments of fl_components.executor.MethodExecutor, got others: expected"
            " batch_size >= 2 and image_size >= 32, got 0 and 32",
        ),
        (
            {"network": "nosuch"},
            f"job variable network: expected one of {sorted(NETWORKS)}, timm/NAME or monai/NAME, got 'nosuch'",
        ),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_value_that_no_run_can_have_is_refused_before_anything_starts(tmp_path, changes, sentence, strict):
    with refused(sentence):
        configure_job(ROOT / "jobs" / "fedmlp_ich", tmp_path / "out", Changes(changes), strict=strict)
    assert not (tmp_path / "out").exists()


def test_a_network_of_a_library_that_this_machine_may_lack_is_left_to_the_sites(tmp_path):
    configure_job(ROOT / "jobs" / "fedmlp_ich", tmp_path / "out", Changes({"network": "timm/of_another_version"}))
    assert read_job(tmp_path / "out").run["network"] == "timm/of_another_version"
