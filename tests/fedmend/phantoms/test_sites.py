import csv
import dataclasses
import errno
import json

import numpy as np
import pydicom
import pytest
from factories import refused
from PIL import Image
from torch_factories import CPU

from fedmend.data.card import load_card
from fedmend.data.site import Opening, load_site, load_truth
from fedmend.data.tables import load_table
from fedmend.datasets.cxr14 import CLASSES as CXR14
from fedmend.datasets.cxr14 import PROTOCOLS
from fedmend.datasets.isic2019 import CLASSES as ISIC
from fedmend.errors import FedMendError
from fedmend.phantoms import sites
from fedmend.phantoms.ct_head import ICH_CLASSES as ICH
from fedmend.phantoms.sites import SOURCE, ensure_phantom, make_phantom, phantom_spec
from fedmend.phantoms.specs.label_sets import ChestPhantom, LabelSetPhantom
from fedmend.phantoms.specs.missing_classes import MissingClassPhantom
from fedmend.phantoms.specs.noisy_labels import NoisyLabelPhantom
from fedmend.phantoms.specs.partial_masks import PartlyAnnotatedPhantom

SMALL = MissingClassPhantom(images=240, sites=2, annotated_per_site=4, pixels=32, seed=3)


@pytest.fixture
def made(monkeypatch):
    """Calls of make_phantom, which only leaves a mark."""
    calls = []

    def mark(out, spec):
        calls.append(spec)
        (out / "mark").write_text(str(spec.seed))

    monkeypatch.setattr(sites, "make_phantom", mark)
    return calls


def content(folder):
    return sorted(p.name for p in (folder / "phantoms").iterdir() if p.suffix != ".lock")


def test_a_phantom_becomes_site_folders_that_say_phantom_and_can_be_opened(tmp_path):
    make_phantom(tmp_path, SMALL)
    for site, annotated in (("site-1", [1, 1, 1, 1, 0]), ("site-2", [0, 1, 1, 1, 1])):
        card = load_card(tmp_path / site, site)
        assert card.provenance["source"].startswith("PHANTOM")
        assert card.window == (40.0, 80.0)
        assert "train" in card.truth
        data = load_site(card, ICH, Opening(tmp_path / "cache", 32, CPU))
        assert data.annotated.astype(int).tolist() == annotated
        assert sorted(data.evaluation) == ["test", "val"]
        assert data.train.images.any(axis=(1, 2)).all()


def test_a_site_has_a_scanner_of_its_own_where_the_partition_is_by_station_and_all_of_them_otherwise(tmp_path):
    scanners = {}
    for partition in ("iid", "station"):
        make_phantom(tmp_path / partition, dataclasses.replace(SMALL, partition=partition))
        card = load_card(tmp_path / partition / "site-1", "site-1")
        table = load_table(card, "train.csv", ICH)
        headers = [pydicom.dcmread(card.image_root / image, stop_before_pixels=True) for image in table.images]
        scanners[partition] = {header.StationName for header in headers}
    assert scanners == {"iid": {"scanner-1", "scanner-2"}, "station": {"scanner-1"}}


def test_a_phantom_is_made_once(tmp_path, made):
    first = ensure_phantom(tmp_path, SMALL)
    assert ensure_phantom(tmp_path, SMALL) == first
    assert made == [SMALL]
    assert (first / "mark").read_text() == "3"
    (tmp_path / "folder").mkdir()  # one that everybody may read, unless the umask says otherwise
    assert first.stat().st_mode == (tmp_path / "folder").stat().st_mode


def test_another_phantom_gets_its_own_folder(tmp_path, made):
    other = dataclasses.replace(SMALL, seed=4)
    assert ensure_phantom(tmp_path, SMALL) != ensure_phantom(tmp_path, other)
    assert made == [SMALL, other]


def test_a_phantom_that_fails_leaves_nothing_and_is_made_again(tmp_path, monkeypatch):
    def fail(out, spec):
        (out / "half").write_text("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sites, "make_phantom", fail)
        with pytest.raises(KeyboardInterrupt):
            ensure_phantom(tmp_path, SMALL)
    assert content(tmp_path) == []
    monkeypatch.setattr(sites, "make_phantom", lambda out, spec: (out / "mark").write_text(""))
    assert (ensure_phantom(tmp_path, SMALL) / "mark").is_file()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "expected 2 MB of free space, got a full disk"),
        (errno.EROFS, "expected a folder that can be written, got one that is read-only"),
    ],
)
def test_a_full_or_read_only_cache_is_said_in_one_sentence(tmp_path, monkeypatch, code, sentence):
    def fail(out, spec):
        raise OSError(code, "no")

    monkeypatch.setattr(sites, "make_phantom", fail)
    with refused(f"phantom: cache_dir: {sentence}"):
        ensure_phantom(tmp_path, dataclasses.replace(SMALL, images=1000))  # 1000 * 32 * 32 * 2 bytes
    assert content(tmp_path) == []


def test_a_phantom_of_volumes_needs_room_for_all_their_slices(tmp_path, monkeypatch):
    def fail(out, spec):
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(sites, "make_phantom", fail)
    # 100 * 48 * 48 * 24 * 4 bytes
    with refused("phantom: cache_dir: expected 22 MB of free space, got a full disk"):
        ensure_phantom(tmp_path, PartlyAnnotatedPhantom(images=100))


def test_a_phantom_that_cannot_be_made_is_blamed_on_the_phantom_and_not_on_a_site(tmp_path):
    few = dataclasses.replace(SMALL, images=24)
    with refused("phantom: site-1: expected at least 3 patients to split, got 2"):
        make_phantom(tmp_path, few)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"pixels": 31}, ".pixels: expected at least 32, got 31"),
        ({"seed": -1}, ".seed: expected at least 0, got -1"),
        ({"seed": 2**32}, ".seed: expected at most 4294967295, got 4294967296"),
        ({"sites": 0}, ".sites: expected at least 1, got 0"),
        ({"images": 200_001}, ": expected at most 200000 images and 20 GB, got more"),
        ({"pixels": 100_000}, ": expected at most 200000 images and 20 GB, got more"),
    ],
)
def test_numbers_that_no_phantom_has_are_named_as_people_give_them(tmp_path, given, got):
    with refused(f"phantom{got}"):
        make_phantom(tmp_path, dataclasses.replace(SMALL, **given))
    with refused(f"job variable phantom{got}"):
        phantom_spec({"dataset": "ich", **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["site-1", "download"])
def test_a_phantom_is_never_made_over_another(tmp_path, monkeypatch, left):
    monkeypatch.setattr(MissingClassPhantom, "write", lambda *a: pytest.fail("overwrites the images"))
    (tmp_path / left).mkdir()
    with refused("phantom: argument out: expected a folder without download and site folders, got one that has them"):
        make_phantom(tmp_path, SMALL)


@pytest.mark.parametrize("end", [FedMendError, KeyboardInterrupt])
def test_a_phantom_that_ends_early_leaves_nothing_that_the_next_one_would_take_in(tmp_path, monkeypatch, end):
    def half(spec, out, progress):
        (out / "download" / "case-12").mkdir(parents=True)
        (out / "site-1").mkdir()
        raise end

    (tmp_path / "notes.txt").write_text("kept")
    monkeypatch.setattr(MissingClassPhantom, "write", half)
    with pytest.raises(end):
        make_phantom(tmp_path, SMALL)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_job_describes_its_phantom_by_data_set_and_the_fields_that_it_changes():
    assert phantom_spec({"dataset": "ich", "sites": 3}) == MissingClassPhantom(sites=3)
    assert phantom_spec({"dataset": "isic2019", "noisy_share": 0.3}) == NoisyLabelPhantom(
        dataset="isic2019", noisy_share=0.3
    )


@pytest.mark.parametrize(
    ("given", "got"), [({"dataset": "chest"}, "'chest'"), ({}, "None"), ({"dataset": ["ich"]}, "['ich']")]
)
def test_an_unknown_phantom_is_refused(given, got):
    known = "['cxr14', 'ich', 'ich_single', 'isic2018', 'isic2019', 'lung', 'ms', 'organs']"
    with refused(f"job variable phantom, field dataset: expected one of {known}, got {got}"):
        phantom_spec(given)


def test_a_chest_phantom_becomes_sites_that_identify_their_own_findings(tmp_path):
    make_phantom(tmp_path, ChestPhantom(images=600, sites=5, pixels=32, seed=5))
    card = load_card(tmp_path / "site-1", "site-1")
    assert card.provenance["source"].startswith("PHANTOM")
    data = load_site(card, CXR14, Opening(tmp_path / "cache", 32, CPU))
    assert data.annotated.sum() == 3
    assert data.train.images.any(axis=(1, 2)).all()


@pytest.mark.parametrize("protocol", ["fedlsm", "fedmlp"])
def test_a_chest_phantom_follows_the_protocol_of_either_method(tmp_path, monkeypatch, protocol):
    seen = []
    monkeypatch.setattr("fedmend.phantoms.chest.write_cxr14", lambda *a, **k: None)
    monkeypatch.setattr("fedmend.datasets.cxr14.prepare", lambda *a, **k: seen.append((a[2], k)))
    make_phantom(tmp_path, ChestPhantom(protocol=protocol, sites=9, seed=4))
    expected = dataclasses.replace(PROTOCOLS[protocol], sites=9, test_share=0.3, seed=4)
    assert seen == [(expected, {"stratified": False, "source_name": SOURCE, "progress": None})]


def test_a_chest_phantom_may_have_named_findings_only(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("fedmend.phantoms.chest.write_cxr14", lambda *a, **k: None)
    monkeypatch.setattr("fedmend.datasets.cxr14.prepare", lambda *a, **k: seen.append(a[2]))
    make_phantom(tmp_path, ChestPhantom(protocol="fedmlp", classes=["Mass", "Edema"]))
    assert (seen[0].classes, seen[0].top) == (["Mass", "Edema"], None)
    with refused(f"phantom: field classes: expected names out of {list(CXR14)}, got also 'mass'"):
        make_phantom(tmp_path, ChestPhantom(classes=["Edema", "mass"]))


def test_an_unknown_protocol_of_the_chest_phantom_is_refused(tmp_path):
    with refused("phantom: field protocol: expected one of ['fedlsm', 'fedmlp'], got 'fedia'"):
        make_phantom(tmp_path, ChestPhantom(protocol="fedia"))


def test_a_site_of_the_label_set_phantom_labels_its_own_diagnoses_alone(tmp_path):
    make_phantom(tmp_path, LabelSetPhantom(images=240, sites=3, classes_per_site=3, pixels=32))
    for site in ("site-1", "site-2", "site-3"):
        card = load_card(tmp_path / site, site)
        data = load_site(card, card.classes, Opening(tmp_path / "cache", 32, CPU))
        labelled = {card.classes[c] for c in np.flatnonzero((data.train.labels == 1).any(0))}
        assert labelled <= set(card.provenance["site"]["identified"])
        assert (data.train.labels == -1).all(1).any()
        assert data.kind == "singlelabel"


def test_a_field_that_a_phantom_lacks_is_refused():
    with pytest.raises(FedMendError, match=r"job variable phantom: expected the fields .*, got 'alpha'"):
        phantom_spec({"dataset": "ich", "alpha": 0.3})


@pytest.mark.parametrize(("dataset", "classes", "color"), [("ich_single", ICH, 0), ("isic2019", ISIC, 1)])
def test_a_noisy_phantom_has_wrong_labels_at_its_noisy_sites_alone(tmp_path, dataset, classes, color):
    spec = NoisyLabelPhantom(
        dataset=dataset, images=200, sites=2, presence=1.0, pixels=32, noise="uniform", noisy_share=0.5
    )
    make_phantom(tmp_path, spec)
    for folder in sorted(tmp_path.glob("site-*")):
        card = load_card(folder, folder.name)
        assert card.provenance["source"].startswith("PHANTOM")
        data = load_site(card, classes, Opening(tmp_path / "cache", 32, CPU))
        truth = load_truth(card, classes, data.train.table.images)
        wrong = (data.train.labels != truth).any(1).mean()
        assert (wrong > 0.2) == card.provenance["site"]["noisy"]
        assert (wrong == 0) == (not card.provenance["site"]["noisy"])
        assert data.train.images.ndim == 3 + color
        assert data.train.images.any(axis=(1, 2)).all()
    assert len(list(tmp_path.glob("site-*"))) == 2


@pytest.mark.parametrize(
    "spec",
    [
        NoisyLabelPhantom(dataset="isic2019", images=160, sites=4, presence=1.0, pixels=32, noise="uniform"),
        LabelSetPhantom(images=160, sites=4, pixels=32),
    ],
)
def test_the_sites_of_a_dermoscopy_phantom_differ_in_colour(tmp_path, spec):
    make_phantom(tmp_path, spec)
    files, means, errors = [], [], []
    for folder in sorted(tmp_path.glob("site-*")):
        card = load_card(folder, folder.name)
        own = [
            card.image_root / i for file in card.splits.values() for i in load_table(card, file, card.classes).images
        ]
        colours = np.array([np.asarray(Image.open(file)).mean(axis=(0, 1)) for file in own])
        files += own
        means.append(colours.mean(axis=0))
        errors.append(colours.var(axis=0, ddof=1) / len(own))
    assert len(set(files)) == len(files) == 160  # a shared picture would get two casts
    # The ratio is about 1 where the sites share their cameras.
    assert (np.var(means, axis=0, ddof=1) > 2 * np.mean(errors, axis=0)).all()


@pytest.mark.parametrize(
    ("dataset", "modality", "m", "shares"), [("ms", "MR", 3, (0.1, 0.3)), ("lung", "CT", 1, (0.4, 0.5))]
)
def test_each_site_of_a_partly_annotated_phantom_lacks_lesions(tmp_path, dataset, modality, m, shares):
    spec = phantom_spec(
        {"dataset": dataset, "images": 6, "sites": 2, "m": m, "pixels": 32, "depth": 12, "seed": 2, "val_share": 0.0}
    )
    assert isinstance(spec, PartlyAnnotatedPhantom)
    make_phantom(tmp_path, spec)
    items = []
    for site, share in zip(("site-1", "site-2"), shares, strict=True):
        card = load_card(tmp_path / site, site)
        assert (card.kind, card.modality, card.classes) == ("segmentation", modality, ("lesion",))
        assert card.provenance["source"].startswith("PHANTOM")
        datalist = json.loads((card.folder / "datalist.json").read_text())
        items += [
            card.image_root / item["image"] for section in ("training", "test") for item in datalist.get(section, [])
        ]
        with open(card.folder / "truth" / "completeness.csv", newline="") as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            assert int(row["kept"]) == max(1, int(int(row["lesions"]) * share + 0.5)) < int(row["lesions"])
        assert len(rows) > 1
    assert len(set(items)) == 6
    assert all(image.is_file() for image in items)
