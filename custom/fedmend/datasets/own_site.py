"""A hospital's own images and labels → its site folder: splits by patient, a card whose notes say why it is so.

The images stay where they are. Patients become running numbers: nothing needs more than who is the same.
"""

import contextlib
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import whole_folder
from fedmend.data.card import WINDOWS, load_card, stays_below, write_card
from fedmend.data.identity import as_on_disk, file_key, is_missing, merged, split_frame
from fedmend.data.look import look_at, notes_of, proposal, some_of
from fedmend.data.plausible import contact_sheet, findings, training_pictures
from fedmend.data.raw import is_window
from fedmend.data.tables import LabelTable
from fedmend.datasets.checks import need
from fedmend.datasets.command_line import made, options
from fedmend.datasets.own_labels import Labelled
from fedmend.datasets.samples import Samples, Say, class_by_class, hold_out, sizes
from fedmend.datasets.site_folders import check_empty, root_in_card, write_split
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION, SINGLELABEL

PATIENT_WORDS = ("patient", "subject", *(rf"(?<![a-z]){word}" for word in ("sub", "subj", "pat", "pid", "case")))
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

    Raises:
        FedMendError: a number out of its range.
    """

    test_share: float = 0.2
    val_share: float = 0.1
    seed: int = 1037
    window: Any = AS_SEEN
    uncertain: str | None = None
    patient_from_path: str | None = None

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
        with contextlib.suppress(ValueError, OSError):  # no name that a file can have
            image = as_on_disk(root, image) if inside else image
            inside = inside and (root / split_frame(image)[0]).resolve().is_relative_to(top)
            key = file_key(root, image)
        if not inside or key is None:
            got = "got another" if not inside else "not found"
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
        FedMendError: an image is missing or outside its folder, or two rows give one image different labels.
    """
    names, firsts = found_files(table.images, root, lambda i: f"{table.file} row {table.rows[i]}, column image")
    for i, first in enumerate(firsts):
        words = f"the labels of row {table.rows[first]}, which names the same image"
        same = np.array_equal(table.labels[i], table.labels[first])
        need(same, f"{table.file} row {table.rows[i]}", words, "others")
    keep = [i for i, first in enumerate(firsts) if first == i]
    if repeated := len(firsts) - len(keep):
        say(f"{repeated} rows name an image a second time and are left out")
    images, patients = (tuple(values[i] for i in keep) for values in (names, table.patients))
    return replace(table, rows=table.rows[keep], images=images, patients=patients, labels=table.labels[keep])


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
        pattern: regular expression that finds the patient in the path of an image, by its first group if it has one,
            where ``patients`` has none; None: the paths say nothing.
        say: called with one line of text at a time.

    Returns:
        N keys, blank for unknown; ids that differ in case, leading zeros or the like have one, as a split must not tear
        a patient apart. Notes, which begin with WARNING where images of one patient may be in several splits.

    Raises:
        FedMendError: a pattern that is none, or that finds nothing.
    """
    named = ["" if is_missing(patient) else patient for patient in patients]
    if pattern is not None:
        named = [patient or found for patient, found in zip(named, _in_paths(images, pattern), strict=True)]
    keys, others = merged(named)
    lines = []
    if unknown := sum(not key for key in keys):
        hint = "name them in a column or field patient (csv: --columns patient=COLUMN)"
        if (guess := guess_pattern(images)) and pattern is None:
            hint = f"the paths seem to name them: --patient-from-path '{guess}'"
        lines.append(
            f"WARNING: no patient is known of {unknown} of {len(keys)} images, so that one patient may be in several"
            f" splits; {hint}"
        )
    if others:
        lines.append(
            f"{others} ids differ from another one in case, leading zeros or the writing of a number only, and count"
            " as the same patient"
        )
    for line in lines:
        say(line)
    return keys, {"patients": "; ".join(lines)} if lines else {}


def _in_paths(images: Sequence[str], pattern: str) -> list[str]:
    try:
        compiled = re.compile(pattern)
    except re.error:
        raise FedMendError("argument patient_from_path: expected a regular expression, got another text") from None
    found = [match[bool(compiled.groups)] or "" if (match := compiled.search(image)) else "" for image in images]
    need(any(found), "argument patient_from_path", "a part of the images' paths", "none that it finds")
    return found


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
    units: Sequence[str] = (),
    say: Say = lambda line: None,
) -> None:
    """Writes ``out``: a table for each split and the card.

    Args:
        out: folder that is not there yet, or empty.
        labelled: all samples; rows without a patient are a unit each.
        root: folder of the images.
        choices: what the hospital decides.
        source: what the card names as source.
        parts: split → numbers of its samples, each image once, with patients as :func:`patients_of` gives them; None:
            drawn as the hospital decides.
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
    patients: Sequence[str] = table.patients
    if parts is None:
        patients, about = patients_of(patients, table.images, choices.patient_from_path, say)
        notes = notes | about
    together = [f"patient {p}" if p else f"image {i}" for i, p in enumerate(patients)]
    numbers = running_numbers(patients)
    seed, parts = (choices.seed, split_units(together, choices, table.labels == 1)) if parts is None else (None, parts)
    card, seen = seen_card(root, table.images, choices, say)
    seen["task"] = "one column 'label'" if (single := kind == SINGLELABEL) else "one column for each class"
    notes = {**seen, "splits": splits_note(sizes(parts), seed, kept_together(_found(units, patients))), **notes}
    labels = np.where(table.labels.max(1) == 1, table.labels.argmax(1), -1) if single else table.labels  # -1: blank
    keys = [numbers.get(patient, "") for patient in patients] if numbers else ()
    samples = Samples(images=table.images, labels=labels, classes=table.classes, image_root=root, patients=keys)
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
            notes=notes,
            **card,
        )
    say(f"{notes['splits']}; {len(numbers)} {_several(_found(units, patients))}")


def _found(units: Sequence[str], patients: Sequence[str]) -> set[str]:
    known = ({*units} - {"image"} or {"patient"}) if any(patients) else set()
    return known | (set() if all(patients) else {"image"})


def _several(found: Collection[str]) -> str:
    words = [UNITS[unit] for unit in UNITS if unit in found and unit != "image"]
    return " and ".join(words) or "patients"


def kept_together(found: Collection[str]) -> str:
    """By what splits are drawn, in words.

    Args:
        found: those of :data:`UNITS` that images were kept together by; ``image``: some stand alone.
    """
    first, *others = (unit for unit in UNITS if unit in found)
    if first != "patient":
        return f"{' or '.join([first, *others])}, as no patients are known"
    return f"patient, or {' or '.join(others)} where none is known" if others else "patient"


def running_numbers(patients: Sequence[str]) -> dict[str, str]:
    """Patient → p1, p2, ..., in the order in which they come; blank ones have none."""
    return {patient: f"p{n}" for n, patient in enumerate(dict.fromkeys(p for p in patients if p), 1)}


def splits_note(sizes: Mapping[str, int], seed: int | None, by: str) -> str:
    """Why the splits are as they are; without a seed they were given."""
    how = "as in the list" if seed is None else f"drawn with seed {seed} by {by}"
    return f"{how}: {', '.join(f'{name} {count}' for name, count in sizes.items())} images"


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
    names, pictures, refused = training_pictures(card, SHOWN_SIZE)
    found = findings(card, names, pictures)
    lines = [*found.lines, *(f"warning: {words}" for words in found.warnings)]
    if refused:
        lines.append(f"warning: {len(refused)} of the training images that were opened cannot be used: {refused[0]}")
        lines.append(f"a job refuses {'them' if card.kind == SEGMENTATION else 'more of them than max_unreadable'}")
    if len(pictures):
        contact_sheet(pictures, out / SHEET)
        lines.append(f"look at training images as the network will see them; they stay here: {out / SHEET}")
    if found.impossible and not refused:
        raise FedMendError(f"training images: {found.impossible}; the site folder is {out}")
    for line in [*lines, f"the site folder is {out}; check it: fedmend sitecheck {out}"]:
        say(line)
    return SOME_UNUSABLE if refused else 0
