"""Whole jobs of all four problems of labels on sites whose samples are studies."""

import numpy as np
import pytest
from factories import make_site_folder

from fedmend import Job, Package

pytestmark = pytest.mark.slow

CLASSES, SITES, STUDIES = ("a", "b", "c"), tuple(f"site-{n}" for n in range(1, 5)), 24
STUDY = {"network": "study/resnet_narrow", "study_slices": 2, "image_size": 32, "batch_size": 8, "phantom": None}
SHORT = {"num_rounds": 3, "classes": list(CLASSES)}
JOBS = {
    "fedmlp_ich": {"warmup_rounds": 1, "local_epochs": 1, "batch_size": 8},
    "fednoro_ich": {"warmup_rounds": 1, "local_epochs": 1, "batch_size": 4},
    "fedlsm_cxr14": {"local_iterations": 3},
    "fedlsm_isic2018": {"local_iterations": 3, "pixel_mean": [], "pixel_deviation": []},
}


def sites_of(folder, job):
    """Folders with two slices of each study. With several labels a site annotates two of the classes; with one label,
    where label sets differ, it knows two."""
    rng = np.random.default_rng(0)
    for number, site in enumerate(SITES):
        if job in ("fednoro_ich", "fedlsm_isic2018"):
            labels = np.arange(STUDIES) % 3
            shown = labels if job == "fednoro_ich" else np.where(labels == number % 3, -1, labels)
            options = {}
        else:
            shown = labels = rng.integers(0, 2, (STUDIES, 3))
            options = {"columns": [number % 2, 2]}
        names = [f"s{n // 2}" for n in range(2 * STUDIES)]
        doubled = [np.repeat(values, 2, axis=0) for values in (shown, labels)]
        make_site_folder(
            folder / site, doubled[0], splits=("test",), size=32, classes=CLASSES, studies=names, **options
        )


@pytest.mark.parametrize("job", JOBS)
def test_a_job_learns_from_studies(tmp_path, job):
    sites_of(tmp_path / "data", job)
    given = {**STUDY, **SHORT, **JOBS[job]}
    run = Job(job, sites=len(SITES), **given).run(
        workspace=tmp_path / "run", site={"data_root": str(tmp_path / "data" / "{SITE_NAME}")}, progress=False
    )
    assert run.results["final"]["test"]
    assert Package(run.folder).preprocessing.study_slices == 2
