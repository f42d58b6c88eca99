import pytest
from factories import ROOT, make_site_folder
from sitecheck_factories import allow, change_settings, found, make_job, make_kit


def test_complete_settings_pass(kit, site):
    assert found("fedmend.json", kit=kit) == ["ok    fedmend.json: complete, min_count 2, max_unreadable 0"]
    assert found("fedmend.json", site) == ["skip  fedmend.json: needs --kit"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"data_root": ""}, "fail  fedmend.json: local/fedmend.json, field data_root: expected a folder, got ''"),
        ({"data_root": "no"}, "fail  fedmend.json: data_root: expected a folder, not found"),
        (
            {"refuse_fields": ["prototypes", "centroid"]},
            "fail  fedmend.json: refuse_fields: expected fields that methods report, got centroid",
        ),
        (
            {"min_federation": 1},
            "warn  fedmend.json: min_federation: expected at least 2, got 1: a lead could get a model that is this"
            " site's alone",
        ),
        ({"data_root": "phantom"}, "warn  fedmend.json: data_root: expected a folder, got phantom: PHANTOM data"),
        (
            {"cache_dir": "startup/client.crt/a", "state_dir": "../kit/../data/site-1/site.json"},
            "fail  fedmend.json: cache_dir: expected a folder that can be written, got another;"
            " state_dir: expected a folder that can be written, got another",
        ),
    ],
)
def test_settings_that_a_job_cannot_use_are_named(kit, settings, line):
    change_settings(kit, **settings)
    assert found("fedmend.json", kit=kit) == [line]


@pytest.mark.parametrize("field", ["state_dir", "cache_dir"])
@pytest.mark.parametrize(("mode", "status"), [(0o755, "warn"), (0o710, "warn"), (0o700, "ok  ")])
def test_a_folder_of_patients_data_that_others_can_open_is_a_warning(kit, tmp_path, field, mode, status):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(mode)
    change_settings(kit, **{field: str(tmp_path / "disk")})
    (line,) = found("fedmend.json", kit=kit)
    assert line.startswith(f"{status}  fedmend.json: ")
    warning = f"{field}: expected a folder for its owner alone, got one with more rights (chmod 700)"
    assert (warning in line) is (status == "warn")


def test_a_kit_with_state_in_it_fails(kit):
    change_settings(kit, state_dir="state")
    (line,) = found("fedmend.json", kit=kit)
    assert line.startswith("fail  fedmend.json: local/fedmend.json, field state_dir: expected a folder outside the kit")
    assert line.endswith("by: fedmend move-state KIT")


def test_a_folder_that_is_not_the_one_of_the_settings_is_a_warning(tmp_path, kit):
    other = make_site_folder(tmp_path / "other")
    assert found("fedmend.json", other, kit=kit) == [
        "warn  fedmend.json: data_root: expected the folder that is checked, got another: jobs will open that one"
    ]


def test_the_folder_of_the_settings_is_checked_when_none_is_given(kit):
    assert found("site card", kit=kit) == ["ok    site card: multilabel, 3 classes, splits train"]
    change_settings(kit, data_root="")
    assert found("site card", kit=kit) == ["skip  site card: needs data_root"]


def test_phantom_data_are_those_of_the_job(kit, job, tmp_path):
    change_settings(kit, data_root="phantom")
    line = "fail  site card: local/fedmend.json, field data_root: expected a folder, as this job has no phantom"
    assert found("site card", kit=kit, job=job) == [line]
    phantom = {"dataset": "ms", "images": 8, "sites": 1, "pixels": 32, "depth": 12}
    other = make_job(tmp_path / "ms", classes=["lesion"], method="fedmend.methods.fedia.FedIA", phantom=phantom)
    assert found("site card", kit=kit, job=other) == [
        "ok    site card: segmentation, 1 classes, splits train, val, test"
    ]


@pytest.mark.parametrize("listed", [["fedmend.methods.", "fl_components.executor"], None])
def test_classes_on_the_list_pass_as_flare_matches_them(kit, job, listed):
    if listed:
        allow(kit, listed)
    line = "ok    class policy: all 2 classes of the job are on class_allow_list"
    assert found("class policy", kit=kit, job=job) == [line]
    (kit / "local" / "resources.json").rename(kit / "local" / "resources.json.default")
    assert found("class policy", kit=kit, job=job) == [line]


@pytest.mark.parametrize("listed", [["fedmend.methods."], ["fedmend.methods.", "fl_components.exec"]])
def test_classes_that_are_not_on_the_list_are_named(kit, job, listed):
    allow(kit, listed)
    assert found("class policy", kit=kit, job=job) == [
        "fail  class policy: local/resources.json: expected on class_allow_list, not found:"
        " fl_components.executor.MethodExecutor"
    ]


def test_a_baseline_that_is_not_on_the_list_is_answered_with_the_switch(kit, tmp_path):
    path = "fedmend.baselines.rscfed.RSCFed"
    job = make_job(tmp_path / "rscfed", method=path)
    allow(kit, ["another.Class"])
    assert found("class policy", kit=kit, job=job) == [
        f"fail  class policy: job, method: {path} belongs to a method that only comparisons need, and this policy does"
        " not list it: expected `baselines: true` under SitePolicyBuilder in project.yml when the kits were made"
    ]


@pytest.mark.parametrize(("listed", "more"), [(["*"], {}), (["a.b"], {"class_list_enforcement_mode": "warn"})])
def test_a_list_that_is_not_enforced_is_a_warning(kit, job, listed, more, caplog):
    allow(kit, listed, **more)
    assert found("class policy", kit=kit, job=job) == [
        "warn  class policy: local/resources.json: expected a class_allow_list that is enforced, got one that is not"
    ]
    assert caplog.text == ""


def test_a_policy_that_cannot_be_read_and_code_in_a_job_are_refused(kit, job, site):
    assert found("class policy", site, job=job) == ["skip  class policy: needs --kit and --job"]
    (kit / "local" / "resources.json").write_text("{")
    assert found("class policy", kit=kit, job=job) == [
        "fail  class policy: local/resources.json: expected JSON, got a file that does not parse"
    ]
    (job / "app" / "custom").mkdir()
    assert found("class policy", kit=kit, job=job) == [
        "fail  class policy: expected a job without code of its own, got one with a custom folder"
    ]


def test_a_job_within_the_limits_of_the_site_says_so(kit, job):
    assert found("limits", kit=kit, job=job) == [
        "ok    limits: 3 rounds and the memory are what the site's fedmend.json allows"
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"max_rounds": 2},
            "job variable num_rounds: expected at most 2 (max_rounds of this site's fedmend.json), got 3",
        ),
        (
            {"refuse_fields": ["prototypes"]},
            "expected a method without the report fields that this site keeps (refuse_fields of its fedmend.json), got"
            " one that reports prototypes",
        ),
        (
            {"memory_gb": 0.001},
            "job variables network, batch_size, image_size: expected a training step of at most 0.0 GB (memory_gb of"
            " this site's fedmend.json), got one of about 0.0 GB",
        ),
        (
            {"privacy": {"clip": 1, "noise_multiplier": 1}},
            "local/fedmend.json, field privacy: expected a job of federated averaging in which patients count one by"
            " one (variant fedavg_private), or closed_form with its variant private, got FedMLP",
        ),
    ],
)
def test_a_job_that_the_site_would_refuse_in_the_census_is_found_before(kit, job, settings, sentence):
    change_settings(kit, **settings)
    assert found("limits", kit=kit, job=job) == [f"fail  limits: {sentence}"]


def test_a_site_with_privacy_needs_a_decay_that_noise_leaves_as_it_is_and_the_accountant(kit, tmp_path, monkeypatch):
    pytest.importorskip("opacus")
    change_settings(kit, privacy={"clip": 1, "noise_multiplier": 1})
    private = {"method": "fedmend.methods.baselines.FedAvg", "method_args": {"weighted": False}}
    job = make_job(tmp_path / "private", network="resnet_narrow_gn", **private)
    assert found("limits", kit=kit, job=job)[0].startswith("ok ")
    other = make_job(tmp_path / "supervised", network="resnet_narrow_gn", decay="supervised", **private)
    assert "expected a job with decay coupled or decoupled" in found("limits", kit=kit, job=other)[0]
    monkeypatch.setattr("fl_components.sitecheck.settings.find_spec", lambda name: None)
    sentence = "field privacy: expected the package opacus (pip install 'fedmend[privacy]'), not found"
    assert found("limits", kit=kit, job=job) == [f"fail  limits: {sentence}"]


def test_a_network_for_masks_in_a_job_with_labels_is_found_before(kit, tmp_path):
    job = make_job(tmp_path / "masks", network="unet_narrow")
    sentence = "job variable network: expected one for labels, got unet_narrow, which is for masks"
    assert found("limits", kit=kit, job=job) == [f"fail  limits: {sentence}"]


def test_the_label_audit_has_no_limits(kit):
    assert found("limits", kit=kit, job=ROOT / "jobs" / "label_audit") == ["skip  limits: the job trains no model"]


def test_a_kit_whose_path_flare_cannot_take_is_refused(tmp_path, site):
    kit = make_kit(tmp_path / "kit space" / "site-1", data_root=str(site))
    assert found("fedmend.json", kit=kit) == [
        "fail  fedmend.json: path of the workspace or kit: expected one without blanks and quotation marks, which FLARE"
        " cannot take, got one with them; move it (a simulation may also do without FLARE, by --local)"
    ]


def test_a_kit_whose_results_would_leave_without_the_guard_fails(kit, site):
    fine = "local/privacy.json: every result passes the ReportGuard before it leaves"
    assert found("guard", kit=kit) == [f"ok    guard: {fine}"]
    (kit / "local" / "privacy.json").unlink()
    (line,) = found("guard", kit=kit)
    assert line == "fail  guard: local/privacy.json: expected the privacy policy of this site in its kit, not found"
    assert found("guard", site) == ["skip  guard: needs --kit"]


def test_limits_of_a_kit_whose_settings_fail_say_what_they_need(kit, job):
    change_settings(kit, data_root="")
    assert found("limits", kit=kit, job=job) == ["skip  limits: needs fedmend.json and the job"]
