import json
import shutil
import sys
import xml.etree.ElementTree as ET
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from factories import refused
from run_factories import CLASSES, EVIL, make_run

from fedmend.basics.page import section
from fedmend.learning.networks import build_network
from fedmend.learning.weights import get_weights
from fedmend.local.opened_run import Run
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.report.figures import Line, Panel, grid_figure
from fedmend.report.parts import Part

needs_pandas = pytest.mark.skipif(find_spec("pandas") is None, reason="needs fedmend[notebook]")


@pytest.fixture
def workspace(tmp_path):
    """A simulation's workspace with a finished run."""
    folder = tmp_path / "w" / "server" / "simulate_job" / "fedmend"
    folder.mkdir(parents=True)
    make_run(folder)
    return tmp_path / "w"


def change_info(workspace, **fields):
    (file,) = workspace.rglob("run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_a_run_is_opened_by_its_folder_or_its_workspace(workspace):
    by_workspace = Run(workspace)
    assert by_workspace.folder == workspace / "server" / "simulate_job" / "fedmend"
    assert Run(str(by_workspace.folder)).name == by_workspace.name == "demo"
    assert by_workspace.report == by_workspace.folder / "report.html"
    assert by_workspace.final["test"]["auc"] == 0.623


def test_a_folder_without_a_run_or_with_several_is_refused(tmp_path, workspace):
    with refused(f"run: expected one run.json in {tmp_path / 'nowhere'}, found none"):
        Run(tmp_path / "nowhere")
    shutil.copytree(workspace, tmp_path / "again")
    with refused(f"run: expected one run.json in {tmp_path}, found 2"):
        Run(tmp_path)


@needs_pandas
def test_metrics_are_a_table_with_a_row_per_evaluation(workspace):
    table = Run(workspace).metrics()
    assert list(table["round"]) == [0, 1, 2]
    assert list(table["auc"]) == [0.512, 0.734, 0.623]
    assert set(table["split"]) == {"test"}


@needs_pandas
def test_metrics_per_class_lack_what_a_class_cannot_have(workspace):
    table = Run(workspace).metrics(per_class=True)
    assert list(table["class"]) == CLASSES * 3
    assert list(table["auc"].isna()) == [False, True] * 3


@needs_pandas
def test_metrics_per_site_have_a_row_for_each_site(tmp_path):
    sites = {"site-1": {"auc": 0.75}, "site-2": {"auc": None}}
    make_run(tmp_path, metrics=[{"round": 1, "split": "test", "macro": {"auc": 0.8}, "per_class": {}, "sites": sites}])
    table = Run(tmp_path).metrics(per_site=True)
    assert list(table["site"]) == ["site-1", "site-2"]
    assert (table["auc"][0], list(table["auc"].isna())) == (0.75, [False, True])


def test_metrics_are_asked_for_per_class_or_per_site(workspace):
    with refused("metrics: expected per_class or per_site, got both"):
        Run(workspace).metrics(per_class=True, per_site=True)


@needs_pandas
def test_decisions_are_a_table_of_one_kind_or_of_all(workspace):
    run = Run(workspace)
    assert len(run.decisions()) == 5
    assert list(run.decisions("best_model")["value"]) == [{"auc": 0.7, "split": "val"}]


@needs_pandas
def test_counts_of_repairs_are_a_table(workspace):
    table = Run(workspace).repairs()
    assert list(table["site"]) == [EVIL, "site-1"]
    assert list(table["positive"]) == [5, 8]


def ledger_of_site_1(workspace):
    (workspace / "local").mkdir()
    settings = {"data_root": "phantom", "cache_dir": "cache", "state_dir": "state"}
    (workspace / "local" / "fedmend.json").write_text(json.dumps(settings))
    file = workspace / "site-1" / "state" / "demo" / "site-1" / "ledger.sqlite"
    return LabelLedger(file, fingerprint="x", images=["a.png", "b.png"], classes=CLASSES, site="site-1")


@needs_pandas
def test_repairs_of_a_site_come_from_its_ledger_and_count_rounds_from_one(workspace):
    ledger = ledger_of_site_1(workspace)
    repairs = Repairs(np.array([0, 1]), np.array([1, 0]), np.array([1, 0]), np.array([0.75, 0.5]))
    ledger.record("rule", 2, np.array([[1, -1], [1, 0]], dtype=np.int8), repairs)
    ledger.record("rule", 3, np.zeros((2, 2), dtype=np.int8), Repairs(*[np.zeros(0)] * 4))
    table = Run(workspace).repairs("site-1")
    assert table[["image", "class", "new", "round"]].to_numpy().tolist() == [
        ["a.png", CLASSES[1], 1, 3],
        ["b.png", CLASSES[0], 0, 3],
    ]
    assert list(table["old"].isna()) == [True, False]
    assert list(table["in_force"]) == [True, True]


@needs_pandas
def test_tables_without_rows_have_their_columns(workspace):
    ledger_of_site_1(workspace)
    (workspace / "server" / "simulate_job" / "fedmend" / "repairs.jsonl").write_text("")
    run = Run(workspace)
    assert len(run.repairs().query("round == 6")) == 0
    assert len(run.repairs("site-1").sort_values("confidence")) == 0
    assert list(run.decisions("unknown")["value"]) == []


def test_a_ledger_that_is_not_on_this_machine_is_said(workspace):
    sentence = "repairs: expected the ledger of site-1 beside this run, not found; after a simulation it is there, of a"
    with refused(f"{sentence} federation each site keeps its own"):
        Run(workspace).repairs("site-1")


def test_a_site_that_is_none_of_the_run_is_refused(workspace):
    with refused(f"repairs: expected one of {sorted([EVIL, 'site-1'])}, got '../x'"):
        Run(workspace).repairs("../x")


def test_figures_are_those_of_the_report_as_documents_of_their_own(workspace):
    run = Run(workspace)
    figures = run.figures()
    assert "auc-curves" in figures
    for figure in figures.values():
        assert ET.fromstring(figure._repr_svg_()).tag == "{http://www.w3.org/2000/svg}svg"
    assert run.figure("auc-curves") == figures["auc-curves"]
    assert repr(figures["auc-curves"]).startswith("AUC over rounds 0 to 2: macro from 0.51 to 0.62; ")
    with refused(f"figure: expected one of {sorted(figures)}, got 'auc'"):
        run.figure("auc")


def test_figures_are_those_that_the_parts_hand_over_whatever_the_html_around_them_holds(workspace, monkeypatch):
    title, alt = "</svg> <svg id=", 'Dice of "a" &lt; <b>: </svg> <svg '
    curve = [Panel(title, [Line([0, 1], [0.25, 0.5])])]
    drawn = grid_figure("dice-curves", curve, alt=alt, ylim=(0, 1), last_round=1, legend={"main": "Dice"}, xlabel="x")
    part = Part(sections=(lambda run: section("dice", "Dice", '<p><svg class="icon"></svg> &lt;svg </p>', drawn),))
    monkeypatch.setattr("fedmend.report.parts.find_parts", lambda: [part])
    figures = Run(workspace).figures()
    assert list(figures) == ["dice-curves"]
    assert title in ET.fromstring(figures["dice-curves"]).itertext()
    assert repr(figures["dice-curves"]) == alt


def test_a_model_has_the_weights_of_its_file_and_is_ready_to_be_asked(workspace):
    change_info(workspace, settings={"network": "resnet_narrow"})
    app = workspace / "server" / "simulate_job" / "app_server"
    app.mkdir()
    written = {}
    for name in ("FL_global_model.pt", "best_FL_global_model.pt"):
        written[name] = get_weights(build_network("resnet_narrow", len(CLASSES)))
        torch.save({"model": written[name]}, app / name)
    for name, best in zip(written, (False, True), strict=True):
        model = Run(workspace).model(best=best)
        assert not model.training
        assert torch.equal(model.state_dict()["classifier.weight"], written[name]["classifier.weight"])


@pytest.mark.parametrize("untrained", [False, True])
def test_where_there_is_no_trained_model_none_is_given(workspace, untrained):
    app = workspace / "server" / "simulate_job" / "app_server"
    if untrained:
        app.mkdir()
        (app / "FL_global_model.pt").touch()
        decision = {"round": 0, "what": "untrained_model", "value": {"untrained": True, "reason": "x"}}
        (app.parent / "fedmend" / "decisions.jsonl").write_text(json.dumps(decision) + "\n")
    with refused(f"model: expected a trained global model in {app}, found no FL_global_model.pt of one"):
        Run(workspace).model()


def test_a_run_says_what_it_is_in_a_line_and_an_unfinished_one_says_so(workspace):
    assert repr(Run(workspace)) == "run demo (FedMLP): test AUC 0.623, mAP 0.250, BACC 0.500"
    (workspace / "server" / "simulate_job" / "fedmend" / "results.json").unlink()
    change_info(workspace, phantom=True)
    run = Run(workspace)
    assert (repr(run), run.final) == ("PHANTOM run demo (FedMLP): not finished", {})


def test_a_run_that_stopped_says_why_before_its_census_too(workspace):
    folder = workspace / "server" / "simulate_job" / "fedmend"
    (folder / "results.json").unlink()
    (folder / "progress.json").write_text(json.dumps({"state": "stopped", "reason": "site-1: too few"}))
    assert repr(Run(workspace)) == "run demo (FedMLP): the run stopped: site-1: too few"
    (folder / "run.json").unlink()
    with refused(f"run: expected one run.json in {workspace}, found none; the run stopped: site-1: too few"):
        Run(workspace)
    for other in ('{"state": "runs"}', "[]", "{"):
        (folder / "progress.json").write_text(other)
        with refused(f"run: expected one run.json in {workspace}, found none"):
            Run(workspace)


@pytest.mark.parametrize("given", [["site-1"], np.array(["site-1", "site-2"]), None, 3], ids=str)
def test_what_is_no_name_of_a_site_figure_or_decision_is_refused_in_a_sentence(workspace, given):
    for word in ("repairs", "figure", "decisions"):
        with refused(f"{word}: expected text, got {given!r}"):
            getattr(Run(workspace), word)(given)


def test_without_pandas_there_is_one_sentence(workspace, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("table: expected the package pandas (pip install 'fedmend[notebook]'), not found"):
        Run(workspace).metrics()
