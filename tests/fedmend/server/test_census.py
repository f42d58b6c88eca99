from dataclasses import replace

import numpy as np
import pytest
from factories import refused
from federation_factories import Run, census, confusion, failing, plain_answers
from result_factories import PREPARED

from fedmend.messages import CENSUS
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.server.census import lonely, read_census

CLASSES = ["a", "b"]
FOUR = {f"site-{i}": [1, 1] for i in range(1, 5)}
NOWHERE = "census: expected every class of the job to be annotated at a site, got none for {}"


def play(folder, answer, sites=FOUR, **options):
    return Run(folder, FedAvgWorkflow(), list(sites), answer, **options)


def counted(positives, answer=None, **options):
    """Sites that annotate both classes and have these positives."""
    plain = answer or plain_answers(FOUR)

    def answers(site, question, *rest):
        if question == CENSUS:
            return census([1, 1], positives=positives[site] if isinstance(positives, dict) else positives, **options)
        return plain(site, question, *rest)

    return answers


def test_a_census_is_sorted_into_facts_sizes_and_descriptions():
    results = {"site-1": census([1, 0], samples=10), "site-2": census([0, 1], samples=30, positives=[7, 9])}
    read = read_census(results, CLASSES, goes_on=False)
    assert read.kind.name == "multilabel"
    assert [(f.samples, f.annotated.tolist(), f.positives.tolist()) for f in read.facts.values()] == [
        (10, [True, False], [4, 0]),
        (30, [False, True], [0, 9]),
    ]
    assert read.sizes["site-2"] == {"train": 30, "val": 20, "test": 20}
    prepared = {"preprocessing": PREPARED.described()}
    assert read.described == {
        "site-1": {"annotated": ["a"], "train": 10, "val": 20, "test": 20, "positives": {"a": 4}, **prepared},
        "site-2": {"annotated": ["b"], "train": 30, "val": 20, "test": 20, "positives": {"b": 9}, **prepared},
    }
    assert read.phantom is False


FALLING = {"a": 2, "b": 3, "c": 4, "d": 5}


@pytest.mark.parametrize(
    ("wanted", "alone"),
    [({"a": 1, "b": 2}, {}), (FALLING, {"d": 4, "c": 3, "b": 2, "a": 1}), ({"a": 1, "b": 9}, {"b": 2})],
)
def test_who_wants_more_than_there_are_may_leave_too_few_for_others(wanted, alone):
    assert lonely(wanted) == alone


def seen_through(window, samples):
    result = census([1, 1], samples=samples)
    result.census["preprocessing"] = replace(PREPARED, window=window).told()
    return result


def test_what_most_samples_are_prepared_by_is_the_preprocessing_of_the_run():
    results = {"site-1": seen_through((50.0, 100.0), 15), "site-2": seen_through((40.0, 80.0), 10)}
    assert read_census(results, CLASSES, goes_on=False).preprocessing.window == (50.0, 100.0)
    results["site-3"] = seen_through((40.0, 80.0), 10)
    read = read_census(results, CLASSES, goes_on=False)
    assert read.preprocessing == PREPARED
    assert read.differences == {"window": {"site-1": [50.0, 100.0], "site-2": [40.0, 80.0], "site-3": [40.0, 80.0]}}


def test_one_site_cannot_choose_the_preprocessing_of_all_whatever_it_says_of_its_samples():
    results = {f"site-{i}": seen_through((40.0, 80.0), 10) for i in (2, 3, 4)}
    results = {"site-1": seen_through((30000.0, 1.0), 10**8), **results}
    assert read_census(results, CLASSES, goes_on=False).preprocessing == PREPARED


@pytest.mark.parametrize(("more", "said"), [(40, False), (41, True)])
def test_a_site_with_more_validation_samples_than_all_others_is_named(tmp_path, caplog, more, said):
    plain, sites = plain_answers(FOUR), list(FOUR)[:3]

    def answer(site, question, *rest):
        result = plain(site, question, *rest)
        if question == CENSUS:
            result.census["sizes"]["val"] = more if site == "site-2" else 20
        return result

    play(tmp_path, answer, sites=sites, num_rounds=1)
    words = "site-2 has 41 validation samples, more than all others: thresholds, calibration and the best model are"
    assert (words in caplog.text) is said


def test_sites_that_prepare_their_images_differently_are_named(tmp_path, caplog):
    plain = plain_answers(FOUR)

    def answer(site, question, *rest):
        if question == CENSUS:
            return seen_through(None if site == "site-3" else (40.0, 80.0), 10)
        return plain(site, question, *rest)

    run = play(tmp_path, answer)
    said = (
        "sites prepare their images differently, expected one way: window [40.0, 80.0] at site-1, window [40.0, 80.0]"
    )
    assert f"{said} at site-2, window None at site-3, window [40.0, 80.0] at site-4" in caplog.text
    decided = [d["value"] for d in run.lines("decisions.jsonl") if d["what"] == "preprocessing_differs"]
    assert [d["window"]["site-3"] for d in decided] == [None]
    assert run.content("run.json")["sites"]["site-3"]["preprocessing"] == {**PREPARED.described(), "window": None}
    same = play(tmp_path / "same", plain)
    assert "preprocessing_differs" not in {d["what"] for d in same.lines("decisions.jsonl")}


def test_a_site_knows_the_classes_that_it_annotates_and_has():
    results = {"site-1": census([1, 1], positives=[4, 0]), "site-2": census([0, 1])}
    read = read_census(results, CLASSES, goes_on=False)
    assert {site: read.known(site).tolist() for site in results} == {"site-1": [True, False], "site-2": [False, True]}


def test_lesions_are_described_where_they_were_counted():
    result = census([1], kind="segmentation")
    result.census["lesions"] = np.array([4, 9])
    assert read_census({"site-1": result}, ["lesion"], goes_on=False).described["site-1"]["lesions"] == [4, 9]


def test_one_site_with_synthetic_data_makes_a_phantom_run():
    results = {site: census([1, 1]) for site in FOUR}
    results["site-3"].census["phantom"] = True
    read = read_census(results, CLASSES, goes_on=False)
    assert read.phantom is True
    assert [read.described[site]["phantom"] for site in FOUR] == [site == "site-3" for site in FOUR]
    for site in FOUR:
        results[site].census["phantom"] = True
    assert "phantom" not in read_census(results, CLASSES, goes_on=False).described["site-3"]


def test_a_class_that_no_site_annotates_is_refused_unless_an_earlier_job_has_learnt_it():
    results = {"site-1": census([1, 0]), "site-2": census([1, 0])}
    with refused(NOWHERE.format(["b"])):
        read_census(results, CLASSES, goes_on=False)
    assert list(read_census(results, CLASSES, goes_on=True).facts) == ["site-1", "site-2"]


def test_a_site_that_fails_the_census_is_not_asked_again(tmp_path):
    answer = failing(plain_answers(FOUR), site="site-2", when=lambda name, r: name == CENSUS)
    run = play(tmp_path, answer, min_sites=2)
    assert run.stopped == ""
    assert {tuple(asked) for name, _, _, asked in run.asked if name != CENSUS} == {("site-1", "site-3", "site-4")}
    assert sorted(run.content("run.json")["sites"]) == ["site-1", "site-3", "site-4"]


def test_a_class_that_no_site_annotates_stops_the_run(tmp_path):
    answer = plain_answers({"site-1": [1, 0], "site-2": [1, 0]})
    assert play(tmp_path, answer, ["site-1", "site-2"]).stopped == NOWHERE.format(["b"])


@pytest.mark.parametrize("positives", [[4, 0], [0, 4], [0, 0]])
def test_a_class_without_a_positive_sample_at_any_site_stops_the_run_at_the_census(tmp_path, positives):
    run = play(tmp_path, counted(positives))
    assert run.stopped == NOWHERE.format([c for c, n in zip(CLASSES, positives, strict=True) if not n])
    assert [name for name, *_ in run.asked] == [CENSUS]


def test_a_class_with_a_positive_sample_at_one_site_is_enough(tmp_path):
    assert play(tmp_path, counted({site: [4, int(site == "site-3")] for site in FOUR})).stopped == ""


def test_sites_with_different_kinds_of_labels_stop_the_run_at_the_census(tmp_path):
    kinds = {site: "singlelabel" if site == "site-3" else "multilabel" for site in FOUR}
    run = play(tmp_path, lambda site, *rest: census([1, 1], kind=kinds[site]))
    assert run.stopped == (
        "census: expected one kind of labels at all sites, got multilabel at site-1, site-2, site-4,"
        " singlelabel at site-3"
    )
    assert [name for name, *_ in run.asked] == [CENSUS]


def test_a_diagnosis_that_no_sample_of_a_site_has_is_not_annotated_there(tmp_path):
    plain = plain_answers(FOUR, counts=lambda r: {"test": confusion(1, 1)}, kind="singlelabel")
    positives = {site: [4, int(site == "site-3")] for site in FOUR}
    told = play(tmp_path, counted(positives, plain, kind="singlelabel")).content("run.json")["sites"]
    assert {site: told[site]["annotated"] for site in told} == {s: CLASSES if s == "site-3" else ["a"] for s in FOUR}
    assert told["site-1"]["positives"] == {"a": 4, "b": 0}


def test_a_census_says_nothing_about_labels_that_a_site_does_not_have():
    read = read_census({"site-1": census([1, 0]), "site-2": census([0, 1])}, CLASSES, goes_on=False)
    assert "b" not in read.described["site-1"]["positives"]
