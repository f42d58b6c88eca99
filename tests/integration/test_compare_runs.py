"""A comparison with real runs: side by side or one after the other, new or kept."""

import csv

import pytest
from factories import ROOT
from simulation import SMALL, fedmend

JOB = "fedlsm_isic2018"
pytestmark = pytest.mark.slow


def test_a_comparison_makes_its_runs_once_and_gives_the_same_numbers_side_by_side(tmp_path):
    def compare(out, *words):
        command = [
            "compare",
            ROOT / "jobs" / JOB,
            "--seeds",
            "4",
            "--sites",
            3,
            "--set",
            *SMALL[JOB],
            "--out",
            tmp_path / out,
        ]
        return fedmend(*command, *words, home=tmp_path)

    code, said = compare("one", "--rows", "fedavg")
    assert code == 0, said
    assert said.count(": done, ") == 2
    code, said = compare("one", "--rows", "fedavg,fedavg+learning_rate=0.002")
    assert (code, said.count(": done, ")) == (0, 1)
    code, said = compare("two", "--rows", "fedavg,fedavg+learning_rate=0.002", "--processes", "2")
    assert (code, said.count(": done, ")) == (0, 3)
    for file in ("comparison.csv", "comparison.md", "comparison.svg"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    rows = list(csv.DictReader((tmp_path / "two" / "comparison.csv").read_text().splitlines()))
    assert {row["row"] for row in rows} == {"fedlsm", "fedavg", "fedavg+learning_rate=0.002"}
    assert {(row["seeds"], row["phantom"]) for row in rows} == {("1", "yes")}


def test_all_rules_of_the_detection_judge_one_warm_up_of_each_federation(tmp_path):
    out = tmp_path / "out"
    job = "fednoro_isic2019"
    command = ["compare", ROOT / "jobs" / job, "--table", "detection", "--federations", 2, "--sites", 4]
    code, said = fedmend(*command, "--set", *SMALL[job], "--out", out, home=tmp_path)
    assert code == 0, said
    runs = sorted(folder.name for folder in (out / "detection_rules").rglob("seed-*") if folder.is_dir())
    assert runs == ["seed-0", "seed-1"]
    rows = list(csv.DictReader((out / "comparison.csv").read_text().splitlines()))
    rules = {row["rule"] for row in rows}
    assert {"rule of the job", "one loss per site", "mean LID", "mean confidence"} < rules
    assert len(rows) == 2 * len(rules)
    assert {(row["noisy"].count("site-"), row["phantom"]) for row in rows} == {(1, "1")}
