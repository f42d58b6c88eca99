from pathlib import Path

import pytest

from fedmend.datasets.site_folders import site_folders


def test_the_folders_appear_when_all_are_complete(tmp_path):
    out = tmp_path / "sites"
    with site_folders(out, 2, tmp_path / "elsewhere") as (folders, _):
        for folder in folders:
            (folder / "truth" / "train.csv").write_text(folder.name)
        assert list(out.glob("site-*")) == []
    assert {p.name: (p / "truth" / "train.csv").read_text() for p in out.iterdir()} == {
        "site-1": "site-1",
        "site-2": "site-2",
    }


def test_a_failure_leaves_nothing(tmp_path):
    def fail():
        with site_folders(tmp_path / "sites", 1, tmp_path) as (folders, _):
            (folders[0] / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list((tmp_path / "sites").iterdir()) == []


@pytest.mark.parametrize("place", ["sites/download", "download"])
def test_images_in_the_same_tree_are_named_relative_to_the_site(tmp_path, place):
    images = tmp_path / "root" / place
    with site_folders(tmp_path / "root" / "sites", 1, images) as (_, image_root):
        assert not Path(image_root).is_absolute()
        assert (tmp_path / "root" / "sites" / "site-1" / image_root).resolve() == images


def test_images_elsewhere_are_named_by_their_whole_path(tmp_path):
    with site_folders(tmp_path / "a" / "sites", 1, tmp_path / "b" / "images") as (_, image_root):
        assert image_root == str(tmp_path / "b" / "images")
