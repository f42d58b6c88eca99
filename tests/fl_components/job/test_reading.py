"""What a job's files may be, whoever reads them: the site, the server, the site check, the lead's own command."""

import json
import os
import shutil

import pytest
from cli_calls import call
from cryptography.hazmat.primitives.asymmetric import rsa
from factories import ROOT, make_site_folder, refused
from fl_factories import reopen_doors
from nvflare.app_common.app_constant import StatisticsConstants
from nvflare.lighter.utils import sign_folders
from sitecheck_factories import found

from fedmend.errors import FedMendError
from fedmend.messages import QUESTIONS
from fl_components.job.folder import Changes, configure_job
from fl_components.job.reading import CLIENT, LARGEST, SIGNATURES, TASKS, components, read, read_app
from fl_components.job_check import ListedClasses
from fl_components.run.submit import submit

OTHERS = "job: expected no files besides config_fed_client.json and config_fed_server.json in config, got others too"
UNREAD = "job, config_fed_client.json: expected JSON with each name once, got a file that does not parse"
BRACE = (
    "job, config_fed_client.json: expected literal values, got a string with a brace, in whose place FLARE would put a"
    " variable or path of the machine"
)
CIPHER = (
    "job, config_fed_client.json: expected plain weights, which the checks and distances of the server need, got"
    " homomorphic encryption"
)


@pytest.fixture
def app(tmp_path):
    """The app of a job with this client configuration."""

    def write(content):
        file = tmp_path / "app" / "config" / CLIENT
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / "app"

    return write


@pytest.mark.parametrize("job", sorted(p.parent.name for p in (ROOT / "jobs").glob("*/meta.json")))
def test_every_job_of_ours_is_literal_and_has_known_files_alone(job):
    assert set(read_app(ROOT / "jobs" / job / "app")) == {"config_fed_client.json", "config_fed_server.json"}
    assert read(ROOT / "jobs" / job, strict=True).strict


@pytest.mark.parametrize(
    "word", ["{$HOME}", "{WORKSPACE}", "x{SITE_NAME}y", "{", "}", "{@x:a=1}", "${secret:TOKEN}", "${secret:file:/a}"]
)
def test_a_word_that_flare_would_expand_is_refused_wherever_it_stands_and_not_repeated(app, word):
    for config in (
        {"components": [{"path": "a.B", "args": {"classes": ["edema", word]}}]},
        {"components": [{"path": word}]},
        {word: 1},
        {"format_version": 2, "x": {"y": [{word: 0}]}},
    ):
        with refused(BRACE):
            read_app(app(config))


@pytest.mark.parametrize(
    "name",
    [
        "config/x/config_fed_client.conf",
        "config/x/config_fed_client.json",
        "config/config_fed_client.conf",
        "config/config_fed_client.json.default",
        "config/config_fed_server.yml",
        "config/environment.json",
        "config/model.pt",
        "other/a.txt",
        "a.txt",
        ".__nvfl_other",
    ],
)
def test_a_file_that_is_not_known_is_refused_at_any_depth(app, name):
    folder = app({})
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")
    with refused(OTHERS):
        read_app(folder)


def test_a_folder_that_is_not_known_and_a_link_are_refused(app, tmp_path):
    folder = app({})
    (folder / "config" / "x").mkdir()
    with refused(OTHERS):
        read_app(folder)
    (folder / "config" / "x").rmdir()
    (tmp_path / "secret.json").write_text("{}")
    os.symlink(tmp_path / "secret.json", folder / "config" / "config_fed_server.json")
    with refused(OTHERS):
        read_app(folder)


def test_a_job_as_flare_signs_it_passes(tmp_path):
    shutil.copytree(ROOT / "jobs" / "fedmlp_ich", tmp_path / "job")
    (tmp_path / "submitter.crt").write_text("certificate")
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    sign_folders(str(tmp_path / "job"), key, str(tmp_path / "submitter.crt"))
    assert len(list((tmp_path / "job" / "app").rglob(".__nvfl_*"))) == 4  # two in each folder
    assert read(tmp_path / "job", strict=True).strict


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', '{"x": [{"a": 1, "a": 1}]}', '{"a": NaN}', '{"a": -Infinity}', "{", "[" * 100_000, "\ufeff{}"],
    ids=["a name twice", "a name twice below", "NaN", "infinity", "half", "deep", "byte order mark"],
)
def test_json_that_readers_could_read_differently_is_refused(app, text):
    with refused(UNREAD):
        read_app(app(text))


def test_an_endless_file_and_bytes_that_are_no_text_are_refused(app):
    folder = app('{"a": "%s"}' % ("x" * LARGEST))
    with refused(f"job, config_fed_client.json: expected at most {LARGEST} bytes, got more"):
        read_app(folder)
    (folder / "config" / CLIENT).write_bytes(b"\xff\xfe")
    with refused(UNREAD):
        read_app(folder)


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null"])
def test_json_that_is_no_object_is_refused(app, text):
    kind = type(json.loads(text)).__name__
    with refused(f"job, config_fed_client.json: expected a JSON object, got {kind}"):
        read_app(app(text))


@pytest.mark.parametrize(
    "config",
    [
        {"components": None},
        {"components": [1]},
        {"components": [{}]},
        {"executors": [{"executor": "x"}]},
        {"executors": [{}]},
        {"task_result_filters": [{"filters": [7]}]},
    ],
)
def test_a_configuration_that_flare_could_not_build_is_refused(app, config):
    sentence = "job, config_fed_client.json: expected a FLARE configuration, got one that does not read"
    with refused(sentence):
        read_app(app(config))


def test_classes_are_found_wherever_flare_builds_them():
    inner = {"path": "a.Inner", "args": {"deep": [{"class_path": "a.Deep"}]}}
    config = {
        "components": [{"path": "a.B", "args": {"one": inner, "name": "no class"}}],
        "executors": [{"tasks": ["*"], "executor": {"name": "C"}}],
        "task_data_filters": [{"filters": [{"path": "a.D"}]}],
        "workflows": [{"path": "a.W"}],
    }
    assert {
        place: part.get("path", part.get("class_path", part.get("name"))) for place, part in components(config)
    } == {
        "components.#1": "a.B",
        "components.#1.args.one": "a.Inner",
        "components.#1.args.one.args.deep.#1": "a.Deep",
        "workflows.#1": "a.W",
        "executors.#1.executor": "C",
        "task_data_filters.#1.filters.#1": "a.D",
    }


@pytest.mark.parametrize(
    "path",
    [
        "nvflare.app_opt.he.model_encryptor.HEModelEncryptor",
        "nvflare.app_common.homomorphic_encryption.he_model_encryptor.HEModelEncryptor",
        "HEModelDecryptor",
    ],
)
def test_a_job_with_homomorphic_encryption_is_refused_before_anybody_trains(app, path):
    with refused(CIPHER):
        read_app(app({"task_result_filters": [{"tasks": ["train"], "filters": [{"name": path}]}]}))
    with refused(CIPHER):
        read_app(app({"components": [{"path": "a.B", "args": {"x": {"path": path}}}]}))


@pytest.mark.parametrize("tasks", [["*"], ["train", "x\x1b[2J"], "train", {"train": 1}, [["train"]], None])
def test_an_executor_of_tasks_that_no_job_of_ours_has_is_refused(app, tasks):
    folder = app({"executors": [{"tasks": tasks, "executor": {"path": "a.B"}}]})
    with refused(
        "job, config_fed_client.json: expected executors with tasks out of ['census', 'train', 'collect', 'evaluate',"
        " 'keep', 'fed_stats', 'fed_stats_pre_run'], got another task"
    ):
        read_app(folder)
    assert read_app(folder, strict=False)


def test_the_known_tasks_are_those_of_the_executors():
    statistics = {StatisticsConstants.FED_STATS_TASK, StatisticsConstants.FED_STATS_PRE_RUN}
    assert {*QUESTIONS, *statistics} == {*TASKS}


@pytest.mark.parametrize("path", ["fedmend.methods.fedmlp.FedMLP", "other.helper.Header", "x.Heart", "a.the.B"])
def test_classes_whose_names_only_look_alike_are_no_encryption(app, path):
    assert read_app(app({"components": [{"path": path}]}))


def test_no_sentence_repeats_what_the_job_says(app):
    for text in ('{"MUELLER": NaN}', '{"components": ["MUELLER"]}', '{"MUELLER{": 1}', "MUELLER"):
        with pytest.raises(FedMendError) as caught:
            read_app(app(text))
        assert "MUELLER" not in str(caught.value)


# ---- everybody who prepares or receives a job agrees ----------------------------------------------------------------

CONFIG = "app/config/config_fed_client.json"
UNBUILT = "job, config_fed_client.json: expected a FLARE configuration, got one that does not read"
NO_META = "job, meta.json: expected name and deploy_map with lists of site names, got others"
NOT_TWO = "job: expected one configuration of the server and one of the clients, got others"


def with_text(old, new, name=CONFIG):
    def change(job):
        text = (job / name).read_text()
        assert old in text
        (job / name).write_text(text.replace(old, new, 1))

    return change


def with_file(name):
    def change(job):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text("{}")

    return change


def linked(job):
    (job / CONFIG).rename(job / "elsewhere.json")
    (job / CONFIG).symlink_to(job / "elsewhere.json")


ODD = {  # what is odd about a job folder: who makes it so, what everybody says of it
    "nothing": (lambda job: None, ""),
    "files beside the app": (with_file("notes/a.txt"), ""),
    "code of its own": (with_file("app/custom/a.py"), ""),
    "a file in the app": (with_file("app/initial.pt"), OTHERS),
    "another format": (with_file("app/config/config_fed_client.yml"), OTHERS),
    "a configuration further down": (with_file("app/config/x/config_fed_client.json"), OTHERS),
    "a link": (linked, OTHERS),
    "half a file": (with_text("}", ""), UNREAD),
    "a name twice": (with_text('"mld": true', '"mld": true, "mld": true'), UNREAD),
    "no number": (with_text("0.001", "NaN"), UNREAD),
    "a number without end": (with_text("0.001", "1e999"), UNREAD),
    "half a character": (with_text("decoupled", "\\ud800"), UNREAD),
    "a brace": (with_text("decoupled", "{WORKSPACE}"), BRACE),
    "encryption": (with_text("fedmend.methods.fedmlp.FedMLP", "a.he.HEModel"), CIPHER),
    "encryption further down": (with_text('"mld": true', '"mld": {"path": "a.he.HEModel"}'), CIPHER),
    "a component without a class": (with_text('"path": "fedmend.methods.fedmlp.FedMLP",', ""), UNBUILT),
    "a class that is no text": (with_text('"fedmend.methods.fedmlp.FedMLP"', "7"), UNBUILT),
    "arguments that are none": (with_text('"args": {', '"args": 7, "x": {'), UNBUILT),
    "no list of components": (with_text('"components": [', '"components": {}, "x": ['), UNBUILT),
    "a problem in another folder": (
        with_text('"problem": "', '"problem": "../', name="app/config/config_fed_server.json"),
        "job, config_fed_server.json: expected a word as problem, got another value",
    ),
}
ODD_FOLDERS = {  # of these a server or site gets no app
    "no meta.json": (
        lambda job: (job / "meta.json").unlink(),
        "job job: expected a folder with meta.json, such as jobs/fedmlp_ich, not found",
    ),
    "a brace in meta.json": (
        with_text('"name": "', '"name": "{x}', name="meta.json"),
        BRACE.replace("config_fed_client", "meta"),
    ),
    "no sites": (with_text('"deploy_map"', '"deploy"', name="meta.json"), NO_META),
    "no client": (lambda job: (job / CONFIG).unlink(), NOT_TWO),
    "two apps": (lambda job: shutil.copytree(job / "app", job / "other"), NOT_TWO),
}


def made(tmp_path, change):
    job = shutil.copytree(ROOT / "jobs" / "fedmlp_ich", tmp_path / "job")
    change(job)
    return job


@pytest.mark.parametrize(("change", "sentence"), [*ODD.values(), *ODD_FOLDERS.values()], ids=[*ODD, *ODD_FOLDERS])
def test_configure_submit_and_the_site_check_agree_about_a_job_folder(tmp_path, capsys, change, sentence):
    job, out, site = made(tmp_path, change), tmp_path / "out", make_site_folder(tmp_path / "site-1")
    assert call("configure", job, out) == (1 if sentence else 0)
    assert capsys.readouterr().err == (f"fedmend: {sentence}\n" if sentence else "")
    assert out.exists() is not bool(sentence)
    (line,) = found("job", site, job=job)
    assert line == (
        f"fail  job: {sentence}" if sentence else "ok    job: fedmlp_ich: 5 classes, 32 pixels, batches of 32"
    )
    with refused(sentence or "--kit: expected the startup kit of a person, with startup/fed_admin.json"):
        submit(job, tmp_path / "no-kit", tmp_path / "results")


@pytest.mark.parametrize(("change", "sentence"), ODD.values(), ids=list(ODD))
def test_a_kit_refuses_the_same_job_in_the_same_words_when_it_arrives(tmp_path, monkeypatch, change, sentence):
    reopen_doors(monkeypatch)
    job = made(tmp_path, change)
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "simulator_workspace" / "local" / "resources.json", tmp_path / "local")
    app = shutil.copytree(job / "app", tmp_path / "job-1" / "app_site-1", symlinks=True)
    assert ListedClasses().validate(str(app)) == (sentence, {})


@pytest.mark.parametrize("odd", ["a file in the app", "another format", "a link", "a brace", "encryption"])
def test_a_run_on_ones_own_machine_may_have_what_server_and_sites_refuse(tmp_path, odd):
    job = made(tmp_path, ODD[odd][0])
    assert read(job).meta["name"] == "fedmlp_ich"
    with refused(ODD[odd][1]):
        read(job, strict=True)


def test_settings_that_server_and_sites_would_refuse_are_refused_before_anything_is_written(tmp_path):
    with refused(BRACE):
        configure_job(ROOT / "jobs" / "fedmlp_ich", tmp_path / "out", Changes({"decay": "{x}"}), strict=True)
    assert not (tmp_path / "out").exists()


def test_the_signatures_that_a_job_may_hold_are_those_of_flare():
    from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

    assert {NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE} == SIGNATURES
