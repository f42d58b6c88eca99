"""The map of the model over the picture of a repair."""

import pytest
from factories import CLASSES, refused
from result_factories import PREPARED
from review_factories import Browser, make_run, words

from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.records.package_files import write_package
from fedmend.review.desk import Desk
from fedmend.review.maps import Maps

TAG = (0, 1, 1, 0, 0.9)


def make_package(folder, classes=CLASSES):
    about = {
        "name": "run-1",
        "phantom": True,
        "kind": "multilabel",
        "classes": list(classes),
        "network": {"name": "resnet_narrow", "arguments": {"num_classes": len(classes)}},
        "preprocessing": PREPARED.of_package("multilabel"),
        "thresholds": {},
    }
    weights = {k: v.numpy() for k, v in get_weights(initial_network("resnet_narrow", classes, 3)).items()}
    write_package(folder / "run-1.fedmend", about, weights)
    return folder / "run-1.fedmend"


def test_without_a_model_the_page_says_so(tmp_path):
    pytest.importorskip("starlette")
    browser = Browser(Desk(make_run(tmp_path, TAG)))
    page = browser.get("/item/0/1")
    assert "no map: no model is kept at this site; `fedmend review --model PACKAGE` names the one of the run" in words(
        page
    )
    assert 'id="map"' not in page.text
    assert browser.get("/map/0/1.png").status_code == 404


def test_a_model_of_other_classes_is_not_the_one_of_the_run(tmp_path):
    desk = Desk(make_run(tmp_path, TAG), make_package(tmp_path, CLASSES[::-1]))
    assert Maps(desk).problem == "package run-1: expected the classes of the run in their order, got others"
    with refused("package run-1: expected the classes of the run in their order, got others"):
        Maps(desk).png(0, 1)


def test_the_model_that_a_site_keeps_is_offered_with_a_word_of_caution(tmp_path):
    pytest.importorskip("starlette")
    run = make_run(tmp_path, TAG)
    make_package(run / "model")
    page = Browser(Desk(run)).get("/item/0/1")
    assert 'data-src="/map/0/1.png"' in page.text
    assert "Weak evidence" in words(page)


@pytest.mark.slow
def test_the_map_is_a_picture_made_in_memory_and_nothing_is_written(tmp_path):
    run = make_run(tmp_path, TAG)
    make_package(run / "model")
    browser = Browser(Desk(run))
    before = sorted((file, file.stat().st_mtime_ns) for file in tmp_path.rglob("*"))
    answer = browser.get("/map/0/1.png")
    assert (answer.headers["content-type"], answer.content[:4]) == ("image/png", b"\x89PNG")
    assert answer.headers["cache-control"] == "no-store"
    assert sorted((file, file.stat().st_mtime_ns) for file in tmp_path.rglob("*")) == before
    assert browser.get("/map/99/1.png").status_code == 404
    assert browser.get("/map/0/9.png").status_code == 404
