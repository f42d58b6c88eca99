import nibabel
import numpy as np
import pytest
from factories import CLASSES, LABELS, make_site_folder, refused
from nifti_factories import GREY, RAS, SHAPE, ZYX, as_zyx, lesion, make_volume_site, open_volumes, voxels, write_nifti

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.review.exports import ClassVerdicts, Reviewer, sign_off_page, write_masks, write_table

SINGLE = np.array([0, 2, -1])
# Every way to write a field: other quotation marks, ends of lines and blanks than a writer of today would choose.
ODD = (
    b'\xef\xbb\xbf"image",patient,nodule,"edema"\r\n'
    b'"a,1.png","p ""x""",0,"1"\r\n'
    b" b.png , p2 ,,\n"
    b"\n"
    b"c.png,p3, 1 ,0\r\n"
    b'"a,1.png",nan,0,1'
)


def opened(folder):
    card = load_card(folder, "site-1")
    return card, load_table(card, "train.csv", CLASSES)


def with_text(folder, content):
    """A site folder whose table has this content."""
    make_site_folder(folder)
    (folder / "train.csv").write_bytes(content)
    return opened(folder)


# ---- label tables ---------------------------------------------------------------------------------------------------
def test_a_corrected_table_differs_in_the_corrected_labels_alone(tmp_path):
    card, table = opened(make_site_folder(tmp_path / "site"))
    labels = LABELS.copy()
    labels[0, 0], labels[2, 0], labels[4, 2] = 0, 1, -1
    before = (tmp_path / "site" / "train.csv").read_bytes()
    assert write_table(card, table, labels, tmp_path / "new" / "train.csv") == 3
    lines = before.decode().splitlines()
    assert lines[1] == "img0.png,p0,1,0"
    assert lines[3] == "img2.png,p2,,0"
    assert lines[5] == "img4.png,p4,1,1"
    lines[1], lines[3], lines[5] = "img0.png,p0,0,0", "img2.png,p2,1,0", "img4.png,p4,1,"
    assert (tmp_path / "new" / "train.csv").read_bytes().decode() == "\r\n".join([*lines, ""])
    assert (tmp_path / "site" / "train.csv").read_bytes() == before


def test_what_is_not_corrected_is_copied_to_the_byte(tmp_path):
    card, table = with_text(tmp_path / "site", ODD)
    assert write_table(card, table, table.labels, tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_bytes() == ODD


def test_a_corrected_cell_keeps_its_quotation_marks_and_all_rows_of_the_image_get_it(tmp_path):
    card, table = with_text(tmp_path / "site", ODD)
    assert table.images == ("a,1.png", "b.png", "c.png")
    labels = table.labels.copy()
    labels[:, 0] = (0, 1, 0)  # edema was 1, blank, 0
    assert write_table(card, table, labels, tmp_path / "out.csv") == 3
    expected = ODD.replace(b'0,"1"\r', b'0,"0"\r').replace(b"p2 ,,\n", b"p2 ,,1\n").replace(b"nan,0,1", b"nan,0,0")
    assert (tmp_path / "out.csv").read_bytes() == expected


def test_rows_that_spell_the_path_of_an_image_in_another_way_get_its_corrected_label(tmp_path):
    card, table = with_text(tmp_path / "site", b"image,edema\na/1.png,1\n./a//1.png,1\n")
    assert write_table(card, table, np.array([[0, -1, -1]], np.int8), tmp_path / "out.csv") == 2
    assert (tmp_path / "out.csv").read_bytes() == b"image,edema\na/1.png,0\n./a//1.png,0\n"


def test_a_class_without_a_column_gets_one_when_a_sample_has_a_label_in_it(tmp_path):
    card, table = with_text(tmp_path / "site", ODD)
    labels = table.labels.copy()
    labels[2, 1] = 1
    assert write_table(card, table, labels, tmp_path / "out.csv") == 1
    lines = (tmp_path / "out.csv").read_bytes().split(b"\n")
    assert lines[0] == ODD.split(b"\r")[0] + b",fracture\r"
    assert lines[1:] == [
        b'"a,1.png","p ""x""",0,"1",\r',
        b" b.png , p2 ,,,",
        b"",
        b"c.png,p3, 1 ,0,1\r",
        b'"a,1.png",nan,0,1,',
    ]


def test_every_row_of_a_study_gets_its_corrected_label(tmp_path):
    folder = make_site_folder(tmp_path / "s", [[1, 0, 0]] * 2 + [[0, 1, 1]], studies=["s1", "s1", "s2"])
    card = load_card(folder, "site-1")
    table = load_table(card, "train.csv", CLASSES)
    labels = np.array([[1, 0, 1], [0, 1, 1]], dtype=np.int8)
    assert write_table(card, table, labels, tmp_path / "out.csv") == 2
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert [row[-5:] for row in rows[1:]] == ["1,0,1", "1,0,1", "0,1,1"]


def test_the_copy_is_read_back_as_the_corrected_labels(tmp_path):
    card, table = opened(make_site_folder(tmp_path / "site"))
    labels = np.random.default_rng(0).integers(-1, 2, LABELS.shape).astype(np.int8)
    write_table(card, table, labels, tmp_path / "site" / "corrected.csv")
    assert np.array_equal(load_table(card, "corrected.csv", CLASSES).labels, labels)


def test_a_single_label_is_another_class_or_blank(tmp_path):
    classes = ("edema", 'a "rare", class', "nodule")
    folder = make_site_folder(tmp_path / "site", SINGLE, classes=classes)
    content = (folder / "train.csv").read_text().replace("image,patient,label", "image,patient,label,age")
    rows = content.splitlines()
    (folder / "train.csv").write_text("\n".join([rows[0], *(f"{row},7{n}" for n, row in enumerate(rows[1:]))]))
    card = load_card(folder, "site-1")
    table = load_table(card, "train.csv", classes)
    labels = np.array([[0, 1, 0], [0, 0, 0], [-1, -1, 1]], dtype=np.int8)
    assert write_table(card, table, labels, tmp_path / "out.csv") == 3
    assert (tmp_path / "out.csv").read_text().splitlines()[1:] == [
        'img0.png,p0,"a ""rare"", class",70',
        "img1.png,p1,,71",
        "img2.png,p2,nodule,72",
    ]


def test_rows_of_samples_that_were_left_out_are_copied(tmp_path):
    card, table = opened(make_site_folder(tmp_path / "site"))
    (tmp_path / "site" / "train.csv").write_bytes(
        (tmp_path / "site" / "train.csv").read_bytes() + b"late.png,p9,1,1\r\n"
    )
    assert write_table(card, table, table.labels, tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_bytes().endswith(b"late.png,p9,1,1\r\n")


@pytest.mark.parametrize("name", ["train.csv", "truth.csv", "site.json", "images/../train.csv", "link.csv"])
def test_no_file_of_the_site_is_written_over(tmp_path, name):
    card, table = opened(make_site_folder(tmp_path / "site", truth=np.zeros((6, 3), dtype=int)))
    (tmp_path / "site" / "link.csv").symlink_to("train.csv")
    before = {path.name: path.read_bytes() for path in (tmp_path / "site").glob("*.*")}
    with refused("site-1: train.csv: expected another file for the corrected copy, got one that the site card names"):
        write_table(card, table, table.labels, tmp_path / "site" / name)
    assert {path.name: path.read_bytes() for path in (tmp_path / "site").glob("*.*")} == before


def test_a_table_that_changed_since_is_refused_and_nothing_is_written(tmp_path):
    card, table = opened(make_site_folder(tmp_path / "site"))
    content = (tmp_path / "site" / "train.csv").read_text()
    (tmp_path / "site" / "train.csv").write_text(content.replace("p4,1,1", "p4,0,1"))
    with refused("site-1: train.csv: expected the labels that were read before, got others; begin again"):
        write_table(card, table, table.labels, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("tail", [b'"img9.png,p9,1,1\n', b'"img9.png,p9,1,1'])
def test_a_quotation_mark_without_its_partner_is_refused(tmp_path, tail):
    card, table = opened(make_site_folder(tmp_path / "site"))
    with open(tmp_path / "site" / "train.csv", "ab") as stream:
        stream.write(tail)
    with refused("site-1: train.csv: expected quotation marks in pairs, got one without its partner"):
        write_table(card, table, table.labels, tmp_path / "out.csv")


def test_several_classes_in_a_single_label_are_refused(tmp_path):
    card, table = opened(make_site_folder(tmp_path / "site", SINGLE))
    with refused("site-1: train.csv: expected one class for each sample, got several"):
        write_table(card, table, np.ones((3, 3), dtype=np.int8), tmp_path / "out.csv")


# ---- masks ----------------------------------------------------------------------------------------------------------
def test_repaired_volumes_have_the_geometry_of_the_originals_which_stay(tmp_path):
    masks = [lesion(((1, 3), (5, 8), (1, 3)), shape=SHAPE)] * 2
    folder = make_volume_site(tmp_path / "site", masks, test=(), affine=RAS, window=GREY, foreground=3)
    for part, values in (("images", voxels(1, SHAPE)), ("labels", (masks[1] * 3).astype(np.int16))):
        write_nifti(folder / part / "case-2.nii.gz", as_zyx(values), ZYX)
    original = (folder / "labels" / "case-2.nii.gz").read_bytes()
    train = open_volumes(folder, size=2).train
    change = np.zeros(train.masks.shape, dtype=np.int8)
    row = int(np.flatnonzero((train.case == 1) & (train.plane == 0))[0])
    change[row, 0, 0] = 1  # front left: x 0..2, y 4..7
    assert write_masks(load_card(folder, "site-1"), train, change, tmp_path / "out" / "masks", ["lesion"]) == 1
    (file,) = (tmp_path / "out" / "masks").iterdir()
    assert file.name == "002-case-2.nii.gz"
    image = nibabel.load(file)
    expected = masks[1] * 3
    expected[:3, 4:, 0] = 3
    assert np.array_equal(np.asarray(image.dataobj), as_zyx(expected))
    assert np.array_equal(image.affine, ZYX)
    assert image.get_data_dtype() == np.int16
    assert (folder / "labels" / "case-2.nii.gz").read_bytes() == original


def test_a_folder_that_holds_something_is_refused(tmp_path):
    folder = make_volume_site(tmp_path / "site", test=(), window=GREY)
    card, train = load_card(folder, "site-1"), open_volumes(folder).train
    nothing = np.zeros(train.masks.shape, np.int8)
    with refused("site-1: repaired masks: expected a new or an empty folder, got another"):
        write_masks(card, train, nothing, folder / "labels", ["lesion"])
    (tmp_path / "empty").mkdir()
    assert write_masks(card, train, nothing, tmp_path / "empty", ["lesion"]) == 0


# ---- the page to sign -----------------------------------------------------------------------------------------------
VERDICTS = [
    ClassVerdicts("edema", 20, accepted=9, rejected=4, relabelled=2, unsure=1),
    ClassVerdicts("nodule", 1005, rejected=5),
]
REVIEWERS = [Reviewer("A<b>", 15, "2026-11-02 08:00", "2026-11-03 09:30"), Reviewer("CD", 6, "1", "2")]


def cells(page, name):
    row = page.split(f'<th scope="row">{name}</th>')[1].split("</tr>")[0]
    return [cell.split(">")[1] for cell in row.split("</td>")[:-1]]


def test_the_page_to_sign_counts_what_was_said_of_each_class_and_by_whom():
    page = sign_off_page("a<b>", "0123456789abcdef" * 4, VERDICTS, REVIEWERS, phantom=False)
    assert cells(page, "edema") == ["20", "9", "4", "2", "1", "4"]
    assert cells(page, "nodule") == ["1,005", "0", "5", "0", "0", "1,000"]
    assert cells(page, "all") == ["1,025", "9", "9", "2", "1", "1,004"]
    assert cells(page, "A&lt;b&gt;") == ["15", "2026-11-02 08:00", "2026-11-03 09:30"]
    assert "Site: a&lt;b&gt;. Data set: 0123456789ab. Classes: edema, nodule." in page
    assert all(f"<span>{word}</span>" in page for word in ("name", "date", "signature"))
    assert "PHANTOM" not in page


def test_a_page_without_a_verdict_says_so():
    page = sign_off_page("site-1", "0" * 64, VERDICTS[:1], [], phantom=True)
    assert "Nobody has given a verdict." in page
    assert '<th scope="row">all</th>' not in page
    assert "PHANTOM data." in page


def test_the_page_to_sign_holds_no_image_and_asks_for_nothing():
    page = sign_off_page("site-1", "0" * 64, VERDICTS, REVIEWERS, phantom=True)
    assert not any(word in page for word in ("<img", "img-src", "://", "<script", "src="))
