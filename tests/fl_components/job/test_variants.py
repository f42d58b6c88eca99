import json

import pytest
from factories import refused
from job_factories import write_job

from fl_components.job import variants
from fl_components.job.folder import Changes, job_variants, read_job
from fl_components.job.variants import read_variant

PLAIN = {
    "about": "another method",
    "components": {
        "method": {"path": "fedmend.methods.plain.Plain", "args": {"la": True}, "keep": ["steps"]},
        "workflow": {"path": "fedmend.methods.plain.PlainWorkflow"},
    },
    "set": {"method": "plain"},
}
MANY = {"about": "more of everything", "set": {"num_rounds": 90, "steps": 50, "warmup_rounds": 30}}
ALL = {"set": {"all_labels": True, "la": False}}


@pytest.fixture
def configure(tmp_path):
    """What the job says with these variants, of which ``own`` belong to the job and the others to its problem."""

    def run(*names, own=(), variables=None, **files):
        job = write_job(tmp_path / "job", **{name: files.pop(name) for name in own})
        shared = tmp_path / "variants" / "shared"
        shared.mkdir(parents=True)
        for name, content in files.items():
            (shared / f"{name}.json").write_text(json.dumps(content))
        return read_job(job, Changes(variables or {}, names))

    return run


def test_a_variant_sets_what_it_names(configure):
    job = configure("many", many=MANY)
    assert (job.run["num_rounds"], job.method.args["steps"], job.workflow.args["warmup_rounds"]) == (90, 50, 30)


def test_a_variant_replaces_components_and_keeps_what_it_names(configure):
    job = configure("plain", plain=PLAIN)
    assert (job.method.path, job.method.args) == ("fedmend.methods.plain.Plain", {"steps": 5, "la": True})
    assert (job.workflow.path, job.workflow.args) == ("fedmend.methods.plain.PlainWorkflow", {})
    assert job.run["method"] == "plain"


@pytest.mark.parametrize("names", [("many", "plain"), ("plain", "many")])
def test_a_replaced_component_keeps_the_values_of_the_other_variants_in_any_order(configure, names):
    job = configure(*names, many=MANY, plain=PLAIN)
    assert job.method.args == {"steps": 50, "la": True}
    assert job.run["num_rounds"] == 90
    assert job.run["run_name"] == "job_many_plain"
    assert "warmup_rounds" not in job.settings


def test_a_setting_that_only_a_new_component_has_is_set_there(configure):
    job = configure(
        "plain", "fewer", plain=PLAIN | {"set": {"method": "plain", "la": False}}, fewer={"set": {"steps": 1}}
    )
    assert job.method.args == {"steps": 1, "la": False}


def test_settings_of_the_command_come_last(configure):
    job = configure("many", "plain", many=MANY, plain=PLAIN, variables={"la": False, "num_rounds": 2})
    assert (job.method.args["la"], job.run["num_rounds"]) == (False, 2)


def test_own_variants_come_before_those_of_the_problem(configure):
    job = configure("b", "a", own=["b"], b={"set": {"seed": 3}}, a={"set": {"batch_size": 8}})
    assert job.run["run_name"] == "job_b_a"


def test_a_variant_of_the_job_hides_that_of_its_problem(configure, tmp_path):
    shared = tmp_path / "variants" / "shared"
    shared.mkdir(parents=True)
    (shared / "x.json").write_text(json.dumps({"set": {"seed": 1}}))
    write_job(tmp_path / "job", x={"about": "mine", "set": {"seed": 2}})
    assert [(v.about, v.own) for v in job_variants(tmp_path / "job").values()] == [("mine", True)]


def test_a_copy_of_a_job_elsewhere_finds_the_variants_of_the_checkout(tmp_path, monkeypatch):
    (tmp_path / "checkout" / "shared").mkdir(parents=True)
    (tmp_path / "checkout" / "shared" / "x.json").write_text("{}")
    monkeypatch.setattr(variants, "SHARED", tmp_path / "checkout")
    assert list(job_variants(write_job(tmp_path / "copy"))) == ["x"]


@pytest.mark.parametrize("named", ["variant", "variables"])
def test_a_run_name_that_is_set_stays(configure, named):
    own = {"set": {"run_name": "mine"}}
    if named == "variant":
        job = configure("x", x=own)
    else:
        job = configure("x", x={"set": {"seed": 1}}, variables={"run_name": "mine"})
    assert job.run["run_name"] == "mine"


def test_an_unknown_variant_is_refused_with_those_that_there_are(configure):
    with refused("variant: expected one of many, plain, got 'long'"):
        configure("many", "long", many=MANY, plain=PLAIN)


def test_a_variant_that_is_named_twice_is_refused(configure):
    with refused("variant: expected each variant once, got many,many"):
        configure("many", "many", many=MANY)


def test_two_variants_that_replace_a_component_are_refused(configure):
    with refused("variant: expected one variant that replaces the method, got other and plain"):
        configure("plain", "other", plain=PLAIN, other=PLAIN)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_variants_that_set_a_name_to_different_values_are_refused(configure, names):
    with refused("variant: expected one value of seed, got 1 of a and 2 of b"):
        configure(*names, a={"set": {"seed": 1}}, b={"set": {"seed": 2}})


def test_a_setting_that_a_component_of_another_variant_has_otherwise_is_refused(configure):
    with refused("variant: expected one value of la, got false of all and true of plain"):
        configure("plain", "all", plain=PLAIN, all=ALL)


def test_two_variants_that_set_a_name_to_the_same_value_agree(configure):
    job = configure("a", "b", a={"set": {"seed": 1}}, b={"set": {"seed": 1, "batch_size": 8}})
    assert (job.run["seed"], job.site["batch_size"]) == (1, 8)


def test_the_papers_settings_give_way_to_those_of_another_variant(configure):
    paper = {"set": {"la": False, "seed": 1, "batch_size": 8}}
    job = configure("paper", "plain", "a", paper=paper, plain=PLAIN, a={"set": {"seed": 2}})
    assert (job.method.args["la"], job.run["seed"], job.site["batch_size"]) == (True, 2, 8)


@pytest.mark.parametrize(("names", "size"), [(("a",), 8), (("a", "paper"), 64), (("paper",), 32)])
def test_a_variant_can_have_other_settings_beside_those_of_the_paper(configure, names, size):
    a = {"set": {"batch_size": 8}, "with_paper": {"batch_size": 64}}
    job = configure(*names, a=a, paper={"set": {"batch_size": 32, "seed": 1}})
    assert job.site["batch_size"] == size


def test_a_setting_that_the_job_has_neither_before_nor_after_is_refused(configure):
    with refused("--variant x: expected a setting of this job, got 'nmu_rounds'; nearest: num_rounds"):
        configure("x", "plain", x={"set": {"nmu_rounds": 1}}, plain=PLAIN)


def test_a_variant_of_which_nothing_is_left_is_refused(configure):
    with refused("--variant x: expected a setting of the job with plain, which has none of it"):
        configure("x", "plain", x={"set": {"mu": 0.1}}, plain=PLAIN)


def test_a_value_of_another_kind_is_refused_in_a_variant_too(configure):
    with refused("job variable num_rounds: expected a whole number, got 'many'"):
        configure("x", x={"set": {"num_rounds": "many"}})


def test_an_argument_to_keep_that_the_job_lacks_is_refused(configure):
    component = {"path": "fedmend.methods.plain.Plain", "keep": ["la"]}
    with refused("--variant x, component method: expected la in the component whose place it takes, not found"):
        configure("x", x={"components": {"method": component}})


def test_a_component_that_the_job_lacks_is_refused(configure):
    with refused("--variant x, component model: expected in this job, not found"):
        configure("x", x={"components": {"model": {"path": "a.B"}}})


KEYS = ["about", "components", "set", "with_paper", "table"]
METHOD = ", field components.method"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", ": expected JSON, got a file that does not parse"),
        ("[]", ": expected a JSON object, got another list"),
        ('{"num_rounds": 2}', f": expected the fields {KEYS}, got also ['num_rounds']"),
        ('{"about": 3}', ", field about: expected text, got another int"),
        ('{"set": []}', ", field set: expected a JSON object, got another list"),
        ('{"table": {}}', ", field table.title: expected text, got nothing"),
        ('{"components": {"method": 7}}', f"{METHOD}: expected a JSON object, got another int"),
        (
            '{"components": {"method": {"path": "a.B", "arg": {}}}}',
            f"{METHOD}: expected the fields ['path', 'args', 'keep'], got also ['arg']",
        ),
        ('{"components": {"method": {"args": {}}}}', f"{METHOD}.path: expected text, got nothing"),
        (
            '{"components": {"method": {"path": "a.B", "keep": "la"}}}',
            f"{METHOD}.keep: expected a list of names, got another str",
        ),
    ],
)
def test_a_variant_with_other_content_is_refused(tmp_path, content, sentence):
    (tmp_path / "x.json").write_text(content)
    with refused(f"variant x{sentence}"):
        read_variant(tmp_path / "x.json")
