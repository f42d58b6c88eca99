"""The preset ``paper`` of each job against the numbers of its paper or released code, which stand in ``tests/paper``.

A table says for each setting the value and where the fact sheet of the method has it. Beside a baseline or an ablation
the preset keeps all of them but those that make the baseline what it is.
"""

import json

import pytest
from factories import ROOT

from fl_components.job.folder import Changes, all_jobs, job_variants, read_job

TABLES = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "tests" / "paper").glob("*.json"))}
JOBS = {job.name: job for job in all_jobs(ROOT / "jobs") if "paper" in job_variants(job)}

# No number of a paper: names, what a server demands of its sites, and what a baseline is.
LEFT_OUT = {"run_name", "method", "seed", "all_labels", "min_sites", "round_timeout", "grace_period"}
LEFT_OUT |= {"max_update_factor", "clip_update", "max_site_share", "share_model", "refit", "norm", "study_slices"}
WITHOUT_MEANING = {"fedlsm_isic2018": {"tau_negative", "ude_tau_negative", "pos_weight_cap"}}  # one label per picture


each_table = pytest.mark.parametrize("job", TABLES)


def settings(job, folder, *variants):
    return read_job(JOBS[job], Changes(variants=variants)).settings


def numbers(job):
    return {name: value for name, (value, _) in TABLES[job].items()}


def own(variant):
    """Settings that make a variant what it is."""
    args = [component.args for component in variant.components.values()]
    return {name for given in (*args, variant.set) for name in given}


@pytest.mark.parametrize("job", ["fedia_ms", "fedia_lung"])
def test_the_two_networks_of_rmd_have_the_widths_of_the_paper_beside_its_preset(tmp_path, job):
    assert settings(job, tmp_path, "paper", "rmd")["network"] == "unet_twin"


def test_every_job_that_trains_has_a_paper_preset_and_a_table():
    others = {"closed_form", "condist_organs", "evaluate", "label_audit"}  # the paper of organs has 3-D networks, SGD
    assert set(TABLES) == set(JOBS) == {job.name for job in all_jobs(ROOT / "jobs")} - others


@each_table
def test_every_number_of_a_table_says_where_it_comes_from(job):
    assert all(isinstance(where, str) and where.strip() for _, where in TABLES[job].values())


@each_table
def test_the_preset_sets_every_number_of_its_table_and_no_other(job):
    assert dict(job_variants(JOBS[job])["paper"].set) == numbers(job)


@each_table
def test_the_job_with_its_preset_has_the_numbers_of_the_paper(tmp_path, job):
    found = settings(job, tmp_path, "paper")
    assert {name: found.get(name, "no such setting") for name in numbers(job)} == numbers(job)


@each_table
def test_a_number_switch_or_word_of_a_job_is_in_its_table_or_left_out_for_a_reason(tmp_path, job):
    chosen = {name for name, value in settings(job, tmp_path).items() if isinstance(value, (int, float, str))}
    assert chosen - set(TABLES[job]) <= LEFT_OUT | WITHOUT_MEANING.get(job, set())


@each_table
def test_the_preset_keeps_its_numbers_beside_baselines_and_ablations(tmp_path, job):
    for other in job_variants(JOBS[job]).keys() - {"paper"}:
        found = settings(job, tmp_path, "paper", other)
        changed = own(job_variants(JOBS[job])[other])
        kept = {name: value for name, value in numbers(job).items() if name in found and name not in changed}
        assert {name: found[name] for name in kept} == kept, other
        least = {"num_rounds", "learning_rate", "batch_size", "image_size", "network", "weights"}
        assert least <= {*kept, *changed}, other


def test_a_row_without_a_published_number_is_ours_or_learns_from_complete_labels():
    rows = {(job, name): v.table for job in JOBS for name, v in job_variants(JOBS[job]).items() if v.table}
    ours = {"candidate_sets", "closed_form", "closed_form_candidates", "alone", "cleanlab", "all_labels"}
    assert {name for (job, name), row in rows.items() if job not in row.published} == ours


@pytest.mark.parametrize(("job", "best", "last"), [("fednoro_ich", 58.5, 57.85), ("fednoro_isic2019", 64.46, 60.13)])
def test_fedprox_has_the_numbers_of_fednoros_tables(job, best, last):
    found = job_variants(JOBS[job])["fedprox"].table.published[job]
    assert found == {"bacc_best": best, "bacc_last": last}
