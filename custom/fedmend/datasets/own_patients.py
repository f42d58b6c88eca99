"""Who the images of a hospital are of, where a table or the paths of the images say it."""

import re
from collections.abc import Sequence

from fedmend.data.identity import canonical, is_missing, loose, merged, split_frame
from fedmend.datasets.checks import need
from fedmend.datasets.samples import Say
from fedmend.errors import FedMendError

PATIENT_WORDS = ("patient", "subject", *(rf"(?<![a-z]){word}" for word in ("sub", "subj", "pat", "pid", "case")))

# What de-identification writes for everybody; zeros are one zero here.
_NOBODY = re.compile(
    r"0|[x*#]+|(the )?(patient|subject|test|nobody)|no ?(name|id)|unknown|removed|redacted|deleted|blank(ed)?|hidden"
    r"|anon(ym(e|ous|i[sz]ed)?)?( patient)?|(de.?)?identified|pseudo(nym(i[sz]ed)?)?|confidential|default"
    r"|unbekannt|inconnue?|desconocid[oa]|sconosciut[oa]|onbekend"
)


def is_nobody(key: str) -> bool:
    """Whether an id of a patient is blank, or a word that de-identification writes for everybody."""
    return is_missing(key) or _NOBODY.fullmatch(re.sub(r"[\W_]+", " ", loose(key)).strip() or "x") is not None


def guess_pattern(images: Sequence[str]) -> str | None:
    """The regular expression for what seems to name the patient in each path, as ``patient00001`` or ``sub-07``; None
    where not all paths have such a part, or all have the same."""
    for word in PATIENT_WORDS:
        pattern = rf"(?i){word}[-_ ]?\d+"
        found = [re.search(pattern, image) for image in images]
        if all(found) and len({match[0] for match in found if match}) > 1:
            return pattern
    return None


def patients_of(
    patients: Sequence[str], images: Sequence[str], pattern: str | None, say: Say
) -> tuple[Sequence[str], dict[str, str]]:
    """The patient of each image, and what people should know about them, for the card's notes.

    Args:
        patients: N ids as a table or list has them.
        images: N paths.
        pattern: regular expression that finds the patient in the path of an image, by its first group if it has one;
            it counts for all images if ``patients`` lacks any, as paths may write a patient in another way. None: the
            paths say nothing.
        say: called with one line of text at a time.

    Returns:
        N keys, blank for unknown; ids that differ in case, leading zeros or the like have one, as a split must not tear
        a patient apart. Notes, which begin with WARNING where images of one patient may be in several splits.

    Raises:
        FedMendError: a pattern that is none, that finds nothing, or that would lose somebody whom ``patients`` names.
    """
    # In a table a single sign, as 0 or X, is somebody.
    nobody = {key for key in {*patients} if is_missing(key) or (len(loose(key)) > 1 and is_nobody(key))}
    named = ["" if patient in nobody else patient for patient in patients]
    known, lines = sum(map(bool, named)), []
    if pattern is not None:
        found = _in_paths(images, pattern)
        if known < len(named):
            lost = sum(bool(patient) and not other for patient, other in zip(named, found, strict=True))
            words = "a part of the path of every image whose patient the table or list names"
            need(not lost, "argument patient_from_path", words, f"none in {lost}; or name all patients in the column")
            named = found
    keys, others = merged(named)
    if unknown := sum(not key for key in keys):
        hint = "name them in a column or field patient (csv: --columns patient=COLUMN)"
        if (guess := guess_pattern(images)) and pattern is None:
            hint = f"the paths seem to name them: --patient-from-path '{guess}'"
        if pattern is None and named[0] and known < len(named):
            hint += "; if cells of a spreadsheet were merged, fill them down first"
        lines.append(
            f"WARNING: no patient is known of {unknown} of {len(keys)} images, so that one patient may be in several"
            f" splits; {hint}"
        )
    if pattern is not None and 0 < known < len(named):
        lacking = len(named) - known
        lines.append(f"patients are taken from all paths, as {lacking} images have none in the table or list")
    if pattern is not None and known == len(named):
        lines.append("the table or list names all patients, so that --patient-from-path is not used")
    if others:
        lines.append(
            f"{others} ids differ from another one in case, leading zeros, the writing of a number or signs that look"
            " alike only, and count as the same patient"
        )
    for line in lines:
        say(line)
    return keys, {"patients": "; ".join(lines)} if lines else {}


def kept_with(patients: Sequence[str], images: Sequence[str], studies: Sequence[str]) -> list[str]:
    """What keeps images in one split: the patient; where none is known the study, or the file that they are slices of,
    and with it the patient that another of its images names.

    Args:
        patients: N keys, blank for unknown.
        images: N paths, with ``#`` and a number behind a file with several.
        studies: N names, blank for unknown, or nothing.

    Returns:
        N keys.
    """
    names = [canonical(name) for name in studies] or [""] * len(images)
    first: dict[str, int] = {}
    files = [first.setdefault(split_frame(image)[0], i) for i, image in enumerate(images)]
    word = "row " if any(names) else ""  # so that no number of a row is one of a study
    exams = [name or f"{word}{i}" for name, i in zip(names, files, strict=True)]
    known: dict[str, set[str]] = {}
    for exam, patient in zip(exams, patients, strict=True):
        known.setdefault(exam, set()).update({patient} - {""})
    people = [
        patient or "".join(known[exam]) * (len(known[exam]) == 1) for exam, patient in zip(exams, patients, strict=True)
    ]
    return [f"patient {p}" if p else f"alone {exam}" for p, exam in zip(people, exams, strict=True)]


def _in_paths(images: Sequence[str], pattern: str) -> list[str]:
    try:
        compiled = re.compile(pattern)
    except re.error:
        raise FedMendError("argument patient_from_path: expected a regular expression, got another text") from None
    found = [match[bool(compiled.groups)] or "" if (match := compiled.search(image)) else "" for image in images]
    need(any(found), "argument patient_from_path", "a part of the images' paths", "none that it finds")
    return found


def running_numbers(keys: Sequence[str], letter: str = "p") -> dict[str, str]:
    """Patient → p1, p2, ..., in the order in which they come; blank ones have none."""
    return {key: f"{letter}{n}" for n, key in enumerate(dict.fromkeys(k for k in keys if k), 1)}
