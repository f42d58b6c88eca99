"""The table of bad input in ``docs/review.md``: every row is brought about, and the page has what is then seen."""

import contextlib
import html
import re
import shutil
import socket
import sqlite3
import sys

import numpy as np
import pytest
from cli_calls import call
from factories import ROOT
from review_factories import RULE, Browser, make_desk, make_mask_run, make_run

from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.verdicts import ACCEPT, REJECT
from fedmend.review import exports
from fedmend.review.desk import Desk

PAGE = (ROOT / "docs" / "review.md").read_text()
TAGS = ((0, 1, 1, 0, 0.9), (1, 1, 0, 0, 0.5))
OPINIONS = [[0.1, 0.5, 0.1]] + [[0.5] * 3] * 5  # doubts that sample 0 has class 0
LEDGER = "ledger.sqlite"


def rows():
    """What happens → what is seen, of every row of the table."""
    section = PAGE.split("\n## What can go wrong\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| `([^`]+)`.* \|$", section, re.MULTILINE))


# ---- on the page ----------------------------------------------------------------------------------------------------
def seen(answer):
    """Status and sentence."""
    alert = re.search(r'<p class="problem" role="alert">(.*?)</p>', answer.text)
    return f"{answer.status_code}: {html.unescape(alert[1]) if alert else answer.text}"


def empty_queue(browser):
    answer = browser.get("/queue?round_num=8")
    return f"{answer.status_code}: {re.search('<p>(Nothing[^<]*)</p>', answer.text)[1]}"


def second_browser(browser):
    browser.client.cookies.clear()
    return browser.get(f"/?token={browser.token}")


def without_cookie(browser):
    browser.client.cookies.clear()
    return browser.get("/queue")


def two_people(browser):
    assert Browser(Desk(browser.desk.folder)).judge(0, ACCEPT).status_code == 303
    return browser.judge(0, REJECT)


def repaired_anew(browser):
    shown = re.search('name="shown" value="([0-9a-f]{8})"', browser.get("/item/0/1").text)[1]
    desk = browser.desk
    desk.ledger.record(RULE, 0, desk.data.train.labels, Repairs(*np.array([0, 1, 0, 0.9])[:, None]))
    answer = browser.judge(0, ACCEPT, shown=shown)
    assert desk.ledger.verdicts() == []
    return answer


def other_initials(browser):
    shown = re.search('name="reviewer" value="(.*?)"', browser.get("/item/0/1").text)[1]
    browser.post("/hello", reviewer="CD")
    answer = browser.judge(0, ACCEPT, reviewer=shown)
    assert browser.desk.ledger.verdicts() == []
    return answer


def taken_back(browser):
    browser.desk.ledger.undo()
    return browser.judge(0, ACCEPT)


def image_of(browser):
    return browser.desk.card.folder / "images" / "img0.png"


def deleted_image(browser):
    image_of(browser).unlink()
    return browser.get("/picture/0.png")


def damaged_image(browser):
    image_of(browser).write_bytes(image_of(browser).read_bytes()[:40])
    return browser.get("/picture/0.png")


def locked(browser):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedmend.repairs.ledger.PATIENCE", 0)
        with contextlib.closing(sqlite3.connect(browser.desk.folder / LEDGER)) as other:
            other.execute("BEGIN EXCLUSIVE")
            return browser.judge(0, ACCEPT)


def damaged(browser):
    (browser.desk.folder / LEDGER).write_bytes(b"damaged" * 1000)
    return browser.get("/queue")


ON_THE_PAGE = {
    "another token": lambda b: b.client.cookies.clear() or b.get("/?token=wrong"),
    "the link in a second browser": second_browser,
    "a page, or an image, in a browser that did not open the link": without_cookie,
    "another host name for this machine (DNS rebinding)": lambda b: b.get("/queue", headers={"host": "evil.example"}),
    "a form sent by another site (CSRF)": lambda b: b.post(
        "/judge/0/1", headers={"origin": "http://evil.example"}, word=ACCEPT
    ),
    "a form of an earlier session": lambda b: b.post("/judge/0/1", form="earlier", word=ACCEPT),
    "a form of more than 20 kB": lambda b: b.judge(0, ACCEPT, note="x" * 30_000),
    "another method": lambda b: b.client.request("DELETE", "/item/0/1"),
    "a path in the place of a number": lambda b: b.get("/picture/..%2f..%2fetc%2fpasswd.png"),
    "a sample or class that there is not": lambda b: b.get("/item/99/1"),
    "an image that there is not": lambda b: b.get("/picture/99.png"),
    "a rule repairs a label anew after it was shown": repaired_anew,
    "a label that nothing repaired, or whose repair was taken back meanwhile": taken_back,
    "two people judge the same label": two_people,
    "another reader gives initials in a second tab": other_initials,
    "another word": lambda b: b.judge(0, "perhaps"),
    "another label that the job does not have": lambda b: b.judge(0, "relabel", value="7"),
    "an own label is rejected": lambda b: b.post("/judge/0/0", word=REJECT, seen=""),
    "initials with other characters": lambda b: b.post("/hello", reviewer="<b>"),
    "a note that is too long": lambda b: b.judge(0, ACCEPT, note="x" * 501),
    "an image that was deleted": deleted_image,
    "an image that is damaged": damaged_image,
    "a run that writes for longer than 30 seconds": locked,
    "the ledger is damaged while the page is open": damaged,
    "nothing was repaired, or all is judged": empty_queue,
}


@pytest.mark.parametrize("row", ON_THE_PAGE)
def test_what_is_seen_on_the_page_is_what_the_table_says(tmp_path, row):
    browser = Browser(make_desk(tmp_path, *TAGS, opinions=OPINIONS))
    found = ON_THE_PAGE[row](browser)
    assert (found if isinstance(found, str) else seen(found)) == rows()[row]


def test_no_verdict_without_initials(tmp_path):
    browser = Browser(make_desk(tmp_path, *TAGS), enter=False)
    browser.get(f"/?token={browser.token}")
    assert seen(browser.judge(0, ACCEPT)) == rows()["a verdict without initials"]
    assert browser.desk.ledger.verdicts() == []


# ---- on the command line --------------------------------------------------------------------------------------------
def no_ledger(run, _):
    (run / LEDGER).unlink()


def no_opened(run, _):
    (run / "opened.pt").unlink()


def damaged_ledger(run, _):
    (run / LEDGER).write_bytes(b"damaged" * 1000)


def damaged_state(run, _):
    (run / "opened.pt").write_bytes((run / "opened.pt").read_bytes()[:-1])


def other_labels(run, folder):
    table = folder / "data" / "train.csv"
    table.write_text(table.read_text().replace("p4,1,1", "p4,0,1"))


def no_data(run, folder):
    shutil.rmtree(folder / "data")


def another_site(run, _):
    shutil.copytree(run, run.with_name("site-2"))


def nothing(*_):
    return


AT_START = {
    "no run below the folder": (no_ledger, ()),
    "a run of an earlier version": (no_opened, ()),
    "a damaged ledger": (damaged_ledger, ()),
    "a damaged state file": (damaged_state, ()),
    "labels that the site has changed since the run": (other_labels, ()),
    "data that were moved or deleted": (no_data, ()),
    "several sites below the folder": (another_site, ()),
    "a site that is not below the folder": (nothing, ("--site", "site-9")),
    "a run that is not below the folder": (nothing, ("--run", "run-9")),
    "`--unseen` without `--export`": (nothing, ("--unseen",)),
}


def said(capsys, *words):
    assert call("review", *words) == 1
    return capsys.readouterr().err.removeprefix("fedmend: ").strip()


@pytest.mark.parametrize("row", AT_START)
def test_what_the_command_says_is_what_the_table_says(tmp_path, capsys, row):
    prepare, words = AT_START[row]
    prepare(make_run(tmp_path, *TAGS), tmp_path)
    sentence = re.sub("hash [0-9a-f]{12}", "hash ...", said(capsys, tmp_path / "state", *words))
    assert sentence == rows()[row]


def test_a_port_that_is_taken(tmp_path, capsys):
    make_run(tmp_path, *TAGS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        sentence = said(capsys, tmp_path, "--port", number)
    assert sentence.replace(number, "5000") == rows()["a port that is taken"]


def test_packages_that_are_not_installed(tmp_path, capsys, monkeypatch):
    make_run(tmp_path, *TAGS)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert said(capsys, tmp_path) == rows()["the page's packages are not installed"]


def test_an_export_over_the_sites_own_table_and_into_a_full_folder(tmp_path, capsys):
    make_run(tmp_path / "labels", *TAGS)
    export = ("--export", tmp_path / "labels" / "data")
    assert said(capsys, tmp_path / "labels", *export) == rows()["an export into the site's own folder"]
    make_mask_run(tmp_path / "masks", 1)
    (tmp_path / "out" / "masks").mkdir(parents=True)
    (tmp_path / "out" / "masks" / "other").touch()
    export = ("--export", tmp_path / "out")
    assert said(capsys, tmp_path / "masks", *export) == rows()["an export of masks into a folder that is not empty"]


def test_a_table_that_changes_while_the_page_is_open(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    other_labels(desk.folder, tmp_path)
    with pytest.raises(exports.FedMendError) as found:
        exports.write_table(desk.card, desk.data.train.table, desk.data.train.labels, tmp_path / "out.csv")
    assert str(found.value) == rows()["a table that changes during an export"]


def test_every_row_of_the_table_is_tried_here():
    alone = {
        *("a verdict without initials", "a port that is taken", "the page's packages are not installed"),
        *("an export into the site's own folder", "an export of masks into a folder that is not empty"),
        "a table that changes during an export",
    }
    assert set(rows()) == {*ON_THE_PAGE, *AT_START, *alone}
