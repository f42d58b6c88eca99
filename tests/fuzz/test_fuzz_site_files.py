"""What a hospital writes: fedmend.json, site cards, tables and datalists."""

import json
import os

import numpy as np
import pytest
from factories import refused
from fuzzing import PIECES, damaged_bytes, in_time, json_files, number_of_cases, try_all
from hypothesis import strategies as st

from fedmend.data.card import SiteCard, load_card
from fedmend.data.datalist import SECTIONS, load_datalist
from fedmend.data.tables import load_table
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL
from fedmend.site.config import SiteConfig, read_site_config

CLASSES = ("edema", "nodule")
SETTINGS = {
    "data_root": "data",
    "cache_dir": "~/cache/{SITE_NAME}",
    "state_dir": "/var/lib/state",
    "min_count": 5,
    "max_unreadable": 0,
    "threads": 1,
    "gallery": False,
    "weights_dir": "weights",
}
CARD = {
    "format": 1,
    "task": "multilabel",
    "classes": list(CLASSES),
    "splits": {"train": "train.csv", "val": "val.csv"},
    "truth": {"train": "truth.csv"},
    "image_root": "images",
    "modality": "CT",
    "window": [40, 80],
    "color": False,
    "foreground": 1,
    "provenance": {"source": "PHANTOM"},
}
DATALIST = {
    name: [{"image": f"{name}-{i}.nii.gz", "label": f"labels/{i}.nii.gz", "slices": [0, i]} for i in (1, 2)]
    for name in SECTIONS.values()
}
TABLES = {
    MULTILABEL: b"image,patient,edema,nodule\na/1.png,p1,1,0\na/2.png,p2,,1\n",
    SINGLELABEL: b"image,label\na/1.png,edema\na/2.png,\n",
}
CELLS = [*PIECES, b"image", b"patient", b"edema", b"nodule", b"../", b"/", b"1", b"0", b",,", b"\r\n", b"label"]


def card_of(folder, kind):
    return SiteCard("site-1", folder, kind, CLASSES, {"train": "train"}, folder / "images")


def is_below(folder, file):
    return os.path.normpath(file).startswith(str(folder))


@number_of_cases
def test_any_settings_of_a_site_are_read_or_refused_in_one_sentence(tmp_path, cases):
    file = tmp_path / "fedmend.json"

    def read(content):
        file.write_bytes(content)
        config = read_site_config(file, tmp_path, "site-1")
        assert isinstance(config, SiteConfig)
        assert config.cache_dir.is_absolute()
        assert b"\0" not in os.fsencode(config.cache_dir)  # a folder that the system can be asked for

    try_all(json_files(SETTINGS), read, cases)


@number_of_cases
def test_any_site_card_is_read_or_refused_in_one_sentence(tmp_path, cases):
    def read(content):
        (tmp_path / "site.json").write_bytes(content)
        card = load_card(tmp_path, "site-1")
        assert card.classes
        assert all(is_below(tmp_path, tmp_path / name) for name in card.splits.values())
        assert isinstance(card.phantom, bool)
        if isinstance(card.window, tuple):
            assert np.isfinite(card.window).all()
        assert b"\0" not in os.fsencode(card.image_root)

    try_all(json_files(CARD), read, cases)


@pytest.mark.parametrize("kind", TABLES)
@number_of_cases
def test_any_label_table_is_read_or_refused_in_one_sentence(tmp_path, kind, cases):
    card = card_of(tmp_path, kind)

    def read(content):
        (tmp_path / "train").write_bytes(content)
        table = load_table(card, "train", CLASSES)
        assert table.labels.shape == (len(table.images), 2)
        assert set(np.unique(table.labels)) <= {-1, 0, 1}

    try_all(damaged_bytes(TABLES[kind], CELLS), read, cases)


@number_of_cases
def test_any_datalist_is_read_or_refused_in_one_sentence(tmp_path, cases):
    card = card_of(tmp_path, SEGMENTATION)

    def read(case):
        content, split = case
        (tmp_path / "train").write_bytes(content)
        items = load_datalist(card, "train", split)
        assert all(is_below(tmp_path, item.label) for item in items)

    try_all(st.tuples(json_files(DATALIST), st.sampled_from(list(SECTIONS))), read, cases)


def test_a_long_datalist_is_read_in_the_time_of_its_length(tmp_path):
    items = [{"image": f"{i}.nii", "label": f"{i}.nii"} for i in range(20_000)]
    (tmp_path / "train").write_text(json.dumps({"training": items}))
    with in_time():
        assert len(load_datalist(card_of(tmp_path, SEGMENTATION), "train", "train")) == 20_000


def test_a_table_with_a_field_of_a_megabyte_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "train").write_text(f"image,edema\n{'x' * 2**20},1\n")
    sentence = "expected fields of at most 131072 characters, got a longer one; a quotation mark without its partner?"
    with refused(f"site-1: train: {sentence}"):
        load_table(card_of(tmp_path, MULTILABEL), "train", CLASSES)
