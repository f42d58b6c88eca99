"""A hospital's own datalist, as MONAI and the Medical Segmentation Decathlon write them → its site folder.

``{"training": [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}], "test": [...]}``: masks make a
segmentation site, class numbers a single-label one, lists of 0 and 1 a multi-label one. Items without label, as the
Decathlon's test images, are left out. An item may name its ``patient`` (or ``patient_id``, ``subject``, ...), and one
with a mask the ``slices`` that are used. Without labelled items in the sections ``validation`` or ``test`` those splits
are drawn. Masks of several structures have a value for each; a hospital that marks only some names them.
"""

import itertools
import json
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.files import whole_folder
from fedmend.basics.json_files import read_document
from fedmend.basics.words import say
from fedmend.data.card import stays_below, write_card
from fedmend.data.datalist import SECTIONS, check_shared, slices_of
from fedmend.data.identity import canonical, is_missing, loose, one_path
from fedmend.data.readers import NIFTI_SUFFIXES
from fedmend.data.volumes import has_value, load_nifti
from fedmend.datasets.checks import need
from fedmend.datasets.own_csv import MOST_CLASSES, class_names, labels_of
from fedmend.datasets.own_labels import uncertain_argument
from fedmend.datasets.own_pairs import mixed_up
from fedmend.datasets.own_patients import kept_with, patients_of, running_numbers
from fedmend.datasets.own_site import (
    SiteChoices,
    add_choices,
    choices_of,
    done,
    found_files,
    seen_card,
    split_units,
    splits_note,
    write_own_site,
)
from fedmend.datasets.samples import Say
from fedmend.datasets.site_folders import check_empty, root_in_card
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL

SOURCE = "own datalist"
DATALIST = "datalist.json"
UNCERTAIN = -1  # a label, or one of a list
LOOKED_AT = 5  # masks, of which each holds a volume
PATIENT = {"patient", "patientid", "patientkey", "subject", "subjectid", "pid"}  # fields, in small letters
Item = dict[str, Any]  # image, label, patient, slices and split


def prepare(
    source: Path,
    out: Path,
    *,
    images: Path | None = None,
    classes: Sequence[str] = (),
    annotated: Sequence[str] = (),
    choices: SiteChoices,
    progress: Say | None = None,
) -> None:
    """Writes the site folder ``out``; images stay where they are, masks are copied into it.

    Args:
        source: the datalist.
        out: folder that is not there yet, or empty.
        images: folder that the paths in the datalist start from; None: that of the datalist.
        classes: names of the classes, in the order of their numbers; empty: ``lesion``, or ``class_0``, ...
        annotated: of several structures those that the masks show, in the order of their values; empty: all.
        choices: what the hospital decides.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a datalist that cannot be used, a file that is missing or outside its folder, masks with other
            values than there are structures, or ``out`` is taken.
    """
    say, source = progress or (lambda line: None), Path(source)
    root = source.parent if images is None else Path(images)
    items, notes = _known_patients(read_items(source, say), choices, say)
    kind = _kind_of_all(items)
    named, numbers = _named_values(source), [*range(len(classes))]
    if kind == SEGMENTATION:
        _write_volumes(out, items, root, (classes, annotated, named), choices, source.name, notes, say)
        return
    need(not annotated, "argument annotated", "masks", "other labels")
    if classes:
        _check_named({"values": numbers}, numbers, classes, classes, named, source.name)
    header, rows = _rows(items, kind, classes)
    labelled = labels_of(header, rows, classes, file=source.name, say=say, uncertain=choices.uncertain)
    repeated = len(items) - len(labelled.table.images)
    need(not repeated, source.name, "each image once", f"{repeated} repeated")
    parts = _parts(items, choices, labelled.table.labels == 1)
    labelled = labelled._replace(notes=labelled.notes | notes)
    sections = [item["split"] for item in items]
    write_own_site(out, labelled, root=root, choices=choices, source=SOURCE, parts=parts, sections=sections, say=say)


def read_items(file: Path, say: Say) -> list[Item]:
    """All items with a label, training ones first.

    Raises:
        FedMendError: a datalist that cannot be used.
    """
    raw = read_document(file, file.name, "a datalist")
    if not isinstance(raw, dict) or not isinstance(raw.get("training"), list):
        raise FedMendError(f"{file.name}: expected a list under 'training', got none")
    items: list[Item] = []
    unlabelled, left = 0, set[str]()
    for split, section in SECTIONS.items():
        listed = raw.get(section, [])
        for number, given in enumerate(listed if isinstance(listed, list) else [None], 1):
            where = f"{file.name}, {section} item {number}"
            label = _label(given.get("label")) if isinstance(given, dict) else None
            if isinstance(given, str) or (isinstance(given, dict) and label is None):
                unlabelled += 1
                continue
            image = given.get("image") if isinstance(given, dict) else None
            if not isinstance(image, str) or not image or not stays_below(one_path(image)):
                raise FedMendError(f"{where}, field image: expected one path below the folder of the images, got none")
            item = {"image": one_path(image), "label": label, "split": split, "where": where}
            item["slices"] = slices_of(given, where) if isinstance(label, str) else None
            items.append({**item, "patient": _patient(given, where)})
            used = {"image", "label", *(["slices"] if isinstance(label, str) else [])}
            left |= {name for name in given if name not in used and not _names_patient(name)}
    _tell_of_sections(raw, say)
    if left:
        say(f"fields of items that are left out: {', '.join(sorted(left))[:200]}")
    if unlabelled:
        say(f"{unlabelled} items without label are left out")
    need(items, file.name, "items with a label", "none")
    return items


def _tell_of_sections(raw: Mapping[str, Any], say: Say) -> None:
    """Says which items nobody reads, as their section has another name."""
    lists = {name: value for name, value in raw.items() if name not in SECTIONS.values() and isinstance(value, list)}
    others = {name: sum(isinstance(item, dict) and "image" in item for item in value) for name, value in lists.items()}
    if count := sum(others.values()):
        names = ", ".join(repr(name) for name, number in others.items() if number)[:200]
        say(f"WARNING: {count} items under {names} are left out; sections are {', '.join(SECTIONS.values())}")


def _label(value: object) -> object:
    """A label with one spelling of a path, 2 for the 2.0 of a data frame, and None for its word for a missing value."""
    if isinstance(value, list):
        return [_label(v) for v in value] if len(value) <= MOST_CLASSES else value
    if isinstance(value, str):
        return None if is_missing(value) else one_path(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value


def _patient(item: dict, where: str) -> str:
    """The id in an item, or an empty word.

    Raises:
        FedMendError: a field for patients that is no id.
    """
    for name, value in item.items():
        if _names_patient(name) and value is not None:
            good = isinstance(value, (str, int, float)) and not isinstance(value, bool)
            need(good, f"{where}, field for the patient", "a text or a number", "another type")
            return canonical(str(value))
    return ""


def _names_patient(field: str) -> bool:
    return re.sub("[_ -]", "", field).lower() in PATIENT


def _known_patients(items: Sequence[Item], choices: SiteChoices, say: Say) -> tuple[list[Item], dict[str, str]]:
    """The items with one key for each patient, and what people should know about patients, for the card's notes."""
    given = [item["patient"] for item in items]
    keys, notes = patients_of(given, [item["image"] for item in items], choices.patient_from_path, say)
    splits: dict[str, set[str]] = {}
    for key, item in zip(keys, items, strict=True):
        splits.setdefault(key, set()).add(item["split"])
    if several := sum(bool(key) and len(own) > 1 for key, own in splits.items()):
        line = f"WARNING: {several} patients are in several sections of the list, and so in several splits"
        notes = {"patients": "; ".join([line, *notes.values()])}
        say(line)
    return [{**item, "patient": key} for item, key in zip(items, keys, strict=True)], notes


def _kind_of_all(items: Sequence[Item]) -> str:
    """The kind of labels; refuses the first item whose label is of none, or of another than those before."""
    first = _kind(items[0]["label"])
    for item in items:
        kind, where = _kind(item["label"]), f"{item['where']}, field label"
        need(kind, where, "a mask (NIfTI), a class number or a list of 0 and 1", "another")
        need(kind == first, where, f"a label for {first}, as before", f"one for {kind}")
    return first


def _kind(label: object) -> str:
    """The kind of labels, or an empty word for none."""
    if isinstance(label, str):
        return SEGMENTATION if label.lower().endswith(NIFTI_SUFFIXES) else ""
    if type(label) is int and UNCERTAIN <= label < MOST_CLASSES:
        return SINGLELABEL
    known = (0, 1, None, UNCERTAIN)
    several = isinstance(label, list) and 1 <= len(label) <= MOST_CLASSES and all(v in known for v in label)
    return MULTILABEL if several else ""


def _parts(items: Sequence[Item], choices: SiteChoices, positives: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Split → numbers of its items: those of the sections, and where one has none, drawn from the training ones by
    their classes, ``positives`` (N, K) bool."""
    split_of = np.array([item["split"] for item in items])
    given = {name: np.flatnonzero(split_of == name) for name in SECTIONS}
    shares: dict[str, Any] = {f"{name}_share": 0.0 for name in ("test", "val") if len(given[name])}
    train = given["train"]
    units = kept_with([item["patient"] for item in items], [item["image"] for item in items], ())
    of_train, own = [units[i] for i in train.tolist()], None if positives is None else positives[train]
    drawn = {name: train[index] for name, index in split_units(of_train, replace(choices, **shares), own).items()}
    return {**drawn, **{name: index for name, index in given.items() if name != "train" and len(index)}}


def _rows(items: Sequence[Item], kind: str, classes: Sequence[str]) -> tuple[list[str], list[tuple[int, dict]]]:
    """Items with labels of classes as header and rows of a table."""
    labels = [item["label"] for item in items]
    names = list(classes) or [f"class_{c}" for c in range(len(labels[0]) if kind == MULTILABEL else max(labels) + 1)]
    rows = []
    for number, (item, label) in enumerate(zip(items, labels, strict=True), 1):
        where = f"{item['where']}, field label"
        if kind == SINGLELABEL:
            need(label < len(names), where, f"the number of one of {len(names)} classes, from 0", "a larger one")
            cells = {"label": str(label) if label == UNCERTAIN else names[label]}
        else:
            need(len(label) == len(names), where, f"a list for {len(names)} classes", f"one of {len(label)} numbers")
            cells = {name: "" if value is None else str(int(value)) for name, value in zip(names, label, strict=True)}
        rows.append((number, {"image": item["image"], "patient": item["patient"], **cells}))
    return list(rows[0][1]), rows


def _write_volumes(
    out: Path,
    items: Sequence[Item],
    root: Path,
    structures: tuple[Sequence[str], Sequence[str], Mapping[str, int]],
    choices: SiteChoices,
    file: str,
    about: Mapping[str, str],
    say: Say,
) -> None:
    """A segmentation site: ``datalist.json`` and copies of the masks; ``structures``: all, those annotated, and
    what the list says of their values."""
    check_empty(out)
    images, firsts = found_files([item["image"] for item in items], root, lambda i: f"{items[i]['where']}, field image")
    masks, owners = found_files([item["label"] for item in items], root, lambda i: f"{items[i]['where']}, field label")
    items = [{**item, "image": image, "label": mask} for item, image, mask in zip(items, images, masks, strict=True)]
    repeated = len(images) - len(set(firsts))
    need(not repeated, file, "each image once", f"{repeated} repeated")
    for item, owner in zip(items, (items[i] for i in owners), strict=True):
        if owner is not item:
            check_shared(owner["patient"], item["patient"], f"{item['where']}, field label", owner["where"])
    about = {**about, **_pairs(items, say)}
    classes, parts = list(structures[0]) or ["lesion"], _parts(items, choices)
    fields = _values(seen := _seen_values(items, root), classes, structures[1], parts)
    _check_named(fields, seen, classes, structures[1] or classes, structures[2], file)
    card, notes = seen_card(root, images, choices, say)
    by, sections = "patient, or volume where none is named", [item["split"] for item in items]
    notes |= {"splits": splits_note(parts, sections, choices.seed, by), **about}
    which = "the one value" if len(classes) == 1 else "the values"
    notes[next(iter(fields))] = f"{which} but 0 of the {min(LOOKED_AT, len(items))} masks that were looked at"
    numbers = running_numbers([item["patient"] for item in items])
    with whole_folder(out.resolve()) as folder:
        (folder / "labels").mkdir()
        listed: dict[str, list] = {section: [] for split, section in SECTIONS.items() if split in parts}
        for split, index in parts.items():
            for i in index:
                mask = f"labels/{i + 1:05d}{'.nii.gz' if masks[i].lower().endswith('.gz') else '.nii'}"
                shutil.copyfile(root / masks[i], folder / mask)
                item = {"image": images[i], "label": mask}
                item |= {"slices": items[i]["slices"]} if items[i]["slices"] else {}
                item |= {"patient": numbers[items[i]["patient"]]} if items[i]["patient"] else {}
                listed[SECTIONS[split]].append(item)
        (folder / DATALIST).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        write_card(
            folder,
            task=SEGMENTATION,
            classes=classes,
            splits=dict.fromkeys(parts, DATALIST),
            image_root=root_in_card(root.resolve(), out.resolve(), out.resolve().parent),
            provenance={"source": SOURCE, "seed": choices.seed},
            notes=notes,
            **fields,
            **card,
        )
    say(f"{notes['splits']}; {len(numbers)} patients")


def _pairs(items: Sequence[Item], say: Say) -> dict[str, str]:
    """A note for the card where the names of masks are those of other images."""
    found = mixed_up(*([item[name] for item in items] for name in ("image", "label", "patient")))
    if not found:
        return {}
    words = "masks have names that fit another image of the list better than their own; are patients mixed up?"
    say(line := f"WARNING: {len(found)} of {len(items)} {words} The first: {items[found[0]]['where']}")
    return {"pairs": line}


def _values(
    found: Sequence[int], classes: Sequence[str], annotated: Sequence[str], parts: Collection[str]
) -> dict[str, Any]:
    """The fields of the card that say what the values ``found`` in masks mean."""
    if len(classes) == 1:
        got = f"{len(found)} other values; name the structures with --classes, or write masks of one of them first"
        need(len(found) <= 1, "labels", "masks of 0 and one other value", got)
        return {"foreground": found[0] if found else 1}
    unknown = [name for name in annotated if name not in classes]
    need(not unknown, "argument annotated", f"some of {list(classes)}", unknown)
    shown = [name for name in classes if name in annotated] or list(classes)
    values = dict(zip(shown, found if len(found) == len(shown) else range(1, len(shown) + 1), strict=True))
    words = f"masks with a value for each of {', '.join(shown)}, or those from 1 to {len(shown)}"
    need({*found} <= {*values.values()}, "labels", words, f"{len(found)} values but 0")
    free = (n for n in itertools.count(1) if n not in values.values())  # of what no mask shows
    numbers = [values[name] if name in values else next(free) for name in classes]
    return {"values": numbers, "annotated": dict.fromkeys(parts, shown) if annotated else {}}


def _named_values(file: Path) -> dict[str, int]:
    """Loose name of a structure → its value, where a list says so under ``labels``: ``{"1": "liver"}`` of the
    Decathlon, or ``{"liver": 1}`` of nnU-Net."""
    raw = read_document(file, file.name, "a datalist")
    listed = raw.get("labels") if isinstance(raw, dict) else None
    found: dict[str, int] = {}
    for one, other in listed.items() if isinstance(listed, dict) else ():
        name, value = (one, other) if type(other) is int else (other, one)
        if isinstance(name, str) and str(value).isdecimal():
            found[loose(name)] = int(value)
    return found


def _check_named(
    fields: Mapping[str, Any],
    found: Sequence[int],
    classes: Sequence[str],
    shown: Sequence[str],
    named: Mapping[str, int],
    file: str,
) -> None:
    """Refuses names that the list gives to other values, where masks have one of the two."""
    values = dict(zip(classes, fields.get("values") or [fields.get("foreground")], strict=True))
    known = {name: named[loose(name)] for name in shown if loose(name) in named}
    good = all(values[name] == value or not {values[name], value} & {*found} for name, value in known.items())
    words = ", ".join(f"{name} = {value}" for name, value in sorted(known.items(), key=lambda pair: pair[1]))
    got = ", ".join(f"{name} = {values[name]}" for name in known)
    need(good, f"{file}, field labels", f"names in the order of the values there ({words})", got)


def _seen_values(items: Sequence[Item], root: Path) -> list[int]:
    """The values but 0 of some of the masks."""
    values: set[int] = set()
    for item in items[:LOOKED_AT]:
        where = f"{item['where']}, label"
        _, voxels = load_nifti(root / item["label"], where)
        present = np.unique(voxels)
        whole = [int(v) for v in np.round(present)] if len(present) <= 256 else []
        good = whole and min(whole) >= 0 and all(has_value(v, present).any() for v in whole)
        need(good, where, "a mask of whole numbers from 0", "others")
        values |= set(whole) - {0}
    return sorted(values)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="datalist (JSON)")
    parser.add_argument("out", type=Path, help="the site folder that is made")
    parser.add_argument("--images", type=Path, help="folder that its paths start from (default: that of the datalist)")
    parser.add_argument("--classes", default="", help="names of the classes, in the order of their numbers")
    words = "of several structures those that the masks show, in the order of --classes and their values (default all)"
    parser.add_argument("--annotated", default="", help=words)
    uncertain_argument(parser)
    add_choices(parser)


def _run(args: Namespace) -> int:
    given = {"images": args.images, "classes": class_names(args.classes), "choices": choices_of(args)}
    given["annotated"] = class_names(args.annotated)
    prepare(args.source, args.out, **given, progress=say)
    return done(args.out, say)


COMMANDS = (
    Command(
        "datalist",
        "your own datalist of MONAI, volumes with masks or images with classes: one site folder",
        _add_arguments,
        _run,
    ),
)
