import json
import re
import shutil

import numpy as np
import pytest
from factories import refused
from federation_factories import Run, plain_answers

from fedmend.messages import CENSUS
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.package import Package, model_card
from fedmend.package.model_card import CHECKLISTS, write_card
from fedmend.records.package_files import write_package
from fedmend.report.report import write_report

jsonschema = pytest.importorskip("jsonschema")

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
SCHEMA = json.loads(CHECKLISTS.with_name("model_card.schema.json").read_text())


def answers(*, phantom=()):
    """Sites that repair labels; people of site-1 alone tell what they think of it."""
    plain = plain_answers(BOTH)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == CENSUS:
            result.census["phantom"] = site in phantom
            return result
        own = np.array(BOTH[site])
        result.repairs = {k: (1 - own) * n for k, n in (("positive", 3), ("negative", 2), ("untagged", 1))}
        if site == "site-1":
            result.repairs |= {"accepted": (1 - own) * 6, "rejected": (1 - own) * 1}
        return result

    return answer


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, FedAvgWorkflow(), list(BOTH), answers())


def card_of(package, out):
    file, *_ = write_card(Package(package), out)
    return json.loads(file.read_text())


def numbers(value):
    """Every number in a value that JSON can hold."""
    if isinstance(value, dict):
        return {n for inner in value.values() for n in numbers(inner)}
    if isinstance(value, list):
        return {n for inner in value for n in numbers(inner)}
    return {value} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def test_a_card_says_what_package_and_run_know_and_fits_its_schema(run, tmp_path):
    card = card_of(run.folder / "run-1.fedmend", tmp_path)
    jsonschema.validate(card, SCHEMA)
    assert card["title"] == "Model card of run-1"
    assert card["labels"]["repaired"] == {"a": {"positive": 3, "negative": 2}, "b": {"positive": 3, "negative": 2}}
    results = run.content("results.json")
    for split, macro in results["final"].items():
        said = {name: {"value": v, "interval": results["intervals"][split].get(name)} for name, v in macro.items()}
        assert card["metrics"][split] == said
    site = results["sites"]["test"]["site-2"]
    wanted = {"value": site["macro"]["auc"], "interval": site["intervals"]["auc"]}
    assert card["site_metrics"]["test"]["site-2"]["auc"] == wanted


def test_a_card_of_a_run_that_repaired_nothing_does_not_name_a_rule_that_did(run, tmp_path):
    quiet = Run(tmp_path / "quiet", FedAvgWorkflow(), list(BOTH), plain_answers(BOTH))
    for made, said in ((run, "- Repaired by the rule of FedAvg"), (quiet, "- None was repaired; method: FedAvg")):
        _, text, _ = write_card(Package(made.folder / "run-1.fedmend"), tmp_path)
        assert said in text.read_text()


def test_a_threshold_that_was_not_fitted_is_a_reason_and_no_number(run, tmp_path):
    about = json.loads((run.folder / "run-1.fedmend" / "package.json").read_text())
    del about["format"]
    about["thresholds"] = {
        "threshold": [0.25, 0.5],
        "not_sure": [[0.125, 0.375], [0.5, 0.5]],
        "temperature": [1.5, 1.0],
        "not_fitted": ["", "7 positives, 10 needed"],
    }
    write_package(tmp_path / "x.fedmend", about, {"a": np.ones(1, np.float32)})
    card = card_of(tmp_path / "x.fedmend", tmp_path)
    assert card["thresholds"]["threshold"] == [0.25, None]
    assert card["thresholds"]["not_sure"] == [[0.125, 0.375], None]
    assert card["thresholds"]["temperature"] == [1.5, None]
    text = (tmp_path / "x-card.md").read_text()
    assert "| a | 0.250 | 0.125 to 0.375 | 1.500 |\n| b | n/a: 7 positives, 10 needed |  |  |\n" in text
    jsonschema.validate(card, SCHEMA)
    assert model_card.CHOSEN in card["limits"]
    for none in ({}, about["thresholds"] | {"not_fitted": ["0 positives, 10 needed"] * 2}):
        write_package(tmp_path / "y.fedmend", about | {"thresholds": none}, {"a": np.ones(1, np.float32)})
        assert "Thresholds were chosen" not in str(card_of(tmp_path / "y.fedmend", tmp_path)["limits"])


def test_classes_that_a_site_holds_back_are_named_with_the_reason(run, tmp_path):
    results = run.content("results.json")
    results["sites"]["test"]["site-2"]["held_back"] = [False, True]
    (run.folder / "results.json").write_text(json.dumps(results))
    card = card_of(run.folder / "run-1.fedmend", tmp_path)
    jsonschema.validate(card, SCHEMA)
    assert card["held_back"] == {"test": {"site-2": ["b"]}}
    few = "1 to 4 samples with it or without it, of masks 1 to 4 volumes with it"
    words = f"test, site-2: the means are without b. A class is held back where a site has {few}."
    assert f"- {words}\n" in (tmp_path / "run-1-card.md").read_text()
    assert words in (tmp_path / "run-1-card.html").read_text()
    assert card_of(run.folder / "run-1-best.fedmend", tmp_path)["held_back"] == {}


def test_a_site_that_withholds_what_its_people_judged_is_not_in_it(run, tmp_path):
    card = card_of(run.folder / "run-1.fedmend", tmp_path)
    assert card["labels"]["judged"] == [{"site": "site-1", "class": "b", "accepted": 6, "rejected": 1}]


@pytest.mark.parametrize("name", ["run-1", "run-1-best"])
def test_no_number_of_a_card_is_in_none_of_the_files(run, tmp_path, name):
    package = run.folder / f"{name}.fedmend"
    card = card_of(package, tmp_path)
    known = numbers(json.loads((package / "package.json").read_text()))
    known |= (
        numbers(run.content("results.json")) | numbers(run.lines("repairs.jsonl")) | numbers(run.content("run.json"))
    )
    assert numbers(card) <= known
    text = (tmp_path / f"{name}-card.md").read_text().partition("## CLAIM")[0]
    shown = {f"{n:.3f}" for n in known}
    assert {*re.findall(r"(?<![\w.])\d\.\d{3}(?![\w.])", text)} <= shown


def test_a_package_alone_has_neither_metrics_of_sites_nor_verdicts(run, tmp_path):
    shutil.copytree(run.folder / "run-1.fedmend", tmp_path / "alone" / "run-1.fedmend")
    card = card_of(tmp_path / "alone" / "run-1.fedmend", tmp_path)
    jsonschema.validate(card, SCHEMA)
    assert (card["site_metrics"], card["labels"]["judged"]) == ({}, [])
    (item,) = (i for c in card["checklists"] for i in c["items"] if i["item"] == "23b")
    assert item["answer"] == "you must write this"


def test_a_package_in_the_folder_of_another_run_takes_nothing_from_it(run, tmp_path):
    file = run.folder / "run.json"
    file.write_text(json.dumps(run.content("run.json") | {"started": "2020-01-01T00:00:00"}))
    assert card_of(run.folder / "run-1.fedmend", tmp_path)["site_metrics"] == {}


def test_every_item_has_one_of_three_answers_and_one_that_is_answered_names_a_part(run, tmp_path):
    card = card_of(run.folder / "run-1.fedmend", tmp_path)
    claim, tripod = card["checklists"]
    assert [i["item"] for i in claim["items"]] == [str(n) for n in range(1, 45)]
    assert {int(re.match(r"\d+", i["item"])[0]) for i in tripod["items"]} == {*range(1, 28)}
    for item in (*claim["items"], *tripod["items"]):
        assert item["answer"] in ("answered", "partly", "you must write this")
        assert bool(item["from"]) == (item["answer"] != "you must write this")
        assert not item["from"] or card[item["from"]]
    assert [c["name"] for c in card["checklists"]] == ["CLAIM, update of 2024", "TRIPOD+AI, 2024"]
    for suffix in ("md", "html"):
        text = (tmp_path / f"run-1-card.{suffix}").read_text()
        assert text.count("Items are paraphrased") == 2
        assert "2024; 6(4): e240300" in text
        assert "BMJ 2024; 385: e078378" in text


def test_an_item_about_external_data_is_answered_by_an_evaluation_alone(run, tmp_path):
    card = card_of(run.folder / "run-1.fedmend", tmp_path)
    (item,) = (i for i in card["checklists"][0]["items"] if i["item"] == "33")
    assert (item["answer"], item["from"]) == ("you must write this", "")
    known = json.loads(CHECKLISTS.read_text())
    (item,) = (i for i in known[0]["items"] if i["item"] == "33")
    assert (item["answer"], item["from"]) == ("partly", "evaluation")


def test_the_items_of_tripod_ai_have_the_letters_of_the_checklist():
    letters = {
        3: "abc",
        5: "ab",
        6: "abc",
        8: "abc",
        9: "abc",
        12: "abcdefg",
        18: "abcdef",
        20: "abc",
        23: "ab",
        27: "abc",
    }
    wanted = [f"{n}{letter}" for n in range(1, 28) for letter in letters.get(n, ("",))]
    tripod = json.loads(CHECKLISTS.read_text())[1]
    assert [item["item"] for item in tripod["items"]] == wanted
    assert len(wanted) == 52


def test_a_card_of_synthetic_data_says_so_in_every_title(tmp_path):
    run = Run(tmp_path, FedAvgWorkflow(), list(BOTH), answers(phantom=BOTH))
    assert card_of(run.folder / "run-1.fedmend", tmp_path)["title"] == "PHANTOM Model card of run-1"
    assert (tmp_path / "run-1-card.md").read_text().startswith("# PHANTOM Model card of run-1\n")
    assert "<title>PHANTOM " in (tmp_path / "run-1-card.html").read_text()


def test_a_run_on_synthetic_images_and_those_of_patients_says_so_everywhere(tmp_path, caplog):
    run = Run(tmp_path, FedAvgWorkflow(), list(BOTH), answers(phantom=["site-2"]))
    assert "data are synthetic at site-2, and of patients at site-1; the run counts as PHANTOM" in caplog.text
    page = write_report(run.folder).read_text()
    assert "Images of site-2 are synthetic, those of site-1 are not." in page
    _, *cards = write_card(Package(run.folder / "run-1.fedmend"), tmp_path)
    for text in (page, *(card.read_text() for card in cards)):
        assert "PHANTOM" in text
        assert "Every image" not in text
    assert all("Some images behind this model are synthetic, others of patients" in c.read_text() for c in cards)


def test_words_of_a_site_are_text_in_the_pages(run, tmp_path):
    about = json.loads((run.folder / "run-1.fedmend" / "package.json").read_text())
    del about["format"]
    about["sites"] = {"<script>x</script>|": {"train": 1}}
    write_package(tmp_path / "x.fedmend", about, {"a": np.ones(1, np.float32)})
    card_of(tmp_path / "x.fedmend", tmp_path)
    assert "<script>" not in (tmp_path / "x-card.html").read_text()
    assert "| \\<script\\>x\\</script\\>\\| |" in (tmp_path / "x-card.md").read_text()


def test_fields_that_no_run_writes_are_refused_and_no_card_is_left(run, tmp_path):
    about = json.loads((run.folder / "run-1.fedmend" / "package.json").read_text())
    write_package(tmp_path / "x.fedmend", {**about, "metrics": [1]}, {"a": np.ones(1, np.float32)})
    with refused("package x.fedmend: expected fields as a run of FedMend writes them, got others"):
        write_card(Package(tmp_path / "x.fedmend"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert model_card.FORMAT == 1
