"""Every job folder: what its JSON names exists, is allowed and can be built, with every variant that it has."""

import json

import pytest
from factories import ROOT
from nvflare.apis.controller_spec import ControllerSpec
from nvflare.apis.executor import Executor
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.class_utils import instantiate_class, load_class

from fl_components.job.folder import Changes, all_jobs, configure_job, job_variants, read_job

JOBS = all_jobs(ROOT / "jobs")
PROBLEMS = {"fedmlp": "missing_classes", "fednoro": "noisy_sites", "fedlsm": "label_sets", "fedia": "partial_masks"}
PROBLEMS |= {"condist": "missing_organs"}
TRAINING = [job for job in JOBS if job.name.partition("_")[0] in PROBLEMS]
POLICY = ROOT / "simulator_workspace" / "local"
TASKS = ["census", "train", "collect", "evaluate", "keep"]


each_job = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
each_that_trains = pytest.mark.parametrize("job", TRAINING, ids=lambda job: job.name)


@pytest.fixture
def configured(tmp_path):
    """Job and variants → folder of the configured job."""

    def configure(job, variants=()):
        folder = tmp_path / "-".join(["job", *variants])
        configure_job(job, folder, Changes(variants=variants))
        return folder

    return configure


def configs(job):
    """Client and server configuration."""
    return [json.loads((job / f"app/config/config_fed_{side}.json").read_text()) for side in ("client", "server")]


def components(job):
    """All mappings of a job that name a class, nested ones too."""
    found, queue = [], configs(job)
    while queue:
        value = queue.pop(0)
        if isinstance(value, dict):
            found += [value] if "path" in value else []
            queue += value.values()
        elif isinstance(value, list):
            queue += value
    return found


def variants_of(job):
    """What a job is run with: nothing, each of its variants, and each of the others beside its preset ``paper``."""
    names = list(job_variants(job))
    beside = [("paper", name) for name in names if name != "paper"] if "paper" in names else []
    return [(), *((name,) for name in names), *beside]


def named_classes():
    """Every class that a job or a variant names."""
    replaced = [v.components.values() for job in JOBS for v in job_variants(job).values()]
    own = {component["path"] for job in JOBS for component in components(job)}
    return own | {component.path for values in replaced for component in values}


def test_there_are_jobs_and_variants_and_nothing_else():
    assert JOBS
    folders = {folder for folder in (ROOT / "jobs").iterdir() if folder.is_dir()}
    assert folders == {*JOBS, ROOT / "jobs" / "variants"}
    assert {f.name for f in (ROOT / "jobs" / "variants").iterdir()} == set(PROBLEMS.values())


@each_job
def test_every_class_that_a_job_names_can_be_built(configured, job):
    for variants in variants_of(job):
        found = components(configured(job, variants))
        assert found, variants
        for component in found:
            built = instantiate_class(component["path"], component.get("args", {}))
            assert type(built) is load_class(component["path"]), variants


def test_every_class_that_a_job_names_is_allowed_by_the_site_policy():
    authorizer = ComponentPathAuthorizer()
    resources = json.loads((POLICY / "resources.json").read_text())
    allowed, mode, default = authorizer._get_policy_from_resources(resources)
    assert mode == "enforce"
    assert default is False
    assert "*" not in allowed
    named = named_classes()
    assert named
    assert [n for n in named if not any(authorizer._path_matches_prefix(n, prefix) for prefix in allowed)] == []


@each_job
def test_the_parts_of_a_job_are_what_flare_takes_them_for(job):
    client, server = configs(job)
    for workflow in server["workflows"]:
        assert issubclass(load_class(workflow["path"]), ControllerSpec)
    for entry in client["executors"]:
        assert issubclass(load_class(entry["executor"]["path"]), Executor)


@each_that_trains
def test_a_job_that_trains_has_one_method_its_tasks_and_its_problem(job):
    client, _ = configs(job)
    found = read_job(job)
    (entry,) = client["executors"]
    assert entry["tasks"] == TASKS
    assert [c["id"] for c in client["components"]] == ["method"]
    method = job.name.partition("_")[0]
    assert (found.name, found.problem, found.run["method"]) == (job.name, PROBLEMS[method], method)
    assert found.method.path.startswith(f"fedmend.methods.{method}.")
    module = "baselines" if method == "condist" else method  # whose server does plain averaging
    assert found.workflow.path.startswith(f"fedmend.methods.{module}.")


@pytest.mark.parametrize(
    ("variants", "row", "of_job"),
    [
        ((), "closed_form", "fedmlp_ich"),
        (("label_sets",), "closed_form_candidates", "fedlsm_isic2018"),
        (("noisy_sites",), "closed_form_judge", "fednoro_ich"),
    ],
)
def test_the_job_of_closed_form_heads_does_what_their_rows_of_the_tables_do(variants, row, of_job):
    found = read_job(ROOT / "jobs/closed_form", Changes(variants=variants))
    same = read_job(ROOT / "jobs" / of_job, Changes(variants=(row,)))
    assert (found.method.path, found.workflow) == (same.method.path, same.workflow)
    assert dict(found.method.args) == {"ridge": 1.0, "hidden": "negative", **same.method.args}
    assert same.run["method"] == row  # so that a job can be compared with the other rows of its family
    decided = ("classes", "network", "weights", "num_rounds")
    assert [found.run[name] for name in decided] == [same.run[name] for name in decided]


@pytest.mark.parametrize(
    ("job", "row"),
    [
        *(("fedmlp_ich", "closed_form"), ("fedmlp_cxr14", "closed_form")),
        *(("fednoro_ich", "closed_form_judge"), ("fednoro_isic2019", "closed_form_judge")),
        *(("fedlsm_cxr14", "closed_form"), ("fedlsm_isic2018", "closed_form_candidates")),
    ],
)
def test_rows_of_closed_form_heads_leave_the_scaling_of_pixels_to_their_network(job, row):
    found = read_job(ROOT / "jobs" / job, Changes(variants=(row,)))
    assert found.run["network"].startswith("stages/timm/")
    assert [found.site.get(name, []) for name in ("pixel_mean", "pixel_deviation")] == [[], []]


@pytest.mark.parametrize("job", ["fedmlp_ich", "fednoro_ich", "fedlsm_isic2018"])
def test_rows_of_closed_form_heads_are_not_refitted_where_the_job_is(job, tmp_path):
    configure_job(ROOT / "jobs" / job, tmp_path / job, Changes({"refit": True}))
    rows = [row for row in job_variants(tmp_path / job) if row.startswith("closed_form")]
    found = {row: read_job(tmp_path / job, Changes(variants=(row,))).run["refit"] for row in rows}
    assert found == dict.fromkeys(rows, False)
    assert "closed_form" in rows
    assert read_job(tmp_path / job).run["refit"] is True


@each_job
def test_a_job_holds_values_and_no_references(job):
    """FLARE puts variables of the configuration, of its own and of the environment in place of words in braces."""
    text = "".join(file.read_text() for file in job.glob("app/config/*.json"))
    assert '"{' not in text
    assert {"format_version"} <= {*configs(job)[0]} <= {"format_version", "executors", "components"}


@each_job
def test_the_sites_of_the_meta_file_are_those_of_the_phantom(job):
    meta = json.loads((job / "meta.json").read_text())
    (sites,) = meta["deploy_map"].values()
    assert sites[0] == "server"
    assert meta["min_clients"] == len(sites) - 1
    (phantom,) = [c["args"]["phantom"] for c in components(job) if "phantom" in c.get("args", {})]
    assert phantom["sites"] == len(sites) - 1


@each_that_trains
def test_the_run_is_named_after_the_job_and_its_variants(configured, job):
    names = {variants: read_job(configured(job, variants)).run["run_name"] for variants in variants_of(job)}
    assert names == {variants: "_".join([job.name, *variants]) for variants in names}


def test_every_variant_says_what_it_is():
    said = {f"{job.name}, {name}": variant.about for job in JOBS for name, variant in job_variants(job).items()}
    assert {name: about for name, about in said.items() if not 10 < len(about) < 100} == {}


def test_the_guard_of_the_site_policy_knows_the_fields_that_methods_declare():
    (scope,) = json.loads((POLICY / "privacy.json").read_text())["scopes"]
    (guard,) = scope["task_result_filters"]
    instantiate_class(guard["path"], guard["args"])
    declared = {name for path in named_classes() for name in getattr(load_class(path), "FIELDS", ())}
    assert declared
    assert set(guard["args"]["fields"]) == declared
    assert {*guard["args"]["counts"], *guard["args"]["counts"].values()} <= declared


def method_of(found):
    return found.method.path.rpartition(".")[2], found.method.args


def schedule_of(found):
    """What a baseline has in common with the method that it is compared with."""
    return {**found.run, "run_name": "", "method": ""}, {**found.site, "all_labels": False}, found.sites


@each_that_trains
@pytest.mark.parametrize("preset", [[], ["paper"]], ids=["default", "paper"])
def test_baselines_and_methods_have_the_same_schedule(tmp_path, job, preset):
    if not {*preset} <= job_variants(job).keys():
        pytest.skip("the job has no such preset")
    configure_job(job, tmp_path / "method", Changes(variants=preset))
    configure_job(job, tmp_path / "baseline", Changes(variants=[*preset, "fedavg"]))
    method, baseline = read_job(tmp_path / "method"), read_job(tmp_path / "baseline")
    assert schedule_of(method) == schedule_of(baseline)
    assert baseline.run["method"] == "fedavg"


@pytest.mark.parametrize(
    ("job", "variant", "method", "args"),
    [
        ("fedmlp_ich", "fedavg", "FedAvg", {}),
        ("fedmlp_ich", "fedavg_pl", "FedAvgPL", {}),
        ("fedmlp_ich", "fedavg_pl_two_views", "FedAvgPL", {"views": 2}),
        ("fedmlp_cxr14", "fedprox", "FedProx", {"mu": 0.01}),
        ("fedmlp_cxr14", "all_labels", "FedAvg", {}),
        ("fednoro_ich", "fedavg", "SingleLabelFedAvg", {}),
        ("fednoro_ich", "fedla", "SingleLabelFedAvg", {"la": True}),
        ("fednoro_ich", "fedprox", "SingleLabelFedProx", {"mu": 0.01, "la": False}),
        ("fednoro_isic2019", "fedprox", "SingleLabelFedProx", {"mu": 0.1, "la": False}),
        ("fednoro_isic2019", "all_labels", "SingleLabelFedAvg", {"la": True}),
        ("fednoro_ich", "alone", "SingleLabelAlone", {"la": True}),
        ("fedmlp_ich", "alone", "Alone", {}),
        ("fedia_ms", "alone", "MaskAlone", {}),
    ],
)
def test_a_baseline_is_its_method_with_its_numbers(configured, job, variant, method, args):
    found = read_job(configured(ROOT / "jobs" / job, [variant]))
    assert method_of(found) == (method, args)
    assert (found.workflow.path, found.workflow.args) == ("fedmend.methods.baselines.FedAvgWorkflow", {})
    assert found.site["all_labels"] == (variant == "all_labels")


def test_the_baseline_for_differential_privacy_decays_all_rows_alike(tmp_path):
    jobs = [job for job in JOBS if "fedavg_private" in job_variants(job)]
    assert jobs
    for job in jobs:
        configure_job(job, tmp_path / job.name, Changes(variants=["fedavg_private"]))
        assert read_job(tmp_path / job.name).settings["decay"] != "supervised", job.name


@pytest.mark.parametrize(
    ("variant", "method", "args", "aggregation"),
    [
        ("fedavg", "LabelSetFedAvg", {"hidden": "negative"}, "samples"),
        ("fedavg_masked", "LabelSetFedAvg", {"hidden": "negative"}, "masked"),
        ("fedavg_masked_ignored", "LabelSetFedAvg", {"hidden": "ignored"}, "masked"),
        ("all_labels", "LabelSetFedAvg", {}, "samples"),
        ("fedprox_masked", "LabelSetFedProx", {"mu": 0.01, "hidden": "negative"}, "masked"),
        ("fedrs", "FedRS", {"alpha": 0.5, "graded": False, "hidden": "negative"}, "samples"),
        ("moon_masked", "Moon", {"mu": 1.0, "temperature": 0.5, "hidden": "negative"}, "masked"),
        ("fpsl", "FPSL", {"inner_rate": 0.01}, "masked"),
        ("fssl", "FSSL", {"consistency_weight": 1.0, "ramp_share": 0.15}, "masked"),
        ("fixmatch_masked", "FixMatch", {"tau_positive": 0.85, "tau_negative": 0.01, "loss_mean": "parts"}, "masked"),
    ],
)
def test_a_baseline_of_label_sets_keeps_the_steps_and_thresholds_of_the_preset(
    configured, variant, method, args, aggregation
):
    found = read_job(configured(ROOT / "jobs" / "fedlsm_cxr14", ["paper", variant]))
    assert method_of(found) == (method, {"local_iterations": 200, "vertical_flip": True, **args})
    assert found.workflow.path == "fedmend.methods.labelsets.LabelSetWorkflow"
    assert found.workflow.args == {"aggregation": aggregation, "pos_weight_cap": 100.0}


@pytest.mark.parametrize("job", ["fedmlp_ich", "fedmlp_cxr14"])
def test_the_loss_of_fedmlp_has_a_row_of_its_own_without_any_repair(configured, job):
    before, after = (
        read_job(ROOT / "jobs" / job).settings,
        read_job(configured(ROOT / "jobs" / job, ["wpc_alone"])).settings,
    )
    assert before["wpc"]
    assert after == {**before, "mld": False, "cr": False, "st": False, "run_name": f"{job}_wpc_alone"}


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        ("aggregation_only", {"ramp_maximum": 0.0}),
        ("distillation_only", {"aggregation": "samples"}),
        ("clean_only", {"aggregation": "clean"}),
        ("ablation_no_la", {"la": False}),
        ("ablation_global_loss", {"detection_per_class": False}),
        ("ablation_raw_loss", {"detection_normalise": False}),
    ],
)
def test_an_ablation_of_fednoro_changes_settings_alone(configured, variant, changed):
    job = ROOT / "jobs" / "fednoro_ich"
    before, after = read_job(job).settings, read_job(configured(job, [variant])).settings
    assert after == {**before, **changed, "run_name": f"fednoro_ich_{variant}"}


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        ("fedavg", {"correct": False, "completeness_aggregation": False, "method": "fedavg"}),
        (
            "all_labels",
            {"correct": False, "completeness_aggregation": False, "method": "fedavg", "all_labels": True},
        ),
        ("aggregation_only", {"correct": False}),
        ("correction_only", {"completeness_aggregation": False}),
        ("mended_trigger", {"relative": True, "patience": 2, "gate": 0.8}),
    ],
)
def test_a_variant_of_fedia_changes_settings_alone(configured, variant, changed):
    job = ROOT / "jobs" / "fedia_ms"
    before, after = read_job(job).settings, read_job(configured(job, [variant])).settings
    assert after == {**before, **changed, "run_name": f"fedia_ms_{variant}"}


FEDAVG = ("FedAvgWorkflow", {})
FEDNORO_SERVER = {"ramp_begin": -1, "ramp_end": -1, "ramp_maximum": 0.8, "votes": 9}
FEDNORO_SERVER |= {"covariance": "auto", "min_vote_share": 0.0}
IGNORED = {"warmup_share": 0.4, "threshold": 0.3, "entropy_weight": 1.0}
LOSSES = {"gamma": 1.5, "pooling": "slice", "denominator": "squares", "rows": "lesion"}


@each_that_trains
def test_what_takes_a_share_or_a_count_takes_both_beside_every_variant(job):
    before = read_job(job).settings
    for name in job_variants(job):
        changed = read_job(job, Changes(variants=[name])).settings
        assert not [k for k, v in before.items() if isinstance(v, float) and type(changed.get(k)) is int]


@pytest.mark.parametrize(
    ("variant", "method", "args", "workflow"),
    [
        ("nr_dice", "NRDice", LOSSES, FEDAVG),
        ("elr", "ELR", {"beta": 0.7, "weight": 3.0, "base_loss": "ce"}, FEDAVG),
        ("rmd", "RMD", {"drop": 0.005, "weight": 0.0009}, FEDAVG),
        ("ignore_unmarked", "IgnoreUnmarked", IGNORED, FEDAVG),
        (
            "fednoro",
            "FedNoRoMasks",
            {"temperature": 0.8, "base_loss": "ce"},
            ("FedNoRoWorkflow", {"warmup_rounds": 10, "aggregation": "distance", **FEDNORO_SERVER}),
        ),
    ],
)
def test_a_comparison_row_of_fedia_keeps_augmentation_and_warm_up_of_the_preset(
    configured, variant, method, args, workflow
):
    found = read_job(configured(ROOT / "jobs" / "fedia_ms", ["paper", variant]))
    assert method_of(found) == (method, {"augment": True, **args})
    assert (found.workflow.path.rpartition(".")[2], found.workflow.args) == workflow
    assert found.run["method"] == variant


def test_the_label_audit_counts_the_phantom_that_the_main_job_trains_on():
    def phantom(name):
        return next(c["args"]["phantom"] for c in components(ROOT / "jobs" / name) if "phantom" in c.get("args", {}))

    assert phantom("label_audit") == phantom("fedmlp_ich")
