"""The table of rules that find noisy sites, of runs that are stood in for."""

import json
from argparse import Namespace

import pytest
from factories import ROOT, refused

from fedmend.baselines.detection_rules import RULES
from fedmend.comparison.detection_table import MEASURES, OWN_RULE
from fedmend.comparison.detection_table import RULES as RECORD
from fedmend.data.card import write_card
from fedmend.errors import FedMendError
from fl_components.compare import detection
from fl_components.compare.detection import comparison_of, detection_table, noisy_sites
from fl_components.compare.job_tables import Level, read_tables
from fl_components.compare.runs import Comparison, cases
from fl_components.job.folder import job_variants

JOB = ROOT / "jobs" / "fednoro_ich"


@pytest.mark.parametrize("name", ["fednoro_ich", "fednoro_isic2019"])
def test_the_rows_are_variants_and_the_papers_numbers_belong_to_rules(name):
    known = read_tables(ROOT / "jobs" / name)
    about = known.detection
    assert set(about.rows) <= set(job_variants(ROOT / "jobs" / name))
    assert set(about.published) <= set(RULES)
    titles = {level.title: level.settings for level in known.chosen("paper")}
    assert titles.get(about.level, {}) == about.set
    for by_level in about.published.values():
        assert all(set(numbers) <= set(MEASURES) for numbers in by_level.values())
        assert about.level in by_level
        assert set(by_level) <= set(titles)


def test_the_papers_numbers_stand_beside_each_of_its_levels_and_the_jobs_own_data(tmp_path, made):
    levels = read_tables(JOB).chosen("paper")
    table = detection_table(Comparison(JOB, [], [0]), levels, tmp_path, made[1])
    exact = {title: numbers["exact"] for title, numbers in table.published["full covariance, as released"].items()}
    # Table 3 of the paper: matching ratios of the whole method.
    assert exact == {"": 88.82, "rho 0.3, eta 0.3 to 0.5": 98.28, "rho 0.4, eta 0.3 to 0.5": 88.82}


def test_the_first_row_wants_all_settings_and_another_one_takes_those_that_it_has():
    whole = Comparison(JOB, [], [0], words=["warmup_rounds=3", "phantom.sites=6"])
    assert list(comparison_of(whole, "detection_rules", strict=True).words) == list(whole.words)
    other = comparison_of(whole, "closed_form_judge", strict=False)
    assert (other.words, other.variants, other.rows) == (["phantom.sites=6"], ["closed_form_judge"], [])


@pytest.fixture
def made(monkeypatch):
    """What was made; every run finds site-2, by two rules or by its own, where site-2 and site-3 are noisy."""
    asked = []
    told = {"noisy": ["site-2"], "vote_share": 1.0}

    def load_run(folder):
        what, value = (OWN_RULE, told) if "judge" in str(folder) else (RECORD, {"a": told, "b": told})
        decisions = [{"what": what, "value": value}]
        return Namespace(info={"seed": int(folder.name), "phantom": True}, decisions=decisions)

    monkeypatch.setattr(detection, "load_run", load_run)
    monkeypatch.setattr(detection, "noisy_sites", lambda case: ["site-2", "site-3"])

    def make(one, folder):
        asked.append((folder, one.variants, one.words))
        return [folder / str(seed) for seed in one.seeds], one

    return asked, make


def test_the_table_has_the_rules_of_all_variants_at_each_level(tmp_path, made):
    asked, make = made
    levels = [Level(f"warmup_rounds={n}", {"warmup_rounds": n}) for n in (1, 2)]
    table = detection_table(Comparison(JOB, [], [0, 1]), levels, tmp_path, make)
    assert list(table.levels) == ["warmup_rounds=1", "warmup_rounds=2"]
    title = read_tables(JOB).detection.rows["closed_form_judge"]
    assert list(table.rows) == ["a", "b", title]
    assert table.values("warmup_rounds=2", title, "recall") == [0.5, 0.5]
    assert (table.seeds, table.phantom) == ([0, 1], True)
    assert [folder for folder, *_ in asked][:2] == [
        tmp_path / "warmup_rounds-1" / "detection_rules",
        tmp_path / "warmup_rounds-1" / "closed_form_judge",
    ]
    noise = ["phantom.noisy_share=0.4", "phantom.noise_low=0.3", "phantom.noise_high=0.5"]
    assert asked[0][2] == [*noise, "warmup_rounds=1"]
    assert asked[1][2] == noise


@pytest.mark.parametrize(("words", "numbers"), [([], [0, 0, 0]), (["phantom.seed={SEED}"], [0, 0, 1])])
def test_a_federation_is_counted_by_its_data(tmp_path, made, words, numbers):
    comparison = Comparison(JOB, [], [0, 1, 2], words=words, per_federation=2)
    table = detection_table(comparison, [], tmp_path, made[1])
    assert table.federations == numbers


def test_a_row_that_cannot_learn_is_left_out_and_the_first_one_is_refused(tmp_path, made):
    def failing(variant):
        def make(one, folder):
            if one.variants == [variant]:
                raise FedMendError("expected weights, got none")
            return made[1](one, folder)

        return make

    table = detection_table(Comparison(JOB, [], [0]), [], tmp_path, failing("closed_form_judge"))
    assert list(table.rows) == ["a", "b"]
    assert list(table.left_out.values()) == ["expected weights, got none"]
    with refused("expected weights, got none"):
        detection_table(Comparison(JOB, [], [0]), [], tmp_path, failing("detection_rules"))


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_the_cards_of_the_sites_say_which_are_noisy(tmp_path, told):
    classes = ["epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural"]
    for number in range(1, 5):
        folder = tmp_path / f"site-{number}"
        folder.mkdir()
        about = {"noisy": number > 2} if told or number < 4 else {}
        given = {"task": "singlelabel", "classes": classes, "splits": {"train": "train.csv"}, "image_root": "."}
        write_card(folder, **given, provenance={"source": "x", "site": about})
    (case,) = cases(Comparison(JOB, [], [0], sites=4), tmp_path / "out")
    config = {"data_root": f"{tmp_path}/{{SITE_NAME}}", "state_dir": "state", "cache_dir": str(tmp_path)}
    (case.workspace / "local").mkdir(parents=True)
    (case.workspace / "local" / "fedmend.json").write_text(json.dumps(config))
    if told:
        assert noisy_sites(case) == ["site-3", "site-4"]
    else:
        with refused("site-4: card, field provenance.site.noisy: expected true or false, got nothing"):
            noisy_sites(case)
