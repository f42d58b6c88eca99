"""Packages measured on tiny site folders: the numbers are those that a site of a run has."""

import csv
import json

import numpy as np
import pytest
import torch
from factories import CLASSES, make_dicom, make_site_folder, refused
from measured_packages import make_package
from nifti_factories import lesion, make_volume_site, with_card, with_item

from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.kinds import kind_of
from fedmend.method import Site

RNG = np.random.default_rng(2)
MANY = RNG.integers(0, 2, (24, 3))
NONE = {"window": None}


def with_columns(folder, **columns):
    """Adds columns to the test table of a site folder, and names them in the card."""
    with open(folder / "test.csv", newline="") as stream:
        rows = list(csv.reader(stream))
    rows[0] += columns
    for number, row in enumerate(rows[1:]):
        row += [str(values[number]) for values in columns.values()]
    with open(folder / "test.csv", "w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return with_card(folder, columns=[name for name in columns if name not in ("patient", "study")])


def of_a_run(package, folder, cache):
    """Counts of the test split as a site of a run makes them."""
    kind, card = kind_of(package.kind), load_card(folder, "site-1")
    slices = package.preprocessing.study_slices
    data = kind.load(card, package.classes, Opening(cache, 32, torch.device("cpu"), study_slices=slices))
    if package.kind != "segmentation":
        data = data.scaled(package.preprocessing.pixel_mean, package.preprocessing.pixel_deviation)
    site = Site("site-1", torch.device("cpu"), data, None, None, 4)
    return kind.evaluate(package.network(), data.evaluation["test"], site)


def test_studies_are_measured_as_at_a_site_of_a_run(tmp_path):
    studies = [f"s{n // 2}" for n in range(24)]
    folder = make_site_folder(tmp_path / "site-1", MANY.repeat(2, 0)[:24], splits=("test",), studies=studies)
    package = make_package(tmp_path, classes=CLASSES, network="study/resnet_narrow", study_slices=2, **NONE)
    found = package.evaluate(folder, tmp_path / "out")
    assert np.array_equal(found.counts, of_a_run(package, folder, tmp_path / "cache"))
    assert found.counts[0].sum() == 12


@pytest.mark.parametrize("kind", ["multilabel", "singlelabel", "segmentation"])
def test_counts_and_metrics_are_those_of_a_site_of_a_run(tmp_path, kind):
    if kind == "segmentation":
        folder = make_volume_site(tmp_path / "site-1", test=[lesion(), lesion(((5, 7), (1, 3), (2, 4)))])
        package = make_package(tmp_path, kind, ["lesion"], network="unet_narrow", **NONE)
    else:
        single = kind == "singlelabel"
        folder = make_site_folder(tmp_path / "site-1", MANY.argmax(1) if single else MANY, size=32)
        make_test(folder, MANY.argmax(1) if single else MANY)
        package = make_package(tmp_path, kind, CLASSES, **NONE)
    counts = of_a_run(package, folder, tmp_path / "cache")
    found = package.evaluate(folder, tmp_path / "out")
    assert np.array_equal(found.counts, counts)
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    wanted = kind_of(kind).site_metrics(counts) | {"intervals": kind_of(kind).intervals(counts)}
    wanted.pop("held_back")
    assert written["metrics"] == wanted
    assert written == json.loads(json.dumps(found.results))
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert f"Package run-1 at site-1, split test: {written['samples']} " in page


def make_test(folder, labels):
    from fedmend.data.tables import write_table

    images = [f"img{i}.png" for i in range(len(labels))]
    write_table(folder / "test.csv", images, labels, CLASSES)
    return with_card(folder, splits={"train": "train.csv", "test": "test.csv"})


def multilabel(tmp_path, **columns):
    folder = make_test(make_site_folder(tmp_path / "site-1", MANY, size=32), MANY)
    return make_package(tmp_path, classes=CLASSES, thresholds={"threshold": [0.3, 0.5, 0.6]}, **NONE), with_columns(
        folder, **columns
    )


WORDS = "subgroups: expected a list of columns, such as ['sex', 'age:40,60'], got"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"by": "sex"}, f"{WORDS} 'sex'"),
        ({"by": [3]}, f"{WORDS} [3]"),
        ({"by": None}, f"{WORDS} None"),
        ({"min_count": "3"}, "min_count: expected a whole number >= 1, got '3'"),
        ({"min_count": 2.5}, "min_count: expected a whole number >= 1, got 2.5"),
        ({"min_count": 0}, "min_count: expected a whole number >= 1, got 0"),
        ({"split": ["test"]}, "split: expected text, got ['test']"),
        ({"out": 3}, "out: expected a path that can be looked up, got 3"),
    ],
)
def test_what_python_gives_in_another_type_is_refused_in_a_sentence(tmp_path, given, sentence):
    package, folder = multilabel(tmp_path)
    with refused(sentence):
        package.evaluate(folder, **given)


def test_a_file_where_a_site_folder_should_be_is_refused(tmp_path):
    package, folder = multilabel(tmp_path)
    with refused("site.json: site.json: expected in the folder that data_root names, not found"):
        package.evaluate(folder / "site.json")


def test_decisions_are_those_of_predict(tmp_path):
    package, folder = multilabel(tmp_path)
    found = package.evaluate(folder).results
    package.predict(folder / "images", tmp_path / "asked")
    with open(tmp_path / "asked" / "predictions.csv", newline="") as stream:
        said = {row["image"]: row for row in csv.DictReader(stream)}
    for c, (name, row) in enumerate(zip(CLASSES, found["decisions"], strict=True)):
        yes = np.array([said[f"img{n}.png"][f"{name}_decision"] == "1" for n in range(24)])
        assert (row["found"], row["false_alarms"]) == ((yes & (MANY[:, c] == 1)).sum(), (yes & (MANY[:, c] == 0)).sum())
        assert row["found"] + row["missed"] == MANY[:, c].sum()


def test_a_threshold_that_no_validation_split_has_chosen_is_not_a_number_on_the_page(tmp_path):
    _, folder = multilabel(tmp_path)
    chosen = {"threshold": [0.3, 0.5, 0.5], "not_sure": [[0.2, 0.4]] * 3, "temperature": [2.0, 1.0, 1.0]}
    reasons = ["", "7 positives, 10 needed", "0 negatives, 10 needed"]
    fitted = {**chosen, "not_fitted": reasons}
    found = make_package(tmp_path / "other", classes=CLASSES, thresholds=fitted, **NONE).evaluate(
        folder, tmp_path / "out"
    )
    assert found.results["not_fitted"] == reasons
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert page.count("n/a: 7 positives, 10 needed") == page.count("n/a: 0 negatives, 10 needed") == 1
    assert "; where a threshold is n/a, at 0.5" in page
    assert f"but as the network gives them for {CLASSES[1]}, {CLASSES[2]}" in page
    raw, divided = found.results["metrics"]["per_class"]["ece"][0], found.results["calibration"][0]["ece"]
    assert abs(raw - divided) > 1e-3
    assert "; ECE of probabilities before they are calibrated" in page


def test_probabilities_that_nothing_has_calibrated_are_said_to_be_those_of_the_network_once(tmp_path):
    _, folder = multilabel(tmp_path)
    few = {"threshold": [0.5] * 3, "not_sure": [[0.5, 0.5]] * 3, "temperature": [1.0] * 3}
    few["not_fitted"] = ["0 positives, 10 needed"] * 3
    package = make_package(tmp_path / "other", classes=CLASSES, thresholds=few, **NONE)
    package.evaluate(folder, tmp_path / "out")
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert "Probabilities as the network gives them" in page
    assert "but as the network" not in page


def test_a_class_that_the_split_does_not_label_has_no_number_and_the_others_have_theirs(tmp_path):
    package, folder = multilabel(tmp_path)
    with open(folder / "test.csv", newline="") as stream:
        rows = [{name: cell for name, cell in row.items() if name != CLASSES[1]} for row in csv.DictReader(stream)]
    with open(folder / "test.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    found = package.evaluate(folder, tmp_path / "out").results
    assert [row["ece"] is None for row in found["calibration"]] == [False, True, False]
    assert (tmp_path / "out" / "evaluation.html").is_file()


def test_a_group_of_four_and_what_would_give_it_away_are_in_no_file(tmp_path):
    sex = ["F"] * 4 + ["M"] * 8 + ["D"] * 12
    package, folder = multilabel(tmp_path, sex=sex)
    package.evaluate(folder, tmp_path / "out", by=["sex"])
    groups = json.loads((tmp_path / "out" / "evaluation.json").read_text())["groups"]["sex"]
    assert groups["F"] == "held back"
    assert groups["M"] == "held back"
    assert groups["D"]["positives"] == [int(n) if min(n, 12 - n) >= 5 else None for n in MANY[12:].sum(0)]
    assert all(set(row or {}) <= {"ece", "brier"} for row in groups["D"]["calibration"])
    everything = package.evaluate(folder, by=["sex"], min_count=1).results["groups"]["sex"]
    assert [g["positives"] for g in (everything["F"], everything["M"])] == [
        MANY[:4].sum(0).tolist(),
        MANY[4:12].sum(0).tolist(),
    ]


def test_studies_are_pooled_in_both_ways_and_patients_drawn_again(tmp_path):
    patients, studies = [f"p{n // 4}" for n in range(24)], [f"s{n // 2}" for n in range(24)]
    package, folder = multilabel(tmp_path, patient=patients, study=studies)
    found = package.evaluate(folder, tmp_path / "out").results
    assert (found["patients"], found["bootstrap"]["of"]) == (6, "patients")
    assert {way: pool["studies"] for way, pool in found["studies"].items()} == {"max": 12, "mean": 12}
    whole = MANY.reshape(12, 2, 3).max(1)
    for pool in found["studies"].values():
        assert [row["found"] + row["missed"] for row in pool["decisions"]] == whole.sum(0).tolist()
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert "12 studies, highest probability of a study&#x27;s images, as in studies.csv of a prediction" in page


def test_a_scanner_with_shifted_grey_values_is_found(tmp_path):
    """The score of the package is the brightness of an image, which one of two scanners gets wrong."""
    size, count = 32, 60
    labels = np.arange(count) % 2
    folder = tmp_path / "site-1"
    make_site_folder(folder, labels[:, None], classes=["bleed"], size=size, suffix=".dcm", window=(40, 80))
    shifted = np.arange(count) % 4 // 2 == 1
    for n in range(count):
        level = 20 + 4 * labels[n] + RNG.normal() + (RNG.normal() * 30 if shifted[n] else 0)
        stored = np.full((size, size), level).astype(int) + RNG.integers(0, 3, (size, size))
        make_dicom(folder / "images" / f"img{n}.dcm", stored)
    (folder / "test.csv").write_text(
        "image,bleed,scanner\n" + "".join(f"img{n}.dcm,{labels[n]},{'AB'[int(shifted[n])]}\n" for n in range(count))
    )
    with_card(folder, splits={"train": "train.csv", "test": "test.csv"}, columns=["scanner"])
    package = make_package(tmp_path, classes=["bleed"])
    auc = brightness(package).evaluate(folder, by=["scanner"]).results["groups"]["scanner"]
    low, high = (auc[name]["intervals"]["per_class"]["auc"][0] for name in "BA")
    assert low[1] < high[0]


def brightness(package):
    class Brightness(torch.nn.Module):
        def forward(self, images):
            return images, 8 * images.mean((1, 2, 3))[:, None]

    package.network = Brightness
    return package


def test_volumes_have_groups_too(tmp_path):
    masks = [lesion(shape=(8, 8, 4)) for _ in range(6)]
    folder = with_card(make_volume_site(tmp_path / "site-1", test=masks), columns=["scanner"])
    for n in range(6):
        with_item(folder, number=n, section="test", scanner="AB"[n % 2], patient=f"p{n}")
    package = make_package(tmp_path, "segmentation", ["lesion"], network="unet_narrow", **NONE)
    found = package.evaluate(folder, by=["scanner"], min_count=3).results
    assert found["groups"]["scanner"]["A"]["volumes"][0]["volumes"] == 3
    assert found["patients"] == 6
    few = package.evaluate(folder, tmp_path / "out", by=["scanner"], min_count=4).results["groups"]
    assert few == {"scanner": {"A": "held back", "B": "held back"}}


class FindsAll(torch.nn.Module):
    """Marks all of some volumes, and nothing of the others; a batch is a volume."""

    def __init__(self, volumes):
        super().__init__()
        self.volumes, self.asked = volumes, -1

    def forward(self, images):
        self.asked += 1
        return images, torch.cat([images * 0, images * 0 + (1 if self.asked in self.volumes else -1)], 1)


@pytest.mark.parametrize(("volumes", "of_groups"), [({0, 1, 3, 5}, [None, None]), (range(6), [3, 3])])
def test_distances_of_few_people_are_in_no_group(tmp_path, volumes, of_groups):
    folder = with_card(make_volume_site(tmp_path / "site-1", test=[lesion()] * 6), columns=["scanner"])
    for n in range(6):
        with_item(folder, number=n, section="test", scanner="AB"[n % 2], patient=f"p{n}")
    package = make_package(tmp_path, "segmentation", ["lesion"], network="unet_narrow", **NONE)
    package.network = lambda: FindsAll(volumes)
    found = package.evaluate(folder, tmp_path / "out", by=["scanner"], min_count=3).results
    assert found["volumes"][0]["hd95_volumes"] == len(volumes)
    groups = [found["groups"]["scanner"][name]["volumes"][0] for name in "AB"]
    assert [group["hd95_volumes"] for group in groups] == of_groups
    assert [group["hd95"] is None for group in groups] == [n is None for n in of_groups]
    assert all(group["lesion_f1"] is not None for group in groups)
    assert (tmp_path / "out" / "evaluation.html").is_file()


def test_a_group_of_volumes_without_a_lesion_has_no_dice_and_no_interval(tmp_path):
    masks = [lesion() for _ in range(3)] + [np.zeros((8, 8, 4), bool) for _ in range(3)]
    folder = with_card(make_volume_site(tmp_path / "site-1", test=masks), columns=["cohort"])
    for n in range(6):
        with_item(folder, number=n, section="test", cohort="control" if n > 2 else "case", patient=f"p{n}")
    package = make_package(tmp_path, "segmentation", ["lesion"], network="unet_narrow", **NONE)
    found = package.evaluate(folder, tmp_path / "out", by=["cohort"], min_count=3).results
    assert found["groups"]["cohort"]["control"]["per_class"]["volume_dice"] == [None]
    assert "control" in (tmp_path / "out" / "evaluation.html").read_text(encoding="utf-8")


def test_groups_that_cannot_be_made_are_refused_before_the_model_is_asked(tmp_path, monkeypatch):
    package, folder = multilabel(tmp_path, site=[f"s{n}" for n in range(24)])
    monkeypatch.setattr("fedmend.learning.networks.Network.forward", lambda *given: pytest.fail("asked"))
    with refused("subgroups: expected at most 20 groups of site, got 24; give bands of numbers, such as site:40,60"):
        package.evaluate(folder, by=["site"])


def test_what_does_not_fit_is_one_sentence(tmp_path):
    package, folder = multilabel(tmp_path, sex=["F"] * 24)
    with refused("site-1: site.json, field splits: expected 'val', got ['test', 'train']"):
        package.evaluate(folder, split="val")
    where = "site-1: test.csv: expected a column 'age' that site.json lists under columns, got none"
    with refused(where):
        package.evaluate(folder, by=["age:40"])
    with refused("subgroups: expected each column once, got ['sex', 'sex']"):
        package.evaluate(folder, by=["sex", "sex:F"])
    with refused("site-1: site.json, field modality: expected CT, as the package, got MR"):
        package.evaluate(with_card(folder, modality="MR"))
    with refused("site-1: site.json, field task: expected 'multilabel', as the package, got 'singlelabel'"):
        package.evaluate(with_card(folder, task="singlelabel"))
    wrong = with_card(folder, task="multilabel", modality="", classes=["rash"])
    with pytest.raises(Exception, match=r"expected the package's \[.*\(missing here: .*, unknown to the package: "):
        package.evaluate(wrong)


def test_a_folder_that_is_read_otherwise_is_read_as_the_package_says(tmp_path):
    package, folder = multilabel(tmp_path)
    one = package.evaluate(folder).counts
    with_card(folder, color=True)
    found = package.evaluate(folder, tmp_path / "out")
    assert np.array_equal(found.counts, one)
    assert found.results["differs"] == "color True here, False in the package"
    assert "Read as the package says: color True here" in (tmp_path / "out" / "evaluation.html").read_text()
