import json
import re
from html.parser import HTMLParser

import pytest

from fedmend.errors import FedMendError
from fedmend.page import GLOSSARY
from fedmend.reporting import summary_text, write_report

CLASSES = ["bleed", "mass <5 mm"]
EVIL = "<script>alert('site')</script>"


def make_run(folder, *, drop=(), **changes):
    """Two sites, two classes, two rounds; the second class has no positive in the test split at the end."""
    info = {
        "run_name": "demo",
        "method": "FedMLP",
        "phantom": False,
        "classes": CLASSES,
        "num_rounds": 2,
        "warmup_rounds": 1,
        "sites": {
            "site-1": {"annotated": ["bleed"], "train": 40, "val": 5, "test": 6, "positives": {"bleed": 17}},
            EVIL: {"annotated": ["bleed"], "train": 60, "val": 7, "test": 8},
        },
        "settings": {"learning_rate": 0.00123},
    }
    metrics = [
        {
            "round": r,
            "split": "test",
            "macro": {"auc": auc, "map": 0.25, "bacc": 0.5},
            "per_class": {"auc": [auc, None], "ap": [0.25, None], "bacc": [0.5, None]},
            "positives": [4, 0],
            "negatives": [10, 14],
        }
        for r, auc in ((0, 0.512), (1, 0.734), (2, 0.623))
    ]
    repairs = [
        {"round": 1, "site": "site-1", "class": CLASSES[1], "positive": 8, "negative": 20, "untagged": 12}
        | {"correct_positive": 6, "correct_negative": 19},
        {"round": 1, "site": EVIL, "class": CLASSES[1], "positive": 5, "negative": 9, "untagged": 46}
        | {"correct_positive": None, "correct_negative": None},
    ]
    decisions = [
        {"round": 0, "what": "learning_degree", "value": {"bleed": 0.5, CLASSES[1]: 0.25}},
        {"round": 1, "what": "best_model", "value": {"auc": 0.7, "split": "val"}},
        {"round": 1, "what": "refused", "value": {"site": EVIL, "reason": "shape of fc.weight & more"}},
        {"round": 1, "what": "noisy_clients", "value": ["site-1"]},
    ]
    results = {"final": {"test": metrics[-1]["macro"]}, "files": {"best model": "models/best.pt"}, "seconds": 7260}
    files = {"run": info, "metrics": metrics, "repairs": repairs, "decisions": decisions, "results": results}
    for name, content in (files | changes).items():
        if name in drop:
            continue
        if isinstance(content, list):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return files


def rows_of(page, anchor):
    """Table rows of one section as lists of cell texts."""
    part = page.split(f'<section id="{anchor}">')[1].split("</section>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", part, flags=re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(?:<code>)?(.*?)(?:</code>)?</t[dh]>", row) for row in rows]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    return write_report(folder).read_text(encoding="utf-8")


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


def test_the_page_is_well_formed_and_asks_for_nothing_outside_itself(page):
    check = TagCheck()
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


def test_every_name_that_comes_from_outside_is_escaped(page):
    assert "<script" not in page
    assert "&lt;script&gt;alert(&#x27;site&#x27;)&lt;/script&gt;" in page
    assert "mass <5" not in page


def test_key_numbers_name_the_final_the_best_and_the_initial_model(page):
    cards = page.split('class="cards"')[1].split("</section>")[0]
    assert cards.index("Final model, round 2</span><b>0.623") < cards.index("Best model, round 1</td>")
    assert rows_of(page, "numbers")[:3] == [
        ["Best model, round 1", "0.734"],
        ["End of warm-up, round 1", "0.734"],
        ["Before training, round 0", "0.512"],
    ]


def test_a_metric_without_a_value_reads_na_and_the_reason_is_given(page):
    rows = rows_of(page, "classes")
    assert rows[1] == ["bleed", "4", "10", "0.623", "0.250", "0.500", "0.734", "0.250", "0.500"]
    assert rows[2] == ["mass &lt;5 mm", "0", "14", *["n/a"] * 6]
    assert "mass &lt;5 mm: no positive sample in the test split." in page
    assert "Means over 1 of 2 classes" in page


def test_a_class_that_no_site_annotates_is_flagged(page):
    rows = rows_of(page, "sites")
    assert rows[2] == ["site-1", "✓ 17 pos.", "–", "40", "5", "6"]
    assert rows[-1] == ["Sites that annotate", "2 of 2", "⚠ none", "100", "12", "14"]
    assert "No site annotates: mass &lt;5 mm." in page


def test_pseudo_labels_are_counted_per_site_and_unknown_truth_reads_na(page):
    rows = rows_of(page, "pseudo-labels")
    assert rows[2][1:] == ["8", "6", "0.750", "20", "19", "0.950", "12"]
    assert rows[1][1:] == ["5", "n/a", "n/a", "9", "n/a", "n/a", "46"]
    assert rows[3] == ["Sum", "13", "", "", "29", "", "", "58"]
    assert "mass &lt;5 mm positive 0.75; mass &lt;5 mm negative 0.95" in page  # alt text: known truth alone


def test_refused_results_other_decisions_settings_and_files_are_listed(page):
    assert rows_of(page, "refused")[1][1:] == ["1", "shape of fc.weight &amp; more"]
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


def test_the_same_input_gives_the_same_bytes_in_any_folder(tmp_path, page):
    make_run(tmp_path)
    assert write_report(tmp_path).read_text(encoding="utf-8") == page
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".html", ".json", ".json", ".jsonl", ".jsonl", ".jsonl"]


def test_a_run_that_has_only_begun_gets_a_page(tmp_path):
    make_run(tmp_path, drop=("metrics", "repairs", "decisions", "results"))
    (tmp_path / "metrics.jsonl").write_text("")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No model has been evaluated yet." in page
    assert "not finished, 0 of 2 rounds evaluated" in page
    assert "<svg" not in page
    assert re.findall('<section id="([^"]+)"', page) == ["numbers", "sites", "files", "glossary"]


def test_the_words_say_where_balanced_accuracy_cuts():
    assert "when a score above 0.5 counts as a finding" in GLOSSARY["BACC"]


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
