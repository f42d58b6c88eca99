"""Asks a hospital about its data, looks at them, proposes each choice with a reason, and writes the site folder.

Every question has a proposal, which an empty answer takes. The work is that of ``fedmend prepare csv``, ``datalist``
and ``dicom``; a line says which command would do the same.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend.basics.words import say
from fedmend.data.card import CARD_NAME, stays_below
from fedmend.data.identity import as_on_disk, file_key, is_missing, loose, names_of, one_path
from fedmend.data.look import look_at, proposal, some_of
from fedmend.data.readers import NIFTI_SUFFIXES, PICTURE_SUFFIXES
from fedmend.datasets import own_csv, own_datalist, own_dicom
from fedmend.datasets.checks import need
from fedmend.datasets.own_csv import class_names, class_words
from fedmend.datasets.own_labels import FLAGS, class_columns, is_uncertain
from fedmend.datasets.own_patients import guess_pattern
from fedmend.datasets.own_site import AS_SEEN, SiteChoices, done, parse_window
from fedmend.datasets.samples import Say
from fedmend.errors import FedMendError

NONE = "none"
SAMPLE = 500  # rows that columns are judged by
# Words of columns that name a patient, say what a label is, or describe patient, image and reading.
PEOPLE = {"patient", "paciente", "paziente", "pat", "subject", "participant"}
IDS = {"id", "ids", "uid", "key", "number", "no", "nr", "code", "pseudonym", "mrn", "ennummer", "numéro", "número"}
LABELS = {
    *("label", "labels", "diagnosis", "diagnose", "dx", "class", "category", "finding", "target", "pathology"),
    *("befund", "klasse", "diagnostic", "classe", "diagnóstico", "clase", "diagnosi"),
}
DESCRIBING = {
    *("sex", "gender", "age", "birth", "birthdate", "dob", "weight", "height", "size", "race", "ethnicity", "history"),
    *("comment", "comments", "status", "view", "position", "orientation", "laterality", "side", "quality"),
    *("localization", "scanner", "device", "manufacturer", "vendor", "model", "station", "modality", "site"),
    *("center", "centre"),
    *("hospital", "institution", "split", "fold", "set", "subset", "partition", "date", "time", "year", "reader"),
    *("geschlecht", "alter", "männlich", "weiblich", "gewicht", "größe", "seite", "gerät", "klinik", "jahr", "zeit"),
    *("sexe", "âge", "naissance", "poids", "taille", "côté", "appareil", "hôpital", "heure", "année"),
    *("sexo", "edad", "nacimiento", "peso", "talla", "lado", "equipo", "fecha", "hora", "año"),
    *("sesso", "età", "nascita", "lato", "ospedale", "data", "ora", "anno", "geslacht", "leeftijd", "jaar"),
}
DAY = "datum"  # ends the words for dates in German and Dutch


@dataclass(frozen=True)
class Answers:
    """What has been said on the command line; None: it is asked.

    Attributes:
        folder: of the images.
        labels: table or datalist, or the word ``none``.
        out: the site folder.
        classes: all classes of the federation, comma-separated.
        columns: names of columns, see :func:`own_csv.column_names`.
        window: see :func:`fedmend.datasets.own_site.parse_window`.
        test_share: share of the patients, or of the images where none are known, in the test split.
        val_share: share of the others in the validation split.
        seed: of the split.
        uncertain: what uncertain labels are taken as, see :class:`fedmend.datasets.own_site.SiteChoices`.
        patient_from_path: regular expression for the part of a path that names the patient.
    """

    folder: str | None = None
    labels: str | None = None
    out: str | None = None
    classes: str | None = None
    columns: tuple[str, ...] | None = None
    window: str | None = None
    test_share: float | None = None
    val_share: float | None = None
    seed: int = SiteChoices.seed
    uncertain: str | None = None
    patient_from_path: str | None = None


class Wizard:
    """One conversation.

    Args:
        given: what needs no question.
        ask: a question with its proposal → the answer.
        say: takes a line.
    """

    def __init__(self, given: Answers, ask: Callable[[str], str], say: Say = say):
        self._given, self._ask, self._say = given, ask, say
        self.exit_code = 0  # of the command, once the folder is there

    def run(self) -> Path:
        """Asks, and writes the folder that it gives back.

        Raises:
            FedMendError: data that cannot be used.
        """
        folder = Path(self._answer("folder", "Folder of the images", ".", "the images stay there"))
        if not folder.is_dir():
            raise FedMendError("init, folder of the images: expected a folder, not found")
        labels = self._labels(folder)
        if labels is not None and labels.suffix.lower() == ".json":
            return self._datalist(folder, labels)
        columns, classes, header, rows = self._columns(folder, labels)
        by_key = labels is not None and "image" not in header
        if labels is not None and by_key:
            words = f"a column with paths of images below their folder, endings included, or one of {[*own_dicom.KEYS]}"
            found = any(name in header for name in own_dicom.KEYS)
            need(found, f"{labels.name}, header", f"{words} (--columns image=ITS_NAME)", "others")
        if labels is None or by_key:
            return self._dicom(folder, labels, columns, classes)
        uncertain = self._uncertain(header, rows, classes)
        labelled = own_csv.labels_of(
            header, rows, classes, file=labels.name, say=lambda line: None, uncertain=uncertain
        )
        table = labelled.table
        pattern = None if any(table.patients) else self._pattern(table.images)
        units = "patients" if any(table.patients) or pattern else "images, as no patients are known"
        choices = replace(self._choices(folder, table.images, units), uncertain=uncertain, patient_from_path=pattern)
        out = self._out(folder)
        self._tell("csv", labels, out, classes=classes, columns=columns, images=folder, choices=choices)
        own_csv.prepare(labels, out, images=folder, classes=classes, columns=columns, choices=choices)
        return self._end(out)

    def _answer(self, name: str, question: str, proposed: object, why: str) -> str:
        given = getattr(self._given, name)
        if given is not None:
            return str(given)
        self._say(f"{question}: {proposed} is proposed: {why}")
        try:
            return self._ask(f"{question} [{proposed}]: ").strip() or str(proposed)
        except EOFError:
            words = "expected an answer, got the end of the input; --yes takes what is proposed"
            raise FedMendError(f"init: {words}") from None

    def _labels(self, folder: Path) -> Path | None:
        tables = sorted(f for f in folder.iterdir() if f.suffix.lower() in (".csv", ".tsv", ".json"))
        proposed = tables[0] if tables else NONE
        why = "the first table or datalist in the folder" if tables else "no CSV or JSON file lies in the folder"
        answer = self._answer("labels", "Table of labels (CSV) or datalist (JSON)", proposed, why)
        if answer == NONE:
            names = {f.name.lower() for f in folder.rglob("*") if f.is_file()}
            other = {n for n in names if not n.endswith((*PICTURE_SUFFIXES, *NIFTI_SUFFIXES, ".json"))}
            wanted = "a table beside pictures, or a datalist as `fedmend prepare volumes` writes it (--labels FILE)"
            need(not names or bool(other), "init, table of labels", wanted, "none")
            return None
        if not Path(answer).is_file():
            raise FedMendError("init, table of labels: expected a file, not found")
        return Path(answer)

    def _columns(
        self, folder: Path, labels: Path | None
    ) -> tuple[dict[str, str], tuple[str, ...], list[str], list[tuple[int, dict]]]:
        """Names of columns, classes, and the table with these names."""
        if labels is None:
            why = "each gets an empty column to fill in"
            return {}, class_names(self._answer("classes", "Classes, comma-separated", "finding", why)), [], []
        header, rows = own_csv.open_table(labels, {})
        guessed = guess_columns(header, [record for _, record in rows[:SAMPLE]], folder)
        shown = " ".join(f"{name}={column}" for name, column in guessed.items()) or NONE
        why = f"of the columns {', '.join(header)[:200]}"
        if self._given.columns is None and guessed:
            answer = self._answer("columns", "Columns with other names", shown, why)
            columns = guessed
            if answer != shown:
                columns = own_csv.column_names([] if answer == NONE else shlex.split(answer))
        else:
            columns = own_csv.column_names(self._given.columns or ())
        header, rows = own_csv.open_table(labels, columns)
        found = guess_classes(header, rows, labels.name) if self._given.classes is None else []
        if self._given.classes is None and (close := nearly_classes(header, rows)):
            cells = ", ".join(f"{name} ({count} of {len(rows)})" for name, count in close.items())
            self._say(f"no classes, as some cells are neither 1, 0 or blank nor words for them: {cells}")
        why = "all names in the column label" if "label" in header else "the columns of 1, 0 and blank"
        answer = self._answer("classes", "All classes of the federation, comma-separated", class_words(found), why)
        classes = class_names(answer)
        if left := _left_out(header, classes, labels.name):
            own_csv.say_left_out(left, self._say)
        return columns, classes, header, rows

    def _uncertain(self, header: Sequence[str], rows: Sequence[tuple[int, dict]], classes: Sequence[str]) -> str | None:
        """What uncertain labels are taken as; asked where there are some."""
        single = "label" in header
        columns = {"label"} if single else set(classes or header) - {"image", "patient", *own_dicom.KEYS}
        found = sum(is_uncertain(record.get(name, "")) for _, record in rows for name in columns)
        if not found or (single and not any(loose(record["label"]) == "-1" for _, record in rows)):
            return self._given.uncertain
        why = f"{found} labels are uncertain (-1, u): a method may fill in what is blank"
        return self._answer("uncertain", "Uncertain labels are taken as (blank, positive, negative)", "blank", why)

    def _pattern(self, images: Sequence[str]) -> str | None:
        """The part of the paths that names patients; asked where the paths seem to do so."""
        guess = guess_pattern(images)
        if guess is None:
            return self._given.patient_from_path
        why = f"the paths seem to name the patients; {NONE} if they do not"
        answer = self._answer("patient_from_path", "Patients by the part of the path that fits", guess, why)
        return None if answer == NONE else answer

    def _choices(self, folder: Path, images: Sequence[str], units: str) -> SiteChoices:
        seen = look_at(folder, some_of(images))
        for line in seen.lines():
            self._say(line)
        window, why = proposal(seen)["window"]
        shown = _window(window, "{:g}".format)
        answer = self._answer("window", "Window", shown, why)
        chosen = AS_SEEN if answer == shown else parse_window(answer)
        test = self._share("test_share", "test", units, "measured")
        val = self._share("val_share", "validation", units, "chosen")
        return SiteChoices(test_share=test, val_share=val, seed=self._given.seed, window=chosen)

    def _share(self, name: str, split: str, units: str, done: str) -> float:
        why = f"of the {units}, on which models are {done}"
        answer = self._answer(name, f"Share of the {split} split", getattr(SiteChoices, name), why)
        try:
            return float(answer)
        except ValueError:
            raise FedMendError(f"init, {name}: expected a number, got another answer") from None

    def _out(self, folder: Path) -> Path:
        resolved = folder.resolve()
        proposed = resolved.with_name(f"{resolved.name}-site")
        why = "beside the images, so that both can be moved"
        return Path(self._answer("out", "Site folder to write", proposed, why))

    def _datalist(self, folder: Path, labels: Path) -> Path:
        items = own_datalist.read_items(labels, self._say)
        images = [item["image"] for item in items]
        named = any(item["patient"] for item in items)
        pattern = None if named else self._pattern(images)
        units = "patients" if named or pattern else "items, as no patients are known"
        choices = self._choices(folder, images, units)
        choices = replace(choices, patient_from_path=pattern, uncertain=self._given.uncertain)
        words = self._answer("classes", "Classes, comma-separated", "by the list", "a lesion, or class_0, class_1, ...")
        classes = () if words == "by the list" else class_names(words)
        out = self._out(folder)
        self._tell("datalist", labels, out, classes=classes, columns={}, images=folder, choices=choices)
        own_datalist.prepare(labels, out, images=folder, classes=classes, choices=choices)
        return self._end(out)

    def _dicom(self, folder: Path, labels: Path | None, columns: Mapping[str, str], classes: Sequence[str]) -> Path:
        choices = SiteChoices()
        if labels is not None:
            header, rows, _ = own_dicom.labelled_images(folder, labels, columns, classes=classes, say=self._say)
            units = "patients" if any(row["patient"] for _, row in rows) else "images, as no patients are known"
            choices = self._choices(folder, [row["image"] for _, row in rows], units)
            choices = replace(choices, uncertain=self._uncertain(header, rows, classes))
        out = self._out(folder)
        self._tell("dicom", folder, out, classes=classes, columns=columns, labels=labels, choices=choices)
        say = self._say if labels is None else None  # the other lines have been said
        own_dicom.prepare(folder, out, labels=labels, classes=classes, columns=columns, choices=choices, progress=say)
        return out if labels is None else self._end(out)

    def _tell(
        self,
        command: str,
        source: Path,
        out: Path,
        *,
        classes: Sequence[str],
        columns: Mapping[str, str],
        choices: SiteChoices,
        **folders: Path | None,
    ) -> None:
        """The command that does the same."""
        words: list = ["fedmend", "prepare", command, source, out]
        words += [w for name, folder in folders.items() if folder is not None for w in (f"--{name}", folder)]
        words += ["--classes", class_words(classes)] if classes else []
        words += ["--columns", *(f"{name}={column}" for name, column in columns.items())] if columns else []
        if choices.window is not AS_SEEN:
            words.append(f"--window={_window(choices.window)}")
        words += ["--uncertain", choices.uncertain] if choices.uncertain else []
        words += ["--patient-from-path", choices.patient_from_path] if choices.patient_from_path else []
        words += ["--test-share", choices.test_share, "--val-share", choices.val_share, "--seed", choices.seed]
        self._say("the same again: " + shlex.join(map(str, words)))

    def _end(self, out: Path) -> Path:
        card = json.loads((out / CARD_NAME).read_text(encoding="utf-8"))
        for name, why in card["notes"].items():
            self._say(f"{name}{f' = {json.dumps(card[name])}' if name in card else ''}: {why}")
        self._say(f"these reasons are in the notes of {CARD_NAME}")
        self.exit_code = done(out, self._say)
        return out


def _window(window: Any, number: Callable[[float], str] = str) -> str:
    """In words, as :func:`fedmend.datasets.own_site.parse_window` reads it."""
    return NONE if window is None else window if isinstance(window, str) else ",".join(map(number, window))


def guess_columns(header: Sequence[str], records: Sequence[Mapping[str, str]], root: Path) -> dict[str, str]:
    """``image``, ``patient``, ``label`` → the column that seems to be it under another name.

    Args:
        header: the columns.
        records: some rows.
        root: folder of the images.
    """
    found = {}
    others = [name for name in header if name.strip() and name not in own_dicom.KEYS]

    def files(name: str) -> int:
        paths = (one_path(record[name]) for record in records)
        return sum(stays_below(path) and file_key(root, as_on_disk(root, path)) is not None for path in paths)

    if "image" not in header and others and (most := max(others, key=files)) and files(most):
        found["image"] = most
    free = [name for name in others if name not in ("image", *found.values())]
    keyed = "image" not in header and "image" not in found
    # PatientID finds DICOM files where no column names images; where one does, it says whose they are.
    patients = [name for name in (*free, "PatientID") if name in header and _words(name) & PEOPLE]
    patients = [name for name in patients if not _describes(name)]
    if "patient" not in header and patients and not keyed:
        found["patient"] = max(patients, key=lambda name: bool(_words(name) & IDS))
    free = [name for name in free if name not in ("patient", *found.values()) and not _describes(name)]
    if "label" not in header and not any(_is_class(record[name] for record in records) for name in free):
        few = [n for n in free if 2 <= len(names_of(record[n] for record in records)) <= max(2, len(records) // 4)]
        shared = _with_words_of_others(free, records)
        few = [n for n in few if _words(n) & LABELS or n not in shared]
        found |= {"label": max(few, key=lambda name: bool(_words(name) & LABELS))} if few else {}
    return found


def _with_words_of_others(columns: Sequence[str], records: Sequence[Mapping[str, str]]) -> set[str]:
    """The columns, of some words each, whose words are those of another column too, as N and Y: none of them names the
    class of an image, as each may be one with words of its own for 1 and 0."""
    words = {name: {loose(w) for w in names_of(record[name] for record in records)} for name in columns}
    several = {name: own for name, own in words.items() if len(own) > 1}
    return {n for n, own in several.items() if any(w and w <= own for other, w in words.items() if other != n)}


def _left_out(header: Sequence[str], classes: Sequence[str], file: str) -> list[str]:
    """The columns that hold neither labels nor ids."""
    free = [name for name in header if name not in ("image", "patient", "study", *own_dicom.KEYS)]
    used = {"label"} if "label" in free else {*class_columns(free, classes, file)}
    return [name.strip() or "one without a name" for name in free if name not in used]


def _free(header: Sequence[str]) -> list[str]:
    """The columns that may be classes: those with a name that is neither of an id nor of a description."""
    named = (name for name in header if name.strip())
    return [name for name in named if name not in ("image", "patient", *own_dicom.KEYS) and not _describes(name)]


def _words(name: str) -> set[str]:
    """The words in the name of a column, in small letters: patient and sex of ``PatientSex`` and ``Patient's Sex``."""
    apart = re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower().replace("patient", " patient ")
    return {*re.findall(r"[^\W\d_]+", apart)}


def _describes(name: str) -> bool:
    """Whether a column seems to describe patient, image or reading, so that it is neither an id nor a label."""
    words = _words(name)
    return bool(words & DESCRIBING or any(word.endswith(DAY) for word in words)) and not words & LABELS


def guess_classes(header: Sequence[str], rows: Sequence[tuple[int, Mapping[str, str]]], file: str) -> list[str]:
    """The names in the column ``label``, or the columns of 1, 0 and blank, uncertain labels and missing values too.

    Args:
        header: the columns.
        rows: number and content of each row.
        file: name of the table.

    Raises:
        FedMendError: see :func:`fedmend.datasets.own_csv.label_names`.
    """
    records = [record for _, record in rows]
    if "label" in header:
        return own_csv.label_names((record["label"] for record in records), file)
    free = _free(header)
    return [name for name in free if _is_class(record[name] for record in records)]


def nearly_classes(header: Sequence[str], rows: Sequence[tuple[int, Mapping[str, str]]]) -> dict[str, int]:
    """Columns that would be classes but for some of their cells, at most half of those with a value, or all where
    several columns have the same words → how many."""
    if "label" in header:
        return {}
    found: dict[str, int] = {}
    free = _free(header)
    unknown = _with_words_of_others(free, [record for _, record in rows[:SAMPLE]])
    for name in free:
        cells = [record[name] for _, record in rows if not (is_missing(record[name]) or is_uncertain(record[name]))]
        others = sum(loose(cell) not in FLAGS for cell in cells)
        found |= {name: others} if others > 0 and (2 * others <= len(cells) or name in unknown) else {}
    return found


def _is_class(cells: Iterable[str]) -> bool:
    found = {FLAGS.get(loose(cell), "") for cell in cells if not (is_missing(cell) or is_uncertain(cell))}
    return "1" in found and found <= {"0", "1"}
