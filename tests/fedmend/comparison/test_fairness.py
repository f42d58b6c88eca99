import math

from fedmend.comparison.fairness import TableRow, judge, mean_passes, training
from fedmend.records.run_folder import RunFiles


def run(**sizes):
    return RunFiles(
        None, {"sites": {site: {"train": n} for site, n in (sizes or {"a": 8, "b": 9}).items()}}, {}, (), (), {}
    )


def cost(*, initial="x", per_round=4, unit="epochs", rounds=(5, 5), steps=(30, 50), images=(160, 180)):
    counted = zip("ab", rounds, steps, images, strict=True)
    sites = {site: {"rounds": r, "steps": s, "images": i} for site, r, s, i in counted}
    return {"initial_model": initial, "sites": sites, "effort": {"unit": unit, "per_round": per_round}}


def verdict(changed, *, note="", changed_run=None):
    rows = {
        "own": TableRow(title="Own", runs=[run(), run()], costs=[cost(), cost(initial="y")]),
        "other": TableRow(title="X", runs=[run(), changed_run or run()], costs=[cost(), changed], note=note),
    }
    first, found = judge(rows).values()
    assert (first.comparable, first.footnote) == (True, "")
    return found


def test_rows_of_the_same_data_weights_and_epochs_may_be_compared():
    assert verdict(cost(initial="y")) == (verdict(cost(initial="y")))
    assert (verdict(cost(initial="y")).comparable, verdict(cost(initial="y")).footnote) == (True, "")


def test_other_epochs_or_initial_weights_are_not_comparable_in_any_seed():
    found = verdict(cost(initial="z"))
    assert (found.comparable, found.footnote) == (False, "not comparable: other initial weights")
    found = verdict(cost(initial="y", rounds=(5, 4)))
    said = "not comparable: 16 to 20 epochs at a site instead of 20 epochs, in 1 of 2 seeds"
    assert (found.comparable, found.footnote) == (False, said)
    assert verdict(cost(initial="y", unit="steps")).comparable is False


def test_a_row_that_differs_by_design_is_compared_with_a_footnote():
    found = verdict(cost(initial="z"), note="it folds")
    assert (found.comparable, found.footnote) == (True, "by design: it folds; other initial weights")
    found = verdict(cost(initial="y"), note="it folds")
    assert (found.comparable, found.footnote) == (True, "by design: it folds")


def test_other_data_are_never_comparable():
    found = verdict(cost(initial="y"), note="it folds", changed_run=run(a=8, b=10))
    assert (found.comparable, found.footnote) == (
        False,
        "not comparable: other sites or samples than in the first row",
    )


def test_rows_of_as_many_samples_with_other_labels_are_not_comparable():
    rows = {
        name: TableRow(title=name, runs=[run()], costs=[cost()], data=[data], note="it folds")
        for name, data in (("own", "1 class at each site"), ("other", "3 classes at each site"))
    }
    found = judge(rows)["other"]
    said = "not comparable: other data, or another size of images, than in the first row"
    assert (found.comparable, found.footnote) == (False, said)


def test_a_run_without_a_record_is_not_comparable():
    found = verdict({})
    assert not found.comparable
    assert found.footnote.endswith("was not recorded")


def test_fewer_steps_in_as_many_epochs_are_said():
    rows = {
        "own": TableRow(title="Own", runs=[run()], costs=[cost()]),
        "other": TableRow(title="X", runs=[run()], costs=[cost(steps=(10, 30))]),
    }
    found = judge(rows)["other"]
    said = "as many epochs as the first row, but 20 optimiser steps per site, not 40"
    assert (found.comparable, found.footnote) == (True, said)


def test_steps_are_means_of_all_seeds_as_the_costs_in_the_table():
    found = verdict(cost(initial="y", steps=(10, 30)))  # 40, then 20 a site
    assert found.footnote == "as many epochs as the first row, but 30 optimiser steps per site, not 40"
    found = verdict(cost(initial="y", steps=(30, 49)))
    assert found.footnote == "as many epochs as the first row, but 39.8 optimiser steps per site, not 40"
    assert training(cost(), cost(rounds=(5, 4))) == "16 to 20 epochs"


def test_the_same_range_of_epochs_at_other_sites_is_said():
    rows = {
        name: TableRow(title=name, runs=[run()], costs=[cost(rounds=rounds)])
        for name, rounds in (("own", (5, 4)), ("other", (4, 5)))
    }
    assert judge(rows)["other"].footnote == "not comparable: not the same sites trained 16 to 20 epochs"


def test_more_passes_in_as_many_epochs_are_said():
    rows = {
        "own": TableRow(title="Own", runs=[run()], costs=[cost(images=(320, 180))]),
        "other": TableRow(title="X", runs=[run()], costs=[cost()]),
    }
    assert mean_passes(rows["own"]) == 6  # 320 / (8 samples x 5 rounds) = 8 at one site, 180 / (9 x 5) = 4 at the other
    assert mean_passes(rows["other"]) == 4
    found = judge(rows)["other"]
    said = "4.0 passes per training sample and round, where the first row has 6.0"
    assert (found.comparable, found.footnote) == (True, said)


def test_passes_that_an_earlier_version_did_not_count_are_not_told():
    old = cost()
    for counted in old["sites"].values():
        del counted["images"]
    rows = {
        "own": TableRow(title="Own", runs=[run()], costs=[cost()]),
        "old": TableRow(title="X", runs=[run()], costs=[old]),
    }
    assert math.isnan(mean_passes(rows["old"]))
    assert judge(rows)["old"].footnote == ""


def test_training_in_words():
    assert training(cost()) == "20 epochs"
    assert training(cost(unit="steps", per_round=300, rounds=(5, 4))) == "1,200 to 1,500 steps"
