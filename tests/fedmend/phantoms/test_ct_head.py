import csv
from collections import Counter

import numpy as np
import pydicom
import pytest
from factories import refused
from ridge import held_out_auc

from fedmend.phantoms import ct_head
from fedmend.phantoms.ct_head import ICH_CLASSES, ICH_LABELS, ICH_RATES, write_ich

SLICES, SCANNERS = 240, 3


@pytest.fixture(scope="module")
def download(tmp_path_factory):
    out = tmp_path_factory.mktemp("ich")
    write_ich(out, slices=SLICES, seed=7, size=64, scanners=SCANNERS, processes=1)
    return out


@pytest.fixture(scope="module")
def labels(download):
    """Slice id → {label: 0 or 1} as the CSV says."""
    with open(download / "stage_2_train.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    found = {}
    for row in rows:
        name, label = row["ID"].rsplit("_", 1)
        found.setdefault(name, {})[label] = int(row["Label"])
    assert len(rows) == sum(map(len, found.values()))  # no row twice
    return found


@pytest.fixture(scope="module")
def datasets(download):
    return {path.stem: pydicom.dcmread(path) for path in (download / "stage_2_train").iterdir()}


def patient_with(only: str | None, slices: int = 8, index: int = 0) -> ct_head._Patient:
    labels = np.zeros((slices, len(ICH_CLASSES)), dtype=bool)
    if only:
        labels[2:5, ICH_CLASSES.index(only)] = True
    return ct_head._Patient(index=index, scanner=0, first=0, labels=labels)


def test_another_seed_gives_other_ids_patients_and_images(tmp_path, datasets):
    write_ich(tmp_path, slices=8, seed=8, size=64, processes=1)
    others = {path.stem: pydicom.dcmread(path) for path in (tmp_path / "stage_2_train").iterdir()}
    assert not others.keys() & datasets.keys()
    for attribute in ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "PixelData"):
        assert not {ds[attribute].value for ds in others.values()} & {ds[attribute].value for ds in datasets.values()}


def test_the_csv_has_the_six_official_rows_for_each_file(labels, datasets):
    assert len(labels) == SLICES
    assert labels.keys() == datasets.keys()
    for name, row in labels.items():
        assert len(name) == 12
        assert int(name.removeprefix("ID_"), 16) < 16**9
        assert tuple(row) == ICH_LABELS


def test_any_is_the_or_of_the_five_classes(labels):
    assert all(row["any"] == max(row[c] for c in ICH_CLASSES) for row in labels.values())


def test_each_class_has_its_rsna_share_but_at_least_the_floor(labels):
    for c, rate in zip(ICH_CLASSES, ICH_RATES, strict=True):
        positive = sum(row[c] for row in labels.values())
        assert positive == max(round(rate * SLICES), 12)  # 5 % of 240


def test_labels_occur_together_as_often_as_in_the_rsna_subset():
    matrix = np.concatenate([p.labels for p in ct_head._plan(8000, seed=0, scanners=5)])
    share = np.bincount(matrix.sum(axis=1), minlength=6) / len(matrix)
    official = np.array([87_948, 67_969, 22_587, 5_642, 885, 20]) / 185_051
    np.testing.assert_allclose(share, official, atol=0.03)


def test_lesions_run_over_neighbouring_slices_of_a_patient():
    for patient in ct_head._plan(800, seed=1, scanners=4):
        assert 7 <= len(patient.labels) <= 9
        steps = np.abs(np.diff(patient.labels.astype(int), axis=0, prepend=0, append=0)).sum(axis=0)
        assert set(steps) <= {0, 2}  # at most one run per class
        assert not patient.labels[-1, ICH_CLASSES.index("intraventricular")]  # no ventricles at the vertex


def test_patients_and_each_class_are_spread_evenly_over_the_scanners(labels, datasets):
    patients = Counter({ds.PatientID: ds.StationName for ds in datasets.values()}.values())
    assert patients == {f"scanner-{i + 1}": SLICES // 8 // SCANNERS for i in range(SCANNERS)}
    for c in ICH_CLASSES:
        stations = {datasets[name].StationName for name, row in labels.items() if row[c]}
        assert len(stations) == SCANNERS


def test_a_slice_is_a_ct_image_that_pydicom_reads(datasets):
    for ds in datasets.values():
        assert (ds.Modality, ds.PhotometricInterpretation) == ("CT", "MONOCHROME2")
        assert (ds.BitsAllocated, ds.PixelRepresentation, ds.RescaleSlope, ds.RescaleIntercept) == (16, 1, 1, -1024)
        assert (ds.WindowCenter, ds.WindowWidth) in ct_head.STORED_WINDOWS
        assert ds.pixel_array.dtype == np.int16
        assert ds.pixel_array.shape == (64, 64)
        assert ds.PatientID.startswith("ID_")
        assert all(uid.is_valid for uid in (ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.SOPInstanceUID))
        assert 200 < 64 * ds.PixelSpacing[0] < 270  # field of view in mm


def test_a_patient_is_one_series_of_distinct_levels(datasets):
    by_patient = {}
    for ds in datasets.values():
        by_patient.setdefault(ds.PatientID, []).append(ds)
    for series in by_patient.values():
        assert len({ds.SeriesInstanceUID for ds in series}) == 1
        assert len({ds.ImagePositionPatient[2] for ds in series}) == len(series)
    assert len({ds.SeriesInstanceUID for ds in datasets.values()}) == len(by_patient)


@pytest.mark.parametrize("name", ICH_CLASSES)
def test_a_label_adds_blood_to_its_slices_and_to_no_other(name):
    for index in range(4):
        with_it, without = (ct_head._render(patient_with(c, index=index), 0, 64) for c in (name, None))
        changed = np.abs(with_it - without) > 1
        blood = (with_it > 42) & (with_it < 90) & changed
        assert not changed[[0, 1, 5, 6, 7]].any()
        assert (blood[2:5].sum(axis=(1, 2)) >= 4).all()  # pixels


def test_classes_can_be_learnt_from_the_slices(labels, datasets):
    names = sorted(labels)
    slices = np.array([np.clip(datasets[name].pixel_array - 1024, 0, 100) for name in names])
    assert held_out_auc(slices, [[labels[name][c] for c in ICH_CLASSES] for name in names]) > 0.65


def test_thinner_slices_show_no_more_patients_with_a_lesion():
    thick, thin = ct_head._plan(800, 7, 3), ct_head._plan(2400, 7, 3, 24)
    assert (len(thick), len(thin)) == (100, 100)
    shown = [np.concatenate([patient.labels for patient in plan]).sum(0) for plan in (thick, thin)]
    assert shown[0].tolist() == shown[1].tolist()  # as many slices with each class, of three times as many
    assert all(patient.labels.sum(0).max() <= max(most for _, most in ct_head.RUNS) for patient in thin)


def test_fewer_slices_of_a_patient_than_lesions_need_are_refused(tmp_path):
    with refused("phantom, argument slices_per_patient: expected at least 8, got 7"):
        write_ich(tmp_path, slices=14, slices_per_patient=7)
