import numpy as np

from fedmend.advice.label_audit import HELD_BACK, SiteLabels
from fedmend.report.audit import audit_page


def columns(*classes):
    """(3, C) counts from annotated, positive and missing of each class."""
    return np.array(classes).T


def site(*classes, samples=100, **more):
    return SiteLabels(samples=samples, counts=columns(*classes), **more)


def cells(page, row):
    """Text of the cells in the row of a class."""
    line = page.split(f'<th scope="row">{row}</th>')[1].split("</tr>")[0]
    return [c.split(">", 1)[1].replace("<small>", " / ").replace("</small>", "") for c in line.split("</td>")[:-1]]


def test_the_page_has_a_row_for_each_class_and_sums():
    sites = {"site-1": site((100, 40, 0), (0, 0, 100)), "site-2": site((60, 9, 40), (0, 0, 100))}
    page = audit_page(sites, ("edema", "nodule"))
    expected = ["40 of 100 / 0 missing", "9 of 60 / 40 missing", "49 of 160 / 40 missing", "2 of 2"]
    assert [c.removeprefix("<td>") for c in cells(page, "edema")] == expected
    assert cells(page, "nodule")[0] == "not annotated / 100 missing"
    assert cells(page, "nodule")[-1] == "no site"
    assert cells(page, "training samples")[:3] == ["100", "100", "200"]
    assert "2 of 2 sites counted" in page
    assert "PHANTOM" not in page


def test_a_number_that_was_held_back_is_no_zero_and_makes_sums_lower_bounds():
    sites = {"site-1": site((HELD_BACK, 40, HELD_BACK)), "site-2": site((60, HELD_BACK, 40))}
    page = audit_page(sites, ("edema",))
    assert cells(page, "edema")[:3] == ["40 of ? / ? missing", "? of 60 / 40 missing", "≥ 40 of ≥ 60 / ≥ 40 missing"]
    assert cells(page, "edema")[3].endswith("≥ 1 of 2")


def test_a_site_that_may_have_no_positive_sample_is_not_said_to_have_one():
    sites = {"site-1": site((HELD_BACK, HELD_BACK, HELD_BACK)), "site-2": site((100, 0, 0))}
    assert cells(audit_page(sites, ("edema",)), "edema")[-1].endswith("≥ 0 of 2")


def test_synthetic_labels_are_marked():
    assert '<span class="badge">PHANTOM</span>' in audit_page({"site-1": site((9, 5, 0), phantom=True)}, ("edema",))
    mixed = audit_page({"site-1": site((9, 5, 0), phantom=True), "site-2": site((9, 5, 0))}, ("edema",))
    assert ">site-1 (PHANTOM)<" in mixed
    assert "Every label counted at site-1 is synthetic" in mixed


def test_a_site_that_was_not_counted_has_its_sentence_instead_of_a_column():
    problem = "site-2: train.csv row 3: expected <b>"
    page = audit_page({"site-1": site((9, 5, 0)), "site-2": site((-1, -1, -1), samples=0, problem=problem)}, ("edema",))
    assert "1 of 2 sites counted" in page
    assert "<strong>site-2 was not counted.</strong> train.csv row 3: expected &lt;b&gt;" in page
    assert ">site-2<" not in page
    assert cells(page, "edema")[1] == "5 of 9 / 0 missing"


def test_the_page_of_no_counted_site_tells_no_numbers():
    page = audit_page({"site-1": site((-1, -1, -1), samples=0, problem="site-1: bad")}, ("edema",))
    assert "0 of 1 sites counted" in page
    assert '<th scope="row">edema</th>' not in page


def test_the_page_has_the_advice_of_the_table_of_rules():
    sites = {
        "site-1": site((400, 80, 0), (0, 0, 400), samples=400, kind="multilabel"),
        "site-2": site((0, 0, 400), (400, 80, 0), samples=400, kind="multilabel"),
    }
    advice = audit_page(sites, ("edema", "<i>")).split('<section id="advice">')[1]
    assert "Why: Classes that sites do not know (site-1: &lt;i&gt;; site-2: edema)." in advice
    assert "Evidence: FedMLP minus FedAvg-PL +1.6 [0.4, 2.9] AUC" in advice
    assert "<code>fedmend configure jobs/fedmlp_ich advised --sites 2 --set run_name=advised" in advice
    assert "<i>" not in advice


def test_the_page_recommends_no_job_where_there_is_none():
    advice = audit_page({"site-1": site((9, 5, 0))}, ("edema",)).split('<section id="advice">')[1]
    assert "<h3>Recommendation</h3>\n<p>No job yet: see the other points.</p>" in advice
    assert "<h3>Next</h3>" not in advice
