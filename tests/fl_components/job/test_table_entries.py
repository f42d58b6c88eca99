import pytest
from factories import ROOT, refused

from fedmend.basics.checked import checked
from fl_components.job.folder import all_jobs, job_variants, read_job
from fl_components.job.table_entries import TableEntry

JOBS = [job for job in all_jobs(ROOT / "jobs") if "paper" in job_variants(job)]
NAMES = [job.name for job in JOBS]
METRICS = {"bacc", "auc", "map", "accuracy", "f1", "precision", "dice_last", "bacc_last", "bacc_best"}


def read(content):
    return checked(TableEntry, content, "variant x", inside="table")


def test_a_row_says_what_it_is():
    content = {"title": "FedAvg", "order": 10, "simple": True, "published": {"job": {"auc": 76.3, "map": 33}}}
    assert read(content) == TableEntry(**content)
    assert read({"title": "X"}) == TableEntry(title="X", order=50, simple=False, published={})


KEYS = ["title", "order", "simple", "published", "note", "protocol", "primary", "main"]
POINTS = "table.published: expected points of 100 by job and metric"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "table.title: expected text, got nothing"),
        ([], "table: expected a JSON object, got another list"),
        ({"title": "X", "best": True}, f"table: expected the fields {KEYS}, got also ['best']"),
        ({"title": "X", "order": "1"}, "table.order: expected a whole number >= 0, got another str"),
        ({"title": "X", "published": []}, "table.published: expected a JSON object, got another list"),
        ({"title": "X", "published": {"job": {"auc": 101}}}, f"{POINTS}, got another dict"),
        ({"title": "X", "published": {"job": {"auc": True}}}, f"{POINTS}, got another dict"),
        ({"title": "X", "published": {"job": 7}}, f"{POINTS}, got another dict"),
    ],
)
def test_a_row_with_other_fields_or_values_is_refused(content, sentence):
    with refused(f"variant x, field {sentence}"):
        read(content)


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
