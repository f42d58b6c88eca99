"""Who cites FedMend names the version that there is, and the papers of the front page."""

import re
import tomllib

import yaml
from factories import ROOT

import fedmend


def test_package_project_and_citation_name_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"] == fedmend.__version__


def test_the_citation_refers_to_each_paper_of_the_front_page():
    papers = re.findall(r"^- \w+: .*?\*(.+?)\.\* \w+ (\d{4})\.$", (ROOT / "README.md").read_text(), re.M | re.S)
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    assert [(" ".join(title.split()), int(year)) for title, year in papers] == [
        (paper["title"], paper["year"]) for paper in references
    ]
    assert len(papers) == 5
