import csv
import os
from pathlib import Path

import numpy as np
import pytest
from factories import refused
from rsna_ich_factories import (
    BASE,
    OTHER_SEED,
    PATIENTS,
    SEED,
    SLICES,
    every_table,
    label,
    load,
    patients_of,
    prepare,
    slice_id,
    station,
    table_rows,
    write_rows,
)

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets import rsna_ich as converter
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.rsna_ich import CLASSES, prepare_single_label
from fedmend.datasets.rsna_ich_download import Slices
from fedmend.datasets.swapped_labels import SwapNoise
from fedmend.errors import FedMendError

DOWNLOAD = "rsna_ich"


def test_the_rsna_ich_layout_becomes_site_folders_whose_images_are_found(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **BASE)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["site-1", "site-2", "site-3"]
    card = load_card(tmp_path / "out" / "site-2", "site-2")
    assert (card.kind, card.classes, card.modality, card.window) == ("multilabel", CLASSES, "CT", (40.0, 80.0))
    assert card.splits == {"train": "train.csv", "val": "val.csv", "test": "test.csv"}
    for split in card.splits:
        table = load(tmp_path / "out", "site-2", split)
        assert all((card.image_root / image).is_file() for image in table.images)
        assert table.patients == tuple(f"P{int(image[3:7], 16):02d}" for image in table.images)


def test_a_site_shows_only_its_annotated_classes_and_keeps_the_truth_aside(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **BASE)
    shown = [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    for s, expected in enumerate(shown):
        site = f"site-{s + 1}"
        for split in ("train", "val"):
            assert load(tmp_path / "out", site, split).annotated.astype(int).tolist() == expected
        assert load(tmp_path / "out", site, "test").annotated.all()
        train, truth = load(tmp_path / "out", site), load(tmp_path / "out", site, "truth")
        assert truth.images == train.images
        assert truth.labels.tolist() == [label(int(i[3:7], 16), int(i[7:12], 16)) for i in truth.images]
        assert np.array_equal(train.labels[:, train.annotated], truth.labels[:, train.annotated])
        assert (train.labels[:, ~train.annotated] == -1).all()


def test_a_patient_is_in_one_site_and_one_split_with_all_slices(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **BASE)
    groups = [patients_of(t) for split in ("train", "val", "test") for t in every_table(tmp_path / "out", split)]
    # 12 patients a site: test round(3.6) = 4, val round(0.8) = 1, train 7
    assert [len(g) for g in groups] == [7, 7, 7, 1, 1, 1, 4, 4, 4]
    assert set().union(*groups) == set(range(PATIENTS))
    assert [len(t.images) for t in every_table(tmp_path / "out")] == [28, 28, 28]
    assert all(list(t.images) == sorted(t.images) for t in every_table(tmp_path / "out"))


def test_split_by_slice_cuts_through_patients_and_reads_no_header(rsna_ich, own_copy, tmp_path):
    for path in (own_copy / "stage_2_train").iterdir():
        path.write_bytes(b"")
    prepare(own_copy, tmp_path / "out", **BASE, split="slice")
    train, val, test = (every_table(tmp_path / "out", split) for split in ("train", "val", "test"))
    # 48 slices a site: test round(14.4) = 14, val round(3.4) = 3, train 31
    assert [(len(a.images), len(b.images), len(c.images)) for a, b, c in zip(train, val, test, strict=True)] == [
        (31, 3, 14)
    ] * 3
    assert len({i for t in (*train, *val, *test) for i in t.images}) == PATIENTS * SLICES
    assert patients_of(train[0]) & patients_of(test[0])
    assert set(train[0].patients) == {""}


@pytest.mark.parametrize("split", ["patient", "slice"])
def test_partition_by_station_gives_each_site_its_scanner(rsna_ich, tmp_path, split):
    prepare(rsna_ich, tmp_path / "out", **{**BASE, "split": split, "partition": "station"})
    for s in range(3):
        for part in ("train", "val", "test"):
            assert {station(p) for p in patients_of(load(tmp_path / "out", f"site-{s + 1}", part))} == {s}
        assert load_card(tmp_path / "out" / f"site-{s + 1}", "").provenance["site"]["stations"] == [f"CT{s}"]


def test_stations_are_dealt_in_sorted_order_when_there_are_more_than_sites(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **{**BASE, "sites": 2, "annotated_per_site": 4, "partition": "station"})
    assert {station(p) for p in patients_of(load(tmp_path / "out", "site-1"))} == {0, 2}
    assert {station(p) for p in patients_of(load(tmp_path / "out", "site-2"))} == {1}
    assert load_card(tmp_path / "out" / "site-1", "").provenance["site"]["stations"] == ["CT0", "CT2"]


def test_train_per_site_caps_the_training_table_and_shrinks_val_in_proportion(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **BASE, split="slice", train_per_site=18)
    # val: round(18 * 0.1 / 0.9) = 2
    assert [len(t.images) for t in every_table(tmp_path / "out")] == [18] * 3
    assert [len(t.images) for t in every_table(tmp_path / "out", "val")] == [2] * 3
    assert [len(t.images) for t in every_table(tmp_path / "out", "test")] == [14] * 3


def test_healthy_share_keeps_all_lesion_slices_and_draws_healthy_ones(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **{**BASE, "healthy_share": 0.1, "split": "slice"})
    tables = [t for split in ("truth", "test") for t in every_table(tmp_path / "out", split)]
    lesion = sum(int(t.labels.any(axis=1).sum()) for t in tables)
    counts = load_card(tmp_path / "out" / "site-1", "").provenance["counts"]
    # 30 patients with 3 lesion slices each; 90 * 0.1 / 0.9 = 10 healthy ones of 54
    assert (counts["lesion_slices"], counts["healthy_slices"]) == (90, 10)
    vals = sum(len(t.images) for t in every_table(tmp_path / "out", "val"))
    assert sum(len(t.images) for t in tables) + vals == 100
    assert lesion > 75


def test_a_noisy_site_shows_wrong_labels_of_its_classes_and_keeps_the_truth_aside(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **BASE, noise=SwapNoise(noisy_share=0.4, noise_low=0.5, noise_high=0.5))
    wrong = {}
    for folder in sorted((tmp_path / "out").glob("site-*")):
        card = load_card(folder, "")
        train, truth = (load_table(card, f, CLASSES) for f in (card.splits["train"], card.truth["train"]))
        changed = (train.labels != truth.labels)[:, train.annotated]
        wrong.setdefault(card.provenance["site"]["noise_rate"], []).append(changed.any())
    assert wrong == {0.0: [False, False], 0.5: [True]}


def test_the_seed_decides_which_healthy_slices_are_drawn(rsna_ich, tmp_path):
    used = []
    for seed in (SEED, OTHER_SEED):
        out = tmp_path / str(seed)
        prepare(rsna_ich, out, **{**BASE, "healthy_share": 0.1, "split": "slice", "seed": seed})
        used.append({i for split in ("train", "val", "test") for t in every_table(out, split) for i in t.images})
    assert len(used[0]) == len(used[1]) == 100
    assert used[0] != used[1]


def test_val_share_zero_writes_no_val_table(rsna_ich, tmp_path):
    prepare(rsna_ich, tmp_path / "out", **BASE, val_share=0)
    assert "val" not in load_card(tmp_path / "out" / "site-1", "").splits
    assert not (tmp_path / "out" / "site-1" / "val.csv").exists()
    assert [len(patients_of(t)) for t in every_table(tmp_path / "out")] == [8, 8, 8]


def test_the_card_records_every_argument_and_the_counts(rsna_ich, tmp_path):
    lines = []
    prepare(rsna_ich, tmp_path / "out", **BASE, source_name="made up", progress=lines.append)
    provenance = load_card(tmp_path / "out" / "site-1", "").provenance
    assert provenance["source"] == "made up"
    assert provenance["arguments"] == {
        **BASE,
        "rule": "one_each",
        "split": "patient",
        "partition": "iid",
        "test_share": 0.3,
        "val_share": 0.1,
        "train_per_site": None,
        "window": "brain",
        "labels_of": "slice",
        "noise": {"noisy_share": 0.0, "noise_low": 0.5, "noise_high": 0.7},
    }
    assert provenance["counts"]["label_rows"] == 864
    assert provenance["site"] == {"sizes": {"train": 28, "val": 4, "test": 16}, "stations": [], "noise_rate": 0.0}
    assert any("144 of 144 DICOM headers" in line for line in lines)


def test_a_study_has_the_classes_of_all_its_slices_which_lie_from_the_feet_up(rsna_ich, tmp_path):
    for labels_of in ("study", "copied"):
        prepare(rsna_ich, tmp_path / labels_of, **BASE, labels_of=labels_of)
    studies, copies = (load(tmp_path / name, "site-1", "test") for name in ("study", "copied"))
    assert (load_card(tmp_path / "study" / "site-1", "").sample, len(studies.images)) == ("study", 4)
    for name, paths, row in zip(studies.images, studies.slices, studies.labels, strict=True):
        patient = int(paths[0][3:7], 16)
        assert paths == tuple(f"{slice_id(patient, k)}.dcm" for k in (3, 2, 1, 0))
        assert row.tolist() == label(patient, 0)
        own = [i for i, study in enumerate(copies.about["study"]) if study == name]
        assert {tuple(copies.labels[i]) for i in own} == {tuple(row)}  # slice 3 too, which shows nothing
        assert {copies.images[i] for i in own} == {*paths}
    assert (load_card(tmp_path / "copied" / "site-1", "").sample, len(copies.images)) == ("image", 16)


@pytest.mark.parametrize("others", [{"split": "slice"}, {"train_per_site": 5}, {"noise": SwapNoise(noisy_share=0.5)}])
def test_studies_stay_whole(others):
    words = "split 'patient', no train_per_site and no noisy sites with labels of studies"
    with refused(f"rsna-ich, argument labels_of: expected {words}, got others"):
        converter.SliceProtocol(labels_of="study", **others)


def test_fewer_stations_than_sites_are_refused(rsna_ich, tmp_path):
    with pytest.raises(FedMendError, match="expected at least 4 stations, got 3"):
        prepare(rsna_ich, tmp_path / "out", **{**BASE, "sites": 4, "partition": "station"})


def test_a_site_with_too_few_patients_is_refused(rsna_ich, tmp_path):
    with pytest.raises(FedMendError, match="site-3: expected at least 3 patients to split, got 2"):
        prepare(rsna_ich, tmp_path / "out", **{**BASE, "sites": 17})


def rows_with(site, value):
    """The table with one value for subdural at the patients of a scanner."""
    at_site = {slice_id(p, k) for p in range(PATIENTS) for k in range(SLICES) if station(p) == site}
    return [
        [name, value if name.endswith("_subdural") and name.removesuffix("_subdural") in at_site else old]
        for name, old in table_rows()
        if not name.endswith("_any")
    ]


@pytest.mark.parametrize("value", ["0", "1"])
@pytest.mark.parametrize("site", [1, 2])
def test_a_site_with_one_label_value_only_of_a_class_that_it_annotates_is_refused(own_copy, tmp_path, value, site):
    write_rows(own_copy, rows_with(site, value))
    with refused(f"site-{site + 1}: train.csv, column subdural: expected both 0 and 1, got only {value}"):
        prepare(own_copy, tmp_path / "out", **{**BASE, "annotated_per_site": 4, "partition": "station"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("split", "random"),
        ("partition", "dirichlet"),
        ("test_share", 0),
        ("val_share", 1),
        ("train_per_site", 0),
        ("healthy_share", 1.0),
        ("window", "liver"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(rsna_ich, tmp_path, name, value):
    with pytest.raises(FedMendError, match=f"argument {name}: expected"):
        prepare(rsna_ich, tmp_path / "out", **{**BASE, name: value})


NOISY = NoiseProtocol(sites=2, presence=1.0, noisy_share=0.5, noise="uniform")


def single_tables(out):
    return {
        (site, split): load(out, site, split) for site in ("site-1", "site-2") for split in ("train", "truth", "test")
    }


def test_the_single_label_subset_holds_the_slices_with_exactly_one_subtype_and_their_true_labels(own_copy, tmp_path):
    rows = [[i, "1" if i == f"{slice_id(0, 0)}_subdural" else v] for i, v in table_rows()]  # now has two subtypes
    write_rows(own_copy, rows)
    prepare_single_label(own_copy, tmp_path / "out", protocol=NOISY)
    tables = single_tables(tmp_path / "out")
    images = [i for (_, split), t in tables.items() if split != "train" for i in t.images]
    expected = [f"{slice_id(p, k)}.dcm" for p in range(PATIENTS) for k in range(SLICES) if sum(label(p, k)) == 1]
    assert sorted(images) == sorted(set(expected) - {f"{slice_id(0, 0)}.dcm"})
    for (_, split), table in tables.items():
        if split != "train":
            assert table.labels.tolist() == [label(int(i[3:7], 16), int(i[7:12], 16)) for i in table.images]
    card = load_card(tmp_path / "out" / "site-1", "site-1")
    assert (card.kind, card.window, card.modality) == ("singlelabel", (40.0, 80.0), "CT")
    assert all((card.image_root / i).is_file() for i in tables["site-1", "test"].images)


@pytest.mark.parametrize("split", ["patient", "slice"])
def test_the_single_label_test_split_leaks_patients_only_when_it_is_cut_by_slice(rsna_ich, tmp_path, split):
    prepare_single_label(rsna_ich, tmp_path / "out", protocol=NOISY, split=split, test_share=0.5)
    tables = single_tables(tmp_path / "out")
    train = set().union(*(patients_of(t) for (_, s), t in tables.items() if s == "train"))
    test = set().union(*(patients_of(t) for (_, s), t in tables.items() if s == "test"))
    assert bool(train & test) == (split == "slice")
    with_patients = tables["site-1", "train"].patients
    assert all(with_patients) if split == "patient" else not any(with_patients)


def test_an_unknown_split_of_the_single_label_subset_is_refused(rsna_ich, tmp_path):
    with refused("rsna-ich, argument split: expected 'patient' or 'slice', got 'site'"):
        prepare_single_label(rsna_ich, tmp_path / "out", protocol=NOISY, split="site")


def write_list(file, ids):
    file.write_text("id,epidural\n" + "".join(f"{i},0\n" for i in ids))
    return file


def slice_lists(folder, train, test):
    """The tables of a published split of slices (patient, k)."""
    lists = {"train": train, "test": test}
    return tuple(write_list(folder / f"{k}_list.csv", [slice_id(*one) for one in v]) for k, v in lists.items())


def test_the_slices_of_a_published_split_keep_its_order_and_its_test_slices(rsna_ich, tmp_path):
    order = [(p, k) for k in (2, 0) for p in range(PATIENTS - 1, -1, -1)]
    lists = slice_lists(tmp_path, order, [(p, 1) for p in range(PATIENTS)])
    prepare(rsna_ich, tmp_path / "out", **{**BASE, "val_share": 0}, split="slice", lists=lists)
    shown, tested = every_table(tmp_path / "out"), every_table(tmp_path / "out", "test")
    place = {f"{slice_id(*one)}.dcm": n for n, one in enumerate(order)}
    for table in shown:
        places = [place[image] for image in table.images]
        assert places == sorted(places)
    assert sum(len(t.images) for t in shown) == 72
    assert sorted(i for t in tested for i in t.images) == sorted(f"{slice_id(p, 1)}.dcm" for p in range(PATIENTS))
    arguments = load_card(tmp_path / "out" / "site-1", "").provenance["arguments"]
    assert arguments["lists"] == ["train_list.csv", "test_list.csv"]
    assert not {"test_share", "healthy_share"} & set(arguments)  # the lists decide


def test_the_partition_of_a_published_single_label_split_depends_on_the_order_of_its_table(rsna_ich, tmp_path):
    def site_1(name, train):
        lists = slice_lists(tmp_path, train, [(p, 1) for p in range(PATIENTS) if p % 6 < 5])
        prepare_single_label(rsna_ich, tmp_path / name, protocol=NOISY, split="slice", lists=lists)
        return set(load(tmp_path / name, "site-1", "truth").images), len(load(tmp_path / name, "site-1", "test").images)

    order = [(p, k) for p in range(PATIENTS) if p % 6 < 5 for k in (0, 2)]
    assert site_1("a", order) == site_1("b", order) != site_1("c", order[::-1])


# Training slices of the sites of FedNoRo's ICH experiment.
PUBLISHED_SIZES = [1509, 1723, 3402, 1671, 3789, 3059, 4543, 1496, 3871, 2488]
PUBLISHED_SIZES += [2617, 529, 1583, 1642, 1867, 1876, 2405, 3345, 3425, 738]


@pytest.mark.slow
@pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA")
def test_the_lists_of_the_papers_split_give_the_sizes_of_its_sites(tmp_path, monkeypatch):
    folder = Path(os.environ["FEDMEND_REAL_DATA"]) / "ich_labels"
    lists = folder / "train_ICH.csv", folder / "test_ICH.csv"
    rows = sorted(row for file in lists for row in list(csv.reader(file.read_text().splitlines()))[1:])
    labels = np.array([[float(value) for value in row[1:]] for row in rows]).astype(np.int8)
    slices = Slices(np.array([row[0] for row in rows]), np.arange(len(rows)), labels)  # by id, as in the download
    monkeypatch.setattr(converter, "read_slices", lambda source: (slices, {}))
    prepare_single_label(
        tmp_path, tmp_path / "out", protocol=NoiseProtocol(noise="uniform"), split="slice", lists=lists
    )
    sizes = [load_card(tmp_path / "out" / f"site-{s + 1}", "").provenance["site"]["sizes"] for s in range(20)]
    assert [size["train"] for size in sizes] == PUBLISHED_SIZES
    assert sum(size["test"] for size in sizes) == 20391


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([(0, 0), (0, 0)], [(1, 0)], "train_list.csv row 3, column id: .* got one that is listed already"),
        ([(0, 0)], [(0, 0)], "test_list.csv row 2, column id: .* got one that is listed already"),
        ([(0, 0)], [(99, 0)], "test_list.csv row 2, column id: .* got one that is not there"),
        ([], [(1, 0)], "train_list.csv: expected at least one slice, got none"),
    ],
)
def test_lists_that_name_no_slice_or_one_twice_are_refused(rsna_ich, tmp_path, train, test, message):
    with pytest.raises(FedMendError, match=message):
        prepare(rsna_ich, tmp_path / "out", **BASE, split="slice", lists=slice_lists(tmp_path, train, test))


def test_a_list_under_another_header_is_refused_by_it(rsna_ich, tmp_path):
    lists = slice_lists(tmp_path, [(0, 0)], [(1, 0)])
    lists[0].write_text(lists[0].read_text().replace("id", "name", 1))
    with pytest.raises(FedMendError, match=r"train_list\.csv row 1: expected a header with id, got another one"):
        prepare(rsna_ich, tmp_path / "out", **BASE, split="slice", lists=lists)


def test_a_published_split_needs_a_split_by_slice(rsna_ich, tmp_path):
    lists = slice_lists(tmp_path, [(0, 0)], [(1, 0)])
    message = "argument split: expected 'slice' with the lists of a published split, got 'patient'"
    with pytest.raises(FedMendError, match=message):
        prepare(rsna_ich, tmp_path / "out", **BASE, lists=lists)
    with pytest.raises(FedMendError, match=message):
        prepare_single_label(rsna_ich, tmp_path / "out", protocol=NOISY, lists=lists)
