"""What an object in a study takes over of the headers of its images."""

import pytest
from pydicom.dataset import Dataset

pytest.importorskip("highdicom", reason="needs fedmend[review]")

from fedmend.data.dicom_writing import MAY_BE_EMPTY, UNICODE, with_all_fields


def header(**fields):
    made = Dataset()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("PatientSex", "m", "M"),
        ("PatientSex", "W", None),
        ("PatientBirthDate", "19700000", None),
        ("PatientBirthDate", "19700203", "19700203"),
        ("StudyDate", "01012020", None),
        ("StudyDate", ["20200101", "20200102"], "20200101"),
        ("StudyTime", "10:11:12", None),
        ("StudyTime", "101112.5", "101112.5"),
        ("PatientName", ["Smith", "John"], "Smith"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of pydicom, about what is given
def test_what_has_another_form_than_that_of_dicom_stays_empty(name, given, kept):
    found = with_all_fields(header(**{name: given}))
    assert found.get(name) == kept
    assert all(field in found for field in MAY_BE_EMPTY)


@pytest.mark.parametrize(
    ("signs", "text", "wanted"),
    [
        ("ISO_IR 100", "Ödem", "ISO_IR 100"),
        ("ISO_IR 144", "edema", "ISO_IR 144"),
        ("ISO_IR 144", "Ödem", UNICODE),
        ("ISO_IR 6", "Ödem", UNICODE),
        (None, "edema", None),
        (None, "Ödem", UNICODE),
        (["", "ISO 2022 IR 87"], "edema", UNICODE),
        ("ISO-IR 100", "edema", UNICODE),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_signs_that_cannot_write_what_is_copied_give_way_to_unicode(signs, text, wanted):
    found = with_all_fields(header(**({"SpecificCharacterSet": signs} if signs else {})), text)
    assert found.get("SpecificCharacterSet") == wanted
