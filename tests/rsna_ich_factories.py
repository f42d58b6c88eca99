"""A download of RSNA 2019 intracranial hemorrhage, as small as can be, and what is read back from site folders."""

import csv

from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets import rsna_ich
from fedmend.datasets.rsna_ich import CLASSES, SOURCE, SliceProtocol

PATIENTS, SLICES = 36, 4
# Three sites of twelve patients; one_each with three classes per site reaches all five. With these seeds each training
# part has a patient of every class that its site annotates.
SEED, OTHER_SEED = 560, 1104
BASE = {"sites": 3, "annotated_per_site": 3, "healthy_share": None, "seed": SEED}


def station(patient):
    """Scanner 0, 1 or 2; each has two patients of every class."""
    return patient // 6 % 3


def slice_id(patient, k):
    return f"ID_{patient:04x}{k:05x}"


def label(patient, k):
    """Patient p has class p % 6 (5: none) on slices 0 to 2; slice 3 is healthy."""
    return [int(c == patient % 6 and k < 3) for c in range(5)]


def write_dicom(path, patient="", scanner="", place=None):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    image.SOPClassUID, image.SOPInstanceUID = CTImageStorage, "1.2.3"
    if patient:
        image.PatientID = patient
    if scanner:
        image.StationName = scanner
    if place is not None:
        image.StudyInstanceUID, image.ImagePositionPatient = f"1.2.{int(patient[1:])}", [0, 0, place]
    image.Rows = image.Columns = 8
    image.BitsAllocated = image.BitsStored = 16
    image.HighBit, image.PixelRepresentation, image.SamplesPerPixel = 15, 0, 1
    image.PhotometricInterpretation = "MONOCHROME2"
    image.PixelData = bytes(128)
    image.save_as(path, enforce_file_format=True)


def table_rows():
    rows = []
    for p in range(PATIENTS):
        for k in range(SLICES):
            values = label(p, k)
            rows += [
                [f"{slice_id(p, k)}_{c}", str(v)]
                for c, v in zip((*CLASSES, "any"), (*values, max(values)), strict=True)
            ]
    return rows


def write_rows(source, rows, header=("ID", "Label")):
    with open(source / "stage_2_train.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])


def write_download(source):
    """Writes the whole download into an empty folder."""
    (source / "stage_2_train").mkdir()
    for p in range(PATIENTS):
        for k in range(SLICES):
            file = source / "stage_2_train" / f"{slice_id(p, k)}.dcm"
            write_dicom(file, f"P{p:02d}", f"CT{station(p)}", place=-10 * k)
    write_rows(source, table_rows())
    return source


def prepare(source, out, *, source_name=SOURCE, processes=None, progress=None, **protocol):
    """The converter; the others are fields of the protocol."""
    told = {"source_name": source_name, "processes": processes, "progress": progress}
    rsna_ich.prepare(source, out, SliceProtocol(**protocol), **told)


def load(out, site, split="train"):
    card = load_card(out / site, site)
    file = card.truth["train"] if split == "truth" else card.splits[split]
    return load_table(card, file, CLASSES)


def content(out):
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def patients_of(table):
    return {int(image[3:7], 16) for image in table.images}


def every_table(out, split="train"):
    return [load(out, f"site-{s}", split) for s in (1, 2, 3)]
