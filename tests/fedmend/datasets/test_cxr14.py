import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cxr14_factories import (
    BASE,
    PATIENTS,
    TEST_PATIENTS,
    film_rows,
    findings,
    load,
    name,
    patients_of,
    prepare,
    write_rows,
)
from factories import refused
from rsna_ich_factories import content

from fedmend.data.card import load_card
from fedmend.data.site import Opening, load_site
from fedmend.data.tables import load_table
from fedmend.datasets import cxr14 as converter
from fedmend.datasets.cxr14 import CLASSES, PROTOCOLS, RELEASED, FilmProtocol
from fedmend.datasets.imperfections import annotated_classes, identified_classes
from fedmend.phantoms.chest import FINDINGS, write_cxr14

DOWNLOAD = "cxr14"


def test_the_official_layout_becomes_site_folders_whose_films_are_found(cxr14, tmp_path):
    prepare(cxr14, tmp_path / "out", **BASE)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["site-1", "site-2"]
    card = load_card(tmp_path / "out" / "site-2", "site-2")
    assert (card.kind, card.classes, card.modality, card.window) == ("multilabel", CLASSES, "DX", None)
    assert (card.splits, card.color) == ({"train": "train.csv", "val": "val.csv", "test": "test.csv"}, False)
    for split in card.splits:
        table = load(tmp_path / "out", 2, split)
        assert all((card.image_root / image).is_file() for image in table.images)
        for image, patient, labels in zip(table.images, table.patients, table.labels, strict=True):
            own, k = int(image[7:15]), int(image[16:19])
            assert patient == str(own)
            assert labels.tolist() == findings(own, k).tolist()


def test_the_official_test_list_is_the_test_split_and_a_patient_is_in_one_part(cxr14, tmp_path):
    prepare(cxr14, tmp_path / "out", **BASE)
    groups = [g for split in ("train", "val", "test") for g in patients_of(tmp_path / "out", split)]
    # Training: 7 patients, 4 and 3 to a site, of which 1 for val; the test list has 3.
    assert [len(g) for g in groups] == [3, 2, 1, 1, 2, 1]
    assert groups[4] | groups[5] == set(TEST_PATIENTS)
    assert set().union(*groups) == set(range(PATIENTS))
    table = load(tmp_path / "out", 1)
    assert list(table.images) == sorted(f"images/{name(p, k)}" for p in groups[0] for k in range(2))


def test_a_site_shows_only_its_identified_classes_and_keeps_the_truth_aside(cxr14, tmp_path):
    prepare(cxr14, tmp_path / "out", **{**BASE, "classes_per_site": 8})
    identified = identified_classes(2, 14, 8, seed=1)
    for s in (1, 2):
        for split in ("train", "val"):
            assert load(tmp_path / "out", s, split).annotated.tolist() == identified[s - 1].tolist()
        assert load(tmp_path / "out", s, "test").annotated.all()
        train, truth = load(tmp_path / "out", s), load(tmp_path / "out", s, "truth")
        assert (truth.images, truth.patients) == (train.images, train.patients)
        assert truth.annotated.all()
        assert np.array_equal(train.labels[:, train.annotated], truth.labels[:, train.annotated])


def test_split_by_patient_needs_no_lists_and_draws_a_share_of_the_patients(own_copy, tmp_path):
    for file in ("train_val_list.txt", "test_list.txt"):
        (own_copy / file).unlink()
    prepare(own_copy, tmp_path / "out", **BASE, split="patient", test_share=0.4)
    groups = [g for split in ("train", "val", "test") for g in patients_of(tmp_path / "out", split)]
    # 10 patients: test 4, training 6, 3 at each site, of which round(0.6) = 1 for val
    assert [len(g) for g in groups] == [2, 2, 1, 1, 2, 2]
    assert set().union(*groups) == set(range(PATIENTS))


def test_split_by_image_cuts_through_patients(cxr14, tmp_path):
    prepare(cxr14, tmp_path / "out", **BASE, split="image")
    tables = {split: [load(tmp_path / "out", s, split) for s in (1, 2)] for split in ("train", "val", "test")}
    # 20 films: test 6, training 14, 7 at each site, of which round(1.4) = 1 for val
    assert {split: [len(t.images) for t in both] for split, both in tables.items()} == {
        "train": [6, 6],
        "val": [1, 1],
        "test": [3, 3],
    }
    assert len({image for both in tables.values() for t in both for image in t.images}) == 20
    test = set.union(*patients_of(tmp_path / "out", "test"))
    assert set.union(*patients_of(tmp_path / "out", "train")) & test


def test_a_view_keeps_its_films_and_top_the_classes_with_the_most_positives_among_them(own_copy, tmp_path):
    rows = film_rows()
    for (
        row
    ) in rows:  # Hernia on every PA film, Edema on all but two, the others on half of them or fewer, Mass on AP only
        if row[6] == "PA":
            kept = [c for c in row[1].split("|") if c not in ("Mass", "Hernia", "Edema", "No Finding")]
            row[1] = "|".join([*kept, "Hernia", *(["Edema"] if int(row[3]) > 1 else [])])
        else:
            row[1] = "Mass"
    write_rows(own_copy, rows)
    arguments = {**BASE, "top": 3, "view": "PA", "classes_per_site": 1, "assignment": "random", "split": "image"}
    with refused("site-1: train.csv, column Hernia: expected both 0 and 1, got only 1"):
        prepare(own_copy, tmp_path / "no", **{**arguments, "classes_per_site": 3})
    rows[0][1] = rows[4][1] = "Edema"
    write_rows(own_copy, rows)
    prepare(own_copy, tmp_path / "out", **{**arguments, "sites": 1, "classes_per_site": 3})
    assert load_card(tmp_path / "out" / "site-1", "").classes == ("Atelectasis", "Edema", "Hernia")
    images = [image for split in ("train", "val", "test") for image in load(tmp_path / "out", 1, split).images]
    assert sorted(images) == [f"images/{name(p, 0)}" for p in range(PATIENTS)]


def test_the_rules_of_fedmlp_and_the_released_draw_of_fedlsm_are_there_by_name():
    for rule, per_site in (("one_each", 1), ("random", 3)):
        protocol = FilmProtocol(assignment=rule, classes_per_site=per_site, top=8, seed=5)
        expected = annotated_classes(8, 8, per_site, rule=rule, seed=5)
        assert np.array_equal(converter._assign(protocol), expected)
    released = converter._assign(FilmProtocol(assignment="released"))
    assert released.sum(axis=1).tolist() == [3, 3, 3, 3, 2, 3, 3, 3]
    assert released.any(axis=0).all()
    assert [CLASSES[c] for c in np.flatnonzero(released[4])] == ["Atelectasis", "Pleural_Thickening"]
    # The fact sheet's list of classes with a single owner
    single = {CLASSES[c] for c in np.flatnonzero(released.sum(axis=0) == 1)}
    assert single == {"Cardiomegaly", "Edema", "Effusion", "Fibrosis", "Infiltration", "Pleural_Thickening"}
    assert {c for own in RELEASED for c in own} == set(CLASSES) == set(FINDINGS)


@pytest.mark.parametrize(("sites", "per_site", "classes"), [(7, 3, 14), (8, 2, 14), (8, 3, 8)])
def test_the_released_draw_is_refused_for_other_numbers(sites, per_site, classes):
    with refused(
        f"cxr14, argument assignment: expected 8 sites with 3 of 14 classes for 'released', got {sites} with {per_site}"
        f" of {classes}"
    ):
        converter._assign(FilmProtocol(assignment="released", sites=sites, classes_per_site=per_site, top=classes))


def test_the_result_does_not_depend_on_row_order(cxr14, own_copy, tmp_path):
    write_rows(own_copy, film_rows()[::-1])
    prepare(cxr14, tmp_path / "one", **BASE)
    prepare(own_copy, own_copy / "out", **BASE)
    one, two = content(tmp_path / "one"), content(own_copy / "out")
    assert one.keys() == two.keys()
    assert all(one[file] == two[file] for file in one if not file.endswith("site.json"))
    first, second = (json.loads(c["site-1/site.json"]) for c in (one, two))
    assert first.pop("image_root") == str(cxr14)
    assert second.pop("image_root") == "../.."
    assert first == second


def test_train_per_site_caps_the_training_table_and_shrinks_val_in_proportion(cxr14, tmp_path):
    prepare(cxr14, tmp_path / "out", **{**BASE, "val_share": 0.4, "split": "image"}, train_per_site=4)
    # 7 films a site: val round(2.8) = 3 shrinks to round(4 * 0.4 / 0.6) = 3, train 4 of 4; then to 3 and 2
    assert [len(load(tmp_path / "out", 1, split).images) for split in ("train", "val", "test")] == [4, 3, 3]
    prepare(cxr14, tmp_path / "less", **{**BASE, "val_share": 0.4, "split": "image"}, train_per_site=3)
    assert [len(load(tmp_path / "less", 1, split).images) for split in ("train", "val", "test")] == [3, 2, 3]


def test_val_share_zero_writes_no_val_table(cxr14, tmp_path):
    prepare(cxr14, tmp_path / "out", **{**BASE, "val_share": 0})
    assert "val" not in load_card(tmp_path / "out" / "site-1", "").splits
    assert not (tmp_path / "out" / "site-1" / "val.csv").exists()
    assert [len(g) for g in patients_of(tmp_path / "out", "train")] == [4, 3]


def test_the_card_records_the_arguments_and_the_counts(cxr14, tmp_path):
    lines = []
    prepare(cxr14, tmp_path / "out", **BASE, view="PA", source_name="made up", progress=lines.append)
    provenance = load_card(tmp_path / "out" / "site-1", "").provenance
    assert provenance == {
        "source": "made up",
        "arguments": {
            **BASE,
            "assignment": "dealt",
            "view": "PA",
            "top": None,
            "classes": None,
            "split": "official",
            "test_share": 0.3,
            "train_per_site": None,
        },
        "counts": {"films": 10, "patients": 10, "test": 3},
        "site": {"sizes": {"train": 3, "val": 1, "test": 2}},
    }
    assert lines == ["20 films of 10 patients", "10 of them are PA", "2 site folders written"]


def test_too_few_patients_are_refused(cxr14, tmp_path):
    with refused("cxr14: expected at least 8 patients for training and 4 for the test, got 7 and 3"):
        prepare(cxr14, tmp_path / "out", **{**BASE, "sites": 4})
    with refused("cxr14: expected at least 16 films for training and 8 for the test, got 14 and 6"):
        prepare(cxr14, tmp_path / "out", **{**BASE, "sites": 8}, split="image")


def test_a_site_without_a_positive_of_a_class_that_it_identifies_is_refused(own_copy, tmp_path):
    rows = film_rows()
    for row in rows:
        row[1] = "|".join(c for c in row[1].split("|") if c != "Fibrosis") or "No Finding"
    write_rows(own_copy, rows)
    with refused("site-1: train.csv, column Fibrosis: expected both 0 and 1, got only 0"):
        prepare(own_copy, tmp_path / "out", **BASE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("view", "LL", "None, 'PA' or 'AP'"),
        ("top", 15, "None or 1 to 14"),
        ("classes", ["Mass", "Mass"], f"names out of {list(CLASSES)}"),
        ("classes", ["Tumor"], f"names out of {list(CLASSES)}"),
        ("split", "site", "'official', 'patient' or 'image'"),
        ("test_share", 1, "a number between 0 and 1"),
        ("val_share", 1, "0 or a number below 1"),
        ("train_per_site", 0, "None or at least 1"),
        ("assignment", "all", "'dealt', 'released', 'one_each' or 'random'"),
    ],
)
def test_a_wrong_argument_is_refused(cxr14, tmp_path, argument, value, expected):
    with refused(f"cxr14, argument {argument}: expected {expected}, got {value!r}"):
        prepare(cxr14, tmp_path / "out", **{**BASE, argument: value})


def test_named_classes_are_taken_in_their_order(own_copy, tmp_path):
    chosen = ["Mass", "Edema", "Effusion"]
    arguments = {**BASE, "classes": chosen, "classes_per_site": 2}
    prepare(own_copy, tmp_path / "out", **arguments)
    card = load_card(tmp_path / "out" / "site-1", "site-1")
    assert list(card.classes) == chosen
    truth = load_table(card, card.truth["train"], chosen)
    everything = {row[0]: row[1].split("|") for row in film_rows()}
    for image, labels in zip(truth.images, truth.labels, strict=True):
        assert labels.tolist() == [int(c in everything[Path(image).name]) for c in chosen]
    with refused("cxr14, argument top: expected None where classes are named, got 2"):
        prepare(own_copy, tmp_path / "no", **{**arguments, "top": 2})
    rule = "cxr14, argument assignment: expected another rule than 'released' where classes are named, got 'released'"
    with refused(rule):
        prepare(own_copy, tmp_path / "no", **{**arguments, "assignment": "released"})


@pytest.fixture(scope="module")
def phantom(tmp_path_factory):
    out = tmp_path_factory.mktemp("phantom")
    write_cxr14(out, images=300, seed=5, size=32, processes=1)
    return out


@pytest.mark.parametrize(("protocol", "num_classes"), [("fedlsm", 14), ("fedmlp", 8)])
def test_a_phantom_becomes_sites_that_load(phantom, tmp_path, protocol, num_classes):
    converter.prepare(phantom, tmp_path / "out", replace(PROTOCOLS[protocol], sites=2, classes_per_site=7))
    classes = load_card(tmp_path / "out" / "site-1", "").classes
    assert len(classes) == num_classes
    used = 0
    for s in range(2):
        card = load_card(tmp_path / "out" / f"site-{s + 1}", f"site-{s + 1}")
        site = load_site(card, classes, Opening(tmp_path / "cache", 32, torch.device("cpu")))
        assert site.annotated.sum() == 7
        assert set(site.evaluation) == {"val", "test"}
        used += len(site.train) + sum(map(len, site.evaluation.values()))
    assert used == (300 if protocol == "fedlsm" else 180)  # 60 % are PA
