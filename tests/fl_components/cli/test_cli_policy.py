import json
import shutil

import pytest
from cli_calls import call
from factories import ROOT

RESOURCES = "simulator_workspace/local/resources.json"
UP_TO_DATE = "the policy files follow from the code"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the policy files of the checkout."""
    shutil.copytree(ROOT / "simulator_workspace" / "local", tmp_path / "simulator_workspace" / "local")
    (tmp_path / "provisioning").mkdir()
    for page in ("data_protection.md", "allowed_classes.md", "baselines.json"):
        shutil.copy(ROOT / "provisioning" / page, tmp_path / "provisioning")
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    return tmp_path


@pytest.fixture
def outdated(checkout):
    resources = json.loads((checkout / RESOURCES).read_text())
    resources["class_allow_list"].pop(0)
    (checkout / RESOURCES).write_text(json.dumps(resources))
    return checkout


def test_the_tracked_policy_files_follow_from_the_code(capsys):
    assert call("policy", "--check", "--checkout", ROOT) == 0
    assert capsys.readouterr().out == f"{UP_TO_DATE}\n"


def test_a_check_names_a_stale_file_and_leaves_it_alone(outdated, capsys):
    before = (outdated / RESOURCES).read_text()
    assert call("policy", "--check", "--checkout", outdated) == 1
    sentence = f"policy: expected files that follow from the code, got old ones: {RESOURCES}"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"
    assert (outdated / RESOURCES).read_text() == before


def test_a_stale_file_is_brought_up_to_date_once(outdated, capsys):
    assert call("policy", "--checkout", outdated) == 0
    assert capsys.readouterr().out == f"written: {RESOURCES}; read the difference: it is what sites agree to\n"
    assert (outdated / RESOURCES).read_text() == (ROOT / RESOURCES).read_text()
    assert call("policy", "--checkout", outdated) == 0
    assert capsys.readouterr().out == f"{UP_TO_DATE} already\n"


@pytest.mark.parametrize("words", [[], ["--check"]], ids=["write", "check"])
def test_a_folder_without_a_checkout_is_refused(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert call("policy", *words) == 1
    assert capsys.readouterr().err == f"fedmend: policy: expected a FedMend checkout with {RESOURCES}, not found\n"
    assert list(tmp_path.iterdir()) == []
