"""A hospital's own images and labels → its site folder: splits by patient, a card whose notes say why it is so.

The images stay where they are. Patients become running numbers: nothing needs more than who is the same.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import whole_folder
from fedmend.data.card import WINDOWS, stays_below, write_card
from fedmend.data.look import look_at, notes_of, proposal, some_of
from fedmend.data.raw import is_window
from fedmend.data.tables import LabelTable
from fedmend.datasets.checks import need
from fedmend.datasets.command_line import made, options
from fedmend.datasets.samples import Samples, Say, hold_out, sizes
from fedmend.datasets.site_folders import check_empty, root_in_card, write_split
from fedmend.errors import FedMendError

AS_SEEN = object()  # what a look at the images proposes


@dataclass(frozen=True, kw_only=True)
class SiteChoices:
    """What a hospital decides about its folder.

    Attributes:
        test_share: share of the patients in the test split, in [0, 1); 0 writes none.
        val_share: share of the other patients in the validation split, in [0, 1); 0 writes none.
        seed: of the split, 0 or more.
        window: see :class:`fedmend.data.card.SiteCard`, or ``AS_SEEN``.

    Raises:
        FedMendError: a number out of its range, or an unknown window.
    """

    test_share: float = 0.2
    val_share: float = 0.1
    seed: int = 1037
    window: Any = AS_SEEN

    def __post_init__(self) -> None:
        good = 0 <= self.test_share < 1 and 0 <= self.val_share < 1 and self.seed >= 0
        got = f"{self.test_share}, {self.val_share} and {self.seed}"
        need(good, "arguments test_share, val_share and seed", "0 or numbers below 1, and at least 0", got)


def check_files(images: Sequence[str], root: Path, where: Callable[[int], str]) -> None:
    """Refuses an image that is missing or lies outside its folder, also behind a link.

    Args:
        images: paths below ``root``, with ``#`` and a number behind a file with several.
        root: folder of the images.
        where: index → words that name its row.

    Raises:
        FedMendError: names the first such row.
    """
    top = root.resolve()
    for i, image in enumerate(images):
        file = root / image
        try:
            file = file.with_name(file.name.partition("#")[0])
            inside, there = stays_below(image) and file.resolve().is_relative_to(top), file.is_file()
        except (ValueError, OSError):  # no name that a file can have
            inside, there = True, False
        if not (inside and there):
            got = "not found" if inside else "got another"
            raise FedMendError(f"{where(i)}: expected a file below the folder of the images, {got}")


def split_units(units: Sequence[str], choices: SiteChoices) -> dict[str, np.ndarray]:
    """Split → sorted numbers of its samples; samples of one unit (a patient) stay together.

    Args:
        units: N keys.
        choices: shares and seed.

    Raises:
        FedMendError: too few units.
    """
    names, rest, found = np.asarray(units, dtype=str), np.arange(len(units)), {}
    for name, share in (("test", choices.test_share), ("val", choices.val_share)):
        if share:
            held = hold_out(names[rest], share, seed=choices.seed)
            found[name], rest = rest[held], rest[~held]
    return {"train": rest, **found}


def write_own_site(
    out: Path,
    table: LabelTable,
    *,
    kind: str,
    root: Path,
    choices: SiteChoices,
    source: str,
    parts: Mapping[str, np.ndarray] | None = None,
    say: Say = lambda line: None,
) -> None:
    """Writes ``out``: a table for each split and the card.

    Args:
        out: folder that is not there yet, or empty.
        table: all samples; rows without a patient are a unit each.
        kind: ``multilabel`` or ``singlelabel``.
        root: folder of the images.
        choices: what the hospital decides.
        source: what the card names as source.
        parts: split → numbers of its samples; None: drawn as the hospital decides.
        say: called with one line of text at a time.

    Raises:
        FedMendError: ``out`` is taken, an image is missing or outside its folder, none of those that are looked at can
            be read, or there are too few patients.
    """
    check_empty(out)
    need(table.images, table.file, "at least one image", "none")
    check_files(table.images, root, lambda i: f"{table.file} row {table.rows[i]}, column image")
    units = [f"patient {p}" if p else f"image {i}" for i, p in enumerate(table.patients)]
    numbers = {unit: f"p{n}" for n, unit in enumerate(dict.fromkeys(u for u in units if u.startswith("p")), 1)}
    seed = choices.seed if parts is None else None
    parts = split_units(units, choices) if parts is None else parts
    card, notes = seen_card(root, table.images, choices, say)
    single = kind == "singlelabel"
    notes["task"] = "one column 'label'" if single else "one column for each class"
    by = "patient" if numbers else "image, as no column names patients"
    notes["splits"] = splits_note(sizes(parts), seed, by)
    # One-hot rows, or all blank, become class numbers or -1.
    labels = np.where(table.labels.max(1) == 1, table.labels.argmax(1), -1) if single else table.labels
    keys = [numbers.get(unit, "") for unit in units] if numbers else ()
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
    say(f"{notes['splits']}; {len(numbers)} patients")


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
    words = "share of the patients (default {}); 0 writes no such split"
    helps = {name: words.format(getattr(SiteChoices, name)) for name in ("test_share", "val_share")}
    options(parser, SiteChoices, **helps, seed="of the split")
    words = "file, none, brain, subdural, bone, lung or CENTRE,WIDTH (default: by a look at the images)"
    parser.add_argument("--window", help=words)


def choices_of(args: Namespace) -> SiteChoices:
    """What :func:`add_choices` have parsed."""
    return made(SiteChoices, args, window=AS_SEEN if args.window is None else parse_window(args.window))


def done(out: Path) -> str:
    """The last line of a command."""
    return f"the site folder is {out}; check it: fedmend sitecheck {out}"
