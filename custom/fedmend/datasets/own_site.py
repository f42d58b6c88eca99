"""A hospital's own images and labels → its site folder: splits by patient, a card whose notes say why it is so.

The images stay where they are. Patients become running numbers: nothing needs more than who is the same.
"""

import contextlib
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import whole_folder
from fedmend.data.card import IMAGE, STUDY, WINDOWS, load_card, stays_below, write_card
from fedmend.data.identity import as_on_disk, file_key, one_patient, split_frame, with_an_ending
from fedmend.data.look import look_at, notes_of, proposal, some_of
from fedmend.data.plausible import contact_sheet, findings, training_pictures
from fedmend.data.raw import is_window
from fedmend.data.tables import LabelTable, by_study
from fedmend.datasets.checks import need
from fedmend.datasets.command_line import made, options
from fedmend.datasets.own_labels import Labelled
from fedmend.datasets.own_patients import kept_with, patients_of, running_numbers
from fedmend.datasets.samples import Samples, Say, class_by_class, hold_out, sizes
from fedmend.datasets.site_folders import check_empty, root_in_card, write_split
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION, SINGLELABEL

SHEET, SHOWN_SIZE = "contact_sheet.png", 224  # file in the site folder; pixels, as in the papers
# What keeps images together when splits are drawn, the surest first → the word for several.
UNITS = {"patient": "patients", "study": "studies", "series": "series", "image": "images"}
SOME_UNUSABLE = 3  # exit code, as that of ``predict``: the folder is there, but some of its images cannot be read
AS_SEEN = object()  # what a look at the images proposes


@dataclass(frozen=True, kw_only=True)
class SiteChoices:
    """What a hospital decides about its folder.

    Attributes:
        test_share: share of the patients in the test split, in [0, 1); 0 writes none.
        val_share: share of the other patients in the validation split, in [0, 1); 0 writes none.
        seed: of the split, 0 or more.
        window: see :class:`fedmend.data.card.SiteCard`, or ``AS_SEEN``.
        uncertain: what an uncertain label (-1, u) is taken as, ``blank``, ``positive`` or ``negative``; None: such
            labels are refused.
        patient_from_path: see :func:`patients_of`.
        per_study: a label is of the study whose images are rows with the same ``study``, not of each image.

    Raises:
        FedMendError: a number out of its range.
    """

    test_share: float = 0.2
    val_share: float = 0.1
    seed: int = 1037
    window: Any = AS_SEEN
    uncertain: str | None = None
    patient_from_path: str | None = None
    per_study: bool = False

    def __post_init__(self) -> None:
        good = 0 <= self.test_share < 1 and 0 <= self.val_share < 1 and self.seed >= 0
        got = f"{self.test_share}, {self.val_share} and {self.seed}"
        need(good, "arguments test_share, val_share and seed", "0 or numbers below 1, and at least 0", got)


def found_files(images: Sequence[str], root: Path, where: Callable[[int], str]) -> tuple[list[str], list[int]]:
    """The images with the letters of their files' names, and for each the first one that is the same file, whatever its
    name; refuses an image that is missing or lies outside its folder, also behind a link.

    Args:
        images: N paths below ``root``, with ``#`` and a number behind a file with several.
        root: folder of the images.
        where: index → words that name its row.

    Returns:
        N paths; N indices, an image's own where it is the first one.

    Raises:
        FedMendError: names the first such row.
    """
    top, names = root.resolve(), []
    first: dict[tuple, int] = {}
    firsts = []
    for i, image in enumerate(images):
        key, inside = None, stays_below(image)
        # ValueError: no name that a file can have; RuntimeError: a link that leads to itself
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            image = as_on_disk(root, image) if inside else image
            inside = inside and (root / split_frame(image)[0]).resolve().is_relative_to(top)
            key = file_key(root, image)
        if not inside or key is None:
            got = "got another" if not inside else f"not found{with_an_ending(root / image)}"
            raise FedMendError(f"{where(i)}: expected a file below the folder of the images, {got}")
        names.append(image)
        firsts.append(first.setdefault(key, i))
    return names, firsts


def one_row_each(table: LabelTable, root: Path, say: Say) -> LabelTable:
    """The table with one row for each image, named as on the disk.

    Args:
        table: all samples.
        root: folder of the images.
        say: called with one line of text at a time.

    Raises:
        FedMendError: an image is missing or outside its folder, or two rows give one image different labels or
            patients.
    """
    names, firsts = found_files(table.images, root, lambda i: f"{table.file} row {table.rows[i]}, column image")
    patients = list(table.patients)
    for i, first in enumerate(firsts):
        if first == i:
            continue
        where, same = f"{table.file} row {table.rows[i]}", f"row {table.rows[first]}, which names the same image"
        need(np.array_equal(table.labels[i], table.labels[first]), where, f"the labels of {same}", "others")
        patients[first] = one_patient(patients[first], patients[i], where, same)
    keep = [i for i, first in enumerate(firsts) if first == i]
    if repeated := len(firsts) - len(keep):
        say(f"{repeated} rows name an image a second time and are left out")
    return replace(table, images=tuple(names), patients=tuple(patients)).chosen(np.array(keep, dtype=np.int64))


def split_units(
    units: Sequence[str], choices: SiteChoices, positives: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Split → sorted numbers of its samples; samples of one unit (a patient) stay together.

    Args:
        units: N keys.
        choices: shares and seed.
        positives: (N, K) bool, the samples with each class, by which the validation split is drawn, see
            :func:`fedmend.datasets.samples.class_by_class`; None: whatever their classes.

    Raises:
        FedMendError: too few units.
    """
    names, rest, found = np.asarray(units, dtype=str), np.arange(len(units)), {}
    for name, share in (("test", choices.test_share), ("val", choices.val_share)):
        if share:
            count = len(np.unique(names[rest]))
            words = f"at least 2 patients, or what else stays together, to draw it from (or --{name}-share 0)"
            need(count >= 2, f"{name} split", words, count)
            held = hold_out(names[rest], share, seed=choices.seed)
            found[name], rest = rest[held], rest[~held]
    found = {"train": rest, **found}
    if positives is None:
        return found
    numbers = np.unique(names, return_inverse=True)[1]
    drawn = {name: np.unique(numbers[index]) for name, index in found.items()}
    drawn = class_by_class(drawn, numbers, positives, seed=choices.seed)
    return {name: np.flatnonzero(np.isin(numbers, own)) for name, own in drawn.items()}


def write_own_site(
    out: Path,
    labelled: Labelled,
    *,
    root: Path,
    choices: SiteChoices,
    source: str,
    parts: Mapping[str, np.ndarray] | None = None,
    sections: Sequence[str] = (),
    units: Sequence[str] = (),
    say: Say = lambda line: None,
) -> None:
    """Writes ``out``: a table for each split and the card.

    Args:
        out: folder that is not there yet, or empty.
        labelled: all samples; rows without a patient are kept together by study or file.
        root: folder of the images.
        choices: what the hospital decides.
        source: what the card names as source.
        parts: split → numbers of its samples, each image once, with patients as :func:`patients_of` gives them; None:
            drawn as the hospital decides.
        sections: of a list, that of each sample, by the name of its split; empty: there are none.
        units: what the key of each row's patient is, one of :data:`UNITS`; empty: of a patient where there is one.
        say: called with one line of text at a time.

    Raises:
        FedMendError: ``out`` is taken, an image is missing or outside its folder or has different labels under two
            names, none of those that are looked at can be read, or there are too few patients.
    """
    check_empty(out)
    kind, given, notes = labelled
    need(given.images, given.file, "at least one image", "none")
    table = one_row_each(given, root, say)
    need(parts is None or len(table.images) == len(given.images), given.file, "each image once", "some repeated")
    asked = (table.patients, table.images, choices.patient_from_path, say)
    patients, about = patients_of(*asked) if parts is None else (table.patients, {})
    studies = _studies_of(table, choices, say)
    together = kept_with(patients, table.images, named := table.about.get(STUDY, ()))
    found = _found(units, patients, "study" if named and all(named) else "image")
    parts = split_units(together, choices, table.labels == 1) if parts is None else parts
    card, seen = seen_card(root, table.images, choices, say)
    seen |= _of_classes(table, kind, parts["train"], say)
    notes = {**seen, "splits": splits_note(parts, sections, choices.seed, kept_together(found)), **notes, **about}
    samples = _samples(table, kind, root, patients, studies)
    with whole_folder(out.resolve()) as folder:
        for name, index in parts.items():
            write_split(folder / f"{name}.csv", samples, index, samples.labels, table.annotated)
        write_card(
            folder,
            task=kind,
            classes=table.classes,
            splits={name: f"{name}.csv" for name in parts},
            image_root=root_in_card(root.resolve(), out.resolve(), out.resolve().parent),
            provenance={"source": source, "seed": choices.seed},
            sample=samples.sample,
            notes=notes,
            **card,
        )
    say(f"{notes['splits']}; {_several(found, patients, together)}")


def _of_classes(table: LabelTable, kind: str, train: np.ndarray, say: Say) -> dict[str, str]:
    """Says what is taken for classes; notes on them, with a warning where no job can learn from the training split, see
    :mod:`fedmend.kinds`."""
    say(f"{kind}, {len(table.classes)} classes: {', '.join(table.classes)[:200]}")
    ones, zeros = ((table.labels[train] == value).any(0) for value in (1, 0))
    if kind == SINGLELABEL:
        task, why = "one column 'label'", "it has fewer than two classes" if ones.sum() < 2 else ""
    else:
        names = ", ".join(compress(table.classes, table.annotated & ~(ones & zeros)))[:200]
        hint = "leave out the column of a class that nobody looks for here"
        task, why = "one column for each class", f"classes ({names}) have no 1 or no 0 in it; {hint}" if names else ""
    if not why:
        return {"task": task}
    say(warning := f"WARNING: jobs refuse the training split, as {why}")
    return {"task": task, "training": warning}


def _samples(table: LabelTable, kind: str, root: Path, patients: Sequence[str], studies: Sequence[str]) -> Samples:
    """The samples of a table, patients and studies as running numbers."""
    single, numbers, places = kind == SINGLELABEL, running_numbers(patients), running_numbers(studies, "s")
    labels = np.where(table.labels.max(1) == 1, table.labels.argmax(1), -1) if single else table.labels  # -1: blank
    return Samples(
        images=table.images,
        labels=labels,
        classes=table.classes,
        image_root=root,
        patients=[numbers.get(patient, "") for patient in patients] if numbers else (),
        studies=[places[study] for study in studies],
        sample=STUDY if studies else IMAGE,
    )


def _studies_of(table: LabelTable, choices: SiteChoices, say: Say) -> Sequence[str]:
    """The study of each image where labels are of studies, else nothing."""
    names = table.about.get(STUDY, ())
    if choices.per_study:
        by_study(table, table.file)  # refuses labels that differ within a study
        return names
    own: dict[str, set[bytes]] = {}
    for name, row in zip(names, table.labels, strict=False):
        own.setdefault(name, set()).add(row.tobytes())
    if all(names) and len(own) < len(names) and all(len(rows) == 1 for rows in own.values()):
        say("in each study all images have the same labels; if they are labels of studies, --per-study keeps them so")
    return ()


def _found(units: Sequence[str], patients: Sequence[str], alone: str) -> set[str]:
    """Those of :data:`UNITS` by which images are kept together; ``alone`` where no patient is known."""
    known = ({*units} - {"image"} or {"patient"}) if any(patients) else set()
    return known | (set() if all(patients) else {alone})


def _several(found: Collection[str], patients: Sequence[str], together: Sequence[str]) -> str:
    words = [UNITS[unit] for unit in UNITS if unit in found and unit != "image"]
    count = len({*patients} - {""}) or len({*together}) * ("study" in found)
    return f"{count} {' and '.join(words) or 'patients'}"


def kept_together(found: Collection[str]) -> str:
    """By what splits are drawn, in words.

    Args:
        found: those of :data:`UNITS` that images were kept together by; ``image``: some stand alone.
    """
    first, *others = (unit for unit in UNITS if unit in found)
    if first != "patient":
        return f"{' or '.join([first, *others])}, as no patients are known"
    return f"patient, or {' or '.join(others)} where none is known" if others else "patient"


def splits_note(parts: Mapping[str, np.ndarray], sections: Sequence[str], seed: int, by: str) -> str:
    """Why the splits are as they are: those that are the sections of a list were given, the others drawn."""
    own = {name: [i for i, section in enumerate(sections) if section == name] for name in parts}
    listed = [name for name, index in parts.items() if sections and sorted(index.tolist()) == own[name]]
    how = "as in the list" if len(listed) == len(parts) else f"drawn with seed {seed} by {by}"
    if 0 < len(listed) < len(parts):
        how = f"{' and '.join(listed)} as in the list, the others {how}"
    return f"{how}: {', '.join(f'{name} {count}' for name, count in sizes(parts).items())} images"


def seen_card(root: Path, images: Sequence[str], choices: SiteChoices, say: Say) -> tuple[dict, dict[str, str]]:
    """The fields of the card that depend on the images, and field → reason.

    Raises:
        FedMendError: none of the images that are looked at can be read.
    """
    seen = look_at(root, some_of(images))
    for line in seen.lines():
        say(line)
    if not seen.sizes:
        got = f"none of {sum(seen.formats.values())}: {next(iter(seen.unreadable))}"
        raise FedMendError(f"images: expected some that can be read, got {got}")
    proposed = proposal(seen)
    asked = {} if choices.window is AS_SEEN else {"window": choices.window}
    notes = notes_of(proposed, asked)
    card = {name: asked.get(name, value) for name, (value, _) in proposed.items() if name != "image_size"}
    for name, why in notes.items():
        say(f"{name}{f' = {card[name]}' if name in card else ''}: {why}")
    return card, notes


def parse_window(text: str) -> str | tuple[float, float] | None:
    """A window in words: ``file``, ``none``, a name, or ``40,80``.

    Raises:
        FedMendError: another word.
    """
    if text == "file" or text in WINDOWS:
        return text
    if text == "none":
        return None
    try:
        centre, width = (float(word) for word in text.split(","))
    except ValueError:
        centre = width = 0.0
    words = f"file, none, one of {sorted(WINDOWS)} or CENTRE,WIDTH"
    need(is_window(centre, width), "argument window", words, f"{text!r:.40}")
    return (centre, width)


def add_choices(parser: ArgumentParser) -> None:
    """Adds the fields of :class:`SiteChoices`."""
    words = "share of the patients, of the images where none are known (default {}); 0 writes no such split"
    helps = {name: words.format(getattr(SiteChoices, name)) for name in ("test_share", "val_share")}
    options(parser, SiteChoices, **helps, seed="of the split")
    words = "file, none, brain, subdural, bone, lung or CENTRE,WIDTH (default: by a look at the images)"
    parser.add_argument("--window", help=words)
    words = "where no column names patients: regular expression for the part of an image's path that does"
    parser.add_argument("--patient-from-path", metavar="REGEX", help=words)


def per_study_argument(parser: ArgumentParser) -> None:
    """Adds that labels are of studies, for tables of single images."""
    words = "a label is of a study and not of each of its images, which name it in a column study or as DICOM"
    parser.add_argument("--per-study", action="store_true", help=words)


def choices_of(args: Namespace) -> SiteChoices:
    """What :func:`add_choices` have parsed."""
    return made(SiteChoices, args, window=AS_SEEN if args.window is None else parse_window(args.window))


def done(out: Path, say: Say) -> int:
    """Says the last lines of a command: how the training images look with the card that was written, where pictures of
    some of them lie, and what comes next.

    Args:
        out: the site folder.
        say: called with one line of text at a time.

    Returns:
        The command's exit code: 0, or :data:`SOME_UNUSABLE`.

    Raises:
        FedMendError: a site folder that cannot be used, or images from which nothing can be learned.
    """
    card = load_card(out, out.name)
    names, pictures, refused, of_masks = training_pictures(card, SHOWN_SIZE)
    found = findings(card, names, pictures)
    lines = [*found.lines, *(f"warning: {words}" for words in (*found.warnings, *of_masks))]
    if refused:
        lines.append(f"warning: {len(refused)} of the training images that were opened cannot be used: {refused[0]}")
        lines.append(f"a job refuses {'them' if card.kind == SEGMENTATION else 'more of them than max_unreadable'}")
    if len(pictures):
        contact_sheet(pictures, out / SHEET)
        lines.append(f"look at training images as the network will see them; they stay here: {out / SHEET}")
    if found.impossible and not refused:
        raise FedMendError(f"training images: {found.impossible}; the site folder is {out}")
    for line in [*lines, f"the site folder is {out}; check it: {shlex.join(['fedmend', 'sitecheck', str(out)])}"]:
        say(line)
    return SOME_UNUSABLE if refused else 0
