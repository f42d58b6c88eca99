"""The hash of a kit's policy."""

import json
import shutil

import pytest
from factories import ROOT, refused
from sitecheck_factories import found, make_kit

from fedmend.errors import FedMendError
from fl_components.policy.agreed import agreed_hash, differing, policy_hash


@pytest.fixture
def kit(tmp_path):
    kit = make_kit(tmp_path / "kit")
    (kit / "local" / "resources.json").rename(kit / "local" / "resources.json.default")
    shutil.copy(ROOT / "provisioning" / "authorization.json", kit / "local" / "authorization.json.default")
    shutil.copy(ROOT / "simulator_workspace" / "local" / "privacy.json", kit / "local")
    return kit


def test_blanks_and_the_order_of_fields_do_not_count(kit):
    before = policy_hash(kit)
    file = kit / "local" / "privacy.json"
    file.write_text(json.dumps(dict(reversed(json.loads(file.read_text()).items())), indent=7))
    assert policy_hash(kit) == before
    assert [len(group) for group in before.split("-")] == [24, 24, 24]


def widen(kit):
    file = kit / "local" / "resources.json.default"
    file.write_text(json.dumps({**json.loads(file.read_text()), "class_allow_list": ["*"]}))


def guard_less(kit):
    file = kit / "local" / "privacy.json"
    content = json.loads(file.read_text())
    content["scopes"][0]["task_result_filters"] = []
    file.write_text(json.dumps(content))


CHANGES = {
    "a class more": (widen, ["resources"]),
    "a file that hides the default": (
        lambda kit: (kit / "local" / "authorization.json").write_text("{}"),
        ["authorization"],
    ),
    "no guard": (guard_less, ["privacy"]),
    "no privacy": (lambda kit: (kit / "local" / "privacy.json").unlink(), ["privacy"]),
    "more of local": (lambda kit: (kit / "local" / "more__p_resources.json").write_text("{}"), ["resources"]),
    "more for jobs": (lambda kit: (kit / "local" / "job_resources.json").write_text("{}"), ["resources"]),
    "more of startup": (lambda kit: (kit / "startup" / "a__resources.json").write_text("{}"), ["resources"]),
}


@pytest.mark.parametrize(("change", "parts"), CHANGES.values(), ids=CHANGES)
def test_whatever_flare_would_read_changes_the_hash_and_the_check_names_the_file(kit, change, parts):
    agreed = policy_hash(kit)
    fine = "ok    agreed policy: local/resources.json, authorization.json and privacy.json are what was agreed"
    assert found("agreed policy", kit=kit, policy=agreed) == [fine]
    change(kit)
    now = policy_hash(kit)
    assert differing(now, agreed) == parts
    assert found("agreed policy", kit=kit, policy=f" {agreed.upper()}\n") == [
        f"fail  agreed policy: local/{parts[0]}.json: expected the policy that was agreed, got another ({now})"
    ]


def test_without_a_hash_the_check_says_that_of_the_kit(kit):
    line = f"skip  agreed policy: needs --policy, the hash that the lead tells you; here it is {policy_hash(kit)}"
    assert found("agreed policy", kit=kit) == [line]


@pytest.mark.parametrize("given", ["", "abc", "a-b-c", "0" * 74])
def test_what_is_no_hash_is_refused(kit, given):
    with refused("--policy: expected what `fedmend policy --hash` has printed, got something else"):
        differing(policy_hash(kit), given)


def test_a_file_that_is_no_json_is_refused_by_its_name(kit):
    (kit / "local" / "privacy.json").write_text("{")
    line = "fail  agreed policy: local/privacy.json: expected JSON, got a file that does not parse"
    assert found("agreed policy", kit=kit, policy="x") == [line]


@pytest.mark.parametrize("text", [None, "{", "- a", "name: a\nparticipants: [{type: server, name: b}]"])
def test_a_project_without_a_site_is_refused(tmp_path, text):
    file = tmp_path / "project.yml"
    if text:
        file.write_text(text)
    with refused(f"{file}: expected a project.yml with a server, a site and builders, got none"):
        agreed_hash(file)


def test_what_provisioning_has_against_a_project_is_in_the_sentence(tmp_path):
    text = (ROOT / "provisioning" / "project.yml").read_text()
    (tmp_path / "project.yml").write_text(text.replace("/var/lib/fedmend", "fedmend"))
    with pytest.raises(FedMendError) as told:
        agreed_hash(tmp_path / "project.yml")
    assert str(told.value).endswith("SitePolicyBuilder, server_storage: expected an absolute folder, got 'fedmend'")
