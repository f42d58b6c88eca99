from fedmend.basics.page import HEAT, Figure, heat, section, short_name, table


def test_dark_text_is_readable_on_every_shade_of_a_heat_map():
    assert heat("1", 0.5) == '<td class="heat" style="background:#a6cfe7">1</td>'
    assert heat("<", None) == '<td class="heat">&lt;</td>'

    def luminance(rgb):
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in rgb)]
        return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    assert (luminance(HEAT) + 0.05) / (luminance((0x1F, 0x29, 0x33)) + 0.05) >= 4.5


def test_heads_of_a_table_with_many_columns_stand_upright():
    assert '<table class="wide">' in table("c", ["Site", *"abcdefghijkl"], [["site-1", *range(12)]])
    assert "wide" not in table("c", ["Site", *"abcdefghijk"], [["site-1", *range(11)]])


def test_a_section_sets_its_blocks_one_below_the_other_and_keeps_its_figures():
    drawn = Figure("curves", "AUC over rounds", "<svg></svg>")
    found = section("auc", "A & B", "<p>Words.</p>\n", drawn, "<p>More.</p>\n")
    figure = "<figure><svg></svg>\n</figure>\n"
    assert found == f'<section id="auc"><h2>A &amp; B</h2>\n<p>Words.</p>\n{figure}<p>More.</p>\n</section>\n'
    assert found.figures == [drawn]
    assert section("auc", "A & B", figure).figures == []


def test_only_a_long_name_of_a_row_is_broken_into_lines():
    rows = [["x" * 36, 1], ["y" * 37, 2]]
    found = table("c", ["Site", "n"], rows)
    assert f'<th scope="row">{"x" * 36}</th>' in found
    assert f'<th scope="row" class="long">{"y" * 37}</th>' in found


def test_every_metric_has_a_name_that_people_read():
    names = {"auc": "AUC", "map": "mAP", "bacc_val": "BACC (val)", "volume_dice": "volume Dice"}
    names |= {"ece": "ECE", "f1": "F1", "dice": "Dice", "precision": "precision"}
    assert {key: short_name(key) for key in names} == names
