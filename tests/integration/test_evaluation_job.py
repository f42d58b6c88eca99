"""Packages evaluated at the sites, without FLARE and in its simulator, and by the command: the same numbers."""

import csv
import json

import numpy as np
import pytest
from factories import CLASSES, ROOT, make_site_folder
from measured_packages import make_package
from simulation import fedmend, records

from fedmend.data.augment import IMAGENET_MEAN, IMAGENET_STD
from fedmend.kinds import kind_of

pytestmark = pytest.mark.slow
SITES, COUNT = 2, 40
JOB = ROOT / "jobs" / "evaluate"


def three(values):
    return tuple(map(float, (*values, *values, *values)[:3]))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two site folders whose tables know sex and patient, and two packages in a folder of weights."""
    folder = tmp_path_factory.mktemp("world")
    for number in range(1, SITES + 1):
        rng = np.random.default_rng(number)
        labels, site = rng.integers(0, 2, (COUNT, 3)), folder / f"site-{number}"
        make_site_folder(site, labels, size=32)
        with open(site / "test.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["image", "patient", *CLASSES, "sex"])
            few = 3 if number == 2 else 16  # of site-2 too few to be told
            sex = ["F"] * few + ["M"] * (COUNT - few)
            writer.writerows([f"img{n}.png", f"p{n}", *row, sex[n]] for n, row in enumerate(labels.tolist()))
        card = json.loads((site / "site.json").read_text())
        card |= {"splits": {"train": "train.csv", "test": "test.csv"}, "columns": ["sex"]}
        (site / "site.json").write_text(json.dumps(card))
    scaling = {"pixel_mean": three(IMAGENET_MEAN), "pixel_deviation": three(IMAGENET_STD), "window": None}
    for seed, name in ((3, "one"), (4, "two")):
        make_package(folder / "weights", classes=CLASSES, name=name, seed=seed, **scaling)
    return folder


def run(world, workspace, *more, sites=SITES, allowed='["sex"]'):
    changes = ["--set", 'packages=["one.fedmend","two.fedmend"]', 'subgroups=["sex:F,M"]', "phantom=null"]
    changes += ["batch_size=4", f"classes={json.dumps(CLASSES)}"]
    where = ["--site", f"data_root={world}/{{SITE_NAME}}", f"weights_dir={world}/weights", f"evaluate_by={allowed}"]
    where += ["min_count=5", "cache_dir=cache"]
    words = ["simulate", JOB, *changes, "--sites", sites, *where, "--workspace", workspace, *more]
    code, out = fedmend(*words, home=world)
    assert code == 0, out
    return json.loads((records(workspace) / "results.json").read_text()), out


@pytest.fixture(scope="module")
def local(world):
    return run(world, world / "local", "--local")


def test_job_and_command_agree_at_each_site_and_together(world, local):
    from fedmend import Package

    kind, (found, out) = kind_of("multilabel"), local
    for name in ("one", "two"):
        told, counts = found["packages"][f"{name}.fedmend"], []
        for number in range(1, SITES + 1):
            alone = Package(world / "weights" / f"{name}.fedmend").evaluate(world / f"site-{number}")
            counts.append(alone.counts)
            at_site = told["splits"]["test"]["sites"][f"site-{number}"]
            assert at_site["macro"] == pytest.approx(alone.results["metrics"]["macro"], abs=1e-9)
        together = kind.metrics(np.sum(counts, axis=0))["macro"]
        assert told["splits"]["test"]["all"]["macro"] == pytest.approx(together, abs=1e-9)
    assert "one.fedmend: test AUC" in out


def test_subgroups_are_those_of_the_command_and_small_ones_stay(world, local):
    from fedmend import Package

    groups = local[0]["packages"]["one.fedmend"]["groups"]
    assert {name: group["sites"] for name, group in groups.items()} == {"sex F": ["site-1"], "sex M": ["site-1"]}
    command = Package(world / "weights" / "one.fedmend").evaluate(world / "site-1", by=["sex:F,M"]).results
    for name, group in command["groups"]["sex"].items():
        assert groups[f"sex {name}"]["macro"] == pytest.approx(group["macro"], abs=1e-9)
        assert groups[f"sex {name}"]["positives"] == group["positives"]
    small = Package(world / "weights" / "one.fedmend").evaluate(world / "site-2", by=["sex:F,M"]).results
    assert small["groups"]["sex"] == {"F": "held back", "M": "held back"}


def test_flares_simulator_gives_the_same_digits_and_its_guard_lets_subgroups_pass(world, local, tmp_path):
    assert run(world, tmp_path / "work", "--threads", "2")[0] == local[0]


def test_without_the_sites_word_no_subgroup_leaves(world, tmp_path):
    found, _ = run(world, tmp_path / "work", "--local", allowed="[]")
    assert [package["groups"] for package in found["packages"].values()] == [{}, {}]
