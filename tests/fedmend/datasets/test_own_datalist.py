"""A datalist of MONAI as a site folder."""

import json
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch
from factories import refused, write_png

from fedmend.data.card import load_card
from fedmend.data.datalist import load_datalist
from fedmend.data.site import Opening
from fedmend.data.slices import load_volumes
from fedmend.data.tables import load_table
from fedmend.data.volumes import read_pair
from fedmend.datasets.own_datalist import prepare
from fedmend.datasets.own_site import SiteChoices, done

CHOICES = SiteChoices(test_share=0.25, val_share=0)
CASES = 8


def volume(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)


@pytest.fixture
def decathlon(tmp_path):
    """Writes volumes with masks and their datalist, as the Decathlon has them; gives the latter's path."""

    def write(value=1, **sections):
        for i in range(CASES):
            rng = np.random.default_rng(i)
            volume(tmp_path / "data" / "imagesTr" / f"{i}.nii.gz", rng.integers(1, 900, (6, 6, 4)).astype(np.int16))
            volume(
                tmp_path / "data" / "labelsTr" / f"{i}.nii.gz", (rng.random((6, 6, 4)) > 0.5).astype(np.uint8) * value
            )
        items = [
            {"image": f"./imagesTr/{i}.nii.gz", "label": f"./labelsTr/{i}.nii.gz", "fold": 0} for i in range(CASES)
        ]
        listed = {"name": "MS", "training": items, "test": ["./imagesTs/99.nii.gz"], **sections}
        (tmp_path / "data" / "dataset.json").write_text(json.dumps(listed))
        return tmp_path / "data" / "dataset.json"

    return write


def cases(out):
    card = load_card(out, "site-1")
    return card, {split: load_datalist(card, file, split) for split, file in card.splits.items()}


def test_every_volume_keeps_its_mask_and_a_share_is_held_out(decathlon, tmp_path):
    told = []
    prepare(decathlon(), tmp_path / "out", choices=CHOICES, progress=told.append)
    card, found = cases(tmp_path / "out")
    assert (card.kind, card.classes, card.window, card.foreground) == ("segmentation", ("lesion",), None, 1)
    assert {split: len(items) for split, items in found.items()} == {"train": 6, "test": 2}
    assert len({item.name for items in found.values() for item in items}) == CASES
    for item in (item for items in found.values() for item in items):
        original = item.name.replace("images", "labels")
        mask = np.asarray(nibabel.load(tmp_path / "data" / original).dataobj)
        assert np.array_equal(read_pair(item, "case")[1], mask == 1)
    assert "1 items without label are left out" in told


def test_sections_of_the_list_are_kept(decathlon, tmp_path):
    def items(numbers):
        return [{"image": f"imagesTr/{i}.nii.gz", "label": f"labelsTr/{i}.nii.gz"} for i in numbers]

    source = decathlon(training=items(range(5)), validation=items([5]), test=items([6, 7]))
    prepare(source, tmp_path / "out", choices=SiteChoices(test_share=0.5, val_share=0.5))
    _, found = cases(tmp_path / "out")
    assert {split: len(items) for split, items in found.items()} == {"train": 5, "val": 1, "test": 2}
    assert [item.name for item in found["test"]] == ["imagesTr/6.nii.gz", "imagesTr/7.nii.gz"]
    notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
    assert notes["splits"] == "as in the list: train 5, val 1, test 2 images"


def test_the_card_says_which_splits_of_labelled_pictures_were_drawn(tmp_path):
    items = [{"image": f"{i}.png", "label": [i % 2], "patient": f"p{i}"} for i in range(8)]
    for i in range(8):
        write_png(tmp_path / f"{i}.png", i)
    lists = {"none": {"training": items}, "test": {"training": items[:6], "test": items[6:]}}
    lists["all"] = {"training": items[:4], "validation": items[4:6], "test": items[6:]}
    found = {}
    for name, listed in lists.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(listed))
        prepare(tmp_path / f"{name}.json", tmp_path / name, choices=SiteChoices(test_share=0.25, val_share=0.3))
        found[name] = json.loads((tmp_path / name / "site.json").read_text())["notes"]["splits"]
    assert found == {
        "none": "drawn with seed 1037 by patient: train 4, test 2, val 2 images",
        "test": "test as in the list, the others drawn with seed 1037 by patient: train 4, val 2, test 2 images",
        "all": "as in the list: train 4, val 2, test 2 images",
    }


def test_slices_of_the_list_are_kept_and_other_fields_are_named(decathlon, tmp_path):
    source, told = decathlon(), []
    listed = json.loads(source.read_text())
    listed["training"][0] |= {"slices": [3, 1], "scanner": "A", "patient_id": 7}
    source.write_text(json.dumps(listed))
    prepare(source, tmp_path / "out", choices=replace(CHOICES, test_share=0), progress=told.append)
    _, found = cases(tmp_path / "out")
    assert [item.slices for item in found["train"]] == [(1, 3), *[None] * 7]
    assert "fields of items that are left out: fold, scanner" in told
    listed["training"][0]["slices"] = [1, 1]
    source.write_text(json.dumps(listed))
    with refused(
        "dataset.json, training item 1, field slices: expected different slice numbers from 0, got something else"
    ):
        prepare(source, tmp_path / "other", choices=CHOICES)


def test_items_in_sections_of_other_names_are_counted(decathlon, tmp_path):
    told, item = [], {"image": "imagesTr/0.nii.gz", "label": "labelsTr/0.nii.gz"}
    prepare(decathlon(val=[item], testing=[item] * 2), tmp_path / "out", choices=CHOICES, progress=told.append)
    words = "WARNING: 3 items under 'val', 'testing' are left out; sections are training, validation, test"
    assert words in told


def test_volumes_of_a_patient_stay_in_one_split(decathlon, tmp_path):
    source = decathlon()
    listed = json.loads(source.read_text())
    for i, item in enumerate(listed["training"]):
        item["patient"] = f"Jane {i // 2}"
    source.write_text(json.dumps(listed))
    prepare(source, tmp_path / "out", choices=CHOICES)
    _, found = cases(tmp_path / "out")
    owners = [{int(item.name.split("/")[1][0]) // 2 for item in items} for items in found.values()]
    assert not set.intersection(*owners)
    assert "Jane" not in (tmp_path / "out" / "datalist.json").read_text()


def test_masks_of_another_value_are_read_with_it(decathlon, tmp_path):
    prepare(decathlon(value=4), tmp_path / "out", choices=CHOICES, classes=("plaque",))
    card, found = cases(tmp_path / "out")
    assert (card.foreground, card.classes) == (4, ("plaque",))
    assert read_pair(found["train"][0], "case", card.label_values("train", card.classes))[1].any()


def test_masks_of_several_values_are_refused(decathlon, tmp_path):
    source = decathlon()
    volume(tmp_path / "data" / "labelsTr" / "1.nii.gz", np.arange(144, dtype=np.uint8).reshape(6, 6, 4) % 3)
    with refused(
        "labels: expected masks of 0 and one other value, got 2 other values; name the structures with --classes, or"
        " write masks of one of them first"
    ):
        prepare(source, tmp_path / "out", choices=CHOICES)


@pytest.mark.parametrize(
    ("label", "given", "kind", "classes", "row"),
    [
        (2, ("x", "y", "z"), "singlelabel", ("x", "y", "z"), [0, 0, 1]),
        (2, (), "singlelabel", ("class_0", "class_1", "class_2"), [0, 0, 1]),
        ([1, 0, None], ("x", "y", "z"), "multilabel", ("x", "y", "z"), [1, 0, -1]),
    ],
)
def test_class_numbers_and_lists_of_classes_become_tables(tmp_path, label, given, kind, classes, row):
    items = []
    for i in range(CASES):
        write_png(tmp_path / "data" / f"{i}.png", i)
        items.append({"image": f"{i}.png", "label": i % 3 if i and isinstance(label, int) else label})
    (tmp_path / "data" / "list.json").write_text(json.dumps({"training": items}))
    prepare(tmp_path / "data" / "list.json", tmp_path / "out", classes=given, choices=CHOICES)
    card = load_card(tmp_path / "out", "site-1")
    assert (card.kind, set(card.classes)) == (kind, set(classes))
    tables = [load_table(card, file, classes) for file in card.splits.values()]
    assert [len(table.images) for table in tables] == [6, 2]
    rows = {image: labels.tolist() for t in tables for image, labels in zip(t.images, t.labels, strict=True)}
    assert rows["0.png"] == row


GOOD = {"image": "imagesTr/0.nii.gz", "label": "labelsTr/0.nii.gz"}
BELOW = "dataset.json, training item 1, field image: expected one path below the folder of the images, got none"
ANOTHER = "dataset.json, training item {}, field label: expected a mask (NIfTI), a class number or a list of 0 and 1,"
ANOTHER += " got another"


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([{**GOOD, "image": "../x.nii.gz"}], BELOW),
        ([{**GOOD, "image": ["a", "b"]}], BELOW),
        ([7], BELOW),
        ([{**GOOD, "label": "../../x.nii.gz"}], "dataset.json, training item 1, field label: expected a file below the"
         " folder of the images, got another"),
        ([{**GOOD, "image": "no.nii.gz"}], "dataset.json, training item 1, field image: expected a file below the"
         " folder of the images, not found"),
        ([GOOD, {**GOOD, "label": 1}], "dataset.json, training item 2, field label: expected a label for segmentation,"
         " as before, got one for singlelabel"),
        ([GOOD, {**GOOD, "label": "benign"}], ANOTHER.format(2)),
        ([{**GOOD, "label": 10**20}], ANOTHER.format(1)),
        ([{**GOOD, "label": [0, 1]}, {**GOOD, "label": [0, 1, 1]}], "dataset.json, training item 2, field label:"
         " expected a list for 2 classes, got one of 3 numbers"),
        ([GOOD] * 3, "dataset.json: expected each image once, got 2 repeated"),
        (["a", "b"], "dataset.json: expected items with a label, got none"),
        (None, "dataset.json: expected a list under 'training', got none"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_used_is_refused(decathlon, tmp_path, items, sentence):
    source = decathlon(training=items, test=[])
    with refused(sentence):
        prepare(source, tmp_path / "out", choices=CHOICES)
    assert not (tmp_path / "out").exists()


def test_a_class_number_beyond_the_classes_that_are_named_is_refused(decathlon, tmp_path):
    source = decathlon(training=[{**GOOD, "label": n} for n in (0, 1, 2)], test=[])
    where = "dataset.json, training item 3, field label"
    with refused(f"{where}: expected the number of one of 2 classes, from 0, got a larger one"):
        prepare(source, tmp_path / "out", classes=["a", "b"], choices=CHOICES)


def test_a_file_that_is_no_json_or_none_is_refused(tmp_path):
    with refused("no.json: expected a datalist, not found"):
        prepare(tmp_path / "no.json", tmp_path / "out", choices=CHOICES)
    (tmp_path / "x.json").write_text("{")
    with refused("x.json: expected JSON, got a file that does not parse"):
        prepare(tmp_path / "x.json", tmp_path / "out", choices=CHOICES)


def with_patients(source, patient_of, field="patient"):
    listed = json.loads(source.read_text())
    for i, item in enumerate(listed["training"]):
        item[field] = patient_of(i)
    source.write_text(json.dumps(listed))
    return source


@pytest.mark.parametrize("field", ["patient", "patient_id", "PatientID", "subject"])
@pytest.mark.parametrize(
    "patient_of", [lambda i: [7, "7.0", 7.0, "007"][i % 4] if i < 4 else i // 2, lambda i: "aA"[i % 2] + str(i // 2)]
)
def test_patients_of_volumes_are_kept_and_are_one_however_they_are_written(decathlon, tmp_path, field, patient_of):
    prepare(with_patients(decathlon(), patient_of, field), tmp_path / "out", choices=CHOICES)
    _, found = cases(tmp_path / "out")
    patient = {int(item.name.split("/")[1][0]): item.patient for items in found.values() for item in items}
    splits = {split: {item.patient for item in items} for split, items in found.items()}
    assert not set.intersection(*splits.values())
    assert set(patient.values()) <= {f"p{n}" for n in range(1, 5)}
    assert all(patient[i] == patient[i + 1] for i in range(0, CASES, 2))


def test_volumes_without_patients_are_a_warning(decathlon, tmp_path):
    told = []
    prepare(decathlon(), tmp_path / "out", choices=CHOICES, progress=told.append)
    notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
    assert notes["patients"].startswith("WARNING: no patient is known of 8 of 8 images, so that one patient may be in")
    assert notes["patients"] in told


def test_a_patient_in_two_sections_is_a_warning(decathlon, tmp_path):
    def items(numbers, patient):
        return [{"image": f"imagesTr/{i}.nii.gz", "label": f"labelsTr/{i}.nii.gz", "patient": patient} for i in numbers]

    source = decathlon(training=items([0, 1], 7) + items([2, 3], 8), test=items([4], "7.0"), validation=items([5], 9))
    told = []
    prepare(source, tmp_path / "out", choices=CHOICES, progress=told.append)
    line = "WARNING: 1 patients are in several sections of the list, and so in several splits"
    assert line in told
    assert json.loads((tmp_path / "out" / "site.json").read_text())["notes"]["patients"] == line


def test_a_patient_that_is_no_id_is_refused(decathlon, tmp_path):
    with refused("dataset.json, training item 1, field for the patient: expected a text or a number, got another type"):
        prepare(with_patients(decathlon(), lambda i: [i]), tmp_path / "out", choices=CHOICES)


@pytest.mark.parametrize(
    "other", ["imagesTr//1.nii.gz", "imagesTr\\1.nii.gz", "imagesTr/x/../1.nii.gz", "second.nii.gz"]
)
def test_an_image_in_two_items_is_refused_under_any_name(decathlon, tmp_path, other):
    source = decathlon(test=[{"image": other, "label": "labelsTr/1.nii.gz"}])
    (tmp_path / "data" / "second.nii.gz").symlink_to("imagesTr/1.nii.gz")
    with refused("dataset.json: expected each image once, got 1 repeated"):
        prepare(source, tmp_path / "out", choices=CHOICES)


def test_a_mask_of_two_images_is_refused_where_they_are_not_of_one_patient(decathlon, tmp_path):
    source = decathlon()
    (source.parent / "labelsTr" / "1.nii.gz").unlink()
    (source.parent / "labelsTr" / "1.nii.gz").symlink_to("0.nii.gz")
    with refused(
        "dataset.json, training item 2, field label: expected a mask of its own, or that of another image of the same"
        " patient, got that of dataset.json, training item 1"
    ):
        prepare(source, tmp_path / "out", choices=CHOICES)
    prepare(with_patients(source, lambda i: i // 2), tmp_path / "out", choices=CHOICES)
    assert sum(map(len, cases(tmp_path / "out")[1].values())) == CASES


def test_class_numbers_of_a_data_frame_are_read(tmp_path):
    items = []
    for i in range(CASES):
        write_png(tmp_path / "data" / f"{i}.png", i)
        items.append({"image": f"./{i}.png", "patient": i, "label": "NaN" if i == 7 else float(i % 3)})
    (tmp_path / "data" / "list.json").write_text(json.dumps({"training": items}))
    told = []
    prepare(tmp_path / "data" / "list.json", tmp_path / "out", choices=CHOICES, progress=told.append)
    card = load_card(tmp_path / "out", "site-1")
    tables = [load_table(card, file, ("class_0", "class_1", "class_2")) for file in card.splits.values()]
    labels = {image: int(row.argmax()) for t in tables for image, row in zip(t.images, t.labels, strict=True)}
    assert labels == {f"{i}.png": i % 3 for i in range(7)}
    assert "1 items without label are left out" in told


@pytest.mark.parametrize(
    ("labels", "uncertain", "wanted", "ways"),
    [
        ([0, -1.0, 1], "blank", [[1, 0], [-1, -1], [0, 1]], "a class or blank, got an uncertain label; say --uncertain"
         " blank"),
        ([[1, 0], [-1, 1], [0, 0]], "positive", [[1, 0], [1, 1], [0, 0]], "1, 0 or blank, got an uncertain label; say"
         " --uncertain blank, positive or negative"),
    ],
)  # fmt: skip
def test_an_uncertain_label_is_refused_with_the_way_out_and_taken_as_asked(tmp_path, labels, uncertain, wanted, ways):
    items = [{"image": f"{i}.png", "label": label} for i, label in enumerate(labels)]
    for i in range(len(items)):
        write_png(tmp_path / "data" / f"{i}.png")
    (tmp_path / "data" / "dataset.json").write_text(json.dumps({"training": items}))
    choices = SiteChoices(test_share=0, val_share=0)
    column = "label" if uncertain == "blank" else "class_0"
    with refused(f"dataset.json row 2, column {column}: expected {ways}"):
        prepare(tmp_path / "data" / "dataset.json", tmp_path / "out", choices=choices)
    choices = replace(choices, uncertain=uncertain)
    prepare(tmp_path / "data" / "dataset.json", tmp_path / "out", choices=choices)
    card = load_card(tmp_path / "out", "site-1")
    assert load_table(card, "train.csv", card.classes).labels.tolist() == wanted
    assert card.provenance["source"] == "own datalist"


def test_a_volume_that_cannot_be_used_is_a_warning_and_exit_code_3(decathlon, tmp_path):
    file, said = decathlon(), []
    prepare(file, tmp_path / "good", choices=CHOICES)
    assert done(tmp_path / "good", said.append) == 0
    bad = load_datalist(load_card(tmp_path / "good", "site-1"), "datalist.json", "train")[0]
    volume(bad.image, np.ones((6, 6, 5), np.int16))  # one slice more than its mask
    assert done(tmp_path / "good", said.append) == 3
    words = "warning: 1 of the training images that were opened cannot be used: datalist.json, training item 1"
    assert any(line.startswith(words) for line in said)
    assert "a job refuses them" in said


ORGANS = ("liver", "spleen", "kidneys")


def of_structures(decathlon, *values):
    """A datalist whose masks have 0 and these values."""
    source = decathlon()
    for i in range(CASES):
        marks = np.random.default_rng(i).choice([0, *values], (6, 6, 4))
        volume(source.parent / "labelsTr" / f"{i}.nii.gz", marks.astype(np.uint8))
    return source


@pytest.mark.parametrize(
    ("found", "annotated", "values", "shown"),
    [
        ((1, 2, 3), (), (1, 2, 3), None),
        ((2, 3), (), (1, 2, 3), None),  # none of those looked at has a liver
        ((5, 7, 9), (), (5, 7, 9), None),
        ((1,), ("spleen",), (2, 1, 3), ["spleen"]),
        ((4, 6), ("kidneys", "liver"), (4, 1, 6), ["liver", "kidneys"]),
    ],
)
def test_masks_of_several_structures_keep_their_values(decathlon, tmp_path, found, annotated, values, shown):
    source = of_structures(decathlon, *found)
    prepare(source, tmp_path / "out", classes=ORGANS, annotated=annotated, choices=CHOICES)
    card, _ = cases(tmp_path / "out")
    assert (card.classes, card.values) == (ORGANS, values)
    assert card.annotated == ({"train": tuple(shown), "test": tuple(shown)} if shown else {})
    data = load_volumes(card, ORGANS, Opening(tmp_path / "cache", 6, torch.device("cpu")))
    wanted = [n for n, name in enumerate(ORGANS, 1) if values[n - 1] in found and (not shown or name in shown)]
    assert np.unique(data.train.masks).tolist() == [0, *wanted]


@pytest.mark.parametrize(
    "labels", [{"0": "background", "1": "Liver", "2": "cancer"}, {"background": 0, "Liver": 1, "cancer": 2}]
)
def test_names_of_structures_in_another_order_than_the_list_has_are_refused(decathlon, tmp_path, labels):
    source = of_structures(decathlon, 1, 2)
    source.write_text(json.dumps({**json.loads(source.read_text()), "labels": labels}))
    words = "dataset.json, field labels: expected names in the order of the values there (liver = 1, cancer = 2), got"
    with refused(f"{words} cancer = 1, liver = 2"):
        prepare(source, tmp_path / "out", classes=("cancer", "liver"), choices=CHOICES)
    prepare(source, tmp_path / "out", classes=("liver", "cancer"), choices=CHOICES)
    assert load_card(tmp_path / "out", "site-1").values == (1, 2)


def test_values_that_no_structure_has_are_refused(decathlon, tmp_path):
    words = "labels: expected masks with a value for each of liver, spleen, kidneys, or those from 1 to 3, got 4 values"
    with refused(words + " but 0"):
        prepare(of_structures(decathlon, 1, 2, 3, 4), tmp_path / "out", classes=ORGANS, choices=CHOICES)
    with refused("argument annotated: expected some of ['liver', 'spleen', 'kidneys'], got ['heart']"):
        prepare(of_structures(decathlon, 1), tmp_path / "out", classes=ORGANS, annotated=["heart"], choices=CHOICES)


@pytest.mark.parametrize("label", [1, [0, 1]])
@pytest.mark.parametrize("named", [{"0": "normal", "1": "bleed"}, {"bleed": 1, "normal": 0}])
def test_names_of_classes_in_another_order_than_the_list_gives_them_are_refused(tmp_path, label, named):
    for i in range(8):
        write_png(tmp_path / f"{i}.png", i, 40)
    other = [1, 0] if isinstance(label, list) else 0
    items = [{"image": f"{i}.png", "label": label if i % 2 else other} for i in range(8)]
    (tmp_path / "list.json").write_text(json.dumps({"training": items, "labels": named}))
    words = "expected names in the order of the values there (normal = 0, bleed = 1), got bleed = 0, normal = 1"
    with refused(f"list.json, field labels: {words}"):
        prepare(tmp_path / "list.json", tmp_path / "out", classes=("bleed", "normal"), choices=CHOICES)
    prepare(tmp_path / "list.json", tmp_path / "out", classes=("normal", "bleed"), choices=CHOICES)
