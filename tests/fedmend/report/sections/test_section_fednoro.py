import re

from run_factories import make_single_label_run, rows_of

from fedmend.report.report import summary_text, write_report


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


def test_losses_of_masks_have_the_background_before_the_classes(tmp_path):
    losses = {"site-1": [1.0, 2.0, 3.0, 4.0], "site-2": [1.0, 1.0, 1.0, 1.0]}
    value = {"class_loss": losses, "normalised": losses, "noisy": ["site-1"], "vote_share": 1.0}
    make_single_label_run(tmp_path, decisions=[{"round": 2, "what": "noisy_client_detection", "value": value}])
    head, first, _ = rows_of(write_report(tmp_path).read_text(encoding="utf-8"), "noisy-sites")
    assert head[2:6] == ["background", "nevus", "melanoma", "rare &lt;1 %"]
    assert first[2:6] == ["1.000", "2.000", "3.000", "4.000"]


def test_weights_of_the_second_stage_are_drawn_for_every_site(skin_page):
    part = skin_page.split('<section id="second-stage">')[1].split("</section>")[0]
    alts = re.findall(r'aria-label="(.*?)"', part)
    assert alts[0] == "Knowledge distillation weight from 0.05 in round 3 to 0.76 in round 4."
    assert "Aggregation weights in per cent over rounds 3 to 4, at the end: &lt;script&gt;" in alts[1]
    assert alts[1].endswith(
        "not used (judged noisy); site-2 25.0 (judged noisy); site-4 25.0 (not judged, as noisy);"
        " site-1 50.0 (judged clean)."
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
