"""Which job, rows and data a person means; whose numbers stand beside ours."""

import json
from pathlib import Path

import numpy as np
import pytest
from factories import CLASSES, ROOT, make_site_folder, refused
from job_factories import CLIENT, SERVER, write_job

from fedmend.records.run_folder import RunFiles
from fl_components.compare.paper_rows import (
    Shown,
    find_job,
    on_data,
    own_entry,
    paper_table,
    primary_measure,
    row_entry,
    table_rows,
)
from fl_components.compare.runs import Comparison, cases
from fl_components.job.folder import all_jobs, job_variants

JOBS = ROOT / "jobs"
FEDAVG = {
    "set": {"mu": 0},
    "table": {"title": "FedAvg", "order": 20, "simple": True, "published": {"job": {"auc": 70}}},
}
LATE = {"set": {"mu": 0.25}, "table": {"title": "Late", "note": "it is late"}}
PAPER = {"set": {"num_rounds": 50}, "table": {"title": "Own", "protocol": "Table 1", "published": {"job": {"auc": 80}}}}


@pytest.fixture
def job(tmp_path):
    variants = {"late": LATE, "fedavg": FEDAVG, "paper": PAPER, "tune": {"set": {"mu": 1}}}
    server = json.loads(json.dumps(SERVER))
    server["workflows"][0]["args"]["classes"] = list(CLASSES)
    return write_job(tmp_path / "job", client=CLIENT, server=server, **variants)


def write_sites(folder, *names, classes=CLASSES):
    for name in names:
        make_site_folder(folder / name, np.array([[1, 0, 1], [0, 1, 0]]), classes=classes)
    return folder


@pytest.mark.parametrize(
    ("problem", "job"),
    [
        ("missing-classes", "fedmlp_ich"),
        ("noisy-sites", "fednoro_ich"),
        ("label-sets", "fedlsm_isic2018"),
        ("partial-masks", "fedia_ms"),
    ],
)
def test_a_problem_stands_for_its_main_job(problem, job):
    assert find_job(Path(problem)) == (JOBS / job, True)


def test_a_folder_is_a_job_and_another_word_is_refused_with_those_that_there_are(job):
    assert find_job(job) == (job, False)
    with refused(
        "compare: expected a job folder or one of label-sets, missing-classes, noisy-sites, partial-masks, got missing"
    ):
        find_job(Path("missing"))


def test_the_rows_of_the_table_are_the_variants_that_say_so_in_its_order(job):
    assert table_rows(job) == ["fedavg", "late"]
    assert own_entry(job).title == "Own"
    assert table_rows(JOBS / "fedmlp_ich")[:4] == ["all_labels", "closed_form", "fedavg", "fedavg_pl"]


def test_every_job_of_a_problem_names_its_primary_measure(job):
    named = {folder.name: primary_measure(folder) for folder in all_jobs(JOBS) if "paper" in job_variants(folder)}
    assert named == {
        "fedia_lung": "dice_last",
        "fedia_ms": "dice_last",
        "fedlsm_cxr14": "auc",
        "fedlsm_isic2018": "f1",
        "fedmlp_cxr14": "auc",
        "fedmlp_ich": "auc",
        "fednoro_ich": "bacc",
        "fednoro_isic2019": "bacc",
    }
    assert primary_measure(job) == ""


def test_a_job_without_a_row_of_its_own_has_no_table(tmp_path):
    with refused("--table: expected a row of the job in its variants/paper.json, found none"):
        own_entry(write_job(tmp_path / "plain"))


def test_a_row_that_a_person_wrote_has_the_titles_of_its_variants(job):
    assert row_entry(job, "fedavg").simple
    found = row_entry(job, "fedavg+mu=0.5")
    assert (found.title, found.simple, found.published) == ("FedAvg + mu=0.5", False, {})
    assert row_entry(job, "tune").title == "tune"


def test_site_folders_give_sites_classes_and_names(job, tmp_path):
    data = write_sites(tmp_path / "my data", "site-1", "site-2", "site-3")
    found = on_data(Comparison(job, ["fedavg"], [4]), str(data))
    assert (found.sites, found.words, found.site_words) == (3, [], [f"data_root={data}/{{SITE_NAME}}"])
    own, fedavg = cases(found, tmp_path)
    assert [case.changes.variables["run_name"] for case in (own, fedavg)] == ["job_my-data", "job_my-data_fedavg"]
    assert own.site_settings == {"data_root": f"{data}/{{SITE_NAME}}"}


def test_other_classes_than_the_jobs_are_taken_from_the_cards(job, tmp_path):
    data = write_sites(tmp_path / "data", "site-1", "site-2", classes=("a", "b", "c"))
    found = on_data(Comparison(job, [], [4]), str(data))
    assert found.words == ['classes=["a", "b", "c"]']
    found = on_data(Comparison(job, [], [4], words=["mu=0.25"]), str(data))
    assert found.words == ['classes=["a", "b", "c"]', "mu=0.25"]


def test_the_jobs_classes_in_another_order_on_the_cards_stay_in_that_of_the_job(job, tmp_path):
    data = write_sites(tmp_path / "data", "site-1", "site-2", classes=CLASSES[::-1])
    assert on_data(Comparison(job, [], [4]), str(data)).words == []


def test_a_seed_may_choose_the_folder(job, tmp_path):
    for seed in (0, 1):
        write_sites(tmp_path / f"fold-{seed}", "site-1", "site-2")
    found = on_data(Comparison(job, [], [0, 1]), str(tmp_path / "fold-{SEED}"))
    _, second = cases(found, tmp_path)
    assert second.site_settings["data_root"] == f"{tmp_path}/fold-1/{{SITE_NAME}}"
    write_sites(tmp_path / "fold-1", "site-3")
    with refused("--data: expected as many sites and the same classes for every seed, got others"):
        on_data(Comparison(job, [], [0, 1]), str(tmp_path / "fold-{SEED}"))


def test_seeds_of_one_federation_share_its_folder(job, tmp_path):
    write_sites(tmp_path / "fold-1", "site-1", "site-2")
    found = on_data(Comparison(job, [], [2, 3], per_federation=2), str(tmp_path / "fold-{SEED}"))
    assert {c.site_settings["data_root"] for c in cases(found, tmp_path)} == {f"{tmp_path}/fold-1/{{SITE_NAME}}"}


def test_folders_that_are_no_sites_of_one_federation_are_one_sentence(job, tmp_path):
    asked, data = Comparison(job, [], [0]), tmp_path / "data"
    with refused(f"--data: expected folders site-1, site-2, ... with site.json in {data}, got none"):
        on_data(asked, str(data))
    write_sites(data, "site-1")
    with refused("--data: expected at least 2 sites, which a comparison needs, got 1"):
        on_data(asked, str(data))
    write_sites(data, "site-2", classes=("a", "b", "c"))
    with refused("site-2: site.json, field classes: expected those of site-1, got others"):
        on_data(asked, str(data))
    write_sites(data, "berlin")
    with refused(f"--data: expected folders site-1, site-2, ... with site.json in {data}, got berlin, site-1, site-2"):
        on_data(asked, str(data))


def test_the_table_has_the_rows_of_whole_seeds_with_what_the_files_say_of_them(job, tmp_path):
    comparison = Comparison(job, ["fedavg"], [0, 1])
    for case in cases(comparison, tmp_path / "out"):
        case.workspace.mkdir(parents=True)
        case.cost_file.write_text(json.dumps({"seconds": case.seed}))
    runs = {row: [RunFiles(None, {"seed": 1}, {}, (), (), {})] for row in ("own", "fedavg")}
    found = paper_table(comparison, runs, {"late": "expected more"}, tmp_path / "out", Shown(metric="f1"))
    assert (found.name, found.source, found.incomplete, found.metric) == ("job", "Table 1", [0], "f1")
    assert [row.title for row in found.rows.values()] == ["Own", "FedAvg"]
    assert [row.published for row in found.rows.values()] == [{"auc": 80}, {"auc": 70}]
    assert [row.costs for row in found.rows.values()] == [[{"seconds": 1}]] * 2
    assert (found.rows["own"].simple, found.rows["fedavg"].simple) == (False, True)
    assert found.left_out == {"Late": "expected more"}


def test_the_table_knows_which_rows_have_other_data_or_another_size_of_images(tmp_path):
    rows = ["fedavg", "fedavg+phantom.annotated_per_site=2", "fedavg+image_size=64"]
    runs = {row: [RunFiles(None, {"seed": 0}, {}, (), (), {})] for row in ("fedmlp", *rows)}
    found = paper_table(Comparison(JOBS / "fedmlp_ich", rows, [0]), runs, {}, tmp_path / "out")
    own, *others = (row.data for row in found.rows.values())
    assert [data == own for data in others] == [True, False, False]


def test_the_table_knows_the_primary_measure_why_a_row_differs_and_that_nobody_printed_a_number(job, tmp_path):
    preset = job / "variants" / "paper.json"
    content = json.loads(preset.read_text())
    content["table"] |= {"primary": "auc", "published": {}}
    preset.write_text(json.dumps(content))
    runs = {row: [RunFiles(None, {"seed": 0}, {}, (), (), {})] for row in ("own", "late")}
    found = paper_table(Comparison(job, ["late"], [0]), runs, {}, tmp_path / "out")
    assert (found.primary, found.rows["late"].note, found.source) == ("auc", "it is late", "")


def test_a_level_has_its_own_numbers_and_another_table_its_own_titles(job, tmp_path):
    table = {
        "protocol": "Table 3",
        "rows": {"fedavg": "plain"},
        "notes": {"fedavg": "some sites rest"},
        "level": "m",
        "published": {"own": {"m": {"auc": 1}, "n": {"auc": 2}}},
    }
    content = {"tables": {"ablation": table}, "per_class": {"published": {"own": {"edema": 3}}}}
    (job / "tables.json").write_text(json.dumps(content))
    runs = {row: [RunFiles(None, {"seed": 0}, {}, (), (), {})] for row in ("own", "fedavg")}
    comparison = Comparison(job, ["fedavg"], [0])

    def shown(**wanted):
        return paper_table(comparison, runs, {}, tmp_path / "out", Shown(**wanted))

    found = shown(table="ablation", per_class=True)
    assert [row.title for row in found.rows.values()] == ["Own", "plain"]
    assert [row.published for row in found.rows.values()] == [{"auc": 1}, {}]
    assert [row.note for row in found.rows.values()] == ["", "some sites rest"]
    assert (found.source, found.of_classes) == ("Table 3", {"own": {"edema": 3}})
    assert shown(table="ablation", level="m").rows["own"].published == {"auc": 1}  # the job is at this level
    assert shown(table="ablation", level="n").rows["own"].published == {"auc": 2}
    other = shown(level="m")  # of the main table, of which the file says nothing
    assert (other.rows["own"].published, other.source, other.of_classes) == ({}, "", None)
