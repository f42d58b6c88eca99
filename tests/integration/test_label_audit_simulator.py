"""The label audit in FLARE's real simulator: its numbers are those of the site folders, less what sites hold back."""

import csv
import json

import pytest
from factories import ROOT
from simulation import fedmend, records

pytestmark = pytest.mark.slow
CLASSES = ["epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural"]


def numbers(folder, name):
    """Annotated, positive and missing of a class, counted from the table as a person would."""
    with open(folder / "train.csv", newline="") as stream:
        cells = [row.get(name) or "" for row in csv.DictReader(stream)]
    return {"annotated": len(cells) - cells.count(""), "positive": cells.count("1"), "missing": cells.count("")}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Three site folders; the class names of the third are others."""
    folder = tmp_path_factory.mktemp("sites")
    words = ["--slices", 360, "--pixels", 48, "--sites", 3, "--annotated-per-site", 3, "--seed", 2]
    code, out = fedmend("phantom", "ich", folder, *words, home=folder)
    assert code == 0, out
    card = json.loads((folder / "site-3" / "site.json").read_text())
    card["classes"][0] = "extradural"
    (folder / "site-3" / "site.json").write_text(json.dumps(card))
    return folder


def test_the_page_and_the_file_show_what_the_sites_tell_and_nothing_below_their_minimum(sites, tmp_path):
    true = {(f"site-{i}", c): numbers(sites / f"site-{i}", c) for i in (1, 2) for c in CLASSES}
    positives = sorted({n["positive"] for n in true.values()} - {0})
    minimum = positives[1]  # the smallest one is held back
    words = ["--workspace", tmp_path / "work", "--threads", 3, "--sites", 3]
    settings = ["--site", f"data_root={sites}/{{SITE_NAME}}", f"min_count={minimum}"]
    code, out = fedmend("simulate", ROOT / "jobs" / "label_audit", *words, *settings, home=tmp_path)
    assert code == 1  # a site was not counted
    assert "fedmend: simulator: expected a complete run, got exit code 0: site-3: site.json, field classes" in out
    told = json.loads((records(tmp_path / "work") / "results.json").read_text())
    held = []
    for (site, name), number in true.items():
        assert number["missing"] in (0, number["annotated"] + number["missing"])  # so only positives are ever small
        if number["positive"] in range(1, minimum):
            held.append(number.pop("positive"))
        assert told[name]["count"].get(site) == number, (site, name)
    assert held == [positives[0]] * len(held) != []
    assert not any(name in told and "site-3" in told[name]["count"] for name in CLASSES)
    page = (records(tmp_path / "work") / "report.html").read_text()
    assert "2 of 3 sites counted" in page
    assert "? of " in page
    assert "site-3 was not counted.</strong> site.json, field classes: expected the 5 classes of the job" in page
    assert "not counted: site-3: site.json, field classes" in out
    assert "PHANTOM label audit: 2 of 3 sites counted" in out  # the cards say so: these sites have a data_root
    assert not (tmp_path / "work" / "site-1" / "cache").exists()  # no image was decoded
