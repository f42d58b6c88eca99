from copy import deepcopy

import pytest
from factories import refused
from job_factories import CLIENT, SERVER

from fl_components.job.settings import assign, job_settings, parse_assignments, parts


@pytest.fixture
def job():
    return deepcopy(CLIENT), deepcopy(SERVER)


def args(job):
    return {part.id: part.args for part in parts(*job)}


def given(job, name, value):
    """Arguments of all parts after ``--set name=value``."""
    assign(name, value, parts(*job))
    return args(job)


def test_a_value_is_json_where_it_parses_and_text_elsewhere():
    words = ["a=3", "b=3e-5", "c=true", 'd=["x", "y"]', "e=fedavg", "f=a=b", "g=", "h={SITE_NAME}"]
    assert parse_assignments(words) == {
        "a": 3,
        "b": 3e-5,
        "c": True,
        "d": ["x", "y"],
        "e": "fedavg",
        "f": "a=b",
        "g": "",
        "h": "{SITE_NAME}",
    }


@pytest.mark.parametrize("word", ["num_rounds", "=3"])
def test_a_word_that_assigns_nothing_is_refused(word):
    with refused(f"--set: expected name=value, got {word!r}"):
        parse_assignments([word])


def test_the_parts_of_a_job_are_fedmends_own_classes(job):
    assert [part.id for part in parts(*job)] == ["executor", "method", "rounds", "workflow", "persistor"]


@pytest.mark.parametrize(
    ("name", "home"),
    [("learning_rate", "executor"), ("mu", "method"), ("num_rounds", "rounds"), ("warmup_rounds", "workflow")],
)
def test_an_argument_is_found_by_its_name_wherever_it_stands(job, name, home):
    before = deepcopy(args(job))
    after = given(job, name, 7)
    assert after[home].pop(name) == 7
    before[home].pop(name)
    assert after == before


def test_a_name_with_one_value_in_two_places_is_set_in_both(job):
    after = given(job, "both", 7)
    assert (after["executor"]["both"], after["rounds"]["both"]) == (7, 7)


def test_a_name_with_two_values_is_refused_with_the_qualified_names(job):
    with refused(
        "--set: expected one of method.share, workflow.share, got 'share', which has several values in this job"
    ):
        given(job, "share", 3)


def test_a_qualified_name_sets_one_place(job):
    after = given(job, "workflow.share", 3)
    assert (after["method"]["share"], after["workflow"]["share"]) == (1, 3)


@pytest.mark.parametrize("name", ["phantom.images", "executor.phantom.images"])
def test_a_dot_reaches_into_a_mapping(job, name):
    assert given(job, name, 300)["executor"]["phantom"] == {"dataset": "ich", "images": 300, "sites": 2}


def test_the_label_method_and_the_component_method_are_told_apart(job):
    assert given(job, "method", "fedavg")["rounds"]["method"] == "fedavg"
    assert given(job, "method.mu", 0.2)["method"]["mu"] == 0.2


ALL = (
    "all_labels, batch_size, both, learning_rate, method, mu, names, num_rounds, phantom, run_name, seed, share, steps,"
    " text, warmup_rounds, weights"
)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("lerning_rate", "nearest: learning_rate"),
        ("num_round", "nearest: num_rounds, warmup_rounds"),
        ("phantoms.images", "nearest: phantom.images, phantom.sites, phantom.dataset"),
        ("method.ms", "nearest: method.mu, method.names, method.steps"),
        ("workflows", f"its settings: {ALL}"),
        ("events", f"its settings: {ALL}"),
        ("mu.x", f"its settings: {ALL}"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(job, name, rest):
    with refused(f"--set: expected a setting of this job, got {name!r}; {rest}"):
        given(job, name, 1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_rounds", "abc", "a whole number, got 'abc'"),
        ("num_rounds", 2.5, "a whole number, got 2.5"),
        ("num_rounds", True, "a whole number, got True"),
        ("num_rounds", None, "a whole number, got None"),
        ("mu", "small", "a number, got 'small'"),
        ("method.mu", False, "a number, got False"),
        ("all_labels", 1, "true or false, got 1"),
        ("text", 5, "text, got 5"),
        ("names", "a", "a list, got 'a'"),
        ("phantom", "ich", "a mapping or null, got 'ich'"),
        ("phantom.images", "many", "a whole number, got 'many'"),
        ("phantom.test_share", "half", "a number, got 'half'"),
    ],
)
def test_a_value_of_another_kind_than_the_jobs_is_refused(job, name, value, expected):
    with refused(f"job variable {name}: expected {expected}"):
        given(job, name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mu", 1), ("mu", 0.2), ("names", [])],
)
def test_a_value_of_the_same_kind_is_taken(job, name, value):
    assert given(job, name, value)["method"][name] == value


@pytest.mark.parametrize("value", [None, {"dataset": "ich", "sites": 3}])
def test_a_whole_phantom_can_be_given_or_taken_away(job, value):
    assert given(job, "phantom", value)["executor"]["phantom"] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("phantom.slcies", 3), ("executor.phantom.slcies", 3), ("phantom", {"dataset": "ich", "slcies": 3})],
)
def test_a_field_that_phantoms_lack_is_refused_with_those_that_they_have(job, name, value):
    known = ["annotated_per_site", "dataset", "images", "labels_of", "noise_high", "noise_low", "noisy_share"]
    known += ["partition", "pixels", "rule", "seed", "sites", "slices_per_patient", "test_share", "val_share"]
    with refused(f"job variable phantom: expected the fields {known}, got 'slcies'"):
        given(job, name, value)


def test_the_settings_of_a_job_are_all_arguments_by_name(job):
    found = job_settings(*job)
    assert found["phantom"] == {"dataset": "ich", "images": 10, "sites": 2}
    assert (found["mu"], found["num_rounds"], found["both"], found["method"]) == (0.5, 9, 1, "own")
    assert "events" not in found


def test_settings_of_one_name_with_two_values_are_qualified(job):
    found = job_settings(*job)
    assert (found["method.share"], found["workflow.share"]) == (1, 2)
    assert "share" not in found


def test_one_side_alone_has_settings_too(job):
    assert job_settings({}, job[1])["num_rounds"] == 9
    assert job_settings(job[0], {})["mu"] == 0.5
