import inspect
import io
import json
import shutil
import uuid
import zipfile
from types import SimpleNamespace

import pytest
from factories import ROOT
from fl_factories import reopen_doors
from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.workspace import Workspace
from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.client import shell_cmd
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.server.server_engine import ServerEngine
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.privacy_manager import PrivacyService

from fl_components import job_check
from fl_components.job_check import ListedClasses

SECRET = "site-1 private"
LISTED, UNLISTED = {"path": "good.Thing"}, {"path": "subprocess.Popen", "args": {"args": "true"}}


@pytest.fixture(autouse=True)
def doors(monkeypatch):
    reopen_doors(monkeypatch)


@pytest.fixture
def kit(tmp_path):
    """A kit whose list has one class, and a way to have it validate a configuration."""
    local, app = tmp_path / "local", tmp_path / "job-1" / "app_site-1"
    for folder in (local, tmp_path / "startup", app / "config"):
        folder.mkdir(parents=True)
    (local / "resources.json.default").write_text(json.dumps({"class_allow_list": ["good.Thing"]}))

    def validate(**config):
        (app / "config" / "config_fed_client.json").write_text(json.dumps({"format_version": 2, **config}))
        return ListedClasses().validate(str(app))

    validate.local, validate.app = local, app
    return validate


@pytest.mark.parametrize("command", ["cat", "head", "tail", "grep private", "ls -l"])
def test_nobody_reads_files_of_a_site_by_shell_commands(tmp_path, command):
    # a rogue server sends the request without the header that makes FLARE ask for the right
    file = tmp_path / "private.csv"
    file.write_text(SECRET)

    def answer():
        request = Message(topic=SysCommandTopic.SHELL, body=f"{command} {file}")
        return shell_cmd.ShellCommandProcessor().process(request, None).body

    assert "private" in answer()
    ListedClasses()
    assert answer() == f"Error: {command} {file} is not a supported shell command"


@pytest.mark.parametrize(
    ("place", "config"),
    [
        ("components.#2", {"components": [LISTED, UNLISTED]}),
        ("executors.#1.executor", {"executors": [{"tasks": ["train"], "executor": UNLISTED}]}),
        ("task_data_filters.#1.filters.#1", {"task_data_filters": [{"tasks": ["*"], "filters": [UNLISTED]}]}),
        (
            "task_result_filters.#1.filters.#2",
            {"task_result_filters": [{"tasks": ["*"], "filters": [LISTED, UNLISTED]}]},
        ),
    ],
)
def test_an_unlisted_class_is_named_with_its_place(kit, place, config):
    reason = f"Component 'subprocess.Popen' at config path '{place}' is not in allow_list"
    assert kit(**config) == (reason, {})


BASELINE = "fedmend.baselines.rscfed.RSCFed"
SWITCH = (
    f"job, method: {BASELINE} belongs to a method that only comparisons need, and this policy does not list it:"
    " expected `baselines: true` under SitePolicyBuilder in project.yml when the kits were made"
)


def test_an_unlisted_baseline_is_refused_in_a_sentence_that_names_the_switch(kit):
    assert kit(components=[LISTED, {"id": "method", "path": BASELINE}]) == (SWITCH, {})


def test_a_listed_baseline_passes(kit):
    (kit.local / "resources.json").write_text(json.dumps({"class_allow_list": [BASELINE]}))
    assert kit(components=[{"id": "method", "path": BASELINE}]) == ("", {})


def test_listed_classes_pass(kit):
    assert kit(components=[LISTED], executors=[{"executor": LISTED}], task_result_filters=[{"filters": [LISTED]}]) == (
        "",
        {},
    )


def test_a_site_that_changed_its_list_decides_by_its_own_one(kit):
    (kit.local / "resources.json").write_text(json.dumps({"class_allow_list": ["another.Thing"]}))
    assert "'good.Thing'" in kit(components=[LISTED])[0]


def test_a_job_with_code_is_left_to_the_right_byoc(kit):
    (kit.app / "custom").mkdir()
    assert kit(components=[UNLISTED]) == ("", {})


@pytest.mark.parametrize("job", sorted(p.parent.name for p in (ROOT / "jobs").glob("*/meta.json")))
def test_every_job_passes_the_policy_of_the_kits(kit, job):
    policy = (ROOT / "simulator_workspace" / "local" / "resources.json").read_text()
    (kit.local / "resources.json").write_text(policy)
    config = json.loads((ROOT / "jobs" / job / "app" / "config" / "config_fed_client.json").read_text())
    assert kit(**config) == ("", {})
    assert json.loads(policy)["app_validator"] == {"path": "fl_components.job_check.ListedClasses"}


@pytest.mark.parametrize(
    "text",
    ["[]", "{", "[" * 100_000, '{"components": null}', '{"components": [1]}', '{"executors": [{"executor": 1}]}'],
)
def test_a_configuration_that_does_not_read_is_refused_in_a_sentence(kit, text):
    (kit.app / "config" / "config_fed_client.json").write_text(text)
    reason, _ = ListedClasses().validate(str(kit.app))
    assert reason.startswith("job, config_fed_client.json: expected ")
    assert len(reason) < 150


def test_what_nobody_foresaw_is_refused_in_a_sentence_without_its_words(kit, monkeypatch):
    def fail(app):
        raise RuntimeError("MUELLER")

    monkeypatch.setattr(job_check, "read_app", fail)
    reason = "job: expected a FLARE configuration, got one that does not read (RuntimeError)"
    assert kit(components=[LISTED]) == (reason, {})


def test_variables_of_the_site_are_refused_at_every_site(kit, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SITE", "http://user:password@proxy")
    for word in ("{$SECRET_OF_THE_SITE}", "{WORKSPACE}"):
        reason, _ = kit(components=[{"path": "good.Thing", "args": {"classes": [word]}}])
        assert reason.startswith("job, config_fed_client.json: expected literal values, got a string with a brace")
        assert word not in reason


# ---- files and formats ----------------------------------------------------------------------------------------------

INCLUDE = 'components = [{path = ${SECRET}}]\ninclude file("%s/local/fedmend.json")'


@pytest.mark.parametrize("name", ["config_fed_client.conf", "config_fed_client.yml", "config_fed_client.json.default"])
@pytest.mark.parametrize("place", ["config", "config/x", "config/x/y", "other"])
def test_a_format_that_can_include_files_and_variables_of_the_site_is_refused_unread(kit, place, name, monkeypatch):
    monkeypatch.setenv("SECRET", "token")
    (kit.app / place).mkdir(parents=True, exist_ok=True)
    (kit.app / place / name).write_text(INCLUDE % kit.local.parent)
    reason = (
        "job: expected no files besides config_fed_client.json and config_fed_server.json in config, got others too"
    )
    assert ListedClasses().validate(str(kit.app)) == (reason, {})
    assert kit(components=[LISTED]) == (reason, {})


FORMAT = "expected JSON files alone, got another format, which can include files of this machine"


@pytest.mark.parametrize("name", ["config/x/config_fed_client.conf", "config/config_fed_client.yml"])
def test_flares_own_check_which_comes_first_opens_no_other_format_either(kit, name, site):
    (kit.local / "fedmend.json").write_text(json.dumps({"data_root": SECRET}))
    file = kit.app / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(INCLUDE % kit.local.parent)
    with pytest.raises(ValueError, match=FORMAT):
        site.validator.validate(str(kit.app))


def test_the_server_reads_no_other_format_when_a_job_is_submitted(site):
    data = zipped({"job/meta.conf": f'include file("{site.folder}/local/fedmend.json")', "job/app/config/": ""})
    valid, reason, meta = JobMetaValidator().validate("job", data)
    assert not valid
    assert reason == f"job: {FORMAT}"
    assert meta == {}


def test_an_app_for_the_server_alone_passes(kit):
    assert ListedClasses().validate(str(kit.app)) == ("", {})


@pytest.mark.parametrize("key", ["class_path", "name"])
def test_other_ways_to_name_a_class_are_refused_too(kit, key):
    assert kit(components=[{key: "subprocess.Popen"}])[0] != ""


def test_the_server_compares_the_classes_of_both_parts_with_its_list_a_site_its_own_part(kit):
    (kit.app / "config" / "config_fed_server.json").write_text(json.dumps({"workflows": [UNLISTED]}))
    assert kit(components=[LISTED]) == ("", {})
    (kit.local.parent / "startup" / "fed_server.json").write_text("{}")
    assert (
        kit(components=[LISTED])[0] == "Component 'subprocess.Popen' at config path 'workflows.#1' is not in allow_list"
    )


def test_an_unlisted_class_in_the_arguments_of_a_listed_one_is_refused(kit):
    reason, _ = kit(components=[{"path": "good.Thing", "args": {"helper": UNLISTED}}])
    assert reason == "Component 'subprocess.Popen' at config path 'components.#1.args.helper' is not in allow_list"


ENCRYPTOR = "nvflare.app_opt.he.model_encryptor.HEModelEncryptor"
CIPHER = "expected plain weights, which the checks and distances of the server need, got homomorphic encryption"


def test_homomorphic_encryption_is_refused_when_a_job_arrives_even_where_a_site_lists_it(kit):
    (kit.local / "resources.json").write_text(json.dumps({"class_allow_list": [ENCRYPTOR]}))
    config = {"task_result_filters": [{"tasks": ["train"], "filters": [{"path": ENCRYPTOR}]}]}
    assert kit(**config) == (f"job, config_fed_client.json: {CIPHER}", {})


def test_homomorphic_encryption_in_the_policy_of_a_site_is_refused_when_a_job_arrives(kit):
    scope = {"name": "private", "task_result_filters": [{"path": ENCRYPTOR}], "task_data_filters": []}
    (kit.local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "private"}))
    assert kit(components=[LISTED]) == (f"local/privacy.json: {CIPHER}", {})


GUARD, OTHER = {"path": "fl_components.guard.ReportGuard"}, {"path": "good.Filter"}


def scoped(*filters, default="fedmend"):
    return json.dumps({"scopes": [{"name": "fedmend", "task_result_filters": filters}], "default_scope": default})


NO_GUARD = "local/privacy.json, scope 'fedmend': expected ReportGuard as the last result filter, got another"
NO_SCOPES = "local/privacy.json: expected scopes with result filters and a default_scope, got others"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (scoped(GUARD), ""),
        (scoped(OTHER, GUARD), ""),
        (scoped(), NO_GUARD),
        (scoped(GUARD, OTHER), NO_GUARD),
        (scoped({**GUARD, "direction": "in"}), NO_GUARD),
        (
            scoped(GUARD, default="private"),
            "local/privacy.json, default_scope: expected the name of a scope of this file, got another",
        ),
        ("[]", NO_SCOPES),
        ('{"scopes": [{"name": "fedmend"}], "default_scope": "fedmend"}', NO_SCOPES),
        ("{", "local/privacy.json: expected JSON, got a file that does not parse"),
        (None, "local/privacy.json: expected the privacy policy of this site in its kit, not found"),
    ],
)
def test_a_site_takes_no_job_whose_results_would_leave_without_the_guard(kit, policy, reason):
    (kit.local.parent / "startup" / "fed_client.json").write_text("{}")
    if policy:
        (kit.local / "privacy.json").write_text(policy)
    assert kit(components=[LISTED]) == (reason, {})


# ---- names of runs --------------------------------------------------------------------------------------------------

ASKING = [p for p in ClientRequestProcessors.request_processors if "RequestHeader.JOB_ID" in inspect.getsource(type(p))]
NAMES = [
    "local",
    "startup",
    "state",
    "state-1",
    "..",
    "transfer",
    "simulate",
    "",
    None,
    "x" * 36,
    "c232ab00-9414-11ec-b3c8-9f6bdeced846",
]


def zipped(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """FLARE's engine of a site's parent process, its kit, and what it starts."""
    kit = tmp_path / "kit"
    for name in ("local", "startup", "state/run-1/site-1", "state-1", "transfer"):
        (kit / name).mkdir(parents=True)
        (kit / name / "precious.json").write_text("{}")
    (kit / "startup" / "fed_client.json").write_text("{}")
    (kit / "local" / "resources.json.default").write_text(json.dumps({"class_allow_list": ["good.Thing"]}))
    shutil.copy(ROOT / "simulator_workspace" / "local" / "privacy.json", kit / "local")
    validator = FLAppValidator(site_type="client", custom_validators=[ListedClasses()])
    monkeypatch.setattr(AppAuthzService, "app_validator", validator)
    monkeypatch.setattr(PrivacyService, "is_scope_allowed", staticmethod(lambda scope: True))
    engine, started = ClientEngine.__new__(ClientEngine), []
    engine.args = SimpleNamespace(workspace=str(kit))
    resources = {
        SystemComponents.RESOURCE_MANAGER: GPUResourceManager(0, 0),
        SystemComponents.APP_DEPLOYER: AppDeployer(),
    }
    monkeypatch.setattr(GPUResourceManager, "allocate_resources", lambda *a, **k: None)
    engine.client = SimpleNamespace(client_name="site-1", components=resources)
    engine.logger, engine.rank, engine.fl_components = SimpleNamespace(info=print), 0, []
    engine.fl_ctx_mgr = FLContextManager(engine, "site-1", "")
    noted = {name: lambda *a, **k: None for name in ("get_status", "abort_app", "abort_task", "notify_job_status")}
    noted |= {name: lambda *a, **k: {} for name in ("get_run_info", "get_errors", "reset_errors")}
    noted |= {"configure_job_log": lambda *a: None, "start_app": lambda *a, **k: started.append(a)}
    engine.client_executor = SimpleNamespace(**noted)
    return SimpleNamespace(folder=kit, engine=engine, started=started, validator=validator)


def asked(site, processor, topic, name):
    """What a site answers to a server that says this is the name of a run."""
    files = {"config/config_fed_client.json": json.dumps({"components": [LISTED], "executors": []})}
    request = Message(topic=topic, body=zipped(files) if topic == TrainingTopic.DEPLOY else {})
    for header, value in {
        RequestHeader.JOB_ID: name,
        RequestHeader.JOB_META: {"name": "x"},
        RequestHeader.APP_NAME: "app",
        RequestHeader.JOB_STATUS: "x",
    }.items():
        request.set_header(header, value)
    try:
        return processor.process(request, site.engine).body
    except ValueError as e:  # FLARE's dispatcher makes it an error reply
        return str(e)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def tree(folder):
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*"))


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize("processor", ASKING, ids=lambda p: type(p).__name__)
def test_no_command_that_names_a_run_touches_a_folder_of_the_kit(site, processor, name):
    before = tree(site.folder)
    for topic in processor.get_topics():
        asked(site, processor, topic, name)
    assert tree(site.folder) == before
    assert site.started == []


def test_every_kind_of_command_that_names_a_run_is_tried():
    topics = {topic for processor in ASKING for topic in processor.get_topics()}
    assert topics >= {TrainingTopic.DELETE_RUN, TrainingTopic.DEPLOY, TrainingTopic.START_JOB, TrainingTopic.ABORT}


def test_a_run_that_there_is_is_deployed_started_and_deleted_as_ever(site):
    name = str(uuid.uuid4())
    by_topic = {topic: processor for processor in ASKING for topic in processor.get_topics()}
    assert asked(site, by_topic[TrainingTopic.DEPLOY], TrainingTopic.DEPLOY, name) == "deployed app to site-1"
    assert (site.folder / name / "app_site-1" / "config").is_dir()
    assert asked(site, by_topic[TrainingTopic.START_JOB], TrainingTopic.START_JOB, name) == "Start the client app..."
    assert [a[1] for a in site.started] == [name]
    assert "Delete run folder" in asked(site, by_topic[TrainingTopic.DELETE_RUN], TrainingTopic.DELETE_RUN, name)
    assert not (site.folder / name).exists()


def test_the_servers_own_command_deletes_the_folder_of_a_run_and_no_other(site):
    engine = ServerEngine.__new__(ServerEngine)
    engine.args = site.engine.args
    engine.logger = SimpleNamespace(info=print)
    before = tree(site.folder)
    with pytest.raises(ValueError, match=r"^job id: expected a UUID as FLARE gives it, got another name$"):
        engine.delete_job_id("state")
    assert tree(site.folder) == before


def test_the_run_of_the_simulator_has_its_name(site):
    assert Workspace(str(site.folder)).get_run_dir("simulate_job") == str(site.folder / "simulate_job")
