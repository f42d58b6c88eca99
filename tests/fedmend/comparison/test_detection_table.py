"""The table of rules that find noisy sites, by hand."""

import math
from argparse import Namespace
from dataclasses import replace

from fedmend.comparison.detection_table import FILES, DetectionTable, Found, found_by, write_detection_table

RIGHT, HALF = Found(["b", "c"], 1.0, ["b", "c"]), Found(["a", "b"], 0.5, ["b", "c"])
NOTHING = Found([], 0.25, ["b", "c"])


def table(**changes):
    rules = {"one": {0: RIGHT, 1: HALF}, "other": {0: NOTHING, 1: HALF, 2: RIGHT}}
    return DetectionTable(**{"name": "job", "levels": {"": rules}, **changes})


def test_a_rule_is_scored_by_what_it_finds():
    assert RIGHT.scores() == {"exact": 1, "recall": 1, "precision": 1, "vote_share": 1}
    assert HALF.scores() == {"exact": 0, "recall": 0.5, "precision": 0.5, "vote_share": 0.5}
    assert NOTHING.scores()["recall"] == 0
    assert math.isnan(NOTHING.scores()["precision"])
    nobody = Found([], 1.0, []).scores()
    assert nobody["exact"] == 1
    assert math.isnan(nobody["recall"])


def test_the_table_has_means_over_the_seeds_that_all_rules_have():
    (part,) = table().parts()
    assert part.head == ["rule", "exactly the noisy sites", "recall", "precision", "mean share of the votes"]
    # sd of 100 and 50: 35.4; of 0 and 50, and of 25 and 50: 35.4 and 17.7; seed 2 lacks a run of the first rule
    assert part.rows == [
        ["one", "50 (1 of 2)", "75.0 ± 35.4", "75.0 ± 35.4", "75.0 ± 35.4"],
        ["other", "0 (0 of 2)", "25.0 ± 35.4", "50.0", "37.5 ± 17.7"],
    ]
    assert table().seeds == [0, 1]


def on(federation, found):
    return replace(found, federation=federation)


def test_runs_on_one_federation_are_averaged_before_federations_are():
    rules = {"one": {0: on(0, RIGHT), 1: on(0, HALF), 2: on(1, HALF), 3: on(1, NOTHING)}}
    found = table(levels={"": rules})
    assert found.facts[0].startswith("2 federations: ")
    assert "4 seeds averaged on each first" in found.facts[0]
    # Recall: 75 and 25 of the federations, sd 35.4; the second one has a run that takes no site for noisy.
    assert found.parts()[0].rows == [["one", "25 (1 of 4)", "50.0 ± 35.4", "75.0", "56.2 ± 26.5"]]
    alone = {"one": {seed: on(0, run) for seed, run in rules["one"].items()}}
    assert table(levels={"": alone}).facts[0].startswith("One federation: ")
    assert table(levels={"": alone}).values("", "one", "precision") == [1, 0.5, 0.5]


def test_a_federation_for_each_seed_leaves_the_numbers_of_the_seeds():
    rules = {rule: {seed: on(seed, run) for seed, run in runs.items()} for rule, runs in table().rows.items()}
    found = table(levels={"": rules})
    assert found.parts() == table().parts()
    assert found.facts[0] == "2 federations: deviations and intervals are over federations."


def test_published_numbers_stand_beside_the_level_that_they_are_of():
    levels = {"no noise": {"one": {0: NOTHING}}, "noise": {"one": {0: RIGHT}}}
    printed = {"one": {"noise": {"exact": 88.82, "precision": 100}, "": {"exact": 1}}}
    found = table(levels=levels, published=printed, source="x")
    first, second = found.parts()
    assert first.rows == [["one", "0 (0 of 1)", "0.0", "n/a", "25.0"]]
    assert second.rows == [["one", "100 (1 of 1)", "88.82", "100.0", "100.0", "100", "100.0"]]
    assert (first.caption, second.caption) == ("no noise", "noise")
    assert found.facts[-1] == "Published: x."


def test_of_levels_without_published_numbers_no_source_is_named():
    found = table(levels={"rounds=1": {"one": {0: RIGHT}}}, published={"one": {"": {"exact": 1}}}, source="x")
    assert found.parts()[0].rows == [["one", "100 (1 of 1)", "100.0", "100.0", "100.0"]]
    assert not any(fact.startswith("Published") for fact in found.facts)


def test_a_run_tells_of_many_rules_or_of_its_own():
    told = {"noisy": ["b"], "vote_share": 0.9}
    run = Namespace(decisions=[{"what": "x", "value": 1}, {"what": "detection_rules", "value": {"one": told}}])
    assert found_by(run, "own") == {"one": (["b"], 0.9)}
    run = Namespace(decisions=[{"what": "noisy_client_detection", "value": {**told, "absent": []}}])
    assert found_by(run, "own") == {"own": (["b"], 0.9)}


def test_levels_and_rules_like_formulas_are_text_in_a_spreadsheet():
    text = table(levels={"-20 %": {"+ votes": {0: RIGHT}}}).csv()
    assert text.splitlines()[1].startswith("'-20 %,'+ votes,0,")


def test_the_files_have_every_federation_and_say_what_is_left_out(tmp_path):
    rules = {"one": {0: Found(["b"], 1.0, ["b", "c"], phantom=True)}}
    text = write_detection_table(table(levels={"": rules}, left_out={"other": "no weights"}), tmp_path)
    assert "PHANTOM" in text
    assert "[1] other is left out: no weights" in text
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(FILES)
    lines = (tmp_path / "comparison.csv").read_text().splitlines()
    assert lines == [
        "level,rule,seed,exact,recall,precision,vote_share,found,noisy,phantom,federation",
        ",one,0,0.0000,0.5000,1.0000,1.0000,b,b c,1,0",
    ]
