"""A download of ChestX-ray14, as small as can be, and what is read back from site folders."""

import csv

import numpy as np
from factories import write_png

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets import cxr14
from fedmend.datasets.cxr14 import CLASSES, SOURCE, FilmProtocol

HEADER = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
HEADER += "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
PATIENTS, TEST_PATIENTS = 10, (1, 4, 7)
# Two sites that identify all classes; each finding is on about half of the films.
BASE = {"sites": 2, "classes_per_site": 14, "val_share": 0.2, "seed": 1}


def name(patient, k):
    return f"{patient:08d}_{k:03d}.png"


def findings(patient, k):
    """(14,) int: all findings or none but Mass, which is on every third film only."""
    own = np.full(14, (patient + k) % 2)
    own[CLASSES.index("Mass")] = (2 * patient + k) % 3 == 0
    return own


def film_rows():
    """Two films of each patient, the first one PA and the second one AP."""
    rows = []
    for p in range(PATIENTS):
        for k in range(2):
            text = "|".join(c for c, has in zip(CLASSES, findings(p, k), strict=True) if has) or "No Finding"
            rows.append([name(p, k), text, k, p, 50, "F", ("PA", "AP")[k], 8, 8, 0.1, 0.1, ""])
    return rows


def write_rows(source, rows, header=HEADER, file="Data_Entry_2017.csv"):
    with open(source / file, "w", newline="") as stream:
        stream.write(f"{header}\n")
        csv.writer(stream).writerows(rows)


def write_lists(source, test_patients=TEST_PATIENTS):
    names = {True: [], False: []}
    for p in range(PATIENTS):
        names[p in test_patients] += [name(p, k) for k in range(2)]
    (source / "test_list.txt").write_text("\n".join(names[True]))
    (source / "train_val_list.txt").write_text("\r\n".join(names[False]) + "\r\n")


def write_download(source):
    """Writes the whole download into an empty folder."""
    for p in range(PATIENTS):
        for k in range(2):
            write_png(source / "images" / name(p, k), 2 * p + k)
    write_rows(source, film_rows())
    write_lists(source)
    return source


def prepare(source, out, *, source_name=SOURCE, progress=None, **protocol):
    """The converter; the others are fields of the protocol."""
    cxr14.prepare(source, out, FilmProtocol(**protocol), source_name=source_name, progress=progress)


def load(out, site, split="train"):
    card = load_card(out / f"site-{site}", f"site-{site}")
    return load_table(card, card.truth["train"] if split == "truth" else card.splits[split], card.classes)


def patients_of(out, split, sites=(1, 2)):
    return [{int(p) for p in load(out, s, split).patients} for s in sites]
