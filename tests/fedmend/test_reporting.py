import json
import re
from html.parser import HTMLParser

import pytest

from fedmend.errors import FedMendError
from fedmend.page import GLOSSARY, HEAT, NOISY_CLIENT_GLOSSARY, SINGLE_LABEL_GLOSSARY, heat
from fedmend.reporting import summary_text, write_report
from fedmend.run_folder import INPUTS
from fedmend.tables import TABLES

CLASSES = ["bleed", "mass <5 mm"]
SKIN = ["nevus", "melanoma", "rare <1 %"]
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
    write_files(folder, {name: content for name, content in (files | changes).items() if name not in drop})
    return files


def write_files(folder, files):
    for name, content in files.items():
        if isinstance(content, list):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))


def make_single_label_run(folder, *, drop=(), **changes):
    """Three sites and one that stays silent, three classes, twelve rounds; the test split has no sample of the third class."""
    counts = {"site-1": [30, 10, 0], "site-2": [30, 10, 0], EVIL: [10, 9, 1], "site-4": [0, 0, 0]}
    info = {
        "run_name": "skin",
        "method": "fednoro",
        "phantom": False,
        "classes": SKIN,
        "num_rounds": 12,
        "warmup_rounds": 2,
        "sites": {
            name: {"annotated": SKIN, "train": sum(row), "test": 5, "positives": dict(zip(SKIN, row, strict=True))}
            for name, row in counts.items()
        },
    }
    metrics = [
        {
            "round": r,
            "stage": "robust",
            "split": "test",
            "per_class": {
                "recall": [0.8, 0.75, None],
                "precision": [0.889, 0.6, None],
                "f1": [0.842, 0.667, None],
                "auc": [0.925, 0.925, None],
            },
            "macro": {
                "bacc": 0.9 if r == 11 else r / 20,
                "f1": 0.754,
                "auc": 0.925,
                "precision": 0.744,
                "accuracy": 0.786,
            },
            "confusion": [[8, 2, 0], [1, 3, 0], [0, 0, 0]] if r > 11 else [[9, 1, 0], [4, 0, 0], [0, 0, 0]],
            "positives": [10, 4, 0],
        }
        for r in range(13)
    ]
    detection = {
        "class_loss": {EVIL: [0.9, 1.7, 2.5], "site-1": [0.4, 0.7, None], "site-2": [1.4, 1.2, None]},
        "normalised": {EVIL: [0.5, 1.0, 0.0], "site-1": [0.0, 0.0, 0.0], "site-2": [1.0, 0.5, 0.0]},
        "noisy": [EVIL, "site-2"],
        "vote_share": 8 / 9,
        "covariance": "spherical",
        "absent": ["site-4"],
    }
    decisions = [
        {"round": 2, "what": "noisy_client_detection", "value": detection | {"noisy": [], "vote_share": 0.1}},
        {"round": 2, "what": "noisy_client_detection", "value": detection},  # of a resumed run: this one counts
        {"round": 3, "what": "distillation_weight", "value": 0.05},
        {"round": 4, "what": "distillation_weight", "value": 0.76},
        {"round": 3, "what": "aggregation_weights", "value": {"site-1": 0.6, "site-2": 0.3, EVIL: 0.1}},
        {"round": 4, "what": "aggregation_weights", "value": {"site-1": 0.5, "site-2": 0.25, "site-4": 0.25}},
        {"round": 11, "what": "best_model", "value": {"bacc": 0.9, "split": "test"}},
        {"round": 2, "what": "fallback", "value": "federated averaging"},
    ]
    results = {
        "final": {"test": metrics[12]["macro"]},
        "best": {"round": 11, "test": metrics[11]["macro"]},
        "seconds": 60,
    }
    files = {"run": info, "metrics": metrics, "decisions": decisions, "results": results} | changes
    write_files(folder, {name: content for name, content in files.items() if name not in drop})
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


@pytest.fixture(scope="module")
def skin_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("skin")
    make_single_label_run(folder)
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


def test_the_words_say_where_balanced_accuracy_cuts():
    assert "when a score above 0.5 counts as a finding" in GLOSSARY["BACC"]


def test_a_run_with_one_class_per_sample_shows_its_own_metrics(skin_page):
    cards = re.findall(r'<div class="card"><span>(.*?)</span><b>(.*?)</b>', skin_page)
    assert cards == [
        ("BACC · Final model, round 12", "0.600"),
        ("macro F1 · Final model, round 12", "0.754"),
        ("macro AUC · Final model, round 12", "0.925"),
        ("macro precision · Final model, round 12", "0.744"),
        ("accuracy · Final model, round 12", "0.786"),
        ("Last, mean BACC of rounds 3 to 12", "0.410"),  # (3 + 4 + ... + 10 + 12) / 20 and 0.9, over ten
    ]
    assert rows_of(skin_page, "numbers")[-1] == ["Best, highest BACC, round 11", "0.900"]
    assert "Means over 2 of 3 classes" in skin_page
    head, nevus, _, rare, macro = rows_of(skin_page, "classes")
    columns = [f"{metric} {model}" for model in ("final", "best") for metric in ("Recall", "F1", "AUC", "Precision")]
    assert head == ["Class", "samples", *columns]
    assert nevus == ["nevus", "10", *["0.800", "0.842", "0.925", "0.889"] * 2]
    assert rare == ["rare &lt;1 %", "0", *["n/a"] * 8]
    assert macro == ["macro", "", "0.600", "0.754", "0.925", "0.744", "0.900", "0.754", "0.925", "0.744"]
    assert "rare &lt;1 %: no sample in the test split." in skin_page


def test_curves_of_such_a_run_have_guessing_where_it_is_known(skin_page):
    part = skin_page.split('<section id="curves">')[1].split("</section>")[0]
    alts = re.findall(r'aria-label="(.*?)"', part)
    end = "rare &lt;1 % not measured."
    assert alts == [
        "BACC (macro), recall (classes) over rounds 0 to 12: macro from 0.00 to 0.60; nevus from 0.80 to 0.80; "
        f"melanoma from 0.75 to 0.75; {end}",
        f"F1 over rounds 0 to 12: macro from 0.75 to 0.75; nevus from 0.84 to 0.84; melanoma from 0.67 to 0.67; {end}",
        f"AUC over rounds 0 to 12: macro from 0.93 to 0.93; nevus from 0.93 to 0.93; melanoma from 0.93 to 0.93; {end}",
        "Precision over rounds 0 to 12: macro from 0.74 to 0.74; nevus from 0.89 to 0.89; melanoma from 0.60 to 0.60; "
        f"{end}",
        "Accuracy over rounds 0 to 12: all samples from 0.79 to 0.79.",
    ]
    figures = part.split("<h3>")[1:]
    assert ["guessing" in figure for figure in figures] == [True, False, True, False, False]
    assert ["no sample" in figure for figure in figures] == [True, True, True, True, False]


def test_training_labels_are_counted_per_site_and_a_class_without_any_is_marked(tmp_path, skin_page):
    rows = rows_of(skin_page, "sites")
    assert rows[0] == ["Site", "nevus", "melanoma", "rare &lt;1 %", "train", "test"]  # no site has a val split
    assert rows[2] == ["site-1", "30", "10", "0", "40", "5"]
    assert rows[-1] == ["All sites", "70", "29", "1", "100", "20"]
    run = make_single_label_run(tmp_path)["run"]
    run["sites"][EVIL]["positives"][SKIN[2]] = 0
    make_single_label_run(tmp_path, run=run)
    assert rows_of(write_report(tmp_path).read_text(encoding="utf-8"), "sites")[-1][3] == "⚠ none"


def test_confusion_matrices_show_counts_and_shares_of_the_row(skin_page):
    part = skin_page.split('<section id="confusion">')[1].split("</section>")[0]
    assert re.findall("<h3>(.*?)</h3>", part) == ["Final model, round 12", "Best model, round 11"]
    assert '<td class="heat hit" style="background:#70b2d9">8<small>80%</small></td>' in part
    rows = rows_of(skin_page, "confusion")
    assert rows[1] == ["nevus", "8<small>80%</small>", "2<small>20%</small>", "0<small>0%</small>", "10"]
    assert rows[3] == ["rare &lt;1 %", "0", "0", "0", "0"]
    assert rows[4] == ["All", "9", "5", "0", "14"]
    assert rows[7] == ["melanoma", "4<small>100%</small>", "0<small>0%</small>", "0<small>0%</small>", "4"]


def test_a_final_model_that_is_the_best_has_one_confusion_matrix(tmp_path):
    results = make_single_label_run(tmp_path)["results"]
    make_single_label_run(tmp_path, results=results | {"best": {"round": 12}})
    assert write_report(tmp_path).read_text(encoding="utf-8").count("True ↓") == 1


def test_dark_text_is_readable_on_every_shade_of_a_heat_map():
    assert heat("1", 0.5) == '<td class="heat" style="background:#a6cfe7">1</td>'
    assert heat("<", None) == '<td class="heat">&lt;</td>'

    def luminance(rgb):
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
        return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    assert (luminance(HEAT) + 0.05) / (luminance((0x1F, 0x29, 0x33)) + 0.05) >= 4.5


def test_sites_judged_noisy_come_first_with_their_losses(skin_page):
    head, *rows = rows_of(skin_page, "noisy-sites")
    assert head == ["Site", "Judged", "nevus", "melanoma", "rare &lt;1 %", "mean, normalised"]
    assert rows[0][1:] == ["⚠ noisy", "0.900", "1.700", "2.500", "0.500"]
    assert rows[1:] == [
        ["site-2", "⚠ noisy", "1.400", "1.200", "absent", "0.500"],
        ["site-1", "clean", "0.400", "0.700", "absent", "0.000"],
        ["site-4", "not judged", "–", "–", "–", "n/a"],
    ]
    assert '<td class="heat" style="background:#4c9fcf">1.700</td>' in skin_page  # normalised 1
    assert '<td class="heat" style="background:#ffffff">0.400</td>' in skin_page  # normalised 0
    assert "After round 2, 2 of 3 sites were judged noisy: &lt;script&gt;" in skin_page
    assert "89% of the fits of the mixture model agree on exactly this (detection vote share)." in skin_page
    assert "Not judged, as no losses came from there, and treated as noisy: site-4." in skin_page


def test_a_detection_that_finds_no_noisy_site_says_so(tmp_path):
    value = {"class_loss": {"site-1": [1.0, 1.0, 1.0]}, "normalised": {"site-1": [0.0, 0.0, 0.0]}, "noisy": []}
    decision = {"round": 2, "what": "noisy_client_detection", "value": value | {"vote_share": None}}
    make_single_label_run(tmp_path, decisions=[decision])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<p>After round 2, none of 1 sites was judged noisy.</p>" in page
    assert 'id="second-stage"' not in page
    assert "Noisy sites: none (detection vote share n/a)" in summary_text(tmp_path)
    decision["value"] = value | {"vote_share": 5 / 9}
    make_single_label_run(tmp_path, decisions=[decision])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "judged noisy. At most 56% of the fits of the mixture model agree on how the sites are to be split" in page


def test_losses_that_were_neither_split_by_class_nor_normalised_are_shown_as_compared(tmp_path):
    losses = {"site-1": [4.0], "site-2": [1.0]}
    value = {"class_loss": losses, "normalised": losses, "noisy": ["site-1"], "vote_share": 1.0}
    make_single_label_run(tmp_path, decisions=[{"round": 2, "what": "noisy_client_detection", "value": value}])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert rows_of(page, "noisy-sites")[:2] == [
        ["Site", "Judged", "all classes", "mean, not normalised"],
        ["site-1", "⚠ noisy", "4.000", "4.000"],
    ]
    assert "shading: not normalised, from 0 (white) to 4;" in page
    assert '<td class="heat" style="background:#d2e7f3">1.000</td>' in page  # a quarter


def test_weights_of_the_second_stage_are_drawn_for_every_site(skin_page):
    part = skin_page.split('<section id="second-stage">')[1].split("</section>")[0]
    alts = re.findall(r'aria-label="(.*?)"', part)
    assert alts[0] == "Knowledge distillation weight from 0.05 in round 3 to 0.76 in round 4."
    assert "Aggregation weights in per cent over rounds 3 to 4, at the end: &lt;script&gt;" in alts[1]
    assert alts[1].endswith(
        "not used (judged noisy); site-2 25.0 (judged noisy); site-4 25.0 (not judged, as noisy); site-1 50.0 (judged clean)."
    )
    drawn = part.split("<h3>")[2]
    assert drawn.count(">judged noisy</text>") == 2
    assert drawn.count(">not judged, as noisy</text>") == 1
    assert drawn.count(">judged clean</text>") == 1
    assert (
        drawn.count("stroke-dasharray: 7.2,2.7") == 3 + 1
    )  # noisy sites and the legend: dashed, not only in another colour
    assert ">by samples alone</text>" in drawn


def test_decisions_with_a_section_of_their_own_are_not_listed_again(skin_page):
    assert rows_of(skin_page, "decisions")[1:] == [
        ["best model", "11", "bacc: 0.9, split: test"],
        ["fallback", "2", "federated averaging"],
    ]


def test_the_words_are_those_that_the_run_needs(tmp_path, page, skin_page):
    def words(page):
        return re.findall("<dt>(.*?)</dt>", page)

    assert words(page) == list(GLOSSARY)
    assert words(skin_page) == [*SINGLE_LABEL_GLOSSARY, *NOISY_CLIENT_GLOSSARY]
    make_single_label_run(tmp_path, drop=("decisions",))
    assert words(write_report(tmp_path).read_text(encoding="utf-8")) == list(SINGLE_LABEL_GLOSSARY)
    assert "td.heat" in skin_page
    assert "td.heat" not in page


def test_the_summary_of_a_run_with_one_class_per_sample_has_its_columns(tmp_path):
    make_single_label_run(tmp_path)
    text = summary_text(tmp_path)
    assert "test split                    BACC  macro F1  macro AUC  macro precision  accuracy\n" in text
    assert "  Best model, round 11       0.900     0.754      0.925            0.744     0.786\n" in text
    assert "Last, mean BACC of rounds 3 to 12: 0.410\nBest, highest BACC, round 11: 0.900\n" in text
    assert f"Noisy sites: {EVIL}, site-2 (detection vote share 0.889)\n" in text
    assert len(text.splitlines()) <= 15


def test_the_initial_model_is_no_round_of_last_and_best(tmp_path):
    metrics = make_single_label_run(tmp_path)["metrics"][:2]
    metrics[0]["macro"]["bacc"] = 0.99
    make_single_label_run(tmp_path, metrics=metrics, drop=("results", "decisions"))
    (tmp_path / "results.json").unlink()
    assert "Last, mean BACC of round 1: 0.050\nBest, highest BACC, round 1: 0.050\n" in summary_text(tmp_path)


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
