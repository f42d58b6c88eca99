import json
from importlib import metadata

import pytest
from factories import ROOT
from sitecheck_factories import found, make_job

from fedmend.methods.fedmlp import FedMLP
from fl_components.sitecheck.job import read_needs


def test_a_job_says_what_it_needs(site, job, tmp_path):
    assert found("job", site, job=job) == ["ok    job: job: 3 classes, 48 pixels, batches of 4"]
    assert found("job", site) == ["skip  job: needs --job"]
    audit = make_job(tmp_path / "audit")
    config = audit / "app" / "config" / "config_fed_client.json"
    config.write_text(json.dumps({"components": []}))
    assert found("job", site, job=audit) == ["ok    job: job: 3 classes"]


@pytest.mark.parametrize("job", sorted(f.parent for f in ROOT.glob("jobs/*/meta.json")), ids=lambda j: j.name)
def test_every_job_of_the_checkout_can_be_read_and_is_allowed_by_its_policy(job, kit):
    needs = read_needs(job)
    assert needs.components
    assert needs.method() or needs.name == "label_audit"
    count = len(needs.components)
    assert found("class policy", kit=kit, job=job) == [
        f"ok    class policy: all {count} classes of the job are on class_allow_list"
    ]


@pytest.mark.parametrize("path", ["fedmend.methods.fedmlp.New", "fedmend.methods.new.New", "os.system"])
def test_a_method_that_is_not_installed_is_named(site, tmp_path, path):
    job = make_job(tmp_path / "new", method=path)
    version, name = metadata.version("fedmend"), path.split(".")[-1]
    assert found("job", site, job=job) == [f"fail  job: method {name}: expected in FedMend {version}, not found"]


def test_the_needs_of_a_job_are_the_arguments_of_its_executor_and_its_components(tmp_path):
    job = make_job(tmp_path / "job", classes=["lesion"], phantom={"dataset": "ms"})
    needs = read_needs(job)
    assert (needs.name, needs.classes, needs.method()) == ("job", ("lesion",), FedMLP)
    assert (needs.site["image_size"], needs.site["batch_size"], needs.phantom) == (48, 4, {"dataset": "ms"})
    assert [c["path"] for c in needs.components] == [
        "fl_components.executor.MethodExecutor",
        "fedmend.methods.fedmlp.FedMLP",
    ]
    assert not needs.own_code


def test_a_job_whose_server_has_no_classes_is_refused(site, tmp_path):
    job = make_job(tmp_path / "job", classes="edema")
    sentence = "job: expected a component of the server with a list of classes, got none"
    assert found("job", site, job=job) == [f"fail  job: {sentence}"]


def test_a_job_whose_executor_lacks_a_setting_of_every_job_that_trains_is_refused(site, job):
    config = job / "app" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace("image_size", "size"))
    sentence = "job: expected image_size in a job with a method, not found"
    assert found("job", site, job=job) == [f"fail  job: {sentence}"]


def test_a_job_that_the_site_would_refuse_when_it_arrives_fails_the_check(site, job):
    (job / "app" / "config" / "x").mkdir()
    files = "config_fed_client.json and config_fed_server.json in config"
    assert found("job", site, job=job) == [f"fail  job: job: expected no files besides {files}, got others too"]
