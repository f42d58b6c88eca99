"""What the jobs' tables.json say, and that it fits the jobs."""

import re

import pytest
from factories import ROOT, refused

from fedmend.phantoms.sites import phantom_spec
from fedmend.report.tables import ENDINGS, MACRO
from fl_components.compare.job_tables import Level, level_words, read_tables, swept
from fl_components.compare.paper_rows import table_rows
from fl_components.job.folder import Changes, all_jobs, job_variants, read_job
from fl_components.job.settings import parse_assignments

JOBS = [job for job in all_jobs(ROOT / "jobs") if job.name != "label_audit"]
LEVELS = {
    "fedia_lung": ["m = 0", "m = 1", "m = 2"],
    "fedia_ms": ["m = 0", "m = 1", "m = 2", "m = 3"],
    "fedmlp_cxr14": [f"{k} of 8 missing" for k in (1, 3, 5, 7)],
    "fedmlp_ich": [f"{k} of 5 missing" for k in (1, 2, 3, 4)],
    "fednoro_ich": [
        "no noise",
        *(f"rho {rho}, eta {rates}" for rho in (0.2, 0.3, 0.4, 0.6) for rates in ("0.3 to 0.5", "0.5 to 0.7")),
    ],
    "fednoro_isic2019": ["no noise", "rho 0.4, eta 0.5 to 0.7", "rho 0.6, eta 0.5 to 0.7"],
}


def test_the_jobs_have_the_levels_of_their_papers():
    found = {job.name: list(read_tables(job).levels.get("paper", ())) for job in JOBS}
    assert {name: titles for name, titles in found.items() if titles} == LEVELS


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_levels_and_rows_are_those_of_the_job_and_numbers_belong_to_them(job):
    known, own = read_tables(job), read_job(job).run["method"]
    levels = known.chosen("paper") if known.levels else []
    for name in ("paper", *known.tables):
        table = known.table(name)
        rows = {own, *(table.rows or table_rows(job))}
        assert rows - {own} <= set(job_variants(job))
        assert set(table.published) <= {own, *table_rows(job), *table.rows}
        titles = {level.title: level.settings for level in levels}
        assert set(table.notes) <= set(table.rows)
        if table.level and table.set:
            assert titles[table.level] == table.set
        for by_level in table.published.values():
            if levels and name != "paper":  # a number that the paper printed for one of its levels stands there, too
                assert table.level in by_level
                assert set(by_level) <= set(titles)
            for metrics in by_level.values():
                for key, value in metrics.items():
                    assert next((key.removesuffix(e) for e in ENDINGS if key.endswith(e)), key) in MACRO
                    assert 0 <= value <= 100
        for level in levels or [None]:
            words = parse_assignments(level_words(level, table))
            phantom_spec(read_job(job, Changes(words)).site["phantom"])  # refuses a field that it does not have


@pytest.mark.parametrize("job", ["fednoro_ich", "fednoro_isic2019"])
def test_the_clean_sites_alone_train_less_by_design(job):
    assert set(read_tables(ROOT / "jobs" / job).table("stage2").notes) == {"clean_only"}


@pytest.mark.parametrize("job", ["fedmlp_ich", "fedmlp_cxr14"])
def test_the_ablation_of_fedmlp_tells_loss_views_and_repair_apart(job):
    rows = read_tables(ROOT / "jobs" / job).table("ablation").rows
    assert {"fedavg_pl", "fedavg_pl_two_views", "wpc_alone", "ablation_no_mld"} < set(rows)


@pytest.mark.parametrize("job", [job for job in JOBS if job.name in LEVELS], ids=lambda job: job.name)
def test_the_level_of_the_preset_has_the_numbers_that_its_variants_have(job):
    known, title = read_tables(job), {"fedia_ms": "m = 3", "fedia_lung": "m = 1", "fedmlp_ich": "4 of 5 missing"}
    level = title.get(job.name, "7 of 8 missing" if "cxr" in job.name else "rho 0.4, eta 0.5 to 0.7")
    published = known.table("paper").published
    for name, variant in job_variants(job).items():
        numbers = variant.table.published.get(job.name) if variant.table else None
        if numbers:
            row = read_job(job).run["method"] if name == "paper" else name
            assert published[row][level] == numbers, name


def test_numbers_of_single_classes_are_of_the_jobs_classes():
    job = ROOT / "jobs" / "fedlsm_cxr14"
    published = read_tables(job).per_class.published
    assert {tuple(sorted(row)) for row in published.values()} == {tuple(sorted(read_job(job).run["classes"]))}
    assert published["fedlsm"]["Hernia"] == 88.4
    # The average that the paper prints is that of its classes.
    assert sum(published["fedlsm"].values()) / 14 == pytest.approx(79.1, abs=0.1)


def test_a_sweep_is_a_level_for_each_value():
    assert swept("phantom.noise=instance,uniform") == [
        Level("phantom.noise=instance", {"phantom.noise": "instance"}),
        Level("phantom.noise=uniform", {"phantom.noise": "uniform"}),
    ]
    assert [level.words for level in swept("warmup_rounds=10,20")] == [["warmup_rounds=10"], ["warmup_rounds=20"]]
    for text in ("a", "=1", "a=", "a=1,", "a=1,1"):
        with refused(f"--sweep: expected NAME=VALUE,VALUE,... with different values, got {text!r}"):
            swept(text)


@pytest.mark.parametrize(
    "text", ["ramp_end=-1,1", "a=1,1.,.1", "a=b/c,b-c,b c", "a=é,e", 'a="",1', "a=+,-"], ids=lambda text: text
)
def test_the_values_of_a_sweep_have_folders_of_their_own(text):
    levels = swept(text)
    folders = {level.folder for level in levels}
    assert len(folders) == len(levels)
    assert all(re.fullmatch(r"\w[\w.-]*", folder) for folder in folders)


def test_the_levels_of_a_job_have_folders_of_their_own():
    for job in JOBS:
        known = read_tables(job)
        for name in known.levels:
            levels = known.chosen(name)
            assert len({level.folder for level in levels}) == len(levels), f"{job.name}: {name}"


def test_a_level_has_a_folder_and_goes_before_what_a_table_sets():
    assert Level("rho 0.4, eta 0.5 to 0.7", {}).folder == "rho-0.4-eta-0.5-to-0.7"
    table = read_tables(ROOT / "jobs" / "fednoro_ich").table("stage2")
    level = Level("x", {"phantom.noisy_share": 0.6})
    assert level_words(level, table)[0] == "phantom.noisy_share=0.6"
    assert level_words(None, table)[0] == "phantom.noisy_share=0.4"


def test_a_job_without_the_file_has_its_main_table_alone(tmp_path):
    found = read_tables(tmp_path)
    assert found.table("paper").rows == {}
    with refused("--table: expected one of ['paper'] of this job, got 'ablation'"):
        found.table("ablation")
    with refused("--levels: expected one of [] of this job, got 'paper'"):
        found.chosen("paper")
