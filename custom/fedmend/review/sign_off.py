"""What a review leaves for the hospital: corrected copies of its labels, and the page to sign."""

from collections import Counter
from pathlib import Path

from fedmend.basics.files import make_folder, write_text
from fedmend.repairs.mask_ledger import MaskLedger
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, UNSURE
from fedmend.review.desk import Desk
from fedmend.review.exports import ClassVerdicts, Reviewer, sign_off_page, write_masks, write_table

PAGE = "sign_off.html"
COUNTS = {ACCEPT: "accepted", REJECT: "rejected", RELABEL: "relabelled", UNSURE: "unsure"}


def export(desk: Desk, out: Path, *, unseen: bool = False) -> list[str]:
    """Writes a corrected copy of the training labels and the page to sign; originals are not touched.

    Args:
        desk: the review.
        out: folder, made when missing.
        unseen: put in also repairs about which nobody has said anything, besides what people have accepted or given.

    Returns:
        Lines that say what was written.

    Raises:
        FedMendError: see :func:`fedmend.review.exports.write_table` and ``write_masks``.
    """
    make_folder(out)
    train = desk.data.train
    if isinstance(desk.ledger, MaskLedger):
        change = desk.ledger.change() if unseen else desk.ledger.accepted()
        count = write_masks(desk.card, train, change, out / "masks", desk.classes)
        said = f"{count} corrected masks written to {out / 'masks'}"
    else:
        labels = desk.ledger.apply(train.labels) if unseen else desk.ledger.judged(train.labels)
        count = write_table(desk.card, train.table, labels, out / train.file)
        said = f"{out / train.file} written, {count} labels differ from the original"
    said_of = class_verdicts(desk), reviewers(desk)
    write_text(out / PAGE, sign_off_page(desk.site, train.fingerprint(), *said_of, phantom=desk.card.phantom))
    return [said, f"{out / PAGE} written, with a line to sign"]


def class_verdicts(desk: Desk) -> list[ClassVerdicts]:
    """What people said of the repairs of each class, and of the site's own labels where they said something."""
    repairs: Counter[int] = Counter()
    own: Counter[int] = Counter()
    said: Counter[tuple[int, bool, str]] = Counter()
    for item in desk.items():
        (repairs if item.rule else own)[item.label_class] += item.rule != "" or item.judged
        if item.verdict and item.judged:
            said[item.label_class, item.rule != "", COUNTS[item.verdict.word]] += 1
    found = []
    for number, name in enumerate(desk.classes):
        for repaired, count, title in ((True, repairs[number], name), (False, own[number], f"{name}, own labels")):
            if repaired or count:
                words = {word: said[number, repaired, word] for word in COUNTS.values()}
                found.append(ClassVerdicts(title, count, **words))
    return found


def reviewers(desk: Desk) -> list[Reviewer]:
    """Everybody whose verdict counts."""
    times: dict[str, list[str]] = {}
    for item in desk.items():
        if item.verdict is not None:
            times.setdefault(item.verdict.reviewer, []).append(item.verdict.made[:16].replace("T", " ") + " UTC")
    return [Reviewer(who, len(made), min(made), max(made)) for who, made in sorted(times.items())]
