"""Each rule with a federation for which it holds, and its evidence in the pages of results."""

import json
import re

import pytest
from advice_factories import FULL, GAP, LABELLED, OTHER_GAP, Q, federation, masks, single, site
from factories import ROOT

from fedmend.advice import PARTS, RUN, Losses, advise
from fedmend.advice.rules import CHECKED, NOT_MEASURED, RULES
from fedmend.labels import SEGMENTATION

RARE_GAP, OTHER_RARE_GAP = site((400, 20, 0), (0, 0, 400)), site((0, 0, 400), (400, 20, 0))
NEVI, MELANOMA = single((300, 300, 100), (300, 0, 100)), single((300, 0, 100), (300, 300, 100))
UNEVEN = single((400, 300, 0), (400, 100, 0))
JUDGED = "site-1", "site-2", "site-3", "site-4"
CLEAN, ONE_NOISY, ALL_NOISY = (Losses(JUDGED, noisy, 0.9) for noisy in ((), ("site-2",), JUDGED))
LIVER, SPLEEN = (site(*rows, kind=SEGMENTATION, samples=9) for rows in (((9, 9, 0), (0, 0, 9)), ((0, 0, 9), (9, 9, 0))))
ORGANS = site((9, 9, 0), (9, 9, 0), kind=SEGMENTATION, samples=9)
EXAMPLES = {
    "too few sites": federation(FULL),
    "kinds differ": federation(FULL, LABELLED),
    "kind not said": federation(FULL, site((9, 3, 0), (9, 3, 0), kind="")),
    "class nowhere": federation(GAP, GAP),
    "one value": federation(site((400, 400, 0), (400, 80, 0)), FULL),
    "heads, several labels": federation(GAP, OTHER_GAP),
    "one class": federation(single((400, 400, 0), (400, 0, 0)), LABELLED),
    "unlabelled samples": federation(single((300, 100, 100), (300, 200, 100)), LABELLED),
    "heads, one label": federation(*[LABELLED] * 2),
    "rare classes missing": federation(RARE_GAP, OTHER_RARE_GAP),
    "classes missing": federation(GAP, OTHER_GAP),
    "blank cells": federation(site((300, 80, 100), (400, 80, 0)), FULL),
    "nothing missing": federation(FULL, FULL),
    "label sets differ": federation(NEVI, MELANOMA),
    "noisy sites": federation(*[LABELLED] * 4, losses=ONE_NOISY),
    "clean and balanced": federation(*[LABELLED] * 4, losses=CLEAN),
    "clean": federation(*[UNEVEN] * 4, losses=CLEAN),
    "too few sites to judge": federation(*[LABELLED] * 3),
    "noise unknown": federation(*[LABELLED] * 4),
    "structures missing": federation(LIVER, SPLEEN),
    "structures marked": federation(ORGANS, ORGANS),
    "masks complete": federation(masks(lesions=(8, 8)), masks(lesions=(5, 5))),
    "masks partial": federation(masks(lesions=(8, 8)), masks(lesions=(2, 8))),
    "masks unknown": federation(masks(lesions=(8, 8)), masks()),
    "not told": federation(site((Q, Q, Q), (400, 80, 0)), FULL),
    "phantom": federation(site((400, 80, 0), (400, 80, 0), phantom=True), FULL),
    "not counted": federation(FULL, FULL, site((Q, Q, Q), (Q, Q, Q), problem="site-3: bad")),
    "held back": federation(site((400, Q, 0), (400, 80, 0)), FULL),
    "few samples": federation(site((189, 80, 0), (189, 80, 0), samples=189), FULL),
    "few positives": federation(site((400, 9, 0), (400, 80, 0)), FULL),
    "large sites": federation(
        site((300, 80, 0), (0, 0, 300), samples=300), site((0, 0, 300), (300, 80, 0), samples=300)
    ),
    "real images": federation(GAP, OTHER_GAP),
    "one annotator": federation(GAP, OTHER_GAP),
    "one site with the class": federation(NEVI, MELANOMA),
    "vote share": federation(*[LABELLED] * 4, losses=ONE_NOISY),
    "real volumes": federation(masks(), masks()),
    "noise, one label": federation(*[LABELLED] * 4),
    "missing and noisy": federation(NEVI, MELANOMA),
    "class without a sample": federation(single((400, 400, 0), (400, 0, 0)), LABELLED),
    "noise, several labels": federation(FULL, FULL),
    "missing, perhaps noisy": federation(GAP, OTHER_GAP),
    "two methods": federation(GAP, OTHER_GAP),
    "class not told": federation(site((400, 80, 0), (400, Q, 0)), GAP),
}


def names(facts, part=None):
    return [f.rule.name for f in advise(facts) if part in (None, f.rule.part)]


def test_every_rule_has_an_example():
    assert [rule.name for rule in RULES] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_holds_for_its_example(name):
    (found,) = (f for f in advise(EXAMPLES[name]) if f.rule.name == name)
    assert found.why.endswith(".")
    assert found.rule.part in PARTS


def test_too_few_sites_for_fednoro_are_not_sent_there_for_its_losses():
    found = {f.rule.name: f.rule.advice for f in advise(EXAMPLES["too few sites to judge"])}
    assert "FedNoRo refuses fewer than four sites" in found["too few sites to judge"]
    assert "with four sites or more, and a label for every sample, run jobs/fednoro_ich" in found["noise, one label"]


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (federation(FULL), None),
        (federation(FULL, LABELLED), None),
        (federation(site((400, 40, 0), (0, 0, 400)), site((0, 0, 400), (400, 40, 0))), "classes missing"),  # 10 %
        (federation(site((400, 39, 0), (0, 0, 400)), site((0, 0, 400), (400, 39, 0))), "rare classes missing"),
        (federation(site((400, Q, 0), (0, 0, 400)), site((0, 0, 400), (400, Q, 0))), "classes missing"),
        (federation(NEVI, LABELLED), "label sets differ"),
        (federation(single((300, 100, 100), (300, 200, 100)), LABELLED), None),
        (federation(*[LABELLED] * 4, losses=ALL_NOISY), "noise unknown"),
        (federation(*[single((400, 268, 0), (400, 132, 0))] * 4, losses=CLEAN), "clean"),  # 2.03 times
        (federation(*[single((400, Q, 0), (400, Q, 0))] * 4, losses=CLEAN), "clean"),
        (federation(single((Q, 80, Q), (Q, 80, Q)), LABELLED), "not told"),
    ],
)
def test_at_most_one_job_is_recommended_and_it_is_the_first_that_fits(facts, name):
    assert names(facts, RUN) == ([] if name is None else [name])


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("heads, several labels", federation(GAP)),
        ("heads, several labels", federation(GAP, GAP)),  # a class that no site has
        ("few samples", federation(site((190, 80, 0), (190, 80, 0), samples=190), FULL)),
        ("few positives", federation(site((400, 10, 0), (400, 80, 0)), site((400, Q, 0), (400, 0, 0)))),
        ("large sites", federation(site((299, 80, 0), (0, 0, 299), samples=299), OTHER_GAP)),
        ("large sites", federation(RARE_GAP, OTHER_RARE_GAP)),
        ("real images", federation(site((400, 80, 0), (0, 0, 400), phantom=True), OTHER_GAP)),
        ("real volumes", federation(masks(phantom=True), masks())),
        ("noise, one label", federation(*[LABELLED] * 4, losses=CLEAN)),
        ("vote share", federation(*[LABELLED] * 4, losses=CLEAN)),
        ("class without a sample", federation(NEVI, MELANOMA)),
        ("one value", federation(site((400, Q, 0), (400, 80, 0)), FULL)),
        ("missing and noisy", federation(*[LABELLED] * 4)),
        ("missing, perhaps noisy", federation(FULL, FULL)),
    ],
)
def test_a_rule_does_not_hold_where_its_reason_is_missing_or_not_told(name, facts):
    assert name not in names(facts)


def test_what_both_imperfections_at_once_do_is_said_to_be_unmeasured():
    noisy = federation(NEVI, MELANOMA, LABELLED, LABELLED, losses=ONE_NOISY)
    (found,) = (f for f in advise(noisy) if f.rule.name == "missing and noisy")
    assert found.why == "Labels are missing, and the losses take these sites for noisy: site-2."
    assert found.evidence == "not measured yet"


def test_a_long_list_is_cut():
    classes = tuple("abcdef")
    half = site(*[(400, 80, 0)], *[(0, 0, 400)] * 5)
    (found,) = (f for f in advise(federation(*[half] * 6, classes=classes)) if f.rule.name == "classes missing")
    one = "b, c, d, e and 1 more"
    sites = "; ".join(f"site-{i}: {one}" for i in range(1, 5))
    assert found.why == f"Classes that sites do not know ({sites}; and 2 more)."


# ---- evidence -------------------------------------------------------------------------------------------------------
def sections(page):
    """Heading → text below it, of a page of results."""
    parts = re.split(r"^## (.*)$", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_evidence_of_a_rule_stands_on_its_page_of_results(rule):
    if rule.evidence in (NOT_MEASURED, CHECKED):
        return
    text = sections(rule.evidence.page)[rule.evidence.section]
    numbers = re.findall(r"[+-]?\d+(?:\.\d+)?(?: ± [\d.]+)?(?: \[[^\]]+\])?(?: %)?", rule.evidence.numbers)
    assert numbers
    assert [n for n in numbers if n not in text] == []
    assert str(rule.evidence).endswith(f"(docs/{rule.evidence.page}, {rule.evidence.section})")


def test_no_advice_rests_on_a_section_that_says_it_is_no_evidence():
    titles = {title for page in ROOT.glob("docs/results*.md") for title in sections(page.name)}
    tests_of_the_path = {title for title in titles if "not evidence" in title}
    assert len(tests_of_the_path) == 1
    assert tests_of_the_path.isdisjoint(rule.evidence.section for rule in RULES)


@pytest.mark.parametrize("rule", [r for r in RULES if r.job], ids=lambda rule: rule.name)
def test_the_job_of_a_rule_and_its_variants_exist(rule):
    problem = json.loads((ROOT / f"jobs/{rule.job}/app/config/config_fed_server.json").read_text())["problem"]
    folders = (ROOT / "jobs/variants" / problem, ROOT / f"jobs/{rule.job}/variants")
    known = {file.stem for folder in folders for file in folder.glob("*.json")}
    assert {rule.variant, *(rule.rows or ())} - {""} <= known
