import pytest
from run_factories import make_label_set_run

from fedmend.labels import MULTILABEL, SINGLELABEL
from fedmend.records.run_folder import RunFiles
from fedmend.report.kinds import KIND_REPORTS, shown_as


def run_of(**info):
    return RunFiles(None, info, {}, (), (), {})


@pytest.mark.parametrize("name", KIND_REPORTS)
def test_a_run_names_its_kind_of_labels(name):
    assert shown_as(run_of(task=name)).name == name


def test_a_run_that_names_no_kind_has_one_label_per_sample_where_it_counted_a_confusion_matrix():
    assert shown_as(make_label_set_run()).name == MULTILABEL
    assert shown_as(make_label_set_run(confusion=True)).name == SINGLELABEL
    assert shown_as(run_of()).name == MULTILABEL


def test_values_of_another_type_than_declared_are_passed_over_and_the_last_of_a_round_counts():
    values = [(2, [1]), (1, [2]), (1, [3]), (2, "word"), (3, 4)]
    decisions = [{"round": r, "what": "list", "value": value} for r, value in values]
    run = RunFiles(None, {}, {}, (), decisions, {})
    assert run.decided("list", {"list": list}) == {1: [3], 2: [1]}
    assert list(run.decided("list", {"list": list})) == [1, 2]
    assert run.decided("list", {}) == {}
