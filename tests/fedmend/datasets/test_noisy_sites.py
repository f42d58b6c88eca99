import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from factories import refused, write_png
from PIL import Image

from fedmend.data.card import load_card
from fedmend.data.site import Opening, load_site, load_truth
from fedmend.data.tables import load_table
from fedmend.datasets import noisy_sites
from fedmend.datasets.noisy_sites import NoiseProtocol, write_noisy_sites
from fedmend.datasets.samples import Samples
from fedmend.errors import FedMendError

CLASSES = ("benign", "malign", "healthy")
COUNT = 96
LABELS = np.arange(COUNT) % 3
TEST = np.arange(COUNT) % 8 == 0
IMAGES = [f"scans/{i}.png" for i in range(COUNT)]
PATIENTS = [f"p{i // 2}" for i in range(COUNT)]
SOFT = np.random.default_rng(0).dirichlet(np.ones(3), size=COUNT)
# Three sites with all classes, two of them noisy.
PROTOCOL = {"sites": 3, "presence": 1.0, "noisy_share": 0.7}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("download")
    for i, image in enumerate(IMAGES):
        write_png(folder / image, i)
    return folder


def write(out, root, protocol=PROTOCOL, **change):
    arguments = {"images": IMAGES, "labels": LABELS, "classes": CLASSES, "image_root": root, "test": TEST}
    arguments |= {"protocol": NoiseProtocol(**protocol), "modality": "CT", "source_name": "a test"}
    arguments |= {"soft_labels": SOFT, "annotator_pixels": 8} | change
    if arguments["soft_labels"] is not None:
        file = out.with_suffix(".csv")
        write_soft_labels(file, arguments["images"], arguments["soft_labels"], arguments["classes"])
        arguments["soft_labels"] = file
    data = Samples(**{f.name: arguments.pop(f.name) for f in fields(Samples) if f.name in arguments})
    write_noisy_sites(out, data, **arguments)


def write_soft_labels(file, images, values, classes):
    """Columns backwards and rows shuffled: both are found by name."""
    lines = [
        ",".join([i.split("/")[1].split(".")[0], *map(str, v[::-1])]) for i, v in zip(images, values, strict=False)
    ]
    file.write_text("\n".join([",".join(["image", *classes[::-1]]), *sorted(lines)]) + "\n")


def sites(out):
    """Site name → split or ``truth`` → table, and the card."""
    read = {}
    for folder in sorted(out.iterdir()):
        card = load_card(folder, folder.name)
        files = {**card.splits, "truth": card.truth["train"]}
        read[folder.name] = ({k: load_table(card, file, CLASSES) for k, file in files.items()}, card)
    return read


def wrong(tables):
    return int((tables["train"].labels != tables["truth"].labels).any(axis=1).sum())


def numbers(table):
    return [IMAGES.index(image) for image in table.images]


def content(out):
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def test_the_written_folders_are_sites_that_a_job_can_load(root, tmp_path):
    write(tmp_path / "out", root)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["site-1", "site-2", "site-3"]
    for tables, card in sites(tmp_path / "out").values():
        assert (card.kind, card.classes, card.modality) == ("singlelabel", CLASSES, "CT")
        data = load_site(card, CLASSES, Opening(tmp_path / "cache", 8, torch.device("cpu")))
        assert data.kind == "singlelabel"
        assert np.array_equal(data.train.labels, tables["train"].labels)
        assert list(data.evaluation) == ["test"]
        truth = load_truth(card, CLASSES, tables["train"].images)
        assert np.array_equal(truth.argmax(axis=1), LABELS[numbers(tables["train"])])
        assert (truth.max(axis=1) == 1).all()


def test_every_training_sample_is_at_one_site_and_the_test_split_is_dealt_evenly_with_true_labels(root, tmp_path):
    write(tmp_path / "out", root)
    tables = [t for t, _ in sites(tmp_path / "out").values()]
    assert sorted(i for t in tables for i in numbers(t["train"])) == np.flatnonzero(~TEST).tolist()
    assert sorted(i for t in tables for i in numbers(t["test"])) == np.flatnonzero(TEST).tolist()
    assert [len(t["test"].images) for t in tables] == [4, 4, 4]
    for t in tables:
        assert t["test"].labels.argmax(axis=1).tolist() == LABELS[numbers(t["test"])].tolist()
        assert t["truth"].images == t["train"].images
        assert numbers(t["train"]) == sorted(numbers(t["train"]))
    assert numbers(tables[0]["test"]) != np.flatnonzero(TEST)[::3].tolist()  # shuffled


def test_noisy_sites_have_their_rate_of_wrong_labels_and_the_card_says_so(root, tmp_path):
    write(tmp_path / "out", root)
    rates = []
    for tables, card in sites(tmp_path / "out").values():
        about = card.provenance["site"]
        size = len(tables["train"].images)
        assert wrong(tables) == about["wrong_labels"] == int(about["noise_rate"] * size)
        assert about["noisy"] == (about["noise_rate"] > 0)
        assert about["sizes"] == {"train": size, "test": 4}
        assert card.provenance["source"] == "a test"
        assert NoiseProtocol(**card.provenance["protocol"]) == NoiseProtocol(**PROTOCOL)
        rates.append(about["noise_rate"])
    assert sum(r > 0 for r in rates) == 2
    assert all(r == 0 or 0.5 <= r <= 0.7 for r in rates)


def test_soft_labels_decide_what_a_sample_is_taken_for(root, tmp_path):
    soft = np.zeros((COUNT, 3))
    soft[np.arange(COUNT), (LABELS + 1) % 3] = 1.0
    write(tmp_path / "out", root, soft_labels=soft)
    for tables, _ in sites(tmp_path / "out").values():
        shown, truth = (tables[k].labels.argmax(axis=1) for k in ("train", "truth"))
        assert set((shown - truth) % 3) <= {0, 1}


@pytest.mark.parametrize("color", [False, True])
def test_annotator_networks_see_the_images_where_no_soft_labels_are_given(root, tmp_path, color):
    lines = []
    for name, folder in (("out", root), ("again", root), ("black", tmp_path / "dark")):
        if name == "black":
            shutil.copytree(root, folder)
            for image in IMAGES:
                Image.new("L", (8, 8)).save(folder / image)
        write(tmp_path / name, folder, soft_labels=None, color=color, progress=lines.append)
    train = [
        {k: v for k, v in content(tmp_path / n).items() if k.endswith("/train.csv")} for n in ("out", "again", "black")
    ]
    assert train[0] == train[1] != train[2]
    read = sites(tmp_path / "out")
    noisy = [name for name, (_, card) in read.items() if card.provenance["site"]["noisy"]]
    sizes = {name: len(read[name][0]["train"].images) for name in noisy}
    assert lines[:3] == [
        *(f"{name}: annotator network for {sizes[name]} samples" for name in noisy),
        "3 site folders written, 2 of them noisy",
    ]


def test_the_annotators_leave_a_store_only_where_a_cache_is_given(root, tmp_path):
    write(tmp_path / "out", root, soft_labels=None, cache_dir=tmp_path / "cache")
    stores = [p for p in (tmp_path / "cache" / "stores").iterdir() if p.is_dir()]
    assert len(stores) == 2
    for _, card in sites(tmp_path / "out").values():
        if card.provenance["site"]["noisy"]:  # a job with the same image size opens that very store
            data = load_site(card, CLASSES, Opening(tmp_path / "cache", 8, torch.device("cpu")))
            assert any(str(p) in str(data.train.images.filename) for p in stores)


def test_uniform_noise_needs_neither_images_nor_soft_labels(tmp_path):
    write(tmp_path / "out", tmp_path / "nowhere", {**PROTOCOL, "noise": "uniform"}, soft_labels=None)
    for tables, card in sites(tmp_path / "out").values():
        assert (wrong(tables) > 0) == card.provenance["site"]["noisy"]


def test_no_noise_leaves_every_label_as_it_is(root, tmp_path):
    write(tmp_path / "out", root, {**PROTOCOL, "noisy_share": 0.0}, soft_labels=None)
    assert [wrong(tables) for tables, _ in sites(tmp_path / "out").values()] == [0, 0, 0]


def test_patients_and_window_reach_the_folder(root, tmp_path):
    write(tmp_path / "out", root, patients=PATIENTS, window="brain")
    for tables, card in sites(tmp_path / "out").values():
        assert card.window == (40.0, 80.0)
        assert not card.color
        for table in tables.values():
            assert table.patients == tuple(PATIENTS[i] for i in numbers(table))


@pytest.mark.parametrize(("seed", "same"), [("partition_seed", False), ("noise_seed", True)])
def test_the_seeds_alone_decide_the_partition_and_the_noise(root, tmp_path, seed, same):
    write(tmp_path / "first", root)
    write(tmp_path / "again", root)
    write(tmp_path / "other", root, {**PROTOCOL, seed: 7})
    first, again, other = (content(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    for file in ("truth/train.csv", "test.csv"):
        assert all((first[f"site-{s}/{file}"] == other[f"site-{s}/{file}"]) == same for s in (1, 2, 3))
    assert any(first[f"site-{s}/train.csv"] != other[f"site-{s}/train.csv"] for s in (1, 2, 3))


def test_every_noisy_site_and_every_noise_seed_has_draws_of_its_own(root, tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr(noisy_sites, "uniform_noise", lambda own, rate, *, num_classes, seed: seeds.append(seed) or own)
    for noise_seed in (0, 1):
        protocol = {**PROTOCOL, "noisy_share": 1.0, "noise": "uniform", "noise_seed": noise_seed}
        write(tmp_path / f"out{noise_seed}", root, protocol)
    assert len(set(seeds)) == len(seeds) == 6


def test_an_unknown_kind_of_noise_is_refused():
    with refused("noise protocol, field noise: expected 'instance' or 'uniform', got 'pairs'"):
        NoiseProtocol(noise="pairs")


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"sites": 0}, "partition: expected num_sites >= 1"),
        ({"alpha": -1.0}, "partition: expected .* alpha > 0"),
        ({"noisy_share": 1.5}, "noisy sites: expected .* noisy_share in 0..1"),
        ({"noise_low": 0.8}, "noisy sites: expected .* low <= high"),
        ({"sites": 90}, "partition: expected a sample at each of 90 sites, got an empty site"),
    ],
)
def test_an_impossible_protocol_is_refused_before_anything_is_written(root, tmp_path, change, start):
    with pytest.raises(FedMendError, match=f"^{start}"):
        write(tmp_path / "out", root, {**PROTOCOL, **change})
    assert not (tmp_path / "out").exists()


def test_a_site_whose_true_training_labels_have_one_class_is_refused(root, tmp_path):
    labels = np.where(TEST, 0, 1)
    with refused("site-1: truth/train.csv, column label: expected at least 2 classes, got 1"):
        write(tmp_path / "out", root, labels=labels)
    assert not (tmp_path / "out").exists()


def test_a_site_whose_noisy_training_labels_have_one_class_is_refused(root, tmp_path):
    protocol = {"sites": 1, "presence": 1.0, "noisy_share": 1.0, "noise_low": 0.5, "noise_high": 0.5}
    with refused("site-1: train.csv, column label: expected at least 2 classes, got 1"):
        write(
            tmp_path / "out",
            root,
            protocol,
            images=IMAGES[:2],
            labels=np.array([0, 1]),
            test=np.zeros(2, dtype=bool),
            soft_labels=np.tile([0.5, 0.5, 0.0], (2, 1)),
        )


def test_an_image_that_an_annotator_cannot_find_is_named_by_its_row(root, tmp_path):
    broken = shutil.copytree(root, tmp_path / "broken")
    write(tmp_path / "out", root)
    name, tables = next((n, t) for n, (t, c) in sites(tmp_path / "out").items() if c.provenance["site"]["noisy"])
    (broken / tables["train"].images[3]).unlink()
    with refused(f"{name}: train.csv row 5, column image: expected a file below image_root, not found"):
        write(tmp_path / "other", broken, soft_labels=None)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image,benign,malign\n", ", header: expected a column for every class, got none for ['healthy']"),
        ("image,benign,malign,healthy\n1,0.5,half,0\n", " row 2: expected one number per class, got another form"),
        ('"' + "x" * 200_000, ": expected a CSV file that can be read, got another"),
        (
            "image,benign,malign,healthy\n1,0.5,0.5,0\n1,0.5,0,0.5\n",
            " row 3: expected the numbers that an earlier row gives for this image, got others",
        ),
        ("image,benign,malign,healthy\n1,0.5\n", " row 2: expected one number per class, got another form"),
        (
            "image,benign,malign,healthy\n1,0.5,0.5,0\n",
            ": expected a row for every training image, got none for 83 of 84",
        ),
    ],
)
def test_soft_labels_that_cannot_be_used_are_refused(root, tmp_path, text, sentence):
    (tmp_path / "soft.csv").write_text(text)
    data = Samples(images=IMAGES, labels=LABELS, classes=CLASSES, image_root=root, modality="CT")
    arguments = {"test": TEST, "protocol": NoiseProtocol(**PROTOCOL), "source_name": "a test"}
    with refused(f"soft labels{sentence}"):
        write_noisy_sites(tmp_path / "out", data, **arguments, soft_labels=tmp_path / "soft.csv")
    with refused("soft labels: expected a CSV file that can be read, got another"):
        write_noisy_sites(tmp_path / "out", data, **arguments, soft_labels=tmp_path / "nowhere.csv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ("only",)}, "classes: expected at least 2 classes, got 1"),
        ({"images": [IMAGES[1], *IMAGES[1:]]}, "images: expected each image once, got 1 repeated"),
        ({"labels": LABELS[1:]}, "labels: expected 96 class numbers in 0..2, got others"),
        ({"labels": LABELS - 1}, "labels: expected 96 class numbers in 0..2, got others"),
        ({"labels": LABELS + 1}, "labels: expected 96 class numbers in 0..2, got others"),
        ({"labels": LABELS / 2}, "labels: expected 96 class numbers in 0..2, got others"),
        ({"test": TEST.astype(int)}, "test: expected 96 truth values, got int64 (96,)"),
        ({"test": TEST[1:]}, "test: expected 96 truth values, got bool (95,)"),
        ({"patients": ["p1"]}, "patients: expected none or 96 keys, got 1"),
        (
            {"window": "liver"},
            "window: expected None, 'file', one of ['bone', 'brain', 'lung', 'subdural'] or (centre, width),"
            " got 'liver'",
        ),
        ({"annotator_pixels": 7}, "annotator_pixels: expected at least 8, got 7"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(root, tmp_path, change, sentence):
    with refused(f"noisy sites, argument {sentence}"):
        write(tmp_path / "out", root, **change)
    assert not (tmp_path / "out").exists()
