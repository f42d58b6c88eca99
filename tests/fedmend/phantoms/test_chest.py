import csv

import numpy as np
import pytest
from factories import refused
from PIL import Image

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


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def drawn(finding=None, seed=0, clear=1.0, side=1, size=64):
    """A chest without distractors, as a canvas; with one finding or none."""
    found = {finding: (clear, side)} if finding else {}
    s = phantom._chest(np.random.default_rng(seed), np.random.default_rng(1), False, found, size)
    if finding:
        phantom._DRAW[NAMES.index(finding)](s, np.random.default_rng(seed + 1), clear, side)
    return s


def change(finding, seed=0, **kwargs):
    """What a finding adds to each pixel, and the healthy chest that says where."""
    healthy = drawn(seed=seed)
    return drawn(finding, seed=seed, **kwargs).density - healthy.density, healthy


def several(measure, finding, **kwargs):
    return np.mean([measure(*change(finding, seed=seed, **kwargs)) for seed in range(6)], axis=0)


def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path):
    for processes in (1, 2):
        write_cxr14(tmp_path / str(processes), images=25, seed=1, size=32, processes=processes)
    one, two = content(tmp_path / "1"), content(tmp_path / "2")
    assert len(one) == 28
    assert one == two


def test_another_seed_gives_other_films(tmp_path, download):
    write_cxr14(tmp_path, images=25, seed=4, size=32, processes=1)
    ours, others = ({p.read_bytes() for p in (d / "images").iterdir()} for d in (download, tmp_path))
    assert not ours & others


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


def test_devices_differ_in_contrast_noise_and_collimation():
    density = drawn(size=64).density
    films = np.array(
        [phantom._expose(density, np.random.default_rng([0, 2, d]), np.random.default_rng(0), 64) for d in range(6)]
    ).astype(float)
    centre = films[:, 12:52, 12:52]
    assert np.ptp(centre.std(axis=(1, 2))) > 8
    assert np.ptp(np.abs(np.diff(films[:, 8:56, 30], axis=1)).mean(axis=1)) > 1
    assert len({(film.max(axis=0) < 40).sum() for film in films}) > 1


def test_lungs_are_dark_and_the_heart_lies_to_the_left_of_the_patient():
    s = drawn()
    lung = s.density[s.lungs > 0.9].mean()
    assert lung < 0.4
    heart = s.density[np.abs(s.v - 0.3) < 0.1], s.u[np.abs(s.v - 0.3) < 0.1]
    right, left = (heart[0][(side * heart[1] > 0.15) & (side * heart[1] < 0.4)].mean() for side in (-1, 1))
    assert left > right + 0.1


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("finding", ["Atelectasis", "Mass", "Pneumonia", "Pneumothorax", "Consolidation"])
def test_a_finding_of_one_lung_leaves_the_other_one_as_it_is(finding, side):
    def halves(added, s):
        inside = (s.lungs > 0.5) & (np.abs(s.u) > 0.16)
        return [np.abs(added[inside & (s.u * each > 0)]).sum() for each in (side, -side)]

    ill, well = several(halves, finding, side=side)
    assert ill > 20 * well


@pytest.mark.parametrize(
    ("finding", "down"),
    [("Consolidation", (0.0, 0.5)), ("Effusion", (0.6, 1.0)), ("Pneumonia", (0.5, 1.0)), ("Fibrosis", (0.4, 1.0))],
)
def test_a_finding_lies_where_textbooks_put_it(finding, down):
    def share(added, s):
        inside = (s.lungs > 0.5) & (s.down > down[0]) & (s.down < down[1])
        return np.abs(added[inside]).sum() / np.abs(added[s.lungs > 0.5]).sum()

    assert several(share, finding) > 0.8


def test_a_pneumothorax_and_emphysema_darken_and_the_other_lung_findings_whiten():
    def mean(added, s):
        return added[s.lungs > 0.5].mean()

    for finding in NAMES:
        if finding in ("Pneumothorax", "Emphysema"):
            assert several(mean, finding) < -0.01
        elif finding != "Hernia":
            assert several(mean, finding) > 0.003


def test_cardiomegaly_widens_the_heart_and_emphysema_flattens_the_diaphragm():
    def wide(added, s):
        return (added[(s.v > 0.1) & (s.v < 0.5) & (s.lungs > 0.5)] > 0.15).mean()

    assert several(wide, "Cardiomegaly") > 0.1
    assert several(wide, "Cardiomegaly", clear=0.1) < 0.1
    assert drawn("Emphysema").lungs[:, 14:20].sum() > drawn().lungs[:, 14:20].sum()


def test_edema_is_on_both_sides_and_brightest_near_the_hila():
    def zones(added, s):
        middle = (s.lungs > 0.5) & (np.abs(s.down - 0.55) < 0.15)
        near, far = (middle & (s.across < 0.35)), (middle & (s.across > 0.65) & (s.across < 0.85))
        return [added[near & (s.u < 0)].mean(), added[near & (s.u > 0)].mean(), added[far].mean()]

    right, left, far = several(zones, "Edema")
    assert min(right, left) > 2 * far


def test_a_mass_is_larger_than_a_nodule():
    def area(added, s):
        return (added > 0.1).sum() / (s.lungs > 0.5).sum()

    assert several(area, "Mass") > 2 * several(area, "Nodule") > 0


def test_pleural_thickening_lines_the_chest_wall():
    def share(added, s):
        wall = (s.lungs > 0.1) & ((s.across > 0.75) | (s.down < 0.2))
        return added[wall].sum() / added[s.lungs > 0.1].sum()

    assert several(share, "Pleural_Thickening") > 0.9


def test_a_hiatal_hernia_has_air_above_fluid_behind_the_heart():
    added, s = change("Hernia")
    changed = np.abs(added) > 0.02
    assert np.abs(s.u[changed]).max() < 0.4
    assert s.v[changed & (added < 0)].mean() < s.v[changed & (added > 0)].mean()


@pytest.mark.parametrize(("argument", "least"), [("images", 25), ("seed", 0), ("size", 32), ("devices", 1)])
def test_an_argument_below_its_least_value_is_refused(tmp_path, argument, least):
    with refused(f"phantom, argument {argument}: expected at least {least}, got {least - 1}"):
        write_cxr14(tmp_path, **{"images": 25, argument: least - 1})


def test_findings_can_be_as_rare_as_in_a_hospital_or_rarer():
    patients = phantom._plan(2000, 0, 0.002, 0.02)
    found = np.sum([p.labels.sum(0) for p in patients], axis=0)
    # Official shares of 2,000 films, at most 40, at least 4: Pneumonia 25.5, Fibrosis 30.1, Hernia 4.0, others more.
    assert dict(zip(NAMES, found.tolist(), strict=True)) == dict.fromkeys(NAMES, 40) | {
        "Pneumonia": 26,
        "Fibrosis": 30,
        "Hernia": 4,
    }


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
