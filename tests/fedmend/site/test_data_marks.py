"""What of a site's data changes its mark, and what does not."""

import os
import re

import pytest
from factories import make_site_folder
from torch_factories import PlainMethod
from worker_factories import Client, census_task, one_site

from fedmend.basics.state import StateStore
from fedmend.site.data_marks import NOTED


@pytest.fixture
def site(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val", "test"))
    with one_site():
        yield Client(tmp_path, PlainMethod())


def marks(site):
    """What a new process of the site answers."""
    site.start()
    answer = site.ask("census", census_task())
    assert answer.error == ""
    return answer.census["data"]


def test_a_mark_is_drawn_and_the_digest_stays_at_the_site(site):
    told = marks(site)
    assert set(told) == {"train", "val", "test"}
    assert all(re.fullmatch("[0-9a-f]{32}", mark) for mark in told.values())
    noted = StateStore(site.config.state_dir / "run-1" / "site-1").load(NOTED)
    assert {split: list(by_digest.values()) for split, by_digest in noted.items()} == {s: [m] for s, m in told.items()}
    assert not {digest for by_digest in noted.values() for digest in by_digest} & set(told.values())
    assert marks(site) == told


def test_rows_that_go_from_a_test_split_is_other_data_until_it_is_put_back(site):
    before = marks(site)
    file = site.folder / "data" / "test.csv"
    text = file.read_text()
    file.write_text("\n".join(text.splitlines()[:4]) + "\n")  # half of the samples
    after = marks(site)
    assert {split for split in before if before[split] != after[split]} == {"test"}
    file.write_text(text)
    assert marks(site) == before


def test_another_picture_under_the_same_name_is_other_data(site):
    before = marks(site)
    images = site.folder / "data" / "images"
    (images / "img5.png").write_bytes((images / "img0.png").read_bytes())
    after = marks(site)
    assert all(before[split] != after[split] for split in before)  # which share their images


def test_files_of_another_time_are_the_same_data(site):
    before = marks(site)
    for file in (site.folder / "data" / "images").iterdir():
        os.utime(file, (1, 1))
    assert marks(site) == before
