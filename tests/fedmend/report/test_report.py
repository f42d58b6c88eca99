import json
import re
from html.parser import HTMLParser

import pytest
from run_factories import (
    make_run,
    make_single_label_run,
    rows_of,
    write_files,
)

from fedmend.errors import FedMendError
from fedmend.records.run_folder import INPUTS, REQUIRED
from fedmend.report.kinds.multilabel import MultiLabelReport
from fedmend.report.kinds.singlelabel import SingleLabelReport
from fedmend.report.report import summary_text, write_report
from fedmend.report.sections import fedmlp, fednoro
from fedmend.report.tables import TABLES

RUN_OF_UNKNOWN_KIND = json.dumps({**dict.fromkeys(REQUIRED, ""), "task": "sounds"})


class TagCheck(HTMLParser):
    """Collects tags and ids, and fails where an end tag does not close the innermost open tag."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ["page", "skin_page"])
def test_the_page_is_well_formed_and_asks_for_nothing_outside_itself(kind, request):
    page, check = request.getfixturevalue(kind), TagCheck()
    check.feed(page)
    assert check.open == []
    assert "://" not in page
    assert "@import" not in page
    assert not {tag for tag, _ in check.tags} & {"script", "link", "img", "iframe", "object", "image"}
    assert all(link.startswith("#") and link[1:] in check.ids for link in check.links)
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {f"#{name}" for name in check.ids}


def test_no_id_is_given_twice_and_every_figure_has_alt_text(page):
    check = TagCheck()
    check.feed(page)
    assert len(check.ids) == len(set(check.ids))
    figures = [attrs for tag, attrs in check.tags if tag == "svg"]
    assert len(figures) == 3 + 2 + 1 + 1  # metrics, sites, precision, learning degree
    assert all(f["role"] == "img" and f["aria-label"] for f in figures)
    assert "bleed from 0.51 to 0.62" in figures[0]["aria-label"]


@pytest.mark.parametrize("kind", ["page", "skin_page"])
def test_every_name_that_comes_from_outside_is_escaped(kind, request):
    page = request.getfixturevalue(kind)
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#x27;site&#x27;)&lt;/script&gt;" in page
    assert "mass <5" not in page
    assert "rare <1" not in page


def test_refused_results_other_decisions_settings_and_files_are_listed(page):
    assert rows_of(page, "refused")[1][1:] == ["1", "shape of fc.weight &amp; more"]
    assert rows_of(page, "other-data")[1][1:] == ["2", "[train, test]"]
    assert rows_of(page, "decisions")[1:] == [
        ["best model", "1", "auc: 0.7, split: val"],
        ["noisy clients", "1", "[site-1]"],
    ]
    assert rows_of(page, "files")[1] == ["best model", "models/best.pt"]
    assert ">learning_rate</th><td>0.00123</td>" in page
    assert "took 2 h 1 min" in page


def test_only_a_phantom_run_says_phantom(tmp_path, page):
    assert "PHANTOM" not in page
    info = make_run(tmp_path)["run"] | {"phantom": True}
    make_run(tmp_path, run=info, drop=("repairs", "decisions"))
    phantom = write_report(tmp_path).read_text(encoding="utf-8")
    assert '<span class="badge">PHANTOM</span>' in phantom
    assert "synthetic" in phantom.split("<main>")[0]
    assert all("PHANTOM" in svg for svg in re.findall(r"<svg.*?</svg>", phantom, flags=re.DOTALL))
    assert "PHANTOM: " in summary_text(tmp_path)


def test_the_same_input_gives_the_same_bytes_in_any_folder(tmp_path, page, skin_page):
    make_single_label_run(tmp_path)
    assert write_report(tmp_path).read_text(encoding="utf-8") == skin_page
    make_run(tmp_path)
    assert write_report(tmp_path).read_text(encoding="utf-8") == page
    assert {p.name for p in tmp_path.iterdir()} == {*INPUTS, *TABLES, "report.html"}


def test_a_finished_run_leaves_its_tables_beside_the_report(tmp_path, page):
    files = make_run(tmp_path)
    write_report(tmp_path)
    assert ["tables of the final model, beside it", ", ".join(TABLES)] in rows_of(page, "files")
    assert "| FedMLP | 62.3 | n/a | 62.3 | 1 |" in (tmp_path / "per_class.md").read_text(encoding="utf-8")
    assert "FedMLP,62.3,,25.0,,50.0,,1,no" in (tmp_path / "macro.csv").read_text(encoding="utf-8")
    (tmp_path / "later").mkdir()
    write_files(tmp_path / "later", {name: files[name] for name in ("run", "metrics")})
    assert "tables of the final model" not in write_report(tmp_path / "later").read_text(encoding="utf-8")
    assert not any((tmp_path / "later" / name).exists() for name in TABLES)


def test_a_run_that_has_only_begun_gets_a_page(tmp_path):
    make_run(tmp_path, drop=("metrics", "repairs", "decisions", "results"))
    (tmp_path / "metrics.jsonl").write_text("")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No model has been evaluated yet." in page
    assert "not finished, 0 of 2 rounds evaluated" in page
    assert "<svg" not in page
    assert re.findall('<section id="([^"]+)"', page) == ["numbers", "sites", "files", "glossary"]


def test_the_words_are_those_that_the_run_needs(tmp_path, page, skin_page):
    def words(page):
        return re.findall("<dt>(.*?)</dt>", page)

    *kind, warmup = MultiLabelReport.words
    assert words(page) == [*kind, *fedmlp.WORDS, warmup]
    assert words(skin_page) == [*SingleLabelReport.words, *fednoro.WORDS]
    make_single_label_run(tmp_path, drop=("decisions",))
    assert words(write_report(tmp_path).read_text(encoding="utf-8")) == list(SingleLabelReport.words)
    assert "td.heat" in skin_page
    assert "td.heat" not in page


def test_without_a_test_split_the_validation_split_is_shown(tmp_path):
    metrics = [m | {"split": "val"} for m in make_run(tmp_path)["metrics"]]
    make_run(tmp_path, metrics=metrics[:2], drop=("results",))
    (tmp_path / "results.json").unlink()
    text = summary_text(tmp_path)
    assert "val split, macro" in text
    assert "Latest model, round 1      0.734" in text


def test_a_repeated_round_counts_once_and_a_half_written_line_not_at_all(tmp_path):
    lines = make_run(tmp_path)["metrics"]
    again = lines[-1] | {"macro": {"auc": 0.987}}
    (tmp_path / "results.json").unlink()
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*lines, again])) + '\n{"round": 3, "spl')
    assert "Final model, round 2       0.987" in summary_text(tmp_path)


def test_the_summary_is_short_and_complete(tmp_path):
    make_run(tmp_path)
    text = summary_text(tmp_path)
    assert len(text.splitlines()) <= 15
    assert "demo: FedMLP, 2 sites, 2 classes, finished, 2 rounds, 1 of them warm-up, took 2 h 1 min" in text
    assert "Final model, round 2       0.623   0.250   0.500" in text
    assert "Best model, round 1        0.734   0.250   0.500" in text
    assert "Annotated by no site: mass <5 mm" in text
    assert "Pseudo-labels, positive: 13, precision 0.750" in text
    assert "Refused results: 1" in text
    assert "best model: models/best.pt" in text
    assert f"report: {tmp_path / 'report.html'}" in text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("run.json", None, "run.json: expected in the run folder, not found"),
        ("run.json", "{}", "run.json, field run_name: expected, not found"),
        ("repairs.jsonl", '{"a": 1\n', "repairs.jsonl line 1: expected JSON"),
        ("results.json", "[]", "results.json: expected a JSON object, got list"),
        (
            "run.json",
            RUN_OF_UNKNOWN_KIND,
            "run.json, field task: expected one of multilabel, singlelabel, segmentation",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, file, content, words):
    make_run(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(FedMendError, match=re.escape(words)):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_page_shows_the_final_model_at_each_site(tmp_path):
    alone = {"macro": {"auc": 0.7}, "per_class": {"auc": [0.7, None]}, "held_back": [False, True]}
    sites = {
        "site-1": {"annotated": ["bleed"], "train": 40, "test": 20},
        "site-2": {"annotated": ["bleed"], "train": 60, "test": 20, "privacy": {}},
        "site-3": {"annotated": ["bleed"], "train": 50},
        "site-4": {"annotated": ["bleed"], "train": 50, "test": 9},
    }
    files = make_run(tmp_path)
    info, results = {**files["run"], "sites": sites}, {**files["results"], "sites": {"test": {"site-1": alone}}}
    make_run(tmp_path, run=info, results=results)
    page = write_report(tmp_path).read_text()
    rows = {cells[0]: cells[1:] for cells in rows_of(page, "at-sites")}
    assert rows["site-1"] == ["20%", "20", "1 of 2, 1 held back", "0.700"]
    assert rows["site-2"] == ["30%", "20", "stays at the site", ""]
    assert rows["site-3"] == ["25%", "n/a", "no test split", ""]
    assert rows["site-4"] == ["25%", "9", "no result, not in the test numbers", ""]
    assert "A class is held back where a site has 1 to 4 samples with it or without it, of masks 1 to 4 volumes" in page


def test_a_run_without_numbers_of_sites_has_no_such_part(page):
    assert "at-sites" not in page
