import json

import pytest
from factories import ROOT
from nvflare.private.admin_defs import Message
from nvflare.private.defs import SysCommandTopic
from nvflare.private.fed.client import shell_cmd

from fl_components import job_check
from fl_components.job_check import ListedClasses

SECRET = "site-1 private"
LISTED, UNLISTED = {"path": "good.Thing"}, {"path": "subprocess.Popen", "args": {"args": "true"}}


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
def test_nobody_reads_files_of_a_site_by_shell_commands(tmp_path, monkeypatch, command):
    # a rogue server sends the request without the header that makes FLARE ask for the right
    monkeypatch.setattr(shell_cmd, "SHELL_CMD_VALIDATORS", dict(shell_cmd.SHELL_CMD_VALIDATORS))
    monkeypatch.setattr(job_check, "SHELL_CMD_VALIDATORS", shell_cmd.SHELL_CMD_VALIDATORS)
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
        ("executors.#1.executor", {"executors": [{"tasks": ["*"], "executor": UNLISTED}]}),
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


def test_listed_classes_pass(kit):
    assert kit(components=[LISTED], executors=[{"executor": LISTED}], task_result_filters=[{"filters": [LISTED]}]) == (
        "",
        {},
    )


def test_a_site_that_changed_its_list_decides_by_its_own_one(kit):
    (kit.local / "resources.json").write_text(json.dumps({"class_allow_list": ["another.Thing"]}))
    assert "'good.Thing'" in kit(components=[LISTED])[0]


def test_a_path_that_is_a_job_variable_is_left_to_flare(kit):
    assert kit(chosen="good.Thing", components=[{"path": "{chosen}"}]) == ("", {})


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
    ["[]", "{", "[" * 100_000, '{"components": null}', '{"components": [1]}', '{"executors": [{"executor": "x"}]}'],
)
def test_a_configuration_that_does_not_read_is_refused_in_a_sentence(kit, text):
    (kit.app / "config" / "config_fed_client.json").write_text(text)
    reason, _ = ListedClasses().validate(str(kit.app))
    assert reason.startswith(
        "job, config_fed_client.json: expected a FLARE configuration, got one that does not read ("
    )


@pytest.mark.parametrize("name", ["config_fed_client.conf", "config_fed_client.yml"])
def test_a_format_that_can_include_files_and_variables_of_the_site_is_refused_unread(kit, name, monkeypatch):
    monkeypatch.setenv("SECRET", "token")
    (kit.app / "config" / name).write_text(
        'components = [{path = ${SECRET}}]\ninclude file("../../local/fedmend.json")'
    )
    reason = "job: expected a site's configuration in config_fed_client.json alone, got another file too or instead"
    assert ListedClasses().validate(str(kit.app)) == (reason, {})
    assert kit(components=[LISTED]) == (reason, {})


def test_an_app_for_the_server_alone_passes(kit):
    assert ListedClasses().validate(str(kit.app)) == ("", {})


@pytest.mark.parametrize("key", ["class_path", "name"])
def test_other_ways_to_name_a_class_are_refused_too(kit, key):
    assert kit(components=[{key: "subprocess.Popen"}])[0] != ""
