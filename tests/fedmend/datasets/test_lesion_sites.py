"""The writer of segmentation sites with partly annotated lesions."""

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from factories import refused
from nifti_factories import write_nifti

from fedmend.data.card import load_card
from fedmend.datasets.lesion_sites import LesionCase, LesionDataset, LesionProtocol, nifti_file
from fedmend.labels import SEGMENTATION

LPS = np.array([[-1.0, 0, 0, 5], [0, -1, 0, 7], [0, 0, -2, 9], [0, 0, 0, 1]])  # slices from top to bottom
CASES = 10


def voxels(number):
    """(8, 4, 6) volume and its mask: ten lesions of one voxel in the planes 1 and 3, one of six voxels in plane 5."""
    mask = np.zeros((8, 4, 6), dtype=np.uint8)
    mask[::2, 0, 1] = mask[::2, 2, 1] = 1
    mask[::4, 0, 3] = 1
    mask[:6, 1, 5] = 1
    return np.random.default_rng(number).normal(size=mask.shape).astype(np.float32), mask


def make_case(root, number, affine=LPS, patient=None, mask_affine=None, mask=None):
    image, complete = voxels(number)
    name = f"case{number:02d}"
    write_nifti(root / name / "flair.nii.gz", image, affine)
    write_nifti(
        root / name / "mask.nii.gz", complete if mask is None else mask, affine if mask_affine is None else mask_affine
    )
    files = {"image": root / name / "flair.nii.gz", "mask": root / name / "mask.nii.gz"}
    return LesionCase(**files, name=name, patient=patient or name)


def write(out, cases, root, **options):
    options = {"completeness": (0.3, 0.7), "test_share": 0.2, "seed": 5, **options}
    progress = options.pop("progress", None)
    words = dict.fromkeys(("help", "source_help", "levels"), "")
    toy = LesionDataset(name="toy", source_name="a source", modality="MR", find=lambda source, say: cases, **words)
    toy.prepare(root, out, LesionProtocol(**options), progress=progress)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("source") / "download"


@pytest.fixture(scope="module")
def cases(root):
    return [make_case(root, number) for number in range(CASES)]


@pytest.fixture(scope="module")
def sites(root, cases):
    write(root.parent / "sites", cases, root)
    return [root.parent / "sites" / f"site-{s}" for s in (1, 2)]


def datalist(site, file="datalist.json"):
    return json.loads((site / file).read_text())


def voxels_of(path):
    return np.asarray(nibabel.load(path).dataobj)


def rows(site):
    with open(site / "truth" / "completeness.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_case_is_at_one_site_in_one_split(sites):
    sections = [datalist(site) for site in sites]
    assert [{name: len(items) for name, items in s.items()} for s in sections] == [{"training": 4, "test": 1}] * 2
    images = [item["image"] for s in sections for items in s.values() for item in items]
    assert sorted(images) == [f"case{n:02d}/flair.nii.gz" for n in range(CASES)]
    # Pinned: the deal must not follow the order of a set of strings, which differs from process to process.
    assert [int(i["image"][4:6]) for i in sections[0]["training"]] == [3, 4, 5, 9]


def test_the_card_says_what_the_site_is(sites, root):
    for site, share in zip(sites, (0.3, 0.7), strict=True):
        card = load_card(site, site.name)
        assert (card.kind, card.classes, card.window, card.modality) == (SEGMENTATION, ("lesion",), None, "MR")
        assert card.splits == {"train": "datalist.json", "test": "datalist.json"}
        assert card.truth == {"train": "truth/datalist.json"}
        assert card.image_root == root.resolve()
        # Eleven lesions of 10 * 1 + 6 voxels in each of four volumes.
        kept_voxels = sum(int(row["kept_voxels"]) for row in rows(site))
        assert card.provenance == {
            "source": "a source",
            "arguments": {"completeness": [0.3, 0.7], "test_share": 0.2, "val_share": 0.0, "seed": 5},
            "site": {
                "completeness": share,
                "lesions": 44,
                "kept_lesions": 4 * (3 if share == 0.3 else 8),
                "voxels": 64,
                "kept_voxels": kept_voxels,
            },
        }


def test_training_masks_lack_lesions_and_the_truth_and_the_test_masks_do_not(sites, root):
    for site, number in zip(sites, (3, 8), strict=True):
        lists, truth = datalist(site), datalist(site, "truth/datalist.json")
        assert set(truth) == {"training"}
        counts = {row["image"]: row for row in rows(site)}
        assert len(counts) == 4
        for item, whole in zip(lists["training"], truth["training"], strict=True):
            name = Path(item["image"]).parent.name
            assert item["label"] == f"labels/{name}.nii.gz"
            assert whole == {**item, "label": f"truth/labels/{name}.nii.gz"}
            complete, kept = voxels_of(site / whole["label"]), voxels_of(site / item["label"])
            np.testing.assert_array_equal(complete, voxels_of(root / name / "mask.nii.gz"))
            assert (kept <= complete).all()
            assert counts[item["image"]] == {
                "image": item["image"],
                "lesions": "11",
                "kept": str(number),
                "voxels": "16",
                "kept_voxels": str(kept.sum()),
            }
        (item,) = lists["test"]
        assert set(item) == {"image", "label"}
        complete = voxels_of(root / Path(item["image"]).parent.name / "mask.nii.gz")
        np.testing.assert_array_equal(voxels_of(site / item["label"]), complete)


def test_masks_are_uint8_on_the_grid_of_the_volume_to_the_last_bit(tmp_path):
    image, mask = voxels(0)
    volume = nibabel.Nifti1Image(image, None)
    quaternion = np.array([[-0.83, 0.31, 0, 91.3], [0.29, 0.77, 0.1, -126.7], [0.05, 0, 1.1, -72.1], [0, 0, 0, 1]])
    volume.set_qform(quaternion, code=1)  # no sform: the affine is not made of single-precision numbers
    volume.header["cal_max"] = 500
    root = tmp_path / "download"
    made = [make_case(root, n) for n in range(3)]
    for case in made:
        nibabel.save(volume, case.image)
        write_nifti(case.mask, mask.astype(np.float32), volume.affine)
    write(tmp_path / "out", made, root, completeness=(0.5,))
    site = tmp_path / "out" / "site-1"
    written = sorted(site.rglob("*.nii.gz"))
    assert len(written) == 3 + 2
    for path in written:
        label = nibabel.load(path)
        assert label.get_data_dtype() == np.uint8
        np.testing.assert_array_equal(label.affine, volume.affine)
        assert label.header["cal_max"] == 0
        assert set(np.unique(label.dataobj)) == {0, 1}


def test_the_slices_are_those_with_a_lesion_in_the_complete_mask_counted_upwards(sites, tmp_path):
    # In file order 1, 3 and 5 of 6; the file runs from top to bottom.
    assert [item["slices"] for site in sites for item in datalist(site)["training"]] == [[0, 2, 4]] * 8
    root = tmp_path / "download"
    write(tmp_path / "out", [make_case(root, n, np.eye(4)) for n in range(3)], root, completeness=(0.1,))
    assert [item["slices"] for item in datalist(tmp_path / "out" / "site-1")["training"]] == [[1, 3, 5]] * 2


def contents(out):
    """Everything but the card, which names the image root, and the bytes of the compressed masks."""
    return {
        f.relative_to(out).as_posix(): voxels_of(f).tobytes() if f.name.endswith(".gz") else f.read_text()
        for f in sorted(out.rglob("*"))
        if f.is_file() and f.name != "site.json"
    }


def test_the_order_of_the_cases_does_not_matter_and_the_seed_does(cases, root, sites, tmp_path):
    write(tmp_path / "again", cases[::-1], root)
    write(tmp_path / "other", cases, root, seed=6)
    first = contents(sites[0].parent)
    assert first == contents(tmp_path / "again")
    assert first != contents(tmp_path / "other")


def test_what_a_volume_keeps_depends_on_its_name_and_not_on_the_other_volumes(root, cases, tmp_path):
    write(tmp_path / "few", cases[:6], root, completeness=(0.5,))
    write(tmp_path / "all", cases, root, completeness=(0.5,))
    few, every = (
        {Path(item["image"]).parent.name: voxels_of(site / item["label"]) for item in datalist(site)["training"]}
        for site in (tmp_path / "few" / "site-1", tmp_path / "all" / "site-1")
    )
    both = set(few) & set(every)
    assert len(both) >= 3
    for name in both:
        np.testing.assert_array_equal(few[name], every[name])
    assert len({kept.tobytes() for kept in every.values()}) == len(every) == 8  # of the same complete mask


def test_the_cases_of_a_patient_stay_in_one_split_of_one_site(tmp_path):
    root = tmp_path / "download"
    made = [make_case(root, n, patient=f"p{n % 5}") for n in range(CASES)]
    write(tmp_path / "out", made, root)
    places = {}
    for s in (1, 2):
        for split, items in datalist(tmp_path / "out" / f"site-{s}").items():
            for item in items:
                number = int(Path(item["image"]).parent.name.removeprefix("case"))
                places.setdefault(number % 5, []).append((s, split))
    assert [len(found) for found in places.values()] == [2] * 5
    assert all(len(set(found)) == 1 for found in places.values())


def test_a_site_without_test_volumes_has_no_test_split(cases, root, tmp_path):
    write(tmp_path / "out", cases[:3], root)
    cards = [load_card(tmp_path / "out" / f"site-{s}", f"site-{s}") for s in (1, 2)]
    assert [sorted(card.splits) for card in cards] == [["test", "train"], ["train"]]
    assert [set(datalist(card.folder)) for card in cards] == [{"training", "test"}, {"training"}]


def test_a_share_of_the_other_patients_is_held_out_with_complete_masks(cases, root, sites, tmp_path):
    write(tmp_path / "out", cases, root, val_share=0.25)
    folders = [tmp_path / "out" / f"site-{s}" for s in (1, 2)]
    for folder, before in zip(folders, sites, strict=True):
        lists = datalist(folder)
        assert {name: len(items) for name, items in lists.items()} == {"training": 3, "validation": 1, "test": 1}
        assert lists["test"] == datalist(before)["test"]
        assert load_card(folder, folder.name).splits == dict.fromkeys(("train", "val", "test"), "datalist.json")
        (item,) = lists["validation"]
        assert set(item) == {"image", "label"}
        complete = voxels_of(root / Path(item["image"]).parent.name / "mask.nii.gz")
        np.testing.assert_array_equal(voxels_of(folder / item["label"]), complete)


def test_the_test_patients_can_be_named(cases, root, tmp_path):
    write(tmp_path / "out", cases, root, test_patients=("case07",))
    folders = [tmp_path / "out" / f"site-{s}" for s in (1, 2)]
    assert [[i["image"] for i in datalist(f).get("test", [])] for f in folders] == [["case07/flair.nii.gz"], []]
    assert load_card(folders[0], "site-1").provenance["arguments"]["test_patients"] == ["case07"]


def test_progress_is_one_line_per_tenth_and_a_last_one(cases, root, tmp_path):
    lines = []
    write(tmp_path / "out", cases, root, progress=lines.append)
    counts = [f"{n} of 10 volumes" for n in range(1, 11)]
    assert lines == [*counts, "2 site folders written, 8 training and 2 test volumes"]


def other_shape(root):
    return make_case(root, 1, mask=np.ones((8, 4, 5), dtype=np.uint8))


def flat_image(root):
    write_nifti(root / "case01" / "flair.nii.gz", np.ones((8, 4, 6, 2), dtype=np.float32))
    return LesionCase(image=root / "case01/flair.nii.gz", mask=root / "case01/mask.nii.gz", name="case01", patient="p")


def other_affine(root):
    return make_case(root, 1, mask_affine=LPS + np.eye(4)[:, [1]] * 0.01)


def other_values(root):
    return make_case(root, 1, mask=voxels(1)[1] * 2)


def not_a_number(root):
    return make_case(root, 1, mask=np.full((8, 4, 6), np.nan, dtype=np.float32))


def damaged(root):
    case = make_case(root, 1)
    case.mask.write_bytes(b"x" * 500)
    return case


def degenerate(root):
    case = make_case(root, 1)
    for file in (case.image, case.mask):
        image = nibabel.load(file)
        header = image.header.copy()
        header["sform_code"], header["srow_x"] = 2, 0
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, header), file)
    return case


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (other_shape, "expected a 3-D volume and a mask of its shape, got (8, 4, 6) and (8, 4, 5)"),
        (flat_image, "expected a 3-D volume and a mask of its shape, got (8, 4, 6, 2) and (8, 4, 6)"),
        (other_affine, "expected the affine matrix of the volume in the mask's header, got another"),
        (other_values, "expected a mask of 0 and 1, got other values"),
        (not_a_number, "expected a mask of 0 and 1, got other values"),
        (damaged, "expected two NIfTI files, got a damaged one (ImageFileError)"),
        (degenerate, "expected an affine matrix with three axes, got a degenerate one"),
    ],
)
def test_a_case_that_cannot_be_used_is_refused_by_number_and_leaves_nothing(fault, sentence, tmp_path):
    root = tmp_path / "download"
    made = [make_case(root, n) for n in range(3)]
    made[1] = fault(root)
    with refused(f"toy, case 2 in the order of names: {sentence}"):
        write(tmp_path / "out", made[::-1], root)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_training_mask_without_a_lesion_is_refused_and_a_test_mask_is_not(tmp_path):
    root = tmp_path / "download"
    made = [make_case(root, n) for n in range(2)]
    write(tmp_path / "a", made, root, completeness=(0.5,))
    (item,) = datalist(tmp_path / "a" / "site-1")["test"]
    held = int(item["image"].startswith("case01"))
    make_case(root, held, mask=np.zeros((8, 4, 6), dtype=np.uint8))
    write(tmp_path / "b", made, root, completeness=(0.5,))
    make_case(root, 1 - held, mask=np.zeros((8, 4, 6), dtype=np.uint8))
    with refused(
        f"toy, case {2 - held} in the order of names: expected a lesion in the mask of a training volume, got none"
    ):
        write(tmp_path / "c", made, root, completeness=(0.5,))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"completeness": (0.3, 1.2)},
            "toy, argument completeness: expected a number above 0 and at most 1 for each site, got 0.3, 1.2",
        ),
        (
            {"completeness": (0.0,)},
            "toy, argument completeness: expected a number above 0 and at most 1 for each site, got 0.0",
        ),
        (
            {"completeness": ()},
            "toy, argument completeness: expected a number above 0 and at most 1 for each site, got none",
        ),
        (
            {"test_share": 0.9, "val_share": 0.5, "completeness": (0.5,)},
            "toy, argument val_share: expected 0, or a number below 1 and two patients outside the test split, got 0.5"
            " and 1",
        ),
        (
            {"test_patients": ("case01", "case99")},
            "toy, argument test_patients: expected some of case00, case01, case02, case03, case04, case05, case06,"
            " case07, case08, case09, got case99",
        ),
        ({"seed": -1}, "toy, argument seed: expected at least 0, got -1"),
        ({"completeness": (0.5,) * 9}, "toy: expected at least 9 training patients, one for each site, got 8"),
        (
            {"test_share": 1.0},
            "test split: expected a test_share between 0 and 1 and at least 2 units, got 1.0 and 10",
        ),
    ],
)
def test_a_wrong_argument_is_refused(cases, root, tmp_path, options, sentence):
    with refused(sentence):
        write(tmp_path / "out", cases, root, **options)


def test_lists_of_cases_that_cannot_be_used_are_refused(cases, root, tmp_path):
    blank = LesionCase(image=cases[0].image, mask=None, name="case00", patient="p")
    for given, sentence in (
        ([], "expected volumes in the layout of the download, got none"),
        ([blank, *cases[1:]], "expected a mask for each of 10 volumes, got none for 1"),
        ([*cases, *cases[:3]], "expected one copy of each case, got 3 more"),
    ):
        with refused(f"toy, argument source: {sentence}"):
            write(tmp_path / "out", given, root)


def test_site_folders_that_are_there_are_not_overwritten(sites, cases, root):
    with refused("toy, argument out: expected a folder without site folders, got one that has them or a file"):
        write(sites[0].parent, cases, root)


def test_a_nifti_file_may_be_compressed_or_not(tmp_path):
    assert nifti_file(tmp_path, "a") is None
    (tmp_path / "a.nii").write_bytes(b"")
    assert nifti_file(tmp_path, "a") == tmp_path / "a.nii"
    (tmp_path / "a.nii.gz").write_bytes(b"")
    assert nifti_file(tmp_path, "a") == tmp_path / "a.nii.gz"
