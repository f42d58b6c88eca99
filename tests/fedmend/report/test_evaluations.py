"""The page of models and sites, of made-up counts."""

import numpy as np
from run_factories import rows_of

from fedmend.kinds import kind_of
from fedmend.kinds.multilabel import BINS
from fedmend.report.evaluations import evaluations_page


def page(**packages):
    """The page of packages, name → split → sites that have told it; site-9 alone has a val split."""
    kind, counts = kind_of("multilabel"), np.ones((2, 2, BINS), dtype=np.int64)
    found = {}
    for name, told in packages.items():
        chosen_on = counts if "val" in told else None
        splits = {
            split: {
                "all": kind.metrics(counts, chosen_on if split == "test" else None) | {"intervals": {}},
                "sites": {site: kind.site_metrics(counts, 5) for site in sites},
            }
            for split, sites in told.items()
        }
        found[name] = {"phantom": False, "splits": splits, "groups": {}}
    about = {"best_metric": "auc", "classes": ["a", "b"], "phantom": False, "subgroups": [], "split": "test"}
    return evaluations_page({**about, "packages": found})


def test_a_site_that_was_absent_for_one_package_is_named_and_ends_nothing():
    whole, part = {"test": ["site-1", "site-9"], "val": ["site-9"]}, {"test": ["site-1"]}
    for first, second in (("whole", "part"), ("part", "whole")):
        text = page(**{name: {"whole": whole, "part": part}[name] for name in (first, second)})
        rows = {cells[0]: cells for cells in rows_of(text, "models-test")[-2:]}
        assert rows["part"][-1] == "n/a"  # no threshold without a val split
        assert rows["whole"][-1] == "0.500"
        assert text.count("Not every site has answered: part without site-9.") == 2  # of either split
        assert "each at every site" not in text


def test_a_page_of_sites_that_have_all_answered_says_so():
    text = page(one={"test": ["site-1"]}, other={"test": ["site-1"]})
    assert "2 packages, each at every site" in text
    assert "Not every site" not in text


def test_a_subgroup_says_over_how_many_classes_its_mean_is():
    kind, counts = kind_of("multilabel"), np.ones((2, 2, BINS), dtype=np.int64)
    less = counts * np.array([1, 0]).reshape(2, 1, 1)  # the sites hold the class b back
    told = {"sex F": counts, "sex M": less}
    groups = {name: {"sites": ["site-1"], **kind.metrics(c), "intervals": {}} for name, c in told.items()}
    all_of_it = {"all": kind.metrics(counts) | {"intervals": {}}, "sites": {}}
    found = {"phantom": False, "splits": {"test": all_of_it}, "groups": groups}
    about = {"best_metric": "auc", "classes": ["a", "b"], "phantom": False, "split": "test"}
    text = evaluations_page({**about, "subgroups": [*told, "sex D"], "packages": {"one": found}})
    assert [cells[1:4] for cells in rows_of(text, "groups")[1:]] == [
        ["sex F", "site-1", "2 of 2"],
        ["sex M", "site-1", "1 of 2"],
        ["sex D", "held back", "–"],
    ]
