"""Which rows can learn from the data, before anything is trained; real site folders and methods, no training."""

from pathlib import Path

import numpy as np
import pytest
from factories import ROOT, make_site_folder, refused

from fedmend.kinds import kind_of
from fl_components.compare import trial as module
from fl_components.compare.runs import Comparison, cases
from fl_components.compare.trial import Step, Trial, estimates, fitting_processes, run_steps, step_seconds, try_rows
from fl_components.job.folder import read_job

JOBS = ROOT / "jobs"
CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
LABELS = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 1, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], dtype=np.int8)


@pytest.fixture
def ask(tmp_path):
    """Asks rows of a job whether they can learn from the site folders in ``tmp_path``."""

    def try_them(*rows, job="fedmlp_ich", sites=2, optional=True, words=(), seeds=(0,), **how):
        place = tmp_path / "{SEED}" if len(seeds) > 1 else tmp_path
        site_words = [f"data_root={place}/{{SITE_NAME}}", f"cache_dir={tmp_path}/cache"]
        words = ["batch_size=2", "image_size=32", *words]
        found = Comparison(JOBS / job, rows, seeds, words=words, site_words=site_words, sites=sites)
        return try_rows(cases(found, Path()), optional=optional, **how)

    return try_them


def write(folder, *labels, truth=None, splits=("test",)):
    for number, rows in enumerate(labels, 1):
        make_site_folder(folder / f"site-{number}", rows, classes=CLASSES, splits=splits, truth=truth)


def test_rows_that_can_learn_from_the_data_are_tried_and_others_left_out_with_a_sentence(ask, tmp_path):
    write(tmp_path, LABELS, LABELS)
    trials, without = ask("fedavg", "all_labels")
    assert list(trials) == ["fedmlp", "fedavg"]
    assert trials["fedavg"].step == Step("resnet_narrow", 5, 2, (32, 32))
    assert without["all_labels"].endswith(
        "site.json, field truth: expected a complete label table for all_labels, got none"
    )


def test_the_person_is_told_when_data_are_opened_which_is_once_for_all_rows_that_read_them_alike(ask, tmp_path):
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        write(tmp_path / str(seed), LABELS, LABELS)
    said = []
    ask("fedavg", "fedavg_pl", seeds=(0, 1), say=said.append)
    assert said == [f"fedmlp, seed {seed}: opening the data" for seed in (0, 1)]


def test_a_row_that_a_person_named_is_refused_and_so_is_the_first(ask, tmp_path):
    write(tmp_path, LABELS, LABELS)
    with pytest.raises(module.FedMendError, match=r"^all_labels: site-[12]: site\.json, field truth: expected "):
        ask("all_labels", optional=False)
    unknown = np.where(np.arange(5) < 4, LABELS, -1).astype(np.int8)
    write(tmp_path, unknown, unknown)
    nowhere = "census: expected every class of the job to be annotated at a site, got none for ['subdural']"
    with refused(f"fedmlp: {nowhere}"):
        ask("fedavg")


def test_the_kind_of_labels_must_be_one_that_the_method_learns_from(ask, tmp_path):
    write(tmp_path, np.array([0, 1, 2, 3]), np.array([3, 4, 0, 1]))
    got = "field task: expected 'multilabel' for the method of this job, got 'singlelabel'"
    with pytest.raises(module.FedMendError, match=rf"^fedmlp: site-[12]: site\.json, {got}$"):
        ask("fedavg")


def test_too_few_sites_and_a_missing_package_are_said_before_data_are_opened(ask, monkeypatch):
    with refused("fednoro: census: expected at least 4 sites for the method of this job, got 3"):
        ask("fedavg", job="fednoro_ich", sites=3)
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    monkeypatch.setattr(module, "_census", lambda settings, method, workspace: FOUR)
    trials, without = ask("fedavg", "cleanlab", job="fednoro_ich", sites=4)
    assert list(trials) == ["fednoro", "fedavg"]
    assert without == {"cleanlab": "expected the package cleanlab (pip install 'fedmend[cleanlab]'), not found"}


class FOUR:
    sizes = {"site-1": {"train": 10, "test": 4}}  # noqa: RUF012
    kind = kind_of("singlelabel")


def test_data_on_which_nothing_can_be_measured_are_refused_before_the_first_run(ask, tmp_path):
    write(tmp_path, LABELS, LABELS, splits=())
    with refused("fedmlp: expected a site with one of the splits val and test, got none"):
        ask("fedavg")


def test_a_metric_that_nobody_measures_is_refused_before_the_first_run(ask, tmp_path):
    write(tmp_path, LABELS, LABELS)
    assert list(ask("fedavg", metric="auc")[0]) == ["fedmlp", "fedavg"]
    with pytest.raises(module.FedMendError, match=r"^--metric: expected one of \['auc', 'bacc', .*\], got 'dice'$"):
        ask("fedavg", metric="dice")


def test_data_of_every_seed_are_opened_where_they_depend_on_it(ask, tmp_path):
    write(tmp_path / "0", LABELS, LABELS)
    write(tmp_path / "1", LABELS, np.where(np.arange(5) < 0, 0, -1).astype(np.int8) * np.ones_like(LABELS))
    with pytest.raises(module.FedMendError, match=r"^fedmlp, seed 1: site-2: "):
        ask("fedavg", seeds=(0, 1))


def test_a_row_that_would_refuse_a_refit_is_left_out_before_the_first_run(ask, tmp_path):
    write(tmp_path, LABELS, LABELS)
    heads = "closed_form+weights=+network=resnet_narrow"
    trials, without = ask("fedavg", heads, words=["refit=true"])
    assert list(trials) == ["fedmlp", "fedavg"]
    assert without == {heads: "job variable refit: expected false in a job that trains nothing, got true"}


def test_weights_that_are_not_there_are_missed_before_the_first_run(ask):
    with pytest.raises(module.FedMendError, match=r"^fedmlp: job variable weights: expected the ImageNet weights of "):
        ask("fedavg", words=["weights=imagenet"])


def test_steps_are_those_of_all_epochs_and_evaluations_cost_a_third():
    settings = read_job(JOBS / "fedmlp_ich")  # 6 rounds of 6 epochs, batches of 32, evaluated in each
    sizes = {"a": {"train": 65, "test": 32}, "b": {"train": 32}}
    assert run_steps(settings, sizes) == pytest.approx(6 * 6 * (3 + 1) + 7 / 3)
    settings = read_job(JOBS / "fedlsm_isic2018")  # 25 rounds of 40 steps
    assert run_steps(settings, {"a": {"train": 65}, "b": {"train": 32}}) == 2 * 25 * 40


def test_an_estimate_is_steps_times_seconds_and_steps_of_one_sort_are_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(module, "step_seconds", lambda step: measured.append(step) or 0.5)
    step = Step("resnet_narrow", 5, 2, (32, 32))
    assert estimates({"a": Trial(10, step), "b": Trial(30, step)}) == {"a": 5, "b": 15}
    assert measured == [step]


def test_a_step_takes_time():
    assert 0 < step_seconds(Step("resnet_narrow", 2, 2, (32, 32))) < 60


def test_as_many_runs_as_cores_and_memory_bear_but_one_at_least(monkeypatch):
    trials = {"a": Trial(10, Step("resnet_narrow", 5, 2, (32, 32)))}

    class Memory:
        available = 2.5e9

    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: Memory)
    assert fitting_processes(trials) in (2, 3)
    monkeypatch.setattr(Memory, "available", 1e8)
    assert fitting_processes(trials) == 1
    monkeypatch.setattr(Memory, "available", 1e12)
    assert fitting_processes(trials) == 16
