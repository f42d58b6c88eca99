"""The desk of a reviewer: a run of a site, what was repaired in it, what its model doubts, and what people say.

Where to look first: the value of a look is the probability that a label is wrong times its weight in training. The
final model gives the first, as one minus its probability of the label. The second is the balanced weight of the label
in its class, n / (2 n_label), by which class-balanced losses weigh it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.kinds import kind_of
from fedmend.labels import NOT_ANNOTATED, SEGMENTATION
from fedmend.repairs.ledger import Entry
from fedmend.repairs.mask_ledger import MaskLedger
from fedmend.repairs.site_run import (
    LEDGER_NAME,
    OPINIONS,
    STAMPS,
    files_of,
    has_changed,
    load_opened,
    take_over_verdicts,
)
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, UNSURE, WITHDRAW, Verdict, key_of, latest

VALUE, CONFIDENCE, DOUBT, ROUND, RANDOM = "value", "confidence", "doubt", "round", "random"
REPAIRS, OWN = "repairs", "own"
OPEN, JUDGED = "open", "judged"
ALL = "all"
ORDERS = {
    VALUE: lambda item: -item.value,
    CONFIDENCE: lambda item: (math.isnan(item.confidence), item.confidence),
    DOUBT: lambda item: -item.doubt,
    ROUND: lambda item: -item.round_num,
    RANDOM: lambda item: crc32(f"{item.sample}-{item.label_class}".encode()),  # the same order at every look
}


@dataclass(frozen=True)
class Item:
    """A label that waits for a person, or has met one.

    Attributes:
        sample: sample number.
        label_class: class number; of data with one label per sample that of the new one.
        old: original label, -1 where there was none; of masks the voxels of the class in the slice.
        new: the repaired one, or the original one that the model doubts.
        rule: of the repair; empty: an original label that the model doubts.
        round_num: of the repair; -1 for an original label.
        confidence: the rule's own measure; of an original label the model's probability; NaN where it is not known, of
            a label that was judged in another run.
        doubt: the final model's probability that the label is wrong; of masks the mean of it over the changed pixels.
        value: of a look at it.
        verdict: the last one that counts; None: nobody has looked.
        changed: a repair of this label, or of pixels of this slice, came that the verdicts are not about.
    """

    sample: int
    label_class: int
    old: int
    new: int
    rule: str
    round_num: int
    confidence: float
    doubt: float
    value: float
    verdict: Verdict | None = None
    changed: bool = False

    @property
    def shown(self) -> str:
        """Tells the repair that a page showed from one that came later."""
        about = self.label_class, self.new, self.rule, self.round_num, self.confidence
        return f"{crc32(repr(about).encode()):08x}"

    @property
    def judged(self) -> bool:
        """Whether a person has decided about it."""
        return self.verdict is not None and not self.changed


@dataclass(frozen=True)
class Choice:
    """What is in the queue, and in which order.

    Attributes:
        what: ``repairs``, ``own`` (labels of the site that the model doubts) or ``all``.
        state: ``open``, ``judged`` or ``all``.
        label_class: class number; -1: all.
        round_num: round of the repair; -1: all.
        order: key of :data:`ORDERS`.
    """

    what: str = ALL
    state: str = OPEN
    label_class: int = -1
    round_num: int = -1
    order: str = VALUE

    def holds(self, item: Item) -> bool:
        """Whether an item is in the queue."""
        return (
            self.what in (ALL, REPAIRS if item.rule else OWN)
            and self.state in (ALL, JUDGED if item.judged else OPEN)
            and self.label_class in (-1, item.label_class)
            and self.round_num in (-1, item.round_num)
        )


class Desk:
    """A run of a site under review; several people may sit at desks of the same run.

    Args:
        folder: ``<state_dir>/<run>/<site>``.
        model: package of the run, for maps; None: one that lies in the folder.

    Raises:
        FedMendError: no such run, or its data cannot be opened any more.
    """

    def __init__(self, folder: Path, model: Path | None = None):
        self.folder, self.model = Path(folder), model
        self.site, self.run = self.folder.name, self.folder.parent.name
        where = f"run {self.run}, {self.site}"
        if not (self.folder / LEDGER_NAME).is_file():
            raise FedMendError(f"{where}: expected a ledger, found none")
        state = StateStore(self.folder)
        opened = load_opened(state, self.site)
        if opened is None:
            raise FedMendError(f"{where}: expected a run of this version of FedMend, got an earlier one; run it again")
        self.card, self.classes, opening = opened
        self.kind = kind_of(self.card.kind)
        self.data = self.kind.load(self.card, self.classes, opening)
        self.ledger = self.kind.open_ledger(self.folder / LEDGER_NAME, self.card, self.data)
        take_over_verdicts(self.ledger, self.folder / LEDGER_NAME)
        opinions = state.load(OPINIONS)
        self._opinions = None if opinions is None else opinions.numpy()
        self._stamps = state.load(STAMPS, {})  # runs of earlier versions have none
        self._known: tuple[str, list[Item]] | None = None
        self._unseen: tuple[list[Entry], dict[tuple[int, int], tuple[str, bool]]] = [], {}

    def has_changed(self, sample: int) -> bool:
        """Whether the image of a sample, or the mask of its volume, has changed since the run first read it."""
        return has_changed(self._stamps, files_of(self.card, self.data.train, sample))

    @property
    def masks(self) -> bool:
        """Whether labels are masks."""
        return self.card.kind == SEGMENTATION

    def items(self) -> list[Item]:
        """Everything that a person may judge, and what people have judged that counts in this run."""
        mark = self.ledger.mark()  # another one as soon as a repair or a verdict came
        if self._known is None or self._known[0] != mark:
            self._known = mark, self._items()
        return self._known[1]

    def _items(self) -> list[Item]:
        verdicts = latest(self.ledger.verdicts(), one_label=self.kind.one_label)
        found = self._mask_items() if self.masks else [*(repaired := self._repaired()), *self._doubted(repaired)]
        keyed = {self._key(item): item for item in found}
        decided = {k: v for k, v in verdicts.items() if v.word != UNSURE}
        keyed |= {k: self._remembered(v) for k, v in decided.items() if k not in keyed or not self._meets(v, keyed[k])}
        said = {k: replace(item, verdict=verdicts[k]) for k, item in keyed.items() if k in verdicts}
        changed = self._changed(said)
        keyed |= said | {k: replace(said[k], changed=True) for k in changed}
        return list(keyed.values())

    def _meets(self, v: Verdict, item: Item) -> bool:
        """Whether a verdict that decides is about an item, or leaves it to be judged; not a repair of a label that was
        fixed, nor an own label of which a repair was judged."""
        if self.masks:
            return True
        same = v.word != ACCEPT or (v.label_class, v.value) == (item.label_class, item.new)
        return same and bool(v.rule) == bool(item.rule)

    def _changed(self, said: Mapping[tuple[int, int], Item]) -> set[tuple[int, int]]:
        """Those of items with a verdict of which other repairs came: of pixels that nobody has judged, or of a label
        after another one was rejected or left open."""
        if isinstance(self.ledger, MaskLedger):
            return self._with_unseen(self.ledger, said)
        banned = self.ledger.banned()
        repaired = {k: (i.verdict, (i.sample, i.label_class, i.new)) for k, i in said.items() if i.verdict and i.rule}
        return {
            k
            for k, (v, label) in repaired.items()
            if (v.word == REJECT and not banned[label])
            or (v.word == UNSURE and not (v.rule and (v.sample, v.label_class, v.value) == label))
        }

    def _with_unseen(self, ledger: MaskLedger, said: Mapping[tuple[int, int], Item]) -> set[tuple[int, int]]:
        """Slices and classes with pixels that nobody has judged; asked again where a verdict or a repair came."""
        entries, names = ledger.in_force(), {k: item.verdict.name for k, item in said.items() if item.verdict}
        before, known = self._unseen
        kept = {k: v for k, v in known.items() if v[0] == names.get(k)} if before == entries else {}
        new = [k for k in names if k not in kept]
        unseen = ledger.unseen(new) if new else {}
        kept |= {k: (names[k], bool(change.any())) for k, change in unseen.items()}
        self._unseen = entries, kept
        return {k for k, (_, some) in kept.items() if some}

    def queue(self, choice: Choice, items: Sequence[Item] | None = None) -> list[Item]:
        """The chosen items, those first at which a look is worth most."""
        chosen = [item for item in (self.items() if items is None else items) if choice.holds(item)]
        return sorted(chosen, key=lambda item: (ORDERS[choice.order](item), item.sample, item.label_class))

    def item(self, sample: int, label_class: int) -> Item:
        """One of them.

        Raises:
            FedMendError: nothing about this label can be judged (any more).
        """
        wanted = (sample, 0 if self.kind.one_label else label_class)
        for item in self.items():
            if self._key(item) == wanted:
                return item
        raise FedMendError("review: expected a label that was repaired or is doubted, got another; look at the queue")

    def judge(
        self, item: Item, word: str, *, reviewer: str, note: str = "", value: int | None = None, seen: str = ""
    ) -> Verdict:
        """Writes a verdict about an item; see :meth:`fedmend.repairs.ledger.Ledger.judge`.

        Args:
            item: what was shown.
            word: see :class:`fedmend.repairs.verdicts.Verdict`.
            reviewer: initials.
            note: free words.
            value: with ``relabel`` the label; of data with one label per sample the class number. The label that the
                item has is no other one: it is accepted.
            seen: name of the verdict that was shown with the item.
        """
        label_class, label = item.label_class, item.new
        if value is not None and self.kind.one_label:
            label_class, label = value, 1
        elif value is not None:
            label = value
        if not 0 <= label_class < len(self.classes) or (value is not None and (self.masks or label not in (0, 1))):
            raise FedMendError("verdict, label: expected one of the job's, got another")
        if word == RELABEL and (label_class, label) == (item.label_class, item.new):
            word = ACCEPT
        about = (item.sample, label_class, word, item.old, label, item.rule, item.round_num)
        verdict = Verdict(*about, reviewer=reviewer, note=note)
        return self.ledger.judge(verdict, seen=seen)

    def take_back(self, item: Item, *, reviewer: str, seen: str) -> Verdict:
        """The verdict before the last one about an item counts again.

        Args:
            item: what was shown.
            reviewer: initials.
            seen: name of the verdict that was shown with the item.

        Raises:
            FedMendError: no verdict about it counts, or another one than was shown.
        """
        last = latest(self.ledger.verdicts(), one_label=self.kind.one_label).get(self._key(item))
        if last is None:
            raise FedMendError("verdict: expected one to take back, found none")
        return self.ledger.judge(replace(last, word=WITHDRAW, reviewer=reviewer, name="", made=""), seen=seen)

    # ---- where items come from --------------------------------------------------------------------------------------
    def _key(self, about: Item | Entry | Verdict) -> tuple[int, int]:
        return key_of(about, one_label=self.kind.one_label)

    def _repaired(self) -> list[Item]:
        """The last entry in force of each label; with one label per sample that of its new class."""
        labels, found = self.data.train.labels, {}
        for entry in self.ledger.in_force():
            if not self.kind.one_label or entry.new == 1:
                found[self._key(entry)] = entry
        weights = self._weights(self.ledger.apply(labels))
        return [self._item(entry, int(labels[entry.sample, entry.label_class]), weights) for entry in found.values()]

    def _item(self, entry: Entry, old: int, weights: np.ndarray) -> Item:
        doubt = self._doubt(entry.sample, entry.label_class, entry.new)
        value = doubt * float(weights[entry.label_class, entry.new])
        return Item(*entry[:2], old, entry.new, entry.rule, entry.round_num, entry.confidence, doubt, value)

    def _doubt(self, sample: int, label_class: int, label: int) -> float:
        if self._opinions is None:
            return 0.5
        p = float(self._opinions[sample, label_class])
        return 1 - p if label else p

    def _weights(self, labels: np.ndarray) -> np.ndarray:
        """(C, 2): weight of the labels 0 and 1 of each class."""
        counts = np.stack([(labels == 0).sum(0), (labels == 1).sum(0)], 1)
        return counts.sum(1, keepdims=True) / (2 * np.maximum(counts, 1))

    def _doubted(self, repaired: Sequence[Item]) -> list[Item]:
        """Labels of the site that nothing repaired and for which another label, or class, is more probable."""
        if self._opinions is None:
            return []
        labels, p = self.data.train.labels, self._opinions
        if self.kind.one_label:
            doubted = (labels == 1) & (p.argmax(1) != labels.argmax(1))[:, None]
        else:
            doubted = (labels != NOT_ANNOTATED) & ((p > 0.5) != (labels == 1))
        for item in repaired:
            doubted[item.sample, ... if self.kind.one_label else item.label_class] = False
        weights, found = self._weights(labels), []
        for sample, label_class in np.argwhere(doubted).tolist():
            label = int(labels[sample, label_class])
            doubt = self._doubt(sample, label_class, label)
            value = doubt * float(weights[label_class, label])
            found.append(Item(sample, label_class, label, label, "", -1, 1 - doubt, doubt, value))
        return found

    def _remembered(self, verdict: Verdict) -> Item:
        """What a verdict that counts is about, where no item is: a repair of another run or one that was taken out of
        force, or a label that another repair cannot change."""
        v, doubt = verdict, 0.0
        label_class, new = v.label_class, v.value if v.rule else v.old
        if not self.masks:
            if self.kind.one_label and not v.rule:
                label_class, new = int(self.data.train.labels[v.sample].argmax()), 1
            elif v.word == RELABEL and v.rule and not self.kind.one_label:
                new = 1 - v.value  # as the rule had set it
            doubt = self._doubt(v.sample, label_class, new)
        return Item(v.sample, label_class, v.old, new, v.rule, v.round_num, math.nan, doubt, 0.0)

    def _mask_items(self) -> list[Item]:
        """Slices in which marks of a class were repaired."""
        last = {self._key(entry): entry for entry in self.ledger.in_force()}
        doubts = {} if self._opinions is None else {key: float(self._opinions[key]) for key in last}
        return [Item(*e, doubt, doubt) for key, e in last.items() for doubt in [doubts.get(key, 0.0)]]


def reviewable(folder: Path) -> list[Path]:
    """Runs that can be reviewed, ``<state_dir>/<run>/<site>``, the newest first.

    Args:
        folder: one of them, or any folder above.

    Raises:
        FedMendError: there is none.
    """
    ledgers = sorted(Path(folder).glob(f"**/{LEDGER_NAME}"), key=lambda file: -file.stat().st_mtime)
    if not ledgers:
        raise FedMendError("review: expected a folder with the ledger of a run (the state_dir of a site), found none")
    return [ledger.parent for ledger in ledgers]
