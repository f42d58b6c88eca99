import csv
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from ridge import held_out_auc

from fedmend.data.card import write_card
from fedmend.data.tables import write_table
from fedmend.labels import SINGLELABEL
from fedmend.phantoms import dermoscopy as phantom
from fedmend.phantoms.dermoscopy import (
    ISIC2018_COUNTS,
    ISIC2019_COUNTS,
    lay_casts,
    write_isic2018,
    write_isic2019,
)

IMAGES = 200
FOLDER, TRUTH, METADATA = (f"ISIC_2019_Training_{name}" for name in ("Input", "GroundTruth.csv", "Metadata.csv"))
# 4 % of 200 for the four that are rarer; the rest of MEL, BCC and BKL by official share; NV what remains.
COUNTS = {"MEL": 33, "NV": 92, "BCC": 24, "AK": 8, "BKL": 19, "DF": 8, "VASC": 8, "SCC": 8}


@pytest.fixture(scope="module")
def download(tmp_path_factory):
    out = tmp_path_factory.mktemp("isic")
    write_isic2019(out, images=IMAGES, seed=3, size=32, processes=1)
    return out


def rows(file):
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def class_of(row):
    return next(c for c in ISIC2019_COUNTS if row[c] == "1.0")


def test_the_tables_have_the_official_form_and_one_row_for_each_picture(download):
    truth, metadata = rows(download / TRUTH), rows(download / METADATA)
    assert list(truth[0]) == ["image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    assert list(metadata[0]) == ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"]
    files = sorted(p.stem for p in (download / FOLDER).iterdir())
    assert [r["image"] for r in truth] == [r["image"] for r in metadata] == files
    assert all(len(f) == 12 and f.startswith("ISIC_") and f[5:].isdecimal() for f in files)
    for row in truth:
        assert sorted(list(row.values())[1:]) == ["0.0"] * 8 + ["1.0"]
        assert row["UNK"] == "0.0"


def test_a_picture_is_a_small_rgb_jpeg_that_says_what_it_is(download):
    for path in (download / FOLDER).iterdir():
        with Image.open(path) as picture:
            assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (32, 32))
            assert picture.info["comment"] == b"synthetic phantom"


def test_each_class_has_its_official_share_but_at_least_the_floor(download):
    assert Counter(map(class_of, rows(download / TRUTH))) == COUNTS


def test_the_pictures_of_a_lesion_have_one_class_and_some_lesions_no_id(download):
    classes = {r["image"]: class_of(r) for r in rows(download / TRUTH)}
    lesions = {}
    for row in rows(download / METADATA):
        lesions.setdefault(row["lesion_id"], []).append(classes[row["image"]])
    assert 3 <= len(lesions.pop("")) <= 30
    assert {len(v) for v in lesions.values()} == {1, 2, 3}
    assert all(len(set(v)) == 1 for v in lesions.values())


def test_a_share_of_lesions_is_drawn_as_what_it_is_taken_for(monkeypatch):
    def draw(name):
        return phantom._draw(phantom._Lesion(5, name, ("a",)), phantom.LOOK_ALIKES, 0, 32)

    monkeypatch.setattr(phantom, "LOOK_ALIKE_SHARE", 0)
    assert (draw("BKL") != draw("DF")).any()
    monkeypatch.setattr(phantom, "LOOK_ALIKE_SHARE", 1)
    assert (draw("BKL") == draw("DF")).all()  # both as a nevus


def test_classes_can_be_learnt_from_the_pictures(download):
    truth = rows(download / TRUTH)
    pictures = np.array([np.asarray(Image.open(download / FOLDER / f"{r['image']}.jpg")) for r in truth])
    blocks = pictures.reshape(len(truth), 8, 4, 8, 4, 3).mean(axis=(2, 4))
    assert held_out_auc(blocks, [[r[c] == "1.0" for c in ISIC2019_COUNTS] for r in truth]) > 0.65


# ---- cameras ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("hue", "strongest"), [(0.0, 0), (1 / 3, 1), (2 / 3, 2)])
def test_a_cast_has_the_hue_that_it_is_given(hue, strongest):
    cast = phantom._cast(np.full((32, 32, 3), 128), hue, np.random.default_rng(0))[16, 16].astype(int)
    assert cast.argmax() == strongest
    assert np.ptp(np.delete(cast, strongest)) == 0
    assert np.ptp(cast) > 5


@pytest.fixture
def grey_sites(tmp_path):
    """site-1 and site-2, each with one grey picture in train, val and test."""
    for site in ("site-1", "site-2"):
        (tmp_path / site).mkdir()
        names = [f"{site}-{split}" for split in ("train", "val", "test")]
        for name in names:
            phantom._save(np.full((32, 32, 3), 128, dtype=np.uint8), tmp_path / f"{name}.jpg")
            write_table(tmp_path / site / f"{name}.csv", [f"{name}.jpg"], np.array([0]), ["NV"])
        splits = {name.split("-")[2]: f"{name}.csv" for name in names}
        write_card(tmp_path / site, task=SINGLELABEL, classes=["NV"], splits=splits, image_root="..")
    return tmp_path


def colours(folder):
    """Bytes of the pictures of site-1 and of site-2."""
    return [[p.read_bytes() for p in sorted(folder.glob(f"{site}-*.jpg"))] for site in ("site-1", "site-2")]


def test_all_pictures_of_a_site_get_the_cast_of_its_camera(grey_sites):
    neutral, lines = colours(grey_sites)[0][0], []
    lay_casts(grey_sites, sites=2, seed=5, progress=lines.append)
    first, second = map(set, colours(grey_sites))
    assert len(first) == len(second) == 1
    assert len(first | second | {neutral}) == 3
    with Image.open(grey_sites / "site-1-test.jpg") as picture:
        assert (picture.format, picture.size, picture.info["comment"]) == ("JPEG", (32, 32), b"synthetic phantom")
        assert np.ptp(np.asarray(picture)[16, 16].astype(int)) > 3
    assert lines == [f"{site}: its camera's colour cast for 3 pictures" for site in ("site-1", "site-2")]


def test_the_casts_depend_on_the_seed_alone(grey_sites):
    found = []
    for seed in (5, 5, 6):
        for file in grey_sites.glob("*.jpg"):
            phantom._save(np.full((32, 32, 3), 128, dtype=np.uint8), file)
        lay_casts(grey_sites, sites=2, seed=seed)
        found.append(colours(grey_sites))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


# ---- ISIC 2018 -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def download_2018(tmp_path_factory):
    out = tmp_path_factory.mktemp("isic2018")
    write_isic2018(out, images=IMAGES, seed=3, size=32, processes=1)
    return out


def tables_2018(out):
    name = "ISIC2018_Task3_Training"
    table = out / f"{name}_GroundTruth" / f"{name}_GroundTruth.csv"
    return rows(table), rows(out / f"{name}_LesionGroupings.csv"), out / f"{name}_Input"


def test_the_2018_tables_have_the_official_form_and_one_row_for_each_picture(download_2018):
    truth, lesions, folder = tables_2018(download_2018)
    assert list(truth[0]) == ["image", "MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]
    assert list(lesions[0]) == ["image", "lesion_id", "diagnosis_confirm_type"]
    files = sorted(p.stem for p in folder.iterdir())
    assert [r["image"] for r in truth] == [r["image"] for r in lesions] == files
    assert all(sorted(list(row.values())[1:]) == ["0.0"] * 6 + ["1.0"] for row in truth)
    with Image.open(folder / f"{files[0]}.jpg") as picture:
        assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (32, 32))


def test_each_2018_class_has_its_official_share_but_at_least_the_floor(download_2018):
    counts = Counter(next(c for c in ISIC2018_COUNTS if row[c] == "1.0") for row in tables_2018(download_2018)[0])
    # 4 % of 200 for the three that are rarer; the rest of MEL, BCC and BKL by official share; NV what remains.
    assert counts == {"MEL": 21, "NV": 124, "BCC": 10, "AKIEC": 8, "BKL": 21, "DF": 8, "VASC": 8}


def test_the_pictures_of_a_2018_lesion_have_one_class_and_malignant_ones_histopathology(download_2018):
    truth, groups, _ = tables_2018(download_2018)
    lesions, confirmed = {}, {}
    for row, group in zip(truth, groups, strict=True):
        name = next(c for c in ISIC2018_COUNTS if row[c] == "1.0")
        lesions.setdefault(group["lesion_id"], []).append((name, group["diagnosis_confirm_type"]))
        confirmed.setdefault(name, set()).add(group["diagnosis_confirm_type"])
    assert "" not in lesions
    assert {len(v) for v in lesions.values()} == {1, 2, 3}
    assert all(len(set(v)) == 1 for v in lesions.values())
    assert all(confirmed[name] == {"histopathology"} for name in ("MEL", "BCC", "AKIEC"))
    assert len(confirmed["NV"]) == 4


def test_a_2018_lesion_is_drawn_as_a_class_of_2018_only(tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "LOOK_ALIKE_SHARE", 1)
    drawn_as = {name: phantom._DRAW[name] for name in ISIC2018_COUNTS}
    monkeypatch.setattr(phantom, "_DRAW", drawn_as)
    write_isic2018(tmp_path, images=25, size=32, processes=1)  # a KeyError would be another class
    assert len(list(tmp_path.rglob("*.jpg"))) == 25
