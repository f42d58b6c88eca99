"""What a job's files may be, whoever reads them: the site, the server, the site check, the lead's own command."""

import json
import os
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from factories import ROOT, refused
from nvflare.lighter.utils import sign_folders

from fedmend.errors import FedMendError
from fl_components.job.rules import CLIENT, LARGEST, check_job, components, read_app, read_literal

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
    for file in [*(ROOT / "jobs" / job).rglob("*.json"), *(ROOT / "jobs" / "variants").rglob("*.json")]:
        read_literal(file)


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
    check_job(tmp_path / "job")


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


@pytest.mark.parametrize("path", ["fedmend.methods.fedmlp.FedMLP", "other.helper.Header", "x.Heart", "a.the.B"])
def test_classes_whose_names_only_look_alike_are_no_encryption(app, path):
    assert read_app(app({"components": [{"path": path}]}))


def test_no_sentence_repeats_what_the_job_says(app):
    for text in ('{"MUELLER": NaN}', '{"components": ["MUELLER"]}', '{"MUELLER{": 1}', "MUELLER"):
        with pytest.raises(FedMendError) as caught:
            read_app(app(text))
        assert "MUELLER" not in str(caught.value)
