import shlex
from pathlib import Path

import pytest
from advice_factories import FULL, GAP, LABELLED, OTHER_GAP, federation, masks, site

from fedmend.advice import advice_text, advise, next_command
from fl_components.cli import build_parser


def command(facts, data=None):
    return next_command(advise(facts), facts, data)


def test_the_command_writes_the_job_where_the_data_are_not_here():
    words = "fedmend configure jobs/fedmlp_ich advised --sites 2 --set run_name=advised"
    assert command(federation(GAP, OTHER_GAP)) == f"""{words} 'classes=["edema", "nodule"]'"""
    assert "advised --variant fedavg --sites 2 " in command(federation(FULL, FULL))


def test_the_command_compares_where_the_data_are_here():
    words = shlex.split(command(federation(masks(), masks(), classes=("lesion",)), Path("/data/ms")))
    assert words[1:5] == ["compare", "jobs/fedia_ms", "--rows", "correction_only,fedavg"]
    assert words[words.index("--site") + 1] == "data_root=/data/ms/{SITE_NAME}"
    assert words[words.index("--sites") + 1] == "2"


def test_the_command_runs_the_variant_alone_where_the_job_refuses_so_few_sites():
    words = shlex.split(command(federation(LABELLED, LABELLED), Path("/data")))
    assert words[1:6] == ["simulate", "jobs/fednoro_ich", "--local", "--variant", "fedla"]
    assert words[6:10] == ["--sites", "2", "--site", "data_root=/data/{SITE_NAME}"]
    assert "--variant fedla --sites 2" in command(federation(LABELLED, LABELLED))
    four = shlex.split(command(federation(*[LABELLED] * 4), Path("/data")))
    assert four[1:5] == ["compare", "jobs/fednoro_ich", "--rows", "fedla,fedavg"]


def test_sites_that_were_not_counted_are_all_counted_in_the_advice():
    bad = [site((0, 0, 0), (0, 0, 0), problem=f"bad {i}") for i in range(6)]
    found = [f.why for f in advise(federation(FULL, FULL, *bad)) if f.rule.name == "not counted"]
    assert found == ["Not counted: bad 0; bad 1; bad 2; bad 3; and 2 more."]


def test_the_command_only_writes_the_job_where_the_folders_have_other_names_than_those_of_a_run():
    facts = federation(GAP, OTHER_GAP)
    renamed = type(facts)({"north": GAP, "south": OTHER_GAP}, facts.classes)
    assert command(renamed, Path("/data")).startswith("fedmend configure")


@pytest.mark.parametrize("data", [None, Path("/my data")])
def test_the_command_is_one_of_fedmend(data):
    facts = federation(GAP, OTHER_GAP, classes=("it's", "b c"))
    args = build_parser(["x"]).parse_args(shlex.split(command(facts, data))[1:])
    assert args.set == ["run_name=advised", 'classes=["it\'s", "b c"]']


def test_without_a_job_there_is_no_command():
    assert command(federation(FULL)) == ""
    text = advice_text(federation(FULL))
    assert text.startswith(
        "1 of 1 sites counted, 2 classes of multilabel labels\n\nFirst\n  - 1 of 1 sites counted. A fed"
    )
    assert "\nRecommendation\n  - No job yet: see the other points.\n" in text
    assert "Next:" not in text


def test_the_text_has_advice_reason_evidence_and_command():
    synthetic = site((400, 80, 0), (0, 0, 400), phantom=True)
    lines = advice_text(federation(synthetic, OTHER_GAP)).splitlines()
    assert lines[0] == "PHANTOM, 2 of 2 sites counted, 2 classes of multilabel labels"
    text = " ".join(line.strip() for line in lines)
    assert "is not enough. Why: Classes that sites do not know (site-1: nodule; site-2: edema)." in text
    assert "Evidence: FedMLP minus FedAvg-PL +1.6 [0.4, 2.9] AUC" in text
    assert "- site-1: PHANTOM data, no patient was examined. The advice is about this phantom" in text
    assert lines[-2:] == ["Next:", f"  {command(federation(synthetic, OTHER_GAP))}"]
    assert max(len(line) for line in lines[:-1]) <= 100


def test_a_site_that_was_not_counted_is_named_with_its_reason():
    facts = federation(FULL, FULL, site((0, 0, 0), (0, 0, 0), problem="site-3: train.csv: expected more, got fewer"))
    assert "Not counted: site-3: train.csv: expected more, got fewer. What they have" in " ".join(
        advice_text(facts).split()
    )
