import numpy as np
import pytest
from factories import CLASSES, make_site_folder, refused
from nifti_factories import lesion, make_volume_site

from fedmend.data.manifest import load_card
from fedmend.label_audit import HELD_BACK, SiteLabels, audit_page, count_labels, hold_back

NO_LESION = np.zeros((8, 8, 4), dtype=bool)


def columns(*classes):
    """(3, C) counts from annotated, positive and missing of each class."""
    return np.array(classes).T


def told(*classes, min_count=5, one_label=False):
    """Annotated, positive and missing of each class after the small ones were held back; None is held back."""
    left = hold_back(columns(*classes), min_count=min_count, one_label=one_label)
    return [tuple(None if n == HELD_BACK else n for n in c) for c in left.T.tolist()]


def test_labels_of_the_training_split_are_counted(tmp_path):
    folder = make_site_folder(tmp_path / "site", splits=("val", "test"))
    counts = count_labels(load_card(folder, "site-1"), CLASSES)
    assert counts.tolist() == [[5, 0, 5], [2, 0, 2], [1, 6, 1]]


def test_classes_are_counted_in_the_order_of_the_job(tmp_path):
    folder = make_site_folder(tmp_path / "site")
    counts = count_labels(load_card(folder, "site-1"), CLASSES[1:] + CLASSES[:1])
    assert counts[2].tolist() == [6, 1, 1]


def test_one_label_per_sample_counts_for_all_classes(tmp_path):
    folder = make_site_folder(tmp_path / "site", [0, 0, 2, -1])
    assert count_labels(load_card(folder, "site-1"), CLASSES).tolist() == [[3, 3, 3], [2, 0, 1], [1, 1, 1]]


def test_no_image_is_opened(tmp_path):
    folder = make_site_folder(tmp_path / "site")
    volumes = make_volume_site(tmp_path / "volumes")
    for image in (*folder.glob("images/*"), *volumes.glob("images/*")):
        image.unlink()
    assert count_labels(load_card(folder, "site-1"), CLASSES)[0].tolist() == [5, 0, 5]
    assert count_labels(load_card(volumes, "site-1"), ["lesion"]).tolist() == [[2], [2], [0]]


def test_volumes_are_counted_by_whether_their_mask_has_a_lesion(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(), NO_LESION, lesion()], foreground=3)
    assert count_labels(load_card(folder, "site-1"), ["lesion"]).tolist() == [[3], [2], [0]]


def test_a_mask_that_cannot_be_read_is_named_by_its_number(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    (folder / "labels" / "case-2.nii.gz").unlink()
    card = load_card(folder, "site-1")
    with refused("site-1: datalist.json, training item 2, image: expected a NIfTI file, not found"):
        count_labels(card, ["lesion"])


def test_other_classes_than_the_job_s_are_refused(tmp_path):
    card = load_card(make_site_folder(tmp_path / "site"), "site-1")
    with refused(
        "site-1: site.json, field classes: expected the job's ['edema'], got ['edema', 'fracture', 'nodule']"
        " (missing here: [], unknown to the job: ['fracture', 'nodule'])"
    ):
        count_labels(card, ["edema"])


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        ((100, 40, 0), (100, 40, 0)),
        ((100, 5, 5), (100, 5, 5)),
        ((0, 0, 100), (0, 0, 100)),
        ((100, 0, 0), (100, 0, 0)),
        ((100, 4, 0), (100, None, 0)),
        ((100, 97, 0), (100, None, 0)),  # three negative ones
        ((100, 40, 3), (None, 40, None)),
        ((3, 2, 100), (None, None, None)),
        ((3, 0, 100), (None, None, None)),
    ],
)
def test_small_counts_and_what_tells_them_are_held_back(counts, left):
    assert told(counts) == [left]


@pytest.mark.parametrize("min_count", [0, 1])
def test_a_site_without_a_minimum_tells_everything(min_count):
    assert told((100, 1, 2), min_count=min_count) == [(100, 1, 2)]


def test_a_class_says_nothing_about_another_one_where_samples_have_several_labels():
    assert told((100, 4, 0), (100, 30, 0), (100, 20, 0)) == [(100, None, 0), (100, 30, 0), (100, 20, 0)]


@pytest.mark.parametrize(
    ("counts", "positive"),
    [
        ([(100, 4, 0), (100, 60, 0), (100, 36, 0), (100, 0, 0)], [None, 60, None, 0]),
        ([(100, 50, 3), (100, 30, 3), (100, 20, 3)], [50, 30, None]),
        ([(100, 50, 0), (100, 50, 0)], [50, 50]),
        ([(100, 97, 0), (100, 3, 0)], [None, None]),
    ],
)
def test_where_samples_have_one_label_a_sum_does_not_tell_what_was_held_back(counts, positive):
    assert [c[1] for c in told(*counts, one_label=True)] == positive


def site(*classes, samples=100, **more):
    return SiteLabels(samples, columns(*classes), **more)


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
