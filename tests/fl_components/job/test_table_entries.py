import pytest
from factories import ROOT, refused

from fl_components.job.folder import all_jobs, job_variants, read_job
from fl_components.job.table_entries import Entry, read_entry

JOBS = [job for job in all_jobs(ROOT / "jobs") if job.name != "label_audit"]
NAMES = [job.name for job in JOBS]
METRICS = {"bacc", "auc", "map", "accuracy", "f1", "precision", "dice_last", "bacc_last", "bacc_best"}


def test_a_row_says_what_it_is():
    content = {"title": "FedAvg", "order": 10, "simple": True, "published": {"job": {"auc": 76.3, "map": 33}}}
    assert read_entry(content, "variant x") == Entry(**content)
    assert read_entry({"title": "X"}, "variant x") == Entry(title="X", order=50, simple=False, published={})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "expected a mapping with title and of order, simple, published, note, protocol, main, got another"),
        ([], "expected a mapping with title and of order, simple, published, note, protocol, main, got another"),
        (
            {"title": "X", "best": True},
            "expected a mapping with title and of order, simple, published, note, protocol, main, got another",
        ),
    ],
)
def test_other_keys_are_refused(content, sentence):
    with refused(f"variant x, table: {sentence}"):
        read_entry(content, "variant x")


def test_values_of_another_kind_are_refused():
    with refused("variant x, table, order: expected int, got '1'"):
        read_entry({"title": "X", "order": "1"}, "variant x")
    with refused("variant x, table, published: expected points of 100 for job, got {'auc': 101}"):
        read_entry({"title": "X", "published": {"job": {"auc": 101}}}, "variant x")


@pytest.mark.parametrize("job", JOBS, ids=NAMES)
def test_every_job_has_a_row_of_its_own_with_published_numbers_and_where_they_are_from(job):
    entry = job_variants(job)["paper"].table
    assert list(entry.published) == [job.name]
    assert "MICCAI" in entry.protocol or "IJCAI" in entry.protocol


def test_every_problem_has_one_main_job():
    main = [read_job(job).problem for job in JOBS if job_variants(job)["paper"].table.main]
    assert sorted(main) == sorted({read_job(job).problem for job in JOBS})


@pytest.mark.parametrize("job", JOBS, ids=NAMES)
def test_the_rows_of_a_table_have_titles_of_their_own_a_simple_baseline_and_known_metrics(job):
    entries = [v.table for name, v in job_variants(job).items() if v.table]
    assert len({entry.title for entry in entries}) == len(entries) > 2
    assert any(entry.simple for entry in entries)
    for entry in entries:
        assert set(entry.published) <= set(NAMES)
        assert set().union(*entry.published.values()) <= METRICS
