import contextlib
import sqlite3

import numpy as np
from factories import CLASSES, make_site_folder, refused
from PIL import Image
from torch_factories import CPU

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.site import Opening, load_site
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.site_run import (
    LEDGER_NAME,
    OPENED,
    STAMPS,
    files_of,
    has_changed,
    load_opened,
    save_opened,
    take_over_verdicts,
)
from fedmend.repairs.verdicts import REJECT, Verdict


def test_a_review_opens_the_data_of_a_run_as_the_run_did(tmp_path):
    card = load_card(make_site_folder(tmp_path / "data"), "site-1")
    state, opening = StateStore(tmp_path / "state"), Opening(tmp_path / "cache", 32, CPU, 3, all_labels=True)
    save_opened(state, card, CLASSES, opening, ())
    assert load_opened(state, "site-1") == (card, CLASSES, opening)


def test_a_run_that_goes_on_keeps_the_state_in_which_it_first_read_a_file(tmp_path):
    card = load_card(make_site_folder(tmp_path / "data"), "site-1")
    state, opening = StateStore(tmp_path / "state"), Opening(tmp_path / "cache", 32, CPU)
    for _ in range(2):
        train = load_site(card, CLASSES, opening).train
        save_opened(state, card, CLASSES, opening, train)
        image, other = (files_of(card, train, sample) for sample in (0, 1))
        Image.new("L", (4, 4)).save(image[0])
    stamps = state.load(STAMPS)
    assert has_changed(stamps, image)
    assert not has_changed(stamps, other)
    assert has_changed(stamps, [*other, *image])  # one of several files
    assert not has_changed({}, image)  # a run of an earlier version, which noted nothing


def test_a_file_that_is_read_for_the_first_time_is_noted_beside_the_first_state_of_others(tmp_path):
    card = load_card(make_site_folder(tmp_path / "data"), "site-1")
    state, opening = StateStore(tmp_path / "state"), Opening(tmp_path / "cache", 32, CPU)
    train = load_site(card, CLASSES, opening).train
    save_opened(state, card, CLASSES, opening, train)
    first, *others = state.load(STAMPS)
    state.save(STAMPS, {first: (0, 0)})
    save_opened(state, card, CLASSES, opening, train)
    assert state.load(STAMPS).keys() == {first, *others}
    assert state.load(STAMPS)[first] == (0, 0)


def test_what_earlier_runs_noted_about_their_data_can_be_read(tmp_path):
    data, state = make_site_folder(tmp_path / "data"), StateStore(tmp_path / "state")
    places = {"data": str(data), "cache_dir": str(tmp_path / "cache")}
    state.save(OPENED, places | {"classes": ["a"], "image_size": 32, "max_unreadable": 0, "all_labels": False})
    card, classes, opening = load_opened(state, "site-1")
    assert (card.folder, classes, opening) == (data, ("a",), Opening(tmp_path / "cache", 32, CPU))


def test_a_run_that_noted_nothing_is_no_error(tmp_path):
    assert load_opened(StateStore(tmp_path), "site-1") is None


def test_a_ledger_of_another_run_that_is_locked_is_waited_for_and_then_stops_the_run(tmp_path, monkeypatch):
    books = [tmp_path / run / "site-1" / LEDGER_NAME for run in ("run-1", "run-2")]
    about = {"fingerprint": "ab", "images": ["img0"], "classes": ["edema"], "site": "site-1"}
    said, new = (LabelLedger(book, **about) for book in books)
    said.record("rule", 0, np.array([[-1]], np.int8), Repairs(*np.array([0, 0, 1, 0.5])[:, None]))
    said.judge(Verdict(0, 0, REJECT, -1, 1, "rule", 0, "AB"))
    monkeypatch.setattr("fedmend.repairs.ledger.PATIENCE", 0.1)
    with contextlib.closing(sqlite3.connect(books[0], isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        sentence = (
            "label ledger of another run: expected a file that can be opened and written, got: database is locked"
        )
        with refused(f"site-1: {sentence}"):
            take_over_verdicts(new, books[1])
    take_over_verdicts(new, books[1])
    assert [v.word for v in new.verdicts()] == [REJECT]


def test_a_damaged_ledger_of_another_run_is_said_in_the_log_and_stops_nothing(tmp_path, caplog):
    book = tmp_path / "run-2" / "site-1" / LEDGER_NAME
    new = LabelLedger(book, fingerprint="ab", images=["img0"], classes=["edema"], site="site-1")
    damaged = tmp_path / "run-1" / "site-1" / LEDGER_NAME
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no ledger at all, whatever its name says")
    take_over_verdicts(new, book)
    assert "expected an SQLite ledger" in caplog.text
