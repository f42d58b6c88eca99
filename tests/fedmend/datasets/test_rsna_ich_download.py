import json
import shutil

import pytest
from rsna_ich_factories import (
    BASE,
    content,
    prepare,
    slice_id,
    table_rows,
    write_dicom,
    write_rows,
)

from fedmend.basics import parallel
from fedmend.data.card import load_card
from fedmend.datasets.rsna_ich import CLASSES
from fedmend.errors import FedMendError

DOWNLOAD = "rsna_ich"


def test_the_same_arguments_give_the_same_bytes_whatever_the_order_and_the_processes(rsna_ich, tmp_path, monkeypatch):
    prepare(rsna_ich, tmp_path / "one", **BASE)
    other = tmp_path / "other"
    (other / "stage_2_train").mkdir(parents=True)
    for path in sorted((rsna_ich / "stage_2_train").iterdir(), reverse=True):
        shutil.copy(path, other / "stage_2_train")
    write_rows(other, table_rows()[::-1])
    monkeypatch.setattr(parallel, "SAMPLE", 0)
    monkeypatch.setattr(parallel, "WORTH", 0)
    prepare(other, other / "out", **BASE, processes=2)
    one, two = content(tmp_path / "one"), content(other / "out")
    assert one.keys() == two.keys()
    assert all(one[name] == two[name] for name in one if not name.endswith("site.json"))
    first, second = (json.loads(c["site-1/site.json"]) | {"image_root": ""} for c in (one, two))
    assert first == second


def test_a_corrupt_file_and_rows_or_files_without_partner_are_left_out_and_counted(own_copy, tmp_path):
    rows = table_rows()
    for c in CLASSES:
        rows += [[f"ID_6431af929_{c}", "1"], [f"ID_ffffffff0_{c}", "1"]]
    write_rows(own_copy, rows)
    for name in ("ID_6431af929", "ID_ffffffff1"):
        (own_copy / "stage_2_train" / f"{name}.dcm").write_bytes(b"")
    lines = []
    prepare(own_copy, tmp_path / "out", progress=lines.append, **BASE)
    assert lines[0] == "874 label rows, 144 slices with a file; left out: 1 without a file"
    counts = load_card(tmp_path / "out" / "site-1", "").provenance["counts"]
    assert counts == {
        "label_rows": 874,
        "duplicate_rows": 0,
        "corrupt_slices": 1,
        "slices_without_file": 1,
        "files_without_labels": 1,
        "lesion_slices": 90,
        "healthy_slices": 54,
    }


def test_identical_duplicate_rows_are_dropped(rsna_ich, own_copy, tmp_path):
    write_rows(own_copy, table_rows() + table_rows()[:6])
    prepare(rsna_ich, tmp_path / "plain", **BASE)
    prepare(own_copy, tmp_path / "out", **BASE)
    assert content(tmp_path / "out")["site-1/train.csv"] == content(tmp_path / "plain")["site-1/train.csv"]
    assert load_card(tmp_path / "out" / "site-1", "").provenance["counts"]["duplicate_rows"] == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, [rows[0][0], "0"]], "row 866: expected the label that an earlier row gives"),
        (lambda rows: [*rows[:7], [rows[1][0], "1"]], "row 9: expected the label that an earlier row gives"),
        (lambda rows: [*rows, ["ID_63eb1e259_subd", "0"]], "row 866: expected ID_"),
        (lambda rows: [*rows, ["ID_63eb1e259", "0"]], "row 866: expected ID_"),
        (lambda rows: [*rows, ["ID_63eb1e259_subdural"]], "row 866: expected ID_"),
        (lambda rows: [*rows, ["ID_63eb1e259_subdural", ""]], "row 866: expected ID_"),
        (
            lambda rows: [[i, str(int(i.endswith("_any")))] for i, v in rows],
            "row 2: expected any of this slice to be 1",
        ),
        (lambda rows: [[i, "0" if i.endswith("_any") else v] for i, v in rows], "row 2: expected any of this slice"),
        (lambda rows: rows[:-3], "row 860: expected rows for all of"),
        (lambda rows: [[r.replace("ID_0", "ID_9"), v] for r, v in rows], "found none"),
        (lambda rows: [], "found none"),
    ],
)
def test_a_table_that_is_broken_is_refused_by_its_row(own_copy, tmp_path, change, message):
    write_rows(own_copy, change(table_rows()))
    with pytest.raises(FedMendError, match=message) as caught:
        prepare(own_copy, tmp_path / "out", **BASE)
    assert "63eb1e259" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_another_header_is_refused(own_copy, tmp_path):
    write_rows(own_copy, table_rows(), header=("image", "label"))
    with pytest.raises(FedMendError, match="row 1: expected the header ID,Label"):
        prepare(own_copy, tmp_path / "out", **BASE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.decode().encode("utf-16"), "expected UTF-8 text, got UTF-16"),
        (lambda text: b"\x1f\x8b" + text, "expected UTF-8 text, got a gzip file"),
        (lambda text: text + b'"' + b"x" * 200_000, "a quotation mark without its partner"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(own_copy, tmp_path, change, message):
    table = own_copy / "stage_2_train.csv"
    table.write_bytes(change(table.read_bytes()))
    with pytest.raises(FedMendError, match=f"stage_2_train.csv: .*{message}"):
        prepare(own_copy, tmp_path / "out", **BASE)


def test_a_source_that_is_not_the_download_is_refused(tmp_path):
    with pytest.raises(FedMendError, match=r"expected stage_2_train.csv and stage_2_train/"):
        prepare(tmp_path, tmp_path / "out", **BASE)


@pytest.mark.parametrize(
    ("replace", "partition", "message"),
    [
        (lambda path: path.write_bytes(b"no"), "iid", "row 2: expected a readable DICOM"),
        (lambda path: write_dicom(path, scanner="CT0"), "iid", "row 2: expected the DICOM field PatientID"),
        (lambda path: write_dicom(path, patient="P0"), "station", "row 2: expected the DICOM field StationName"),
    ],
)
def test_a_slice_without_the_header_that_is_needed_is_refused_by_its_row(
    own_copy, tmp_path, replace, partition, message
):
    replace(own_copy / "stage_2_train" / f"{slice_id(0, 0)}.dcm")
    with pytest.raises(FedMendError, match=message) as caught:
        prepare(own_copy, tmp_path / "out", **BASE, partition=partition)
    assert slice_id(0, 0) not in str(caught.value)
