import csv

import numpy as np
import pytest
from factories import refused
from PIL import Image
from ridge import held_out_auc

from fedmend.phantoms import chest as phantom
from fedmend.phantoms.chest import FINDINGS, write_cxr14
from fedmend.phantoms.sites import phantom_spec

IMAGES = 150
NAMES = list(FINDINGS)
# Official shares of 150 films, raised to 4 % = 6; Infiltration, for one: 150 * 19,894 / 112,120 = 26.6.
COUNTS = [15, 6, 18, 27, 8, 8, 6, 7, 6, 6, 6, 6, 6, 6]


@pytest.fixture(scope="module")
def download(tmp_path_factory):
    out = tmp_path_factory.mktemp("cxr14")
    write_cxr14(out, images=IMAGES, seed=3, size=32, processes=1)
    return out


@pytest.fixture(scope="module")
def rows(download):
    with open(download / "Data_Entry_2017.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_table_has_the_official_form_and_one_row_for_each_film(download, rows):
    header = (download / "Data_Entry_2017.csv").read_text().splitlines()[0]
    assert header == (
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
        "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
    )
    assert [r["Image Index"] for r in rows] == sorted(p.name for p in (download / "images").iterdir())
    for row in rows:
        assert row["Image Index"] == f"{int(row['Patient ID']):08d}_{int(row['Follow-up #']):03d}.png"
        assert row["Finding Labels"] == "No Finding" or set(row["Finding Labels"].split("|")) <= set(FINDINGS)
    assert {int(r["Follow-up #"]) for r in rows} == {0, 1, 2, 3}
    assert [r["View Position"] for r in rows].count("AP") == 60


def test_a_film_is_a_small_grey_png(download):
    for path in (download / "images").iterdir():
        with Image.open(path) as picture:
            assert (picture.format, picture.mode, picture.size) == ("PNG", "L", (32, 32))


def test_the_lists_share_out_the_patients(download, rows):
    lists = [(download / f"{name}.txt").read_text().split() for name in ("train_val_list", "test_list")]
    assert sorted(lists[0] + lists[1]) == [r["Image Index"] for r in rows]
    train, test = ({name[:8] for name in names} for names in lists)
    assert not train & test
    assert len(test) == round(0.228 * len(train | test))


def test_each_finding_has_its_official_share_but_at_least_the_floor(rows):
    assert [sum(name in r["Finding Labels"].split("|") for r in rows) for name in NAMES] == COUNTS


def test_about_half_of_the_films_have_no_finding_and_related_findings_occur_together():
    labels = np.concatenate([p.labels for p in phantom._plan(3000, 0)])
    assert 0.45 < 1 - labels.any(axis=1).mean() < 0.6

    def lift(one, two):
        first, second = labels[:, NAMES.index(one)], labels[:, NAMES.index(two)]
        return (first & second).mean() / (first.mean() * second.mean())

    assert lift("Effusion", "Atelectasis") > 2
    assert lift("Mass", "Nodule") > 2
    assert lift("Emphysema", "Pneumothorax") > 2
    assert lift("Emphysema", "Edema") < 2


def test_the_films_of_a_patient_show_one_body_in_several_poses_on_one_device():
    patient, other = (phantom._Patient(i, np.zeros((2, 14), dtype=bool), np.zeros(2, dtype=bool)) for i in (0, 8))
    films = [phantom._draw(p, k, 0, 32) for p, k in ((patient, 0), (patient, 1), (other, 0))]
    assert 0 < np.abs(films[0] - films[1]).mean() < np.abs(films[0] - films[2]).mean()


def test_findings_can_be_as_rare_as_in_a_hospital_or_rarer():
    patients = phantom._plan(2000, 0, 0.002, 0.02)
    found = np.sum([p.labels.sum(0) for p in patients], axis=0)
    # Official shares of 2,000 films, at most 40, at least 4: Pneumonia 25.5, Fibrosis 30.1, Hernia 4.0, others more.
    assert dict(zip(NAMES, found.tolist(), strict=True)) == dict.fromkeys(NAMES, 40) | {
        "Pneumonia": 26,
        "Fibrosis": 30,
        "Hernia": 4,
    }


@pytest.mark.parametrize("finding", NAMES)
def test_a_finding_shows_in_its_film(finding):
    def drawn(found):
        s = phantom._chest(np.random.default_rng(0), np.random.default_rng(1), False, found, 64)
        for name, (clear, side) in found.items():
            phantom._DRAW[NAMES.index(name)](s, np.random.default_rng(2), clear, side)
        return s.density

    assert (np.abs(drawn({finding: (1.0, 1)}) - drawn({})) > 0.02).sum() > 20


@pytest.mark.parametrize("shares", [(0.0, 1.0), (0.1, 0.05), (0.1, 1.1)])
def test_shares_that_are_none_are_refused(tmp_path, shares):
    expected = "expected the first above 0, the second from it to 1"
    with refused(f"phantom, arguments least_share and most_share: {expected}, got {shares[0]} and {shares[1]}"):
        write_cxr14(tmp_path, images=150, shares=shares)


def test_a_job_says_how_rare_findings_may_be(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(phantom, "write_cxr14", lambda out, **given: seen.update(given))
    monkeypatch.setattr("fedmend.datasets.cxr14.prepare", lambda *places, **options: None)
    for given, shares in (({}, (0.04, 1.0)), ({"least_share": 0.002, "most_share": 0.02}, (0.002, 0.02))):
        phantom_spec({"dataset": "cxr14", **given}).write(tmp_path)
        assert seen["shares"] == shares


def test_findings_can_be_learnt_from_the_films(download, rows):
    films = np.array([np.asarray(Image.open(download / "images" / r["Image Index"])) for r in rows])
    labels = [[name in r["Finding Labels"].split("|") for name in NAMES] for r in rows]
    assert held_out_auc(films, labels) > 0.65
