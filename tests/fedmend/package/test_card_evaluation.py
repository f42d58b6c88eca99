"""The card of a package with the numbers of an evaluation, which stand in its file alone."""

import json
import re

import numpy as np
import pytest
from factories import CLASSES, make_site_folder, refused
from measured_packages import make_package
from nifti_factories import lesion, make_volume_site, with_card

from fedmend.data.tables import write_table
from fedmend.package.card_evaluation import read_evaluation
from fedmend.package.model_card import CHECKLISTS, write_card

RNG = np.random.default_rng(2)
MANY = RNG.integers(0, 2, (24, 3))
SEX = ["F"] * 4 + ["M"] * 8 + ["D"] * 12


@pytest.fixture
def package(tmp_path):
    more = {"model": "final", "round": 1, "versions": {}, "parent": None}
    return make_package(tmp_path, classes=CLASSES, thresholds={"threshold": [0.3, 0.5, 0.6]}, more=more, window=None)


@pytest.fixture
def evaluation(tmp_path, package):
    """The folder of an evaluation of 24 images in groups of 4, 8 and 12, of which two are held back."""
    folder = make_site_folder(tmp_path / "site-1", MANY, size=32)
    write_table(folder / "test.csv", [f"img{i}.png" for i in range(24)], MANY, CLASSES)
    lines = (folder / "test.csv").read_text().splitlines()
    rows = [f"{line},{value}" for line, value in zip(lines, ["sex", *SEX], strict=True)]
    (folder / "test.csv").write_text("\n".join(rows) + "\n")
    with_card(folder, splits={"train": "train.csv", "test": "test.csv"}, columns=["sex"])
    package.evaluate(folder, tmp_path / "evaluation", by=["sex"])
    return tmp_path / "evaluation"


def content(evaluation):
    return json.loads((evaluation / "evaluation.json").read_text())


def change(evaluation, **fields):
    (evaluation / "evaluation.json").write_text(json.dumps(content(evaluation) | fields))


def numbers(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = {value} if isinstance(value, int | float) and not isinstance(value, bool) else set()
    return own.union(*map(numbers, inner))


def test_the_card_has_the_numbers_of_the_evaluation_and_none_beside_them(tmp_path, package, evaluation):
    found = content(evaluation)
    for path in (evaluation, evaluation / "evaluation.json"):
        said = read_evaluation(path, package)
        assert numbers(said) <= numbers(found)
        assert (said["site"], said["split"], said["samples"], said["patients"]) == ("site-1", "test", 24, None)
        auc = {"value": found["metrics"]["macro"]["auc"], "interval": found["bootstrap"]["macro"]["auc"]}
        assert said["metrics"]["auc"] == auc
        row = found["decisions"][1]
        interval = row["sensitivity_interval"]
        assert said["classes"][CLASSES[1]]["sensitivity"] == {"value": row["sensitivity"], "interval": interval}
    _, text, _ = write_card(package, tmp_path / "card", evaluation)
    _, _, part = text.read_text().partition("## Evaluated at site-1, test split\n")
    part = part.partition("\n## ")[0]
    assert "24 samples, no patient is known. Intervals: images drawn again" in part
    shown = {f"{number:.3f}" for number in numbers(found)}
    assert {*re.findall(r"(?<![\w.])\d\.\d{3}(?![\w.])", part)} <= shown


def test_what_the_evaluation_holds_back_is_held_back_in_the_card(tmp_path, package, evaluation):
    said = read_evaluation(evaluation, package)["groups"]["sex"]
    assert said["F"] == said["M"] == dict.fromkeys(CLASSES, "held back")
    group = content(evaluation)["groups"]["sex"]["D"]
    assert [said["D"][name] == "held back" for name in CLASSES] == [name in group["held_back"] for name in CLASSES]
    _, text, page = write_card(package, tmp_path / "card", evaluation)
    assert f"| sex F | {CLASSES[0]} | held back |  |  |" in text.read_text()
    assert "A number of a group is held back where it, or the rest, describes 1 to 4 people." in page.read_text()


def test_the_card_with_an_evaluation_fits_its_schema(tmp_path, package, evaluation):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(CHECKLISTS.with_name("model_card.schema.json").read_text())
    file, *_ = write_card(package, tmp_path / "card", evaluation)
    jsonschema.validate(card := json.loads(file.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(card | {"evaluation": {"site": "site-1"}}, schema)


def test_masks_have_dice_and_surfaces(tmp_path):
    folder = make_volume_site(tmp_path / "site-1", test=[lesion(), lesion(((5, 7), (1, 3), (2, 4)))])
    package = make_package(tmp_path, "segmentation", ["lesion"], network="unet_narrow", window=None)
    package.evaluate(folder, tmp_path / "evaluation")
    said = read_evaluation(tmp_path / "evaluation", package)
    assert said["drawn"] == "volumes"
    assert [*said["classes"]["lesion"]] == ["volume_dice", "lesion_f1", "hd95"]


def test_an_evaluation_of_another_package_is_refused(package, evaluation):
    change(evaluation, digest="0" * 64)
    words = f"an evaluation of this package, digest {package.digest[:16]}, got one of digest {'0' * 16}"
    with refused(f"--evaluation, evaluation.json: expected {words}"):
        read_evaluation(evaluation, package)


def test_a_phantom_evaluation_says_so_in_the_title_of_its_part(tmp_path, package, evaluation):
    change(evaluation, phantom=True)
    _, text, _ = write_card(package, tmp_path / "card", evaluation)
    assert "## PHANTOM Evaluated at site-1, test split\n" in text.read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"decisions": []},
        {"decisions": [{"sensitivity": "high"}] * 3},
        {"groups": {"sex": {"F": "hidden"}}},
        {"groups": {"sex": {"F": {"held_back": "edema"}}}},
        {"groups": [1]},
        {"bootstrap": {"of": "coins", "macro": {}, "per_class": {}}},
        {"metrics": {"macro": {"auc": [0.5]}, "per_class": {}}},
        {"calibration": [{"ece": True}] * 3},
    ],
)
def test_fields_that_an_evaluation_does_not_have_are_refused_and_no_card_is_left(tmp_path, package, evaluation, wrong):
    change(evaluation, **wrong)
    with refused_in_a_sentence():
        write_card(package, tmp_path / "card", evaluation)
    assert not (tmp_path / "card").exists()


def refused_in_a_sentence():
    from fedmend.errors import FedMendError

    return pytest.raises(FedMendError, match=r"^--evaluation, evaluation.json(, field groups)?: expected .*, got ")


def test_a_folder_without_an_evaluation_and_a_file_that_does_not_parse_are_refused(tmp_path, package):
    with refused("--evaluation, evaluation.json: expected the evaluation.json that fedmend evaluate writes, not found"):
        read_evaluation(tmp_path, package)
    (tmp_path / "evaluation.json").write_text('{"samples": NaN}')
    with refused("--evaluation, evaluation.json: expected JSON, got a file that does not parse"):
        read_evaluation(tmp_path, package)
