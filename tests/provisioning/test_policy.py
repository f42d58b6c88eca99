"""Startup kits made by the command of the documentation, judged by FLARE's own checkers."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from factories import ROOT, refused
from fl_factories import Engine, write_settings
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.fuel.utils.class_utils import instantiate_class, load_class
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.lighter.utils import load_yaml, sign_folders
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.security import FLAuthorizer
from test_jobs import named_classes
from test_layers import imported, modules, within

from fedmend.messages import SiteResult
from fedmend.site.config import read_site_config
from fl_components import job_check
from fl_components.kit_state import DEFAULT
from fl_components.policy.agreed import differing, policy_hash
from fl_components.wire import pack_result, unpack_result
from provisioning.policy import STATE, SitePolicyBuilder

PROJECT = yaml.safe_load((ROOT / "provisioning" / "project.yml").read_text())
PEOPLE = {p["name"]: p["role"] for p in PROJECT["participants"] if p["type"] == "admin"}
SERVER = PROJECT["variables"]["host"]
HOSPITALS = [f"site-{i}" for i in range(1, 6)]
ORGS = {p["name"]: p["org"] for p in PROJECT["participants"]}
ROLES = ["project_admin", "org_admin", "lead", "member"]
POLICY = ROOT / "simulator_workspace" / "local"
every_site = pytest.mark.parametrize("site", [SERVER, *HOSPITALS])


def read(file):
    return json.loads(file.read_text())


def provision(out, *, home, project=ROOT / "provisioning" / "project.yml"):
    """The documented command in the checkout's root, without anything of ours on Python's path."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HOME": str(home)}
    words = [sys.executable, "-P", "-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(out)]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provisioned")
    done = provision(folder / "out", home=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out" / "fedmend"


@pytest.fixture(scope="module")
def kits(out):
    return out / "prod_00"


def provisioned_with(folder, **given):
    """Kits of the published project whose policy has been given something else."""
    project = json.loads(json.dumps(PROJECT))
    (args,) = (b["args"] for b in project["builders"] if b["path"] == "provisioning.policy.SitePolicyBuilder")
    args |= given
    (folder / "project.yml").write_text(yaml.safe_dump(project))
    done = provision(folder / "out", home=folder, project=folder / "project.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out" / "fedmend" / "prod_00"


@pytest.fixture(scope="module")
def kits_with_baselines(tmp_path_factory):
    return provisioned_with(tmp_path_factory.mktemp("with_baselines"), baselines=True)


def authorizer(kit, site):
    """FLARE's judge of commands, as the site makes it from its kit."""
    return FLAuthorizer(ORGS[site], read(kit / "local" / "authorization.json.default"))


def check_class(kit, path):
    """FLARE's judge of classes, which is asked before a job's component is built."""
    ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=Workspace(str(kit)))


def test_everybody_gets_a_kit(kits):
    assert {f.name for f in kits.iterdir()} == {SERVER, *HOSPITALS, *PEOPLE}
    assert sorted(PEOPLE.values()) == sorted(["project_admin", "lead", "member", *["org_admin"] * 5])
    assert {ORGS[name] for name, role in PEOPLE.items() if role == "org_admin"} == {ORGS[s] for s in HOSPITALS}


def test_the_root_signed_every_certificate_which_says_name_and_role(kits):
    for kit in kits.iterdir():
        root = x509.load_pem_x509_certificate((kit / "startup" / "rootCA.pem").read_bytes())
        (file,) = (kit / "startup").glob("*.crt")
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        certificate.verify_directly_issued_by(root)
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        roles = [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]
        assert name.value == kit.name
        assert roles == ([PEOPLE[kit.name]] if kit.name in PEOPLE else [])


def test_private_keys_are_for_their_owner_alone(out, kits):
    keys = list(kits.glob("*/startup/*.key"))
    assert len(keys) == len(ORGS)
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "PRIVATE KEY" in (out / "state" / "cert.json").read_text()
    assert stat.S_IMODE((out / "state").stat().st_mode) == 0o700


def certificates(kits):
    """Name → certificate file, private key and root, as they are."""
    kinds = ("*.crt", "*.key", "rootCA.pem")
    return {kit.name: [next((kit / "startup").glob(kind)).read_bytes() for kind in kinds] for kit in kits.iterdir()}


def renewal():
    """The commands of the step "Renew certificates" of the project admin's runbook."""
    runbook = (ROOT / "provisioning" / "runbook_project_admin.md").read_text()
    (commands,) = re.findall(r"\*\*Renew certificates\*\*.*?```\n(.*?)```", runbook, re.DOTALL)
    assert commands.count("OUT/") == 3
    assert commands.count("site-1") == 1
    return commands


@pytest.mark.parametrize("kept", [True, False], ids=["beside the old kits", "after the old kits were removed"])
def test_the_runbooks_renewal_gives_one_name_a_new_certificate_of_the_same_root(kits, out, tmp_path, kept):
    shutil.copytree(out / "state", tmp_path / "OUT" / "fedmend" / "state")
    if kept:
        shutil.copytree(kits, tmp_path / "OUT" / "fedmend" / "prod_00")
    commands = renewal().replace("OUT/", f"{tmp_path}/OUT/").replace("-w OUT ", f"-w {tmp_path}/OUT ")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    done = subprocess.run(
        ["bash", "-e"], input=commands, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (new,) = re.findall(r"Generated results can be found under (\S+)\. ", done.stdout)
    assert Path(new) == tmp_path / "OUT" / "fedmend" / ("prod_01" if kept else "prod_00")
    before, after = certificates(kits), certificates(Path(new))
    (certificate, key, root), (old_certificate, old_key, _) = after.pop("site-1"), before.pop("site-1")
    assert after == before  # roots included
    assert {r for _, _, r in before.values()} == {root}
    assert key != old_key
    renewed, old, issuer = (x509.load_pem_x509_certificate(pem) for pem in (certificate, old_certificate, root))
    assert renewed.serial_number != old.serial_number
    assert renewed.subject == old.subject
    assert renewed.not_valid_after_utc >= old.not_valid_after_utc
    renewed.verify_directly_issued_by(issuer)


def test_connections_are_mutual_tls_to_one_host_and_jobs_must_be_signed(kits):
    server = read(kits / SERVER / "startup" / "fed_server.json")
    assert server["require_signed_jobs"] is True
    (entry,) = server["servers"]
    assert entry["connection_security"] == "mtls"
    assert (entry["service"]["target"], entry["admin_port"]) == (f"{SERVER}:8002", 8003)
    for site in HOSPITALS:
        client = read(kits / site / "startup" / "fed_client.json")
        assert client["require_signed_jobs"] is True
        assert client["client"]["connection_security"] == "mtls"
        assert [s["service"]["target"] for s in client["servers"]] == [f"{SERVER}:8002"]
    for name in PEOPLE:
        admin = read(kits / name / "startup" / "fed_admin.json")["admin"]
        assert (admin["host"], admin["port"], admin["connection_security"]) == (SERVER, 8003, "mtls")


def test_a_hospital_that_has_not_said_where_its_data_are_is_told_so_in_one_sentence(kits):
    for site in HOSPITALS:
        file = kits / site / "local" / "fedmend.json"
        with refused(f"{site}: local/fedmend.json, field data_root: expected a folder, got ''"):
            read_site_config(file, kits / site, site)


def test_the_settings_are_complete_once_the_folder_is_filled_in(kits, tmp_path):
    file = tmp_path / "fedmend.json"
    file.write_text(json.dumps({**read(kits / "site-1" / "local" / "fedmend.json"), "data_root": str(tmp_path)}))
    config = read_site_config(file, kits / "site-1", "site-1")
    assert config.data_root == tmp_path
    assert config.state_dir == (kits / "fedmend-state" / "site-1").resolve()  # no command of FLARE's reaches it
    assert STATE == DEFAULT
    assert config.min_count == 5


def test_the_servers_settings_are_complete(kits):
    config = read_site_config(kits / SERVER / "local" / "fedmend.json", kits / SERVER, "fedmend")
    assert config.state_dir == (kits / "fedmend-state" / "server").resolve()


@every_site
def test_a_kit_obeys_the_simulators_allow_list_without_baselines_unless_the_project_asks_for_them(
    kits, kits_with_baselines, site
):
    policy = read(POLICY / "resources.json")
    product = [c for c in policy["class_allow_list"] if not c.startswith("fedmend.baselines.")]
    assert 0 < len(product) < len(policy["class_allow_list"])
    for made, listed in ((kits, product), (kits_with_baselines, policy["class_allow_list"])):
        resources = read(made / site / "local" / "resources.json.default")
        assert not (made / site / "local" / "resources.json").exists()  # would replace the file above
        assert {name: resources[name] for name in policy} == {**policy, "class_allow_list": listed}
        assert "process_launcher" in {c["id"] for c in resources["components"]}
    assert policy["class_list_enforcement_mode"] == "enforce"
    assert policy["allow_log_streaming"] is False


def test_the_server_keeps_jobs_outside_the_temp_directory(kits):
    text = (kits / SERVER / "local" / "resources.json.default").read_text()
    assert '"uri_root": "/var/lib/fedmend/jobs"' in text
    assert '"root_dir": "/var/lib/fedmend/snapshots"' in text
    assert "/tmp" not in text


def test_the_allow_list_holds_single_classes():
    for path in read(POLICY / "resources.json")["class_allow_list"]:
        assert isinstance(load_class(path), type), path  # a package also holds functions, which FLARE would call


@every_site
def test_every_class_that_a_job_names_is_allowed_and_of_baselines_where_the_project_asks_for_them(
    kits, kits_with_baselines, site
):
    paths = named_classes()
    assert "fl_components.executor.MethodExecutor" in paths
    for path in paths:
        check_class(kits_with_baselines / site, path)
        if not path.startswith("fedmend.baselines."):
            check_class(kits / site, path)


@every_site
@pytest.mark.parametrize(
    "path",
    [
        "subprocess.Popen",
        "fl_components.cli.main",  # would run any command of ours with the job's arguments
        "fl_components.executor.MethodExecutorOfAnother",
        "fedmend.repairs.label_ledger.LabelLedger",
        "fedmend.baselines.rscfed.RSCFed",
        "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
        "nvflare.app_opt.pt.file_model_persistor.PTFileModelPersistor",  # runs what its arguments name
        "nvflare.app_common.ccwf.SwarmClientController",  # sends results past the ReportGuard
        "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",  # sends events past the ReportGuard
        "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
        "nvflare.app_common.logging.job_log_receiver.JobLogReceiver",  # writes where an argument says
        "nvflare.app_common.np.np_model_locator.NPModelLocator",  # opens what an argument names
        "nvflare.app_common.np.np_model_persistor.NPModelPersistor",
        "nvflare.app_common.workflows.lr.np_persistor.LRModelPersistor",
        "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver",  # sends where an argument says
        "nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver",
        "fl_components.tracking.mlflow.MLflow",  # off unless the project asks for it
        "fl_components.tracking.wandb.WandB",
        "nvflare.app_opt.xgboost.histogram_based_v2.csv_data_loader.CSVDataLoader",
        "nvflare.app_opt.he.model_encryptor.HEModelEncryptor",
    ],
)
def test_a_class_that_is_not_listed_is_refused(kits, site, path):
    with pytest.raises(UnsafeComponentError, match="is not in allow_list"):
        check_class(kits / site, path)


@every_site
@pytest.mark.parametrize("role", ROLES)
def test_a_job_with_code_in_it_is_refused_whoever_submits_it(kits, site, role, tmp_path, monkeypatch):
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer(kits / site, site))
    kind = "server" if site == SERVER else "client"
    monkeypatch.setattr(AppAuthzService, "app_validator", DefaultAppValidator(site_type=kind))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / f"config_fed_{kind}.json").write_text("{}")
    person = {"submitter_name": "somebody", "submitter_org": ORGS[site], "submitter_role": role}
    assert AppAuthzService.authorize(str(tmp_path), **person) == (True, "")
    (tmp_path / "custom").mkdir()
    assert AppAuthzService.authorize(str(tmp_path), **person) == (False, "BYOC not permitted")


@pytest.mark.parametrize("job", ["fedmlp_ich", "label_audit"])
@pytest.mark.parametrize("site", [SERVER, "site-1"])
def test_a_job_of_ours_that_the_lead_has_signed_is_deployed(kits, site, job, tmp_path, monkeypatch):
    lead = kits / next(name for name, role in PEOPLE.items() if role == "lead") / "startup"
    key = serialization.load_pem_private_key((lead / "client.key").read_bytes(), password=None)
    shutil.copytree(ROOT / "jobs" / job, tmp_path / job)
    sign_folders(str(tmp_path / job), key, str(lead / "client.crt"))
    shutil.copytree(kits / site, tmp_path / site)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer(kits / site, site))
    monkeypatch.setattr(PrivacyService, "is_scope_allowed", staticmethod(lambda scope: True))
    monkeypatch.setattr(Workspace, "_check_job_id", staticmethod(Workspace._check_job_id))
    monkeypatch.setattr(ConfigFactory, "_fmt2Loader", dict(ConfigFactory._fmt2Loader))
    monkeypatch.setattr(job_check, "SHELL_CMD_VALIDATORS", {})
    kind, name = ("server", "server") if site == SERVER else ("client", site)
    validator = FLAppValidator(site_type=kind, custom_validators=[job_check.ListedClasses()])
    monkeypatch.setattr(AppAuthzService, "app_validator", validator)
    workspace, run = Workspace(str(tmp_path / site), name), str(uuid.uuid4())
    given = {"job_id": run, "job_meta": {}, "app_name": "app", "fl_ctx": FLContext()}
    assert not AppDeployer().deploy(workspace, app_data=zip_directory_to_bytes(tmp_path / job / "app", ""), **given)
    config = tmp_path / site / run / f"app_{name}" / "config"
    assert {f.name for f in config.iterdir()} >= {"config_fed_client.json", ".__nvfl_sig.json"}


RIGHTS = {  # role → what it may do with somebody else's job at another organisation's site, and what else with its own
    "project_admin": ({"abort_job", "get_job_log", "list_jobs", "shutdown"}, {"cat"}),
    "org_admin": ({"list_jobs"}, {"shutdown"}),
    "lead": ({"submit_job", "list_jobs"}, {"clone_job", "abort_job", "download_job", "get_job_log"}),
    "member": ({"list_jobs"}, set()),
    "stranger": (set(), set()),
}
ASKED = {"byoc", "server-predeployed-flwr"}.union(*(a | b for a, b in RIGHTS.values()))


@every_site
@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_may_do_what_it_needs_and_no_more(kits, site, role):
    judge = authorizer(kits / site, site)
    always, own = RIGHTS[role]
    strange, native = Person("somebody", "elsewhere", role), Person("somebody", ORGS[site], role)
    for person, submitter, expected in ((strange, Person("x", "x", "lead"), always), (native, native, always | own)):
        allowed = {r for r in ASKED if judge.authorize(AuthzContext(right=r, user=person, submitter=submitter))[0]}
        assert allowed == expected


def test_the_runbooks_block_of_a_person_takes_all_rights_of_this_name_alone(kits):
    policy = read(kits / SERVER / "local" / "authorization.json.default")
    (lead,) = (name for name, role in PEOPLE.items() if role == "lead")
    rights = policy["permissions"]["lead"]
    policy["permissions"]["lead"] = {r: e if e == "none" else [e, f"not n:{lead}"] for r, e in rights.items()}
    judge = FLAuthorizer(ORGS[SERVER], policy)
    for name, expected in ((lead, set()), ("successor@fedmend.example.org", set.union(*RIGHTS["lead"]))):
        person = Person(name, ORGS[lead], "lead")
        allowed = {r for r in ASKED if judge.authorize(AuthzContext(right=r, user=person, submitter=person))[0]}
        assert allowed == expected


@every_site
def test_with_baselines_the_default_privacy_scope_is_the_simulators(kits_with_baselines, site):
    policy, privacy = read(POLICY / "privacy.json"), read(kits_with_baselines / site / "local" / "privacy.json")
    assert privacy["default_scope"] == policy["default_scope"]
    assert privacy["scopes"][: len(policy["scopes"])] == policy["scopes"]


@every_site
def test_the_guard_of_a_kit_lets_out_the_fields_of_its_methods_alone(kits, site):
    listed = read(kits / site / "local" / "resources.json.default")["class_allow_list"]
    fields = {name for path in listed for name in getattr(load_class(path), "FIELDS", ())}
    (published,) = (s["task_result_filters"][0]["args"] for s in read(POLICY / "privacy.json")["scopes"])
    for scope in scopes_of(kits / site):
        args = scope["task_result_filters"][-1]["args"]
        assert args["fields"] == {name: published["fields"][name] for name in sorted(fields)}
        assert args["counts"] == {
            "class_loss": "class_count",
            "group_counts": "group_people",
            "head_biases": "head_counts",
            "head_weights": "head_counts",
            "prototypes": "prototype_counts",
        }
        assert args["max_kilobytes"] == published["max_kilobytes"]
    assert "relation" in published["fields"]


@pytest.mark.parametrize("word", ["false", None, 1])
def test_a_switch_that_is_neither_on_nor_off_is_refused(word):
    with pytest.raises(ValueError, match=r"^SitePolicyBuilder, baselines: expected true or false, got "):
        SitePolicyBuilder(server_storage="/x", baselines=word)


def test_the_line_of_the_published_project_that_is_commented_is_the_switch(kits_with_baselines):
    text = (ROOT / "provisioning" / "project.yml").read_text()
    assert text.count("      # baselines: true\n") == 1
    project = yaml.safe_load(text.replace("# baselines: true", "baselines: true"))
    assert project["builders"][-1]["args"] == {**PROJECT["builders"][-1]["args"], "baselines": True}


@every_site
def test_the_guard_is_the_last_filter_of_every_scope_and_only_a_hospital_adds_another(kits, site):
    scopes = {s["name"]: [f["path"].split(".")[-1] for f in s["task_result_filters"]] for s in scopes_of(kits / site)}
    assert scopes["fedmend"] == ["ReportGuard"]
    chain = [] if site == SERVER else ["ConvertWeights", "PercentilePrivacy", "ConvertWeights"]
    assert scopes["percentile"] == [*chain, "ReportGuard"]


def scopes_of(kit):
    return read(kit / "local" / "privacy.json")["scopes"]


def test_the_weight_filter_limits_the_change_of_the_weights_and_leaves_a_result_of_ours(kits, tmp_path):
    (scope,) = (s for s in scopes_of(kits / "site-1") if s["name"] == "percentile")
    write_settings(tmp_path)
    fl_ctx = Engine(tmp_path, "site-1").new_context()
    base = np.full((2, 2), 5, dtype=np.float32)
    task = DXO(DataKind.WEIGHTS, data={"a": base}).to_shareable()
    fl_ctx.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
    trained = base + np.array([[0.5, -0.5], [0.004, 0]], dtype=np.float32)
    shareable = FLModelUtils.to_shareable(pack_result(SiteResult(round_num=1, samples=10, weights={"a": trained})))
    for chosen in scope["task_result_filters"]:
        shareable = instantiate_class(chosen["path"], chosen["args"]).process(shareable, fl_ctx)
    assert from_shareable(shareable).data_kind == DataKind.WEIGHTS
    result = unpack_result(FLModelUtils.from_shareable(shareable), "site-1")
    assert (result.error, result.samples) == ("", 10)
    np.testing.assert_allclose(result.weights["a"], [[5.01, 4.99], [5.004, 5]], rtol=0, atol=1e-6)
    assert result.weights["a"].dtype == np.float32


@pytest.mark.parametrize("storage", ["jobs", None])
def test_a_storage_folder_that_depends_on_the_current_folder_is_refused(storage):
    with pytest.raises(ValueError, match=r"^SitePolicyBuilder, server_storage: expected an absolute folder, got "):
        SitePolicyBuilder(server_storage=storage)


class Kits:
    """FLARE's project and context in one, of a server and a site whose kits are folders."""

    def __init__(self, folder):
        self.get_local_dir = lambda participant: str(folder / participant)
        self.get_state_dir = lambda: str(folder)
        self.get_clients, self.get_server = lambda: ["site-1"], lambda: "server"
        storage = {"snapshot_persistor": {"args": {"storage": {"args": {}}}}}
        for name in ("site-1", "server"):
            (folder / name).mkdir()
            for kind in ("resources", "authorization"):
                content = {**storage, "components": [{"id": "job_manager", "args": {}}]}
                (folder / name / f"{kind}.json.default").write_text(json.dumps(content))


def test_settings_of_a_trial_are_those_of_its_sites_and_not_of_the_server(tmp_path):
    kits = Kits(tmp_path)
    SitePolicyBuilder(server_storage="/x", site_settings={"data_root": "phantom"}).build(kits, kits)
    site, server = (read(tmp_path / name / "fedmend.json") for name in ("site-1", "server"))
    assert site == {"data_root": "phantom", "cache_dir": "cache", "state_dir": STATE, "min_count": 5}
    assert server["data_root"] == "a server has no data"


@pytest.mark.parametrize("given", ["fl_components.tracking.mlflow.MLflow", {"a": 1}, [["x"]], None])
def test_receivers_that_are_no_list_of_them_are_refused(given):
    with pytest.raises(ValueError, match=r"^SitePolicyBuilder, tracking: expected a list of some of .*, got "):
        SitePolicyBuilder(server_storage="/x", tracking=given)


def test_filters_without_names_of_scopes_are_refused():
    words = r"^SitePolicyBuilder, weight_filters: expected names of scopes with path and args, got \['x'\]$"
    with pytest.raises(ValueError, match=words):
        SitePolicyBuilder(server_storage="/x", weight_filters=["x"])


def test_a_filter_without_a_path_is_refused():
    with pytest.raises(ValueError, match=r"^SitePolicyBuilder, weight_filters x: expected path and args, got 'y'$"):
        SitePolicyBuilder(server_storage="/x", weight_filters={"x": "y"})


def test_a_further_scope_with_the_name_of_the_usual_one_is_refused_before_kits_that_cannot_start_are_made():
    words = r"^SitePolicyBuilder, weight_filters: expected names of further scopes, got \['fedmend'\]$"
    with pytest.raises(ValueError, match=words):
        SitePolicyBuilder(server_storage="/x", weight_filters={"fedmend": {"path": "a.Filter", "args": {}}})


def test_a_scope_that_encrypts_weights_is_refused():
    filters = {"x": {"path": "nvflare.app_opt.he.model_encryptor.HEModelEncryptor", "args": {}}}
    with pytest.raises(ValueError, match=r"^SitePolicyBuilder, weight_filters x: expected no homomorphic encryption$"):
        SitePolicyBuilder(server_storage="/x", weight_filters=filters)


def test_provisioning_knows_flares_provisioning_alone():
    for file in modules(ROOT / "provisioning"):
        names = imported(file.read_text(), "provisioning")
        assert within(names, "nvflare") == within(names, "nvflare.lighter")
        assert within(names, "fedmend") == within(names, "fl_components") == []


def test_the_server_alone_lists_the_receivers_that_the_project_asks_for(tmp_path):
    kits = provisioned_with(tmp_path, tracking=["fl_components.tracking.mlflow.MLflow"])
    check_class(kits / SERVER, "fl_components.tracking.mlflow.MLflow")
    for kit, path in (
        (SERVER, "fl_components.tracking.wandb.WandB"),
        ("site-1", "fl_components.tracking.mlflow.MLflow"),
    ):
        with pytest.raises(UnsafeComponentError, match="is not in allow_list"):
            check_class(kits / kit, path)


def test_a_receiver_that_is_none_of_ours_is_refused():
    with pytest.raises(
        ValueError, match=r"^SitePolicyBuilder, tracking: expected a list of some of fl_components.tracking"
    ):
        SitePolicyBuilder(
            server_storage="/x", tracking=["nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver"]
        )


def test_all_hospitals_have_one_policy_hash_and_neither_server_nor_a_federation_with_baselines_has_it(
    kits, kits_with_baselines
):
    (ours,) = {policy_hash(kits / site) for site in HOSPITALS}
    assert differing(policy_hash(kits / SERVER), ours) == ["resources", "privacy"]
    assert differing(policy_hash(kits_with_baselines / "site-1"), ours) == ["resources", "privacy"]


def test_a_project_that_a_windows_editor_has_saved_is_read_as_it_was(tmp_path):
    file = tmp_path / "project.yml"
    file.write_bytes(b"\xef\xbb\xbf" + (ROOT / "provisioning" / "project.yml").read_bytes().replace(b"\n", b"\r\n"))
    assert load_yaml(str(file)) == PROJECT
