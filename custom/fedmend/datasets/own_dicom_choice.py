"""Which of a folder's DICOM images a label of a study is about, and who they are of.

A study also holds scouts, pages of doses, captured screens, images of other quantities and modalities; an archive
holds copies of files, and de-identification leaves patients blank or gives all of them one name. What is left out is
counted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmend.data.dicom_copies import copies_in
from fedmend.data.dicom_kinds import IMAGE, LOCALIZER, QUANTITY, SECONDARY
from fedmend.data.identity import merged
from fedmend.datasets.checks import need
from fedmend.datasets.own_dicom_files import ABOUT, DicomImage
from fedmend.datasets.own_patients import is_nobody
from fedmend.datasets.samples import Say

# What is kept only if asked → its name.
KEPT = {
    LOCALIZER: "localizers",
    SECONDARY: "secondary captures",
    QUANTITY: "images for processing, of MR phase, or of CT in another unit than HU",
}
ALIKE = {"CR": "DX"}  # films are films


def once(images: Sequence[DicomImage], folder: Path, say: Say) -> list[DicomImage]:
    """The images without copies of one another: the same SOPInstanceUID, frame and pixels.

    Args:
        images: all of a folder.
        folder: that their paths start from.
        say: called with one line of text at a time.
    """
    known = sorted(images, key=lambda image: not image.keys["PatientID"])  # of copies the one that says whose it is
    numbers, others = copies_in([(image.keys["SOPInstanceUID"], image.image) for image in known], folder)
    copies = {known[number].image for number in numbers}
    if copies:
        say(f"left out: {len(copies)} copies of an image that is there already (the same SOPInstanceUID and pixels)")
    if others:
        say(f"warning: {others} images have the SOPInstanceUID of another one, but other pixels; they are kept")
    return [image for image in images if image.image not in copies]


def chosen(
    images: Sequence[DicomImage], say: Say, *, keep: Sequence[str] = (), modalities: Sequence[str] = ()
) -> list[DicomImage]:
    """The images that labels of studies, series or patients are about.

    Args:
        images: all of a folder.
        say: called with one line of text at a time; what is left out is counted by reason.
        keep: kinds that are kept though they are not what labels are about: ``localizer``, ``secondary``, ``quantity``.
        modalities: those that are used; none: the one that most images have (CR and DX are one).

    Raises:
        FedMendError: no images of these modalities.
    """
    kinds = Counter(image.kind for image in images)
    kept = {IMAGE, *keep}
    if not any(kinds[kind] for kind in kept):
        most = kinds.most_common(1)[0][0]
        kept.add(most)
        say(f"no other images than {_counts(KEPT[image.kind] for image in images)}: the {KEPT[most]} are kept")
    for kind, name in KEPT.items():
        if kind not in kept and kinds[kind]:
            say(f"left out: {kinds[kind]} {name} (--keep {kind} takes them in)")
    images = [image for image in images if image.kind in kept]
    found = Counter(image.modality for image in images if image.modality and image.kind != SECONDARY)
    wanted = {name.upper() for name in modalities} or set(_most(found))
    need(not modalities or wanted & set(found), "dicom, argument modality", f"some of {sorted(found)}", sorted(wanted))
    others = {name: n for name, n in found.items() if name not in wanted}
    if others:
        hint = f"--modality {' '.join(sorted({*wanted, *others}))} takes all, through one window"
        named, used = ", ".join(f"{name} {n}" for name, n in others.items()), "/".join(sorted(wanted))
        say(f"left out: {sum(others.values())} images of other modalities than {used}: {named} ({hint})")
    return [image for image in images if image.kind == SECONDARY or image.modality not in others]


def _most(found: Counter) -> Iterable[str]:
    """The modality of most images, with those that are like it."""
    families: Counter = Counter()
    for name, count in found.items():
        families[ALIKE.get(name, name)] += count
    best = families.most_common(1)
    return [name for name in found if best and ALIKE.get(name, name) == best[0][0]]


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{word[:20]} {n}" for word, n in Counter(words).most_common(6))


def tell(images: Sequence[DicomImage], say: Say) -> None:
    """Says what the images show, in counts.

    Args:
        images: those that are used.
        say: called with one line of text at a time.
    """
    for kind, name in KEPT.items():
        if number := sum(image.kind == kind for image in images):
            say(f"kept: {number} {name}")
    if derived := sum(image.derived and image.kind == IMAGE for image in images):
        say(f"kept: {derived} images that are made of others, e.g. reformats (DERIVED in ImageType)")
    modalities = Counter(image.modality for image in images)
    if len({ALIKE.get(name, name) for name in modalities}) > 1:
        say(f"warning: several modalities through one window: {_counts(image.modality or '?' for image in images)}")
    for names, words in ((ABOUT[:1], "body parts"), (ABOUT[1:3], "sides"), (ABOUT[3:], "views")):
        given = [next((image.about[n] for n in names if n in image.about), "?") for image in images]
        if set(given) != {"?"}:
            mixed = words == "body parts" and len(set(given) - {"?"}) > 1 and set(modalities) == {"CT"}
            say(f"{words}: {_counts(given)}{'; warning: one window for all of them' if mixed else ''}")


def patients_of(images: Sequence[DicomImage], say: Say) -> list[str]:
    """Who each image is of: its PatientID, else that of its study, else its study, else its series; blank if no header
    says anything. What stands on several studies and is no id (``ANON``, 0), or stands on all of them, is none.

    Args:
        images: N of them.
        say: called with one line of text at a time.

    Returns:
        N keys, each with the word ``patient``, ``study`` or ``series`` for what it is before it; ids that differ in
        leading zeros, case or blanks alone are one. Blank: the header names nobody.
    """
    ids, joined = merged([image.keys["PatientID"] for image in images])
    exams = [image.keys["StudyInstanceUID"] or image.keys["SeriesInstanceUID"] for image in images]
    of: dict[str, set[str]] = {}
    for key, exam in zip(ids, exams, strict=True):
        of.setdefault(key, set()).add(exam)
    count = len(set(exams))
    none = {k for k, found in of.items() if len(found) > 1 and (len(found) == count or is_nobody(k))} - {""}
    real = ["" if key in none else key for key in ids]
    study = {exam: key for key, exam in zip(real, exams, strict=True) if key and exam}
    people = [key or study.get(exam, "") for key, exam in zip(real, exams, strict=True)]
    kinds = ["study" if image.keys["StudyInstanceUID"] else "series" for image in images]
    units = [
        f"patient {key}" if key else f"{kind} {exam}" * bool(exam)
        for key, kind, exam in zip(people, kinds, exams, strict=True)
    ]
    if none:
        most = max(len(of[key]) for key in none)
        say(f"warning: one PatientID stands on {most} of {count} studies and seems to be nobody's")
    if blank := sum(not key for key in ids):
        say(f"{'warning: ' * (blank == len(ids))}{blank} of {len(ids)} images have no PatientID")
    for kind, name in (("study", "studies"), ("series", "series")):
        if number := len({unit for unit in units if unit.startswith(f"{kind} ")}):
            say(f"   {number} {name} count as patients; one patient's {name} may be in two splits")
    if not all(units):
        say(f"warning: {units.count('')} images name neither patient nor study nor series: each is on its own")
    if joined:
        say(f"{joined} PatientIDs differ from others in leading zeros, case or blanks alone: such two are one patient")
    shared = max((len(found) for key, found in of.items() if key and key not in none), default=0)
    if count >= 4 and shared > count / 2:
        say(f"warning: one PatientID stands on {shared} of {count} studies; they all go to one split")
    return units


def studies_of(images: Sequence[DicomImage], units: Sequence[str], say: Say) -> list[str]:
    """What study each image is of: its StudyInstanceUID, and whose, where several patients have the same; blank where
    the header names none. Some archives give all studies one UID.

    Args:
        images: N of them.
        units: of :func:`patients_of`.
        say: called with one line of text at a time.
    """
    uids = [image.keys["StudyInstanceUID"] for image in images]
    whose: dict[str, set[str]] = {}
    for uid, unit in zip(uids, units, strict=True):
        whose.setdefault(uid, set()).add(unit)
    shared = {uid for uid, several in whose.items() if uid and len(several) > 1}
    if shared:
        say(f"warning: {len(shared)} StudyInstanceUIDs are of several patients; each is a study for each of them")
    return [f"{uid} {unit}" if uid in shared else uid for uid, unit in zip(uids, units, strict=True)]
