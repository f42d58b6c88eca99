"""What every converter of labelled images does, whatever its download."""

import numpy as np
import pytest
from cxr14_factories import BASE as FILMS
from factories import refused
from rsna_ich_factories import BASE as SLICES
from rsna_ich_factories import OTHER_SEED, SEED, content

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets import brain_mri, cxr14, isic2018, isic2019, medmnist, rsna_ich
from fedmend.datasets.cxr14 import FilmProtocol
from fedmend.datasets.isic2018 import DiagnosisProtocol
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.rsna_ich import SliceProtocol
from fedmend.labels import SINGLELABEL


def noisy(seed):
    return NoiseProtocol(sites=2, presence=1.0, noisy_share=0.5, noise="uniform", partition_seed=seed)


# Name → download, converter, and two seeds with which every site can train.
CONVERTERS = {
    "rsna-ich": ("rsna_ich", lambda s, o, n: rsna_ich.prepare(s, o, SliceProtocol(**{**SLICES, "seed": n}))),
    "rsna-ich-single": ("rsna_ich", lambda s, o, n: rsna_ich.prepare_single_label(s, o, protocol=noisy(n), seed=n)),
    "cxr14": ("cxr14", lambda s, o, n: cxr14.prepare(s, o, FilmProtocol(**{**FILMS, "seed": n}))),
    "isic2018": ("isic2018_download", lambda s, o, n: isic2018.prepare(s, o, DiagnosisProtocol(seed=n))),
    "isic2019": ("isic2019_download", lambda s, o, n: isic2019.prepare(s, o, protocol=noisy(n), seed=n)),
    "brain-mri": ("brain", lambda s, o, n: brain_mri.prepare(s, o, seed=n)),
    "brain-mri-single": ("brain", lambda s, o, n: brain_mri.prepare_single_label(s, o, protocol=noisy(n))),
    "brain-mri-sets": ("brain", lambda s, o, n: brain_mri.prepare_label_sets(s, o, sites=2, seed=n)),
    "medmnist": ("medmnist", lambda s, o, n: medmnist.prepare(s, o, sites=2, seed=n)),
    "medmnist-single": ("medmnist", lambda s, o, n: medmnist.prepare_single_label(s, o, protocol=noisy(n))),
    "medmnist-sets": ("medmnist", lambda s, o, n: medmnist.prepare(s, o, sites=2, label_sets=True, seed=n)),
}
SEEDS = {"rsna-ich": (SEED, OTHER_SEED), "cxr14": (1, 3)}


@pytest.fixture(params=CONVERTERS)
def converted(request, tmp_path):
    """Name of a converter, and ``out``, number of one of its two seeds → its folder of sites."""
    download, convert = CONVERTERS[request.param]
    source = request.getfixturevalue(download)

    def write(out, number=0):
        convert(source, tmp_path / out, SEEDS.get(request.param, (1, 2))[number])
        return tmp_path / out

    return request.param, write


def tables(folder):
    card = load_card(folder, folder.name)
    files = {**card.splits, "truth": card.truth["train"]}
    return card, {name: load_table(card, file, card.classes) for name, file in files.items()}


def test_every_image_is_at_one_site_and_in_one_split_and_lies_below_the_image_root(converted):
    _, write = converted
    images = []
    for folder in write("out").glob("site-*"):
        card, read = tables(folder)
        own = [image for name, table in read.items() if name != "truth" for image in table.images]
        assert all((card.image_root / image).is_file() for image in own)
        images += own
    assert len(set(images)) == len(images) > 0


def test_the_test_split_and_the_truth_have_all_labels_and_training_those_that_the_site_knows(converted):
    name, write = converted
    for folder in write("out").glob("site-*"):
        card, read = tables(folder)
        train, truth = read["train"], read["truth"]
        assert truth.images == train.images
        assert truth.patients == train.patients
        for table in (truth, read["test"]):
            assert table.annotated.all()
            assert (table.labels >= 0).all()
        if card.kind == SINGLELABEL:
            shown = (train.labels >= 0).all(axis=1)
            assert shown.all() == (not name.endswith("sets") and name != "isic2018")
        else:
            shown = np.ix_(np.arange(len(train.images)), np.flatnonzero(train.annotated))
        if not name.endswith("single") and name != "isic2019":
            assert np.array_equal(train.labels[shown], truth.labels[shown])


def test_the_seed_alone_decides(converted):
    _, write = converted
    first, again, other = content(write("a")), content(write("b")), content(write("c", 1))
    assert first.keys() == again.keys()
    assert all(first[file] == again[file] for file in first)
    assert first["site-1/train.csv"] != other["site-1/train.csv"]


def test_what_is_there_is_never_overwritten(converted):
    name, write = converted
    out = write("out")
    before = content(out)
    medmnist, single = name.startswith("medmnist"), name.endswith("single") or name == "isic2019"
    where = "medmnist" if medmnist else "noisy sites" if single else name.removesuffix("-sets")
    expected = "a folder that is empty or not there, got another"
    if not medmnist:
        expected = "a folder without site folders, got one that has them or a file"
    with refused(f"{where}, argument out: expected {expected}"):
        write("out")
    assert content(out) == before
