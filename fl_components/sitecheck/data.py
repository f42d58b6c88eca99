"""Checks of a site's data."""

import shutil
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from fedmend.data.inputs import Inputs
from fedmend.errors import FedMendError
from fedmend.site.gpu_settings import GB
from fl_components.sitecheck.overlap import overlap
from fl_components.sitecheck.rows import rows_of
from fl_components.sitecheck.site import FAIL, OK, SKIP, WARN, CheckedSite, Result, existing

STATE = 0.5 * GB  # optimizer moments or a few models, ledger
USUAL_SIZE = 224  # edge length in pixels of the papers, where no job says another
USUAL_SLICES = 16  # of a study
MOST_ROWS = 10  # rows that are listed


def card(site: CheckedSite) -> Result:
    """The site card, whose kind of labels the method of the job must learn from."""
    from fedmend.data.card import SPLITS_OF_JOBS, load_card
    from fedmend.data.identity import is_missing, loose

    folder = site.folder or _data_root(site)
    if folder is None:
        return Result(SKIP, "needs data_root")
    card = load_card(folder, site.name)
    site.card, site.classes = card, card.classes
    kinds = site.job.method().KINDS if site.job and site.job.method() else (card.kind,)
    if card.kind not in kinds:
        known = " or ".join(map(repr, kinds))
        return Result(FAIL, f"site.json, field task: expected {known} for the method of the job, got {card.kind!r}")
    odd = len(card.classes) - len({loose(name) for name in card.classes if not is_missing(name)})
    words = f"{odd} class names are words for a missing value, or differ from another one in case or blanks only"
    details = [words] if odd else []
    if others := len({*card.splits} - {*SPLITS_OF_JOBS}):
        details.append(f"splits that no job opens, as they are not called train, val or test: {others}")
    about = f"{card.kind}, {len(card.classes)} classes, splits {', '.join(card.splits)}"
    return Result(WARN if details else OK, about, details)


def _data_root(site: CheckedSite) -> Path | None:
    from fedmend.phantoms.sites import phantom_spec
    from fedmend.site.folder import site_folder

    if site.config is None:
        return None
    given = site.job.phantom if site.job else None
    return site_folder(site.name, site.config, phantom_spec(given) if given else None)


def class_names(site: CheckedSite) -> Result:
    """Whether the site has the classes of the job."""
    from fedmend.data.card import check_classes

    wanted = site.job.classes if site.job else site.given_classes
    if site.card is None or not wanted:
        return Result(SKIP, "needs the site card, and --job or --classes")
    check_classes(site.card, wanted)
    site.classes = wanted
    return Result(OK, f"the {len(wanted)} classes of the job")


def tables(site: CheckedSite) -> Result:
    """The files that list the samples of each split."""
    if site.card is None:
        return Result(SKIP, "needs the site card")
    samples = {name: rows.samples() for name, rows in site.rows().items()}
    sizes = [(name, len(images)) for name, (images, _) in samples.items()]
    for file in site.card.truth.values():
        images, _ = rows_of(site.card, file, "train", site.classes).samples()
        sizes.append(("truth", len(images)))
    site.samples = samples
    text = ", ".join(f"{name} {size}" for name, size in sizes)
    numbers = [number for rows in site.rows().values() for number in rows.slices()]
    if not numbers:
        return Result(OK, f"{text} images")
    seen, most = _study_slices(site), max(numbers)
    few = [f"the job looks at {seen} of up to {most} slices, evenly spread"] if site.job and 0 < seen < most else []
    return Result(OK, f"{text} studies of {min(numbers)} to {most} slices", few)


def images(site: CheckedSite) -> Result:
    """Every image, opened as a job does."""
    import torch

    from fedmend.kinds import kind_of

    if not (site.card and site.samples):
        return Result(SKIP, "needs the tables")
    _check_preparation(site)
    kind, tolerated = kind_of(site.card.kind), site.max_unreadable
    if tolerated is None:
        tolerated = site.config.max_unreadable if site.config else 0
    try:
        size = (site.job and site.job.site.get("image_size")) or kind.check_size
        opening = _inputs(site, size).opening(site.cache, torch.device("cpu"), max_unreadable=tolerated)
        data = kind.load(site.card, site.classes, opening)
        kind.load_truth(site.card, data)
    except FedMendError:
        if rows := list(_unreadable(site)):
            text = f"expected no missing image and at most {tolerated} unreadable ones per split, got"
            return Result(FAIL, f"{text} {len(rows)} in all", _first(rows))
        raise
    site.data = data
    opened = site.loaded()
    if any(rows.leaves_out and len(opened[name]) < len(site.samples[name][0]) for name, rows in site.rows().items()):
        rows = list(_unreadable(site))
        text = f"expected every image readable, got {len(rows)} that are left out, as max_unreadable allows"
        return Result(WARN, text, _first(rows))
    return Result(OK, f"all {site.listed()} read")


def _check_preparation(site: CheckedSite) -> None:
    from fedmend.site.preparation import check_preparation

    if site.card and site.job and site.job.method_part:
        asked = site.job.site
        scaling = (asked.get("pixel_mean", ()), asked.get("pixel_deviation", ()))
        inputs = _inputs(site, asked["image_size"])
        check_preparation(site.card, site.job.run["network"], scaling, inputs, site.job.method())


def _inputs(site: CheckedSite, size: int) -> Inputs:
    """What the network of the job sees; without a job, images of ``size`` pixels."""
    asked = site.job.site if site.job else {"study_slices": _study_slices(site)}
    return Inputs.of({**asked, "image_size": size})


def _study_slices(site: CheckedSite) -> int:
    """Slices of a study that are opened: the job's; without a job a few, where the samples of the site are studies."""
    from fedmend.data.card import STUDY

    assert site.card is not None
    usual = USUAL_SLICES if site.card.sample == STUDY else 0
    return site.job.site.get("study_slices", 0) if site.job else usual


def _unreadable(site: CheckedSite) -> Iterator[str]:
    """Every row whose image, or mask, cannot be read, and why."""
    return chain.from_iterable(rows.unreadable() for rows in site.rows().values())


def looks(site: CheckedSite) -> Result:
    """Whether training images look like images, at the size that was checked."""
    from fedmend.data.card import STUDY
    from fedmend.data.plausible import contact_sheet, findings

    if not (site.card and site.data):
        return Result(SKIP, "needs the images")
    images = site.data.train.images
    if site.card.sample == STUDY:
        images = images.reshape(-1, *images.shape[2:])
    found = findings(site.card, site.samples["train"][0], images)
    if site.sheet:
        contact_sheet(images, site.sheet)
    text, *notes = found.lines
    if found.impossible:
        return Result(FAIL, found.impossible, found.lines)
    return Result(WARN if found.warnings else OK, text, [*notes, *found.warnings])


def counts(site: CheckedSite) -> Result:
    """Samples of each class: enough for a batch, and for numbers that leave the site."""
    from fedmend.kinds import kind_of

    if not (site.card and site.data):
        return Result(SKIP, "needs the images")
    kind = kind_of(site.card.kind)
    details = kind.describe(site.card, site.data)
    sizes = ", ".join(f"{name} {len(split)}" for name, split in site.loaded().items())
    least = site.job.site.get("batch_size", 0) if site.job else 0
    if len(site.data.train) < least:
        text = f"expected at least {least} training samples (batch_size of the job), got {len(site.data.train)}"
        return Result(FAIL, text, details)
    positives = kind.positives(site.data)[site.data.annotated]
    min_count = site.config.min_count if site.config else 0
    if few := int((positives < min_count).sum()):
        text = f"expected at least min_count {min_count} positive training samples of each annotated class"
        return Result(WARN, f"{text}, got fewer of {few}; {sizes} samples", details)
    return Result(OK, f"{sizes} samples", details)


def lesions(site: CheckedSite) -> Result:
    """Lesions that vanish at the size of the job, and then train as background; and masks of the background."""
    from fedmend.data.plausible import most_marked

    if site.data is None:
        return Result(SKIP, "needs the images")
    opened, size = site.loaded(), site.data.train.images.shape[1]
    found = {name: rows.lesions(opened[name]) for name, rows in site.rows().items() if name in opened}
    kept = {name: left for name, left in found.items() if left is not None}
    if not kept:
        return Result(SKIP, "the site has no masks")
    before, after = sum(left.lesions for left in kept.values()), sum(left.lesions_left for left in kept.values())
    details = [
        f"{name}: {left.lesions_left} of {left.lesions} lesions, {left.slices_left} of {left.slices} slices with lesion"
        for name, left in kept.items()
    ]
    lost = before > after or any(left.slices > left.slices_left for left in kept.values())
    full = {name: most_marked(*rows.mostly_marked(opened[name])) for name, rows in site.rows().items() if name in kept}
    odd = [f"{name}: {line}" for name, lines in full.items() for line in lines]
    text = f"{after} of {before} lesions are left at {size} pixels"
    return Result(WARN if lost or odd else OK, text, [*details, *odd])


def disk(site: CheckedSite) -> Result:
    """Room for image stores and state."""
    if site.config is None or site.data is None:
        return Result(SKIP, "needs fedmend.json and the images")
    size = (site.job and site.job.site.get("image_size")) or USUAL_SIZE
    rows, opened = site.rows(), site.loaded()
    samples = sum(map(len, opened.values()))
    pixels = size**2 * max(1, _study_slices(site))
    store = sum(len(opened[name]) * pixels * rows[name].bytes_per_pixel() for name in opened)
    needs = {"cache_dir": store, "state_dir": STATE}
    wanted: dict[int, float] = {}
    free: dict[int, int] = {}
    for field, need in needs.items():
        place = existing(getattr(site.config, field))
        device = place.stat().st_dev
        wanted[device] = wanted.get(device, 0) + need
        free[device] = shutil.disk_usage(place).free
    least = min(free, key=lambda device: free[device] - wanted[device])
    told = " and ".join(f"{need / GB:.1f} GB in {field}" for field, need in needs.items())
    text = f"expected {told} ({samples} images of {size} pixels), got {free[least] / GB:.1f} GB"
    return Result(OK if free[least] >= wanted[least] else FAIL, text)


def privacy(site: CheckedSite) -> Result:
    """What the site has spent of its privacy, and what the job will cost."""
    from fedmend.site.private_site import PrivateSite, of_sums

    if site.config is None or site.config.privacy is None:
        return Result(SKIP, "needs fedmend.json with privacy")
    if site.data is None or site.job is None or site.job.method_part is None:
        return Result(SKIP, "needs the images, and --job with one that trains")
    asked, policy, state_dir = site.job.site, site.config.privacy, site.config.state_dir
    sums = of_sums(site.job.method()(**site.job.method_part.args))
    keeper = PrivateSite(site.name, policy, state_dir, site.data.train, asked["batch_size"], sums=sums)
    return Result(OK, keeper.forecast(asked.get("local_epochs", 1), site.job.run["num_rounds"])[1])


def _first(rows: Sequence[str]) -> list[str]:
    more = len(rows) - MOST_ROWS
    return [*rows[:MOST_ROWS], *([f"and {more} more"] if more > 0 else [])]


CHECKS = {
    "site card": card,
    "class names": class_names,
    "tables": tables,
    "images": images,
    "looks": looks,
    "counts": counts,
    "lesions": lesions,
    "privacy": privacy,
    "overlap": overlap,
    "disk": disk,
}
