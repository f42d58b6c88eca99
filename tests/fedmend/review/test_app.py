import os
import re
from io import BytesIO

import numpy as np
import pytest
from factories import pixels
from PIL import Image
from review_factories import ORIGIN, Browser, make_desk, make_mask_run, make_organ_run, make_run, words

from fedmend.repairs.verdicts import ACCEPT, REJECT
from fedmend.review.app import HEADERS
from fedmend.review.desk import Choice, Desk

TAGS = ((0, 1, 1, 0, 0.9), (1, 1, 0, 0, 0.5), (2, 1, 0, 1, 0.7))


@pytest.fixture
def browser(tmp_path):
    return Browser(make_desk(tmp_path, *TAGS))


# ---- what is shown --------------------------------------------------------------------------------------------------
def test_the_queue_shows_what_was_repaired_and_how_much_is_done(browser):
    page = words(browser.get("/queue"))
    assert "0 of 3 judged" in page
    assert "Look at the first of 3" in page
    assert "fracture , sample 0 blank yes fedmlp.missing_label_detection 1 0.900 0.500" in page
    assert "PHANTOM" not in page


def test_a_queue_of_several_pages_leads_from_one_to_the_next(tmp_path):
    labels = np.tile([[1, -1, 0], [0, -1, 1]], (30, 1))
    browser = Browser(make_desk(tmp_path, *[(i, 1, 1, 0, 0.5) for i in range(60)], labels=labels))
    first, second = browser.get("/queue").text, browser.get("/queue?page=1").text
    assert (first.count("<tr>"), second.count("<tr>")) == (51, 11)
    assert 'href="/queue?&amp;page=1" rel="next"' in first
    assert "Page 2 of 2" in second


def test_a_page_of_the_queue_that_is_there_no_more_is_the_last_one(browser):
    page = browser.get("/queue?page=1").text
    assert "Page 1 of 1" in page
    assert page.count("<tr>") == 4


def test_an_item_shows_its_image_and_both_labels(browser):
    page = browser.get("/item/0/1")
    assert "Original blank Repaired yes Rule fedmlp.missing_label_detection Round 1" in words(page)
    assert 'src="/picture/0.png"' in page.text
    image = browser.get("/picture/0.png")
    assert (image.headers["content-type"], image.content[:4]) == ("image/png", b"\x89PNG")


def test_an_image_that_has_vanished_is_a_sentence_and_the_label_can_still_be_judged(browser, tmp_path):
    (tmp_path / "data" / "images" / "img0.png").unlink()
    sentence = "image: expected a file below image_root, not found: it was moved or deleted"
    answer = browser.get("/picture/0.png")
    assert (answer.status_code, answer.text.startswith(sentence)) == (404, True)
    assert sentence in browser.get("/item/0/1").text
    assert browser.judge(0, ACCEPT).status_code == 303


def test_an_image_or_mask_that_was_replaced_since_the_run_has_a_mark(tmp_path, browser):
    mark = "This file has changed since the run first read it"
    Image.new("L", (9, 9)).save(tmp_path / "data" / "images" / "img0.png")
    assert mark in words(browser.get("/item/0/1"))
    assert mark not in words(browser.get("/item/1/1"))
    masks = Browser(Desk(make_mask_run(tmp_path / "masks", 1)))
    assert mark not in words(masks.get("/item/1/0"))
    label = masks.desk.data.train.items[0].label
    os.utime(label, (0, 0))
    assert mark in words(masks.get("/item/1/0"))


def test_of_masks_original_and_added_marks_can_be_laid_over_the_image(tmp_path):
    browser = Browser(Desk(make_mask_run(tmp_path, 1, 2)))
    assert 'id="added"' in browser.get("/item/1/0").text
    assert "Original 0 voxels Repaired 1 voxel " in words(browser.get("/item/2/0"))
    for which in ("original", "added", "removed"):
        assert browser.get(f"/outline/1/0/{which}.png").content[:4] == b"\x89PNG"
    assert (
        browser.get("/outline/1/0/other.png").text == "image: expected original, added, removed of a slice, got another"
    )
    assert browser.get("/picture/1.png?centre=0&width=nan").status_code == 404


def test_of_several_structures_the_added_marks_are_those_of_the_one_that_is_judged(tmp_path):
    browser = Browser(Desk(make_organ_run(tmp_path)))
    assert "kidneys Original 0 voxels Repaired 2 voxels" in words(browser.get("/item/1/2"))
    tinted = {}
    for number in (0, 1, 2):
        image = np.asarray(Image.open(BytesIO(browser.get(f"/outline/1/{number}/added.png").content)))
        tinted[number] = (image[..., 3] > 0).mean() * 64
    assert tinted == {0: 1, 1: 0, 2: 2}
    assert 'src="/outline/1/2/added.png"' in browser.get("/item/1/2").text


# ---- what is said ---------------------------------------------------------------------------------------------------
def test_a_verdict_counts_at_once_and_leads_to_the_next_item(browser):
    first, second = [(i.sample, i.label_class) for i in browser.desk.queue(Choice())[:2]]
    answer = browser.post(f"/judge/{first[0]}/{first[1]}", word=REJECT, seen="", note="motion")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/item/{second[0]}/{second[1]}?")
    (verdict,) = browser.desk.ledger.verdicts()
    assert (verdict.word, verdict.reviewer, verdict.note) == (REJECT, "AB", "motion")
    assert browser.desk.ledger.repairs()[first] == -1
    assert "rejected, AB" in words(browser.get(f"/item/{first[0]}/{first[1]}"))


def test_after_the_last_item_comes_the_queue(browser):
    for _ in range(3):
        here = browser.get("/next").headers["location"]
        answer = browser.post(here.replace("item", "judge"), word=ACCEPT, seen="")
    assert answer.headers["location"] == "/queue?"
    assert "Nothing of this kind is left" in browser.get("/queue").text
    assert browser.get("/next").headers["location"] == "/queue?"


def test_another_label_and_taking_back(browser):
    assert browser.judge(0, "relabel", value="0").status_code == 303
    assert browser.desk.ledger.repairs()[0, 1] == 0
    (verdict,) = browser.desk.ledger.verdicts()
    assert 'value="back"' in browser.get("/item/0/1").text
    assert browser.judge(0, "back", seen=verdict.name).headers["location"] == "/item/0/1?"
    assert browser.desk.ledger.repairs()[0, 1] == 1
    assert 'value="back"' not in browser.get("/item/0/1").text


def test_the_last_verdict_is_taken_back_from_the_next_label_and_from_an_empty_queue(browser):
    browser.judge(0, REJECT)
    for page in (browser.get("/item/1/1").text, browser.get("/queue?round_num=8").text):
        form = page.split('action="/judge/0/1?')[1].split("</form>")[0]
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        assert "Take back the last verdict: fracture" in form
    assert browser.post("/judge/0/1", **fields).headers["location"] == "/item/0/1?"
    assert [v.word for v in browser.desk.ledger.verdicts()] == [REJECT, "withdraw"]
    assert "Take back" not in browser.get("/item/1/1").text


def test_a_note_waits_at_its_label_when_the_verdict_is_refused_or_taken_back(tmp_path):
    run = make_run(tmp_path, *TAGS)
    one, other = Browser(Desk(run)), Browser(Desk(run))
    one.judge(0, ACCEPT)
    assert other.judge(0, REJECT, note="motion < 1").status_code == 409
    assert ">motion &lt; 1</textarea>" in other.get("/item/0/1").text
    shown = other.desk.item(0, 1).verdict.name
    other.judge(0, "back", seen=shown, note="motion < 1")
    assert ">motion &lt; 1</textarea>" in other.get("/item/0/1").text
    other.judge(0, REJECT, note="motion < 1")
    assert "</textarea>" in (page := other.get("/item/0/1").text)
    assert ">motion &lt; 1</textarea>" not in page


def test_two_people_do_not_write_over_each_other(tmp_path):
    run = make_run(tmp_path, *TAGS)
    one, other = Browser(Desk(run)), Browser(Desk(run))
    assert one.judge(0, ACCEPT).status_code == 303
    answer = other.judge(0, REJECT)
    assert answer.status_code == 409
    assert "expected a label as it was shown, AB was the last to judge it; look again" in words(answer)
    assert [v.word for v in other.desk.ledger.verdicts()] == [ACCEPT]


def test_a_verdict_that_was_not_shown_is_not_taken_back(tmp_path):
    run = make_run(tmp_path, *TAGS)
    one, other = Browser(Desk(run)), Browser(Desk(run))
    one.judge(0, REJECT)
    shown = one.desk.item(0, 1).verdict.name
    one.judge(0, ACCEPT, seen=shown)
    answer = other.judge(0, "back", seen=shown)
    assert (answer.status_code, "AB was the last to judge it; look again" in words(answer)) == (409, True)
    assert [v.word for v in other.desk.ledger.verdicts()] == [REJECT, ACCEPT]


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"word": "perhaps"}, 409, "expected one of accept, reject, unsure, relabel, withdraw, got another word"),
        ({"word": "relabel", "value": "7"}, 409, "verdict, label: expected one of the job's, got another"),
        ({"word": "relabel", "value": "1" * 5000}, 409, "verdict, label: expected one of the job's, got another"),
        ({"word": "relabel", "value": "no"}, 409, "verdict, label: expected one of the job's, got another"),
        ({"word": ACCEPT, "note": "x" * 501}, 409, "verdict, note: expected at most 500 printable characters"),
        ({"word": ACCEPT, "note": "x" * 30_000}, 413, "expected a form of at most 20000 bytes, got a larger one"),
        ({"word": ACCEPT, "form": "other"}, 403, "expected a form of this session, got another"),
        ({"word": ACCEPT, "seen": "unknown"}, 409, "expected a label as it was shown, nobody was the last to judge it"),
    ],
)
def test_a_form_that_this_page_did_not_make_changes_nothing(browser, fields, status, sentence):
    answer = browser.post("/judge/0/1", **{"seen": "", **fields})
    assert answer.status_code == status
    assert sentence in words(answer)
    assert browser.desk.ledger.verdicts() == []


@pytest.mark.parametrize("address", ["/item/{}/0", "/item/0/{}", "/picture/{}.png", "/outline/{}/0/old.png"])
@pytest.mark.parametrize("digits", [20, 150, 5000])
def test_a_number_of_any_length_in_an_address_is_one_that_there_is_not(browser, address, digits):
    assert browser.get(address.format("7" * digits)).status_code == 404


def test_a_form_in_pieces_is_refused_whatever_length_it_says(browser):
    pieces = {**ORIGIN, "Transfer-Encoding": "chunked", "Content-Length": "10"}
    answer = browser.client.post("/judge/0/1", content=iter([b"note=" + b"x" * 60_000]), headers=pieces)
    assert (answer.status_code, answer.text) == (411, "expected a request that says its length, got one in pieces")
    assert browser.desk.ledger.verdicts() == []


@pytest.mark.parametrize("initials", ["", "a b", "<b>", "x" * 13])
def test_initials_are_letters(tmp_path, initials):
    browser = Browser(make_desk(tmp_path, *TAGS), enter=False)
    browser.get(f"/?token={browser.token}")
    answer = browser.post("/hello", reviewer=initials)
    assert answer.status_code == 422
    assert "initials: expected 1 to 12 letters" in words(answer)
    assert "<b>" not in answer.text.replace("<body>", "")
    assert "go to /hello" in words(browser.judge(0, ACCEPT))


# ---- who is let in --------------------------------------------------------------------------------------------------
def test_the_link_opens_one_browser_once(tmp_path):
    browser = Browser(make_desk(tmp_path, *TAGS), enter=False)
    assert browser.get("/queue").status_code == 403
    assert browser.get("/?token=wrong").status_code == 403
    assert browser.get(f"/?token={browser.token}").status_code == 200
    assert browser.get("/").headers["location"] == "/hello"
    assert browser.get("/hello").status_code == 200
    browser.client.cookies.clear()
    answer = browser.get(f"/?token={browser.token}")
    assert answer.status_code == 403
    assert answer.text == "expected the link that fedmend review printed, which opens one browser once"
    assert browser.get("/picture/0.png").status_code == 403


def test_the_cookie_is_for_this_page_alone(tmp_path):
    browser = Browser(make_desk(tmp_path, *TAGS), enter=False)
    cookie = browser.get(f"/?token={browser.token}").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert cookie.startswith("fedmend_review_5000=")  # not that of a review at another port


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:5000", "127.0.0.1:80", "127.0.0.1.evil.example:5000", ""]
)
def test_another_host_name_is_refused_also_with_the_cookie(browser, host):
    assert browser.get("/queue", headers={"host": host}).status_code == 421
    assert browser.get("/picture/0.png", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", [{}, {"origin": "null"}, {"origin": "http://evil.example"}])
def test_a_form_of_another_origin_is_refused_also_with_the_secret(browser, origin):
    assert browser.post("/judge/0/1", headers=origin, word=ACCEPT, seen="").status_code == 403
    assert browser.desk.ledger.verdicts() == []


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/item/99/1",
            "/item/0/9",
            "/picture/99.png",
            "/outline/99/0/added.png",
            "/picture/..%2f..%2fetc%2fpasswd.png",
        ),
        *("/item/-1/0", "/item/x/0", "/static/../app.py", "/static/%2e%2e/app.py", "/nothing"),
    ],
)
def test_paths_and_numbers_lead_nowhere_else(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_nothing_is_kept_by_the_browser_or_loaded_from_elsewhere(browser):
    for path in ("/queue", "/item/0/1", "/picture/0.png", "/static/review.js", "/nothing"):
        answer = browser.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
        assert not re.search(r"(src|href)=[\"'](https?:)?//", answer.text if "image" not in path else "")


def test_words_stand_out_from_the_page_by_day_and_by_night(browser):
    def light(word):
        parts = [int(pair, 16) / 255 for pair in re.findall("..", word if len(word) == 6 else word[0] * 6)]
        return np.dot(
            [0.2126, 0.7152, 0.0722], [p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        )

    style = browser.get("/static/review.css").text
    schemes = [dict(re.findall(r"--(\w+):#(\w+)", rule)) for rule in re.findall(r":root{([^}]*)}", style)]
    assert len(schemes) == 2
    for colours in schemes:
        for word in re.findall(r"[;{]color:var\(--(\w+)\)", style):
            lights = sorted([light(colours[word]), light(colours["paper"])])
            assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, word  # of WCAG, level AA


def test_other_methods_are_refused(browser):
    assert browser.client.request("DELETE", "/item/0/1").status_code == 405


def test_the_slices_of_a_study_can_be_walked_from_its_middle(tmp_path):
    labels, studies = [[1, -1, 0]] * 3 + [[0, -1, 1]] * 2, ["s1"] * 3 + ["s2"] * 2
    desk = make_desk(tmp_path, (1, 1, 1, 0, 0.9), labels=labels, studies=studies, study_slices=2)
    browser = Browser(desk)
    page = browser.get("/item/1/1").text
    assert 'data-neighbours="[3, 4]" data-place="1"' in page
    assert re.findall(r'src="/picture/(\d+)\.png"', page) == ["4"]  # not that of another study
    pictures = [browser.get(f"/picture/{number}.png") for number in range(6)]
    assert [picture.status_code for picture in pictures] == [200] * 5 + [404]
    seen = [np.asarray(Image.open(BytesIO(picture.content)))[0, 0, 0] for picture in pictures[:5]]
    assert seen == [pixels(n)[0, 0] for n in range(5)]
    assert "maps are of single images" in words(browser.get("/item/1/1"))
    browser.judge(1, "accept")
    assert [v.sample for v in desk.ledger.verdicts()] == [1]
