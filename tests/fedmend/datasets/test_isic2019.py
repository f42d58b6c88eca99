import numpy as np
import pytest
from factories import refused
from isic_rows import ISIC_2019 as ROWS

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.isic2019 import CLASSES, FOLDER, METADATA, TABLE, prepare, read
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.phantoms.dermoscopy import write_isic2019 as draw

HEADER = ["image", *CLASSES, "UNK"]


def one_hot(name):
    return [str(float(c == name)) for c in HEADER[1:]]


@pytest.fixture
def source(tmp_path, write_isic2019):
    return write_isic2019(tmp_path / "download")


def change(source, old, new, file=TABLE):
    text = (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new))


def test_the_official_download_is_read_in_the_order_of_its_ids(source):
    samples, test, unknown = read(source)
    assert samples.images == [f"{FOLDER}/{image}.jpg" for image, _, _ in ROWS]
    assert samples.labels.tolist() == [1, 0, 7, 1, 2, 7]
    assert (samples.labels.dtype, test.dtype, unknown) == (np.int64, bool, 0)


def test_tables_that_a_spreadsheet_saved_with_semicolons_are_read_alike(source):
    before = read(source)[0]
    for file in (TABLE, METADATA):
        text = (source / file).read_text().replace(",", ";").replace(".0", "")
        (source / file).write_text(text, encoding="utf-8-sig")
    after = read(source)[0]
    assert (after.images, after.patients) == (before.images, before.patients)
    assert after.labels.tolist() == before.labels.tolist()


def test_the_order_of_rows_does_not_matter(source, tmp_path, write_isic2019):
    one, other = read(source), read(write_isic2019(tmp_path / "reversed", ROWS[::-1]))
    assert (one[0].images, one[0].patients) == (other[0].images, other[0].patients)
    assert one[0].labels.tolist() == other[0].labels.tolist()
    assert one[1].tolist() == other[1].tolist()


def test_a_picture_without_lesion_id_is_a_lesion_of_its_own(source):
    expected = ["HAM_1", "ISIC_0000001_downsampled", "BCN_7", "HAM_1", "ISIC_0000004", "BCN_7"]
    assert read(source)[0].patients == expected


def test_words_for_a_missing_lesion_id_are_no_lesion(source):
    change(source, ",,x", ",NA,x", file=METADATA)
    assert read(source)[0].patients[1::3] == ["ISIC_0000001_downsampled", "ISIC_0000004"]


def test_the_pictures_of_a_lesion_stay_on_one_side_unless_the_split_is_by_image(source):
    by_lesion = [read(source, test_share=0.5, seed=seed)[1] for seed in range(20)]
    assert all(t[0] == t[3] and t[2] == t[5] for t in by_lesion)
    assert {int(t.sum()) for t in by_lesion} == {2, 3, 4}  # always 2 of 4 lesions
    by_image = [read(source, test_share=0.5, split="image", seed=seed)[1] for seed in range(20)]
    assert any(t[0] != t[3] for t in by_image)
    assert {int(t.sum()) for t in by_image} == {3}


def test_the_seed_decides_the_split(source):
    splits = {tuple(read(source, seed=seed)[1].tolist()) for seed in range(20)}
    assert len(splits) == 4  # 1 of 4 lesions
    assert read(source, seed=5)[1].tolist() == read(source, seed=5)[1].tolist()


def test_unknown_pictures_are_left_out_and_counted(tmp_path, write_isic2019):
    rows = [*ROWS, ("ISIC_0000006", "UNK", ""), ("ISIC_0000007", "UNK", "HAM_1")]
    samples, _, unknown = read(write_isic2019(tmp_path, rows))
    assert (len(samples.images), unknown) == (6, 2)


def test_a_row_that_is_there_twice_counts_once(source):
    with open(source / TABLE, "a") as stream:
        stream.write(",".join([ROWS[2][0], *one_hot("SCC")]) + "\n")
    assert len(read(source)[0].images) == 6


@pytest.mark.parametrize("name", [TABLE, METADATA, FOLDER])
def test_a_download_that_lacks_a_part_is_refused(source, name):
    (source / name).rename(source / "elsewhere")
    with refused(f"isic2019, argument source: expected {name} in it, not found"):
        read(source)


def test_another_header_is_refused(source, write_isic2019):
    change(source, "MEL,NV", "NV,MEL")
    with refused(f"{TABLE} row 1: expected the header image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK, got another one"):
        read(source)
    write_isic2019(source)
    change(source, "lesion_id", "lesion", METADATA)
    with refused(f"{METADATA} row 1: expected a header with image and lesion_id, got another one"):
        read(source)


@pytest.mark.parametrize(
    "values", ["0.0" + ",0.0" * 8, "1.0,1.0" + ",0.0" * 7, "1.0" + ",0.0" * 7, "0.5,0.5" + ",0.0" * 7]
)
def test_a_row_that_is_not_one_hot_is_refused(source, values):
    change(source, ",".join(one_hot("BCC")), values)
    with refused(f"{TABLE} row 6: expected 1.0 in one column and 0.0 in the others, got another form"):
        read(source)


def test_a_row_without_picture_is_refused(source):
    (source / FOLDER / "ISIC_0000003.jpg").unlink()
    with refused(f"{TABLE} row 5: expected the picture of this row in {FOLDER}, not found"):
        read(source)


def test_a_picture_without_metadata_is_refused(source):
    change(source, "ISIC_0000003", "ISIC_9999999", METADATA)
    with refused(f"{TABLE} row 5: expected a row for this picture in {METADATA}, found none"):
        read(source)


@pytest.mark.parametrize("name", ["NV", "UNK"])
def test_two_classes_for_one_picture_are_refused(source, name):
    with open(source / TABLE, "a") as stream:
        stream.write(",".join([ROWS[2][0], *one_hot(name)]) + "\n")
    with refused(f"{TABLE} row 8: expected the class that an earlier row gives, got another one"):
        read(source)


def test_two_lesions_for_one_picture_are_refused(source):
    with open(source / METADATA, "a") as stream:
        stream.write(f"{ROWS[0][0]},50,,HAM_2,female\n")
    with refused(f"{METADATA} row 8: expected the lesion_id that an earlier row gives, got another one"):
        read(source)


def test_a_split_of_one_lesion_is_refused(tmp_path, write_isic2019):
    source = write_isic2019(tmp_path, [ROWS[0], ROWS[3]])
    with refused("test split: expected a test_share between 0 and 1 and at least 2 units, got 0.3 and 1"):
        read(source)
    assert read(source, split="image")[1].sum() == 1


def test_an_unknown_split_is_refused(source):
    with refused("isic2019, argument split: expected 'lesion' or 'image', got 'patient'"):
        read(source, split="patient")


def test_the_phantom_becomes_colour_sites_of_which_some_are_noisy(tmp_path):
    source, lines = tmp_path / "download", []
    draw(source, images=120, size=32, processes=1)
    protocol = NoiseProtocol(sites=3, noisy_share=0.4, noise="uniform")
    prepare(source, tmp_path / "sites", protocol=protocol, source_name="PHANTOM", progress=lines.append)
    samples, test, _ = read(source)
    label_of, lesion_of = (dict(zip(samples.images, v, strict=True)) for v in (samples.labels, samples.patients))
    seen, wrong = [], []
    for name in ("site-1", "site-2", "site-3"):
        card = load_card(tmp_path / "sites" / name, name)
        assert (card.kind, card.classes, card.color, card.modality) == ("singlelabel", CLASSES, True, "dermoscopy")
        tables = {k: load_table(card, v, CLASSES) for k, v in {**card.splits, "truth": card.truth["train"]}.items()}
        for split, table in tables.items():
            assert all((card.image_root / image).is_file() for image in table.images)
            assert table.patients == tuple(lesion_of[image] for image in table.images)
            if split != "train":
                assert table.labels.argmax(1).tolist() == [label_of[image] for image in table.images]
        seen += [*tables["train"].images, *tables["test"].images]
        wrong.append(bool((tables["train"].labels != tables["truth"].labels).any()))
    assert sorted(seen) == sorted(samples.images)
    assert sum(wrong) == 1
    assert lines[0].startswith(
        f"120 pictures of {len(set(samples.patients))} lesions, {test.sum()} of them for the test"
    )
