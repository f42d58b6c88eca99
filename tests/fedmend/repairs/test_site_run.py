from factories import CLASSES, make_site_folder
from torch_factories import CPU

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.repairs.site_run import OPENED, load_opened, save_opened


def test_a_review_opens_the_data_of_a_run_as_the_run_did(tmp_path):
    card = load_card(make_site_folder(tmp_path / "data"), "site-1")
    state, opening = StateStore(tmp_path / "state"), Opening(tmp_path / "cache", 32, CPU, 3, all_labels=True)
    save_opened(state, card, CLASSES, opening)
    assert load_opened(state, "site-1") == (card, CLASSES, opening)


def test_what_earlier_runs_noted_about_their_data_can_be_read(tmp_path):
    data, state = make_site_folder(tmp_path / "data"), StateStore(tmp_path / "state")
    places = {"data": str(data), "cache_dir": str(tmp_path / "cache")}
    state.save(OPENED, places | {"classes": ["a"], "image_size": 32, "max_unreadable": 0, "all_labels": False})
    card, classes, opening = load_opened(state, "site-1")
    assert (card.folder, classes, opening) == (data, ("a",), Opening(tmp_path / "cache", 32, CPU))


def test_a_run_that_noted_nothing_is_no_error(tmp_path):
    assert load_opened(StateStore(tmp_path), "site-1") is None
