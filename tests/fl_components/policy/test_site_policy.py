"""The site policy that follows from the methods."""

import json
import shutil
from dataclasses import replace

import pytest
from factories import ROOT, refused
from nvflare.fuel.utils.class_utils import load_class

from fedmend.fields import UNBOUNDED, Field
from fedmend.method import LocalMethod, Workflow
from fedmend.preprocessing import FIELDS as PREPROCESSING
from fl_components import policy
from fl_components.policy import (
    BEGIN,
    CLASSES,
    DATA_PROTECTION,
    END,
    FOR_COMPARISONS,
    GUARD,
    PRIVACY,
    RESOURCES,
    data_protection_tables,
    method_classes,
    policy_files,
    report_fields,
    stale,
    write_policy,
)
from fl_components.policy.classes import REASONS, allowed_classes, named_classes

METHODS = {
    "fedmlp": {"FedMLP", "FedMLPWorkflow"},
    "fednoro": {"FedNoRo", "FedNoRoWorkflow"},
    "fedlsm": {"FedLSM", "FedLSMWorkflow"},
    "fedia": {"FedIA", "FedIAWorkflow"},
    "baselines": {"FedAvg", "FedAvgPL", "FedProx", "SingleLabelFedAvg", "SingleLabelFedProx", "FedAvgWorkflow"},
    "labelsets": {"LabelSetFedAvg", "LabelSetFedProx", "LabelSetWorkflow"},
    "fedpu": {"FedPU"},
    "candidate_sets": {"CandidateSets"},
}
BASELINES = {
    "elr": {"ELR"},
    "fednoro_masks": {"FedNoRoMasks"},
    "rmd": {"RMD"},
    "nr_dice": {"NRDice"},
    "adele": {"Adele", "AdeleWorkflow"},
    "fedcorr_masks": {"FedCorrMasks"},
    "fedcorr_stages": {"FedCorrWorkflow"},
    "fedrs": {"FedRS"},
    "fpsl": {"FPSL"},
    "fssl": {"FSSL"},
    "moon": {"Moon"},
    "fixmatch": {"FixMatch"},
}
NUMBER = Field((), "int64", 0, 9, "a number", "none")


@pytest.fixture
def copy(tmp_path):
    """The tracked policy files, up to date."""
    for file in (RESOURCES, PRIVACY, DATA_PROTECTION, CLASSES, FOR_COMPARISONS):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    write_policy(tmp_path)
    return tmp_path


def test_every_method_and_workflow_is_listed_by_its_full_name():
    listed = {f"{cls.__module__}.{cls.__qualname__}" for cls in method_classes()}
    for folder, classes in (("methods", METHODS), ("baselines", BASELINES)):
        assert {f"fedmend.{folder}.{module}.{name}" for module, names in classes.items() for name in names} <= listed
    assert all(issubclass(cls, LocalMethod | Workflow) for cls in method_classes())


def test_what_only_serves_as_a_base_is_not_listed():
    names = {cls.__name__ for cls in method_classes()}
    bases = {"LocalMethod", "Workflow", "SingleLabelMethod", "SliceMethod", "LabelSetMethod", "PseudoLabelMethod"}
    assert not names & bases


def test_the_rest_of_what_jobs_name_exists():
    assert all(isinstance(load_class(path), type) for path in (*REASONS, GUARD))


def test_the_allow_list_holds_what_jobs_and_variants_name_and_nothing_else():
    allowed = json.loads((ROOT / RESOURCES).read_text())["class_allow_list"]
    assert sorted(allowed) == sorted(named_classes(ROOT))
    assert len(set(allowed)) == len(allowed)
    assert not any(path.endswith((".", "*")) for path in allowed)  # names, never a prefix


def test_of_flares_classes_three_are_allowed():
    allowed = json.loads((ROOT / RESOURCES).read_text())["class_allow_list"]
    assert [path.split(".")[-1] for path in allowed if path.startswith("nvflare.")] == [
        "StatisticsExecutor",
        "StatisticsController",
        "TBAnalyticsReceiver",
    ]


def test_a_class_that_somebody_added_to_the_tracked_list_goes_with_the_next_writing(copy):
    resources = json.loads((copy / RESOURCES).read_text())
    wanted = list(resources["class_allow_list"])
    resources["class_allow_list"].append("nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent")
    (copy / RESOURCES).write_text(json.dumps(resources))
    assert write_policy(copy) == [RESOURCES]
    assert json.loads((copy / RESOURCES).read_text())["class_allow_list"] == wanted


def test_a_class_that_a_job_names_without_a_reason_is_refused(copy):
    file = copy / "jobs" / "fedmlp_ich" / "app" / "config" / "config_fed_server.json"
    file.write_text(json.dumps({"components": [{"path": "nvflare.app_common.np.np_model_locator.NPModelLocator"}]}))
    got = "['nvflare.app_common.np.np_model_locator.NPModelLocator']"
    with refused(f"jobs: expected methods and classes with a reason in fl_components.policy, got {got}"):
        allowed_classes(copy, method_classes())


def test_a_method_that_no_job_names_is_not_allowed(copy):
    shutil.rmtree(copy / "jobs" / "variants")
    for file in (copy / "jobs").rglob("variants/*.json"):
        file.unlink()
    allowed = allowed_classes(copy, method_classes())
    assert "fedmend.methods.fedmlp.FedMLP" in allowed
    assert "fedmend.baselines.moon.Moon" not in allowed


def test_two_tables_say_of_every_allowed_class_where_it_runs_what_for_and_who_names_it():
    page = (ROOT / CLASSES).read_text()
    tables = [
        {line.split("`")[1]: line for line in table.splitlines() if line[:3] == "| `"}
        for table in page.split(BEGIN)[1].split(END)[0].split("\n## ")[1:]
    ]
    product, comparisons = (list(table) for table in tables)
    assert sorted(product + comparisons) == sorted(json.loads((ROOT / RESOURCES).read_text())["class_allow_list"])
    assert comparisons == json.loads((ROOT / FOR_COMPARISONS).read_text())["classes"]
    rows = tables[0] | tables[1]
    for path, row in rows.items():
        where, why, names = (cell.strip() for cell in row.split("|")[2:5])
        assert where in ("site", "server"), path
        assert len(why) > 10, path
        assert names == ", ".join(named_classes(ROOT)[path])
    assert "| server | Warm-up, detection of the noisy sites once, then robust training | `fednoro_ich`," in page


def test_the_guard_names_every_field_and_what_counts_it(copy):
    (scope,) = json.loads((copy / PRIVACY).read_text())["scopes"]
    (guard,) = [chosen for chosen in scope["task_result_filters"] if chosen["path"] == GUARD]
    fields = guard["args"]["fields"]
    assert list(fields) == sorted(report_fields())
    assert fields["class_loss"] == {"shape": ["R"], "dtype": "float32", "low": 0, "high": UNBOUNDED}
    assert all(
        (tuple(told["shape"]), told["dtype"], told["low"], told["high"])
        == (field.shape, field.dtype, field.low, field.high)
        for told, field in ((fields[name], field) for name, field in report_fields().items())
    )
    counts = guard["args"]["counts"]
    assert counts == {name: field.counted_by for name, field in report_fields().items() if field.counted_by}
    assert counts["prototypes"] == "prototype_counts"


def test_what_only_comparisons_need_are_baselines_and_the_fields_that_no_other_method_reports():
    found = json.loads((ROOT / FOR_COMPARISONS).read_text())
    allowed = json.loads((ROOT / RESOURCES).read_text())["class_allow_list"]
    assert found["classes"] == [path for path in allowed if path.startswith("fedmend.baselines.")]
    assert "fedmend.baselines.rscfed.RSCFed" in found["classes"]
    left = {
        name
        for cls in method_classes()
        if not cls.__module__.startswith("fedmend.baselines.")
        for name in getattr(cls, "FIELDS", ())
    }
    assert found["fields"] == sorted(report_fields().keys() - left)
    assert {"relation", "relation_count", "lid"} <= set(found["fields"])
    assert not {"correction", "class_loss"} & set(found["fields"])  # ADELE reports FedIA's, FedNoRo for masks FedNoRo's


def test_fields_of_all_methods_are_reported_once_each():
    fields = report_fields()
    assert {"prototypes", "class_loss", "class_knowledge", "lesions"} <= set(fields)
    for cls in method_classes():
        assert all(fields[name] == described for name, described in getattr(cls, "FIELDS", {}).items())


def test_a_name_with_two_meanings_is_refused(monkeypatch):
    class One(LocalMethod):
        FIELDS = {"number": NUMBER}  # noqa: RUF012

    class Other(LocalMethod):
        FIELDS = {"number": replace(NUMBER, high=99)}  # noqa: RUF012

    monkeypatch.setattr(policy, "method_classes", lambda: [One, One])
    assert report_fields() == {"number": NUMBER}
    monkeypatch.setattr(policy, "method_classes", lambda: [One, Other])
    with refused(f"{__name__}.{Other.__qualname__}, field number: expected one meaning of a name, got two"):
        report_fields()


def test_the_tables_name_every_field_with_its_risk():
    _, prepared, *groups = data_protection_tables().split("### ")
    assert all(f"| `{name}` |" in prepared for name in PREPROCESSING)
    for cls in method_classes():
        reported, sent = groups[cls.__module__.startswith("fedmend.baselines.")].split("**The server sends**")
        for attribute, table in (("FIELDS", reported), ("KNOWLEDGE", sent)):
            for name, described in getattr(cls, attribute, {}).items():
                rows = {line for line in table.splitlines() if f"| `{name}` |" in line}  # one per method
                guarded = attribute == "FIELDS" and (
                    bool(described.counted_by) or name in {f.counted_by for f in cls.FIELDS.values()}
                )
                assert rows
                for row in rows:
                    assert f"| {described.meaning} |" in row
                    assert described.risk in row
                    assert ("**guarded**" in row) == guarded
    for word in ("| FedMLP |", "2C × F"):
        assert word in groups[0]
        assert word not in groups[1]


def test_the_tracked_files_say_what_the_code_says():
    assert stale(ROOT) == []


def test_files_that_say_something_else_are_named_and_brought_up_to_date(copy):
    assert stale(copy) == []
    assert write_policy(copy) == []
    wanted = policy_files(copy)
    resources = json.loads((copy / RESOURCES).read_text())
    resources["class_allow_list"].remove("fedmend.methods.fedmlp.FedMLP")
    (copy / RESOURCES).write_text(json.dumps(resources))
    page = (copy / DATA_PROTECTION).read_text()
    (copy / DATA_PROTECTION).write_text(page.replace("`class_loss`", "`class_losses`"))
    (copy / CLASSES).write_text((copy / CLASSES).read_text().replace("| server |", "| site |"))
    (copy / FOR_COMPARISONS).write_text("{}\n")
    changed = [RESOURCES, FOR_COMPARISONS, DATA_PROTECTION, CLASSES]
    assert stale(copy) == changed
    assert write_policy(copy) == changed
    assert stale(copy) == []
    assert {file: (copy / file).read_text() for file in wanted} == wanted


def test_what_people_wrote_around_the_tables_stays(copy):
    before, rest = (copy / DATA_PROTECTION).read_text().split(BEGIN)
    _, after = rest.split(END)
    (copy / DATA_PROTECTION).write_text(f"{before}New words.\n{BEGIN}\nold table\n{END}{after}The end.\n")
    assert write_policy(copy) == [DATA_PROTECTION]
    page = (copy / DATA_PROTECTION).read_text()
    assert page.startswith(f"{before}New words.\n{BEGIN}\n")
    assert page.endswith(f"{END}{after}The end.\n")
    assert "old table" not in page
    assert data_protection_tables() in page


def test_a_page_without_a_place_for_the_tables_is_refused(copy):
    (copy / DATA_PROTECTION).write_text("nothing here")
    with refused(f"{DATA_PROTECTION}: expected the lines {BEGIN} and {END}, not found"):
        stale(copy)
