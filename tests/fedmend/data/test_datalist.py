import pytest
from factories import refused
from nifti_factories import (
    make_volume_site,
    open_volumes,
    with_card,
    with_item,
    write_datalist,
)

from fedmend.data.card import load_card
from fedmend.data.datalist import load_datalist

ITEM = "site-1: datalist.json, training item 2"
PATHS = "expected a path below its folder, got another"
MASK = "expected a mask of its own, or that of another image of the same patient, got that of item 1"
NO_SLICES = ", field slices: expected different slice numbers from 0, got something else"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image": "../images/case-2.nii.gz"}, f", field image: {PATHS}"),
        ({"image": "/etc/passwd"}, f", field image: {PATHS}"),
        ({"label": "labels/../../case-2.nii.gz"}, f", field label: {PATHS}"),
        ({"label": "/labels/case-2.nii.gz"}, f", field label: {PATHS}"),
        ({"label": None}, ", field label: expected a path, got none"),
        ({"image": ["case-2.nii.gz"]}, ", field image: expected a path, got none"),
        ({"image": "case-1.nii.gz"}, ": expected each image once, got that of item 1"),
        ({"image": "./case-1.nii.gz"}, ": expected each image once, got that of item 1"),
        ({"label": "./labels/case-1.nii.gz"}, f", field label: {MASK}"),
        ({"label": "labels/case-1.nii.gz", "patient": "p1"}, f", field label: {MASK}"),
        ({"patient": ["p1"]}, ", field patient: expected a text or a number, got another type"),
        ({"patient": True}, ", field patient: expected a text or a number, got another type"),
        ({"slices": []}, NO_SLICES),
        ({"slices": [1, 1]}, NO_SLICES),
        ({"slices": [-1]}, NO_SLICES),
        ({"slices": [True]}, NO_SLICES),
        ({"slices": "all"}, NO_SLICES),
        ({"slices": [0, 4]}, ", field slices: expected numbers below 4, got a larger one"),
    ],
)
def test_an_item_that_breaks_a_field_is_one_sentence(tmp_path, fields, sentence):
    folder = with_item(make_volume_site(tmp_path / "site"), number=1, **fields)
    with refused(ITEM + sentence):
        open_volumes(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "expected below the folder of site.json, not found"),
        (b"{", "expected JSON, got a file that does not parse"),
        (b"\xff", "expected JSON, got a file that does not parse"),
        (b'{"PATIENT-4711": 1, "PATIENT-4711": 2}', "expected each name once in an object, got one twice"),
        (b"[]", "expected a list under 'training', got none"),
        (b'{"test": []}', "expected a list under 'training', got none"),
        (b'{"training": {}}', "expected a list under 'training', got none"),
        (b'{"training": []}', "expected annotated training volumes, got no volumes"),
    ],
)
def test_a_datalist_that_cannot_be_used_is_one_sentence(tmp_path, content, sentence):
    folder = make_volume_site(tmp_path / "site")
    (folder / "datalist.json").unlink()
    if content is not None:
        (folder / "datalist.json").write_bytes(content)
    with refused(f"site-1: datalist.json: {sentence}"):
        open_volumes(folder)


def test_an_item_must_name_image_and_label(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    write_datalist(folder, {"training": ["case-1.nii.gz"]})
    with refused(
        "site-1: datalist.json, training item 1: expected image and label, got another kind of entry",
    ):
        open_volumes(folder)


def test_a_section_that_the_card_promises_must_be_there(tmp_path):
    folder = with_card(make_volume_site(tmp_path / "site"), splits={"train": "datalist.json", "val": "datalist.json"})
    with refused("site-1: datalist.json: expected a list under 'validation', got none"):
        open_volumes(folder)


def test_a_datalist_is_read_in_its_order(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[3, 1], [0]])
    items = load_datalist(load_card(folder, "site-1"), "datalist.json", "train")
    assert [(item.name, item.slices) for item in items] == [("case-1.nii.gz", (1, 3)), ("case-2.nii.gz", (0,))]
    assert items[0].image == (folder / "images" / "case-1.nii.gz").resolve()
    assert items[0].label == folder / "labels" / "case-1.nii.gz"


def test_two_images_of_a_patient_may_have_one_mask(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    for number, patient in enumerate(["7", 7.0]):
        with_item(folder, number=number, label="labels/case-1.nii.gz", patient=patient)
    items = load_datalist(load_card(folder, "site-1"), "datalist.json", "train")
    assert {item.label.name for item in items} == {"case-1.nii.gz"}


@pytest.mark.parametrize(("given", "patient"), [("p7", "p7"), (7, "7"), (7.0, "7"), ("7.0 ", "7"), (None, "")])
def test_an_item_may_name_its_patient(tmp_path, given, patient):
    folder = with_item(make_volume_site(tmp_path / "site"), number=1, patient=given)
    items = load_datalist(load_card(folder, "site-1"), "datalist.json", "train")
    assert [item.patient for item in items] == ["", patient]


def test_an_item_has_the_fields_that_the_card_names(tmp_path):
    folder = with_card(make_volume_site(tmp_path / "site"), columns=["sex", "age"])
    with_item(folder, number=0, sex=" F ", age=41, study="s1", scanner="x")
    about = [item.about for item in load_datalist(load_card(folder, "site-1"), "datalist.json", "train")]
    assert about == [{"study": "s1", "sex": "F", "age": "41"}, {}]
    with_item(folder, number=1, age=[41])
    with refused(f"{ITEM}, field age: expected a text or a number, got another type"):
        load_datalist(load_card(folder, "site-1"), "datalist.json", "train")
