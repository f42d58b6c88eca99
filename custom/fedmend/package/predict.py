"""A model asked about new images: the pixels that a site's store would hold, through the same network."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.basics.files import write_text
from fedmend.basics.parallel import mapped
from fedmend.data.site import Split, spread_slices
from fedmend.data.store import decode
from fedmend.data.tables import LabelTable
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.learning.inference import chosen_device
from fedmend.package.inputs import Item, by_study, digest_of, find_items, other_formats
from fedmend.package.masks import mask_rows, mask_table
from fedmend.package.opened import OpenedPackage
from fedmend.package.probabilities import probabilities
from fedmend.package.rows import STUDIES, Rows, per_study, text_of

BATCH, BATCH_PIXELS = 64, 2**22  # most images of a batch, and their pixels: 64 of 256 x 256, 16 of 512 x 512
NOT_KNOWN = "n/a"  # whether another split would decide otherwise, where none has chosen
UNSURE = 0.5  # of single labels: below it no class has the majority
MISSING = "expected a file, not found"


@dataclass(frozen=True)
class Predicted:
    """What :meth:`fedmend.package.Package.predict` has made.

    Attributes:
        folder: with ``predictions.csv`` and, of images, ``studies.csv``, or of volumes ``masks``.
        images: rows of ``predictions.csv``.
        problems: rows that say why an image could not be used.
        left_out: scouts, captured screens, pages of doses and images of another quantity in a folder with other images,
            and copies of an image, which have no row.
        dicom: DICOM files that were written, where they were asked for.
        without: studies or volumes that have none: they are of other formats, or could not be used.
        not_read: how many files of a folder are images of other formats, which have no row, with their endings.
    """

    folder: Path
    images: int
    problems: int
    left_out: int
    dicom: tuple[Path, ...] = ()
    without: int = 0
    not_read: str = ""


def predict(
    package: OpenedPackage,
    source: Path,
    out: Path,
    *,
    device: str = "",
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    dicom: Path | None = None,
) -> Predicted:
    """Does what :meth:`fedmend.package.Package.predict` says.

    Args:
        package: the model.
        source: images.
        out: folder of the results.
        device: PyTorch's word; empty: a GPU where there is one.
        processes: that read images, at most.
        progress: gets the number of images that are newly done, and of all.
        dicom: folder for results as DICOM.

    Raises:
        FedMendError: nothing to read, images of another modality, a folder with something else, scores that are none.
    """
    prepared, masks = package.preprocessing, package.kind == SEGMENTATION
    place = chosen_device(device)
    root, items, left_out = find_items(source, modality=prepared.modality, volumes=masks)
    if masks and isinstance(prepared.window, str):
        raise FedMendError(f"package {package.name}: expected a window in numbers for volumes, got {prepared.window!r}")
    if prepared.study_slices:
        items = by_study(items)
    pixels = prepared.image_size**2 * max(1, prepared.study_slices)
    batch = 1 if masks else max(1, min(BATCH, BATCH_PIXELS // pixels))
    about = {"package": package.digest, "images": digest_of(root, items), "batch": batch, "device": place.type}
    if package.calibrated:
        about["probabilities"] = "calibrated on the run's validation split"
    if any(package.not_fitted):
        reasons = zip(package.classes, package.not_fitted, strict=True)
        about["not_fitted"] = {name: f"n/a: {why}" for name, why in reasons if why}
    with Rows(out, about, mask_table(package) if masks else _header(package), batch) as rows:
        progress(rows.done, len(items))
        if not rows.finished:
            network, left = package.network().to(place), items[rows.done :]
            labels = partial(_label_rows, batch=batch, processes=processes)
            for new in (partial(mask_rows, out=out) if masks else labels)(package, network, root, left, place):
                rows.add(new)
                progress(len(new), len(items))
            rows.finish()
    _, *table = rows.read()
    if not masks:
        write_text(out / STUDIES, text_of(_study_rows(package, table)))
    found = Predicted(out, len(table), sum(bool(row[-1]) for row in table), left_out, not_read=other_formats(source))
    if dicom is None:
        return found
    from fedmend.package.dicom_results import write_results

    written = write_results(package, root, items, out, dicom)
    return replace(found, dicom=tuple(written.files), without=written.without)


def _header(package: OpenedPackage, *counts: str) -> list[str]:
    shown = ["decision", "not_sure"]
    if package.kind == MULTILABEL:
        shown = [f"{c}_{word}" for word in shown for c in package.classes]
    first = ["study", *counts] if counts else ["image", "study"]
    return [*first, *(f"{c}_probability" for c in package.classes), *shown, *([] if counts else ["problem"])]


def _decided(package: OpenedPackage, scores: np.ndarray) -> list[str]:
    """What the C probabilities of an image or study mean, in the columns of :func:`_header`."""
    if package.kind != MULTILABEL:
        best = int(scores.argmax())
        return [package.classes[best], _flag(scores[best] < UNSURE)]
    pairs = list(zip(scores.tolist(), package.thresholds, package.not_sure, package.not_fitted, strict=True))
    sure = [NOT_KNOWN if why else _flag(low < p <= high) for p, _, (low, high), why in pairs]
    return [*(_flag(p > cut) for p, cut, *_ in pairs), *sure]


def _flag(holds: object) -> str:
    return "1" if holds else "0"


def _shown(scores: np.ndarray) -> list[str]:
    return [f"{p:.7g}" for p in scores.tolist()]


def _study_rows(package: OpenedPackage, table: Sequence[Sequence[str]]) -> Iterator[Sequence[object]]:
    """A row per study: of several labels the highest probability of its images, of single labels the mean."""
    yield _header(package, "images", "problems")
    for study, images, problems, scores in per_study(table, len(package.classes)):
        if not len(scores):
            yield [study, images, problems]
            continue
        whole = scores.max(0) if package.kind == MULTILABEL else scores.mean(0)
        yield [study, images, problems, *_shown(whole), *_decided(package, whole)]


def _label_rows(
    package: OpenedPackage,
    network: nn.Module,
    root: Path,
    items: Sequence[Item],
    device: torch.device,
    *,
    batch: int,
    processes: int | None,
) -> Iterator[list[list[object]]]:
    """The rows of one batch after the other."""
    prepared = package.preprocessing
    shape = (prepared.image_size,) * 2 + (3,) * prepared.color
    batches = [items[i : i + batch] for i in range(0, len(items), batch)]
    slices = prepared.study_slices
    paths = [[root / name for item in some for name in _seen(item, slices)] for some in batches]
    work = partial(decode, window=prepared.window, shape=shape)
    for some, (decoded, _) in zip(batches, mapped(work, paths, processes=processes), strict=True):
        images = _together(decoded, slices) if slices else decoded
        read = [image for image in images if isinstance(image, np.ndarray)]
        scores = iter(_scores(package, network, np.stack(read), device) if read else ())
        found: list[list[object]] = []
        for item, image in zip(some, images, strict=True):
            if isinstance(image, np.ndarray):
                score = next(scores)
                found.append([item.name, item.study, *_shown(score), *_decided(package, score), ""])
            else:
                blank = [""] * (len(_header(package)) - 3)
                found.append([item.name, item.study, *blank, image or MISSING])
        yield found


def _seen(item: Item, slices: int) -> list[str]:
    """Names of the images that the network sees of an item; of a study some ``slices``, evenly spread, as a site's."""
    return [item.images[k] for k in spread_slices(len(item.images), slices).tolist()] if slices else [item.name]


def _together(decoded: Sequence[np.ndarray | str | None], slices: int) -> list[np.ndarray | str | None]:
    """(K, S, S) of each study, or why one of its slices is unreadable, of the decoded slices of all, K of each."""
    found: list[np.ndarray | str | None] = []
    for i in range(0, len(decoded), slices):
        own = decoded[i : i + slices]
        bad = [image for image in own if not isinstance(image, np.ndarray)]
        found.append(bad[0] if bad else np.stack([image for image in own if isinstance(image, np.ndarray)]))
    return found


@torch.no_grad()
def _scores(package: OpenedPackage, network: nn.Module, images: np.ndarray, device: torch.device) -> np.ndarray:
    """(B, C) float32 probabilities of (B, ...) uint8 images or studies, of the logits that
    :func:`fedmend.learning.inference.infer` gives, calibrated where the package is."""
    prepared, classes = package.preprocessing, package.classes
    labels, annotated = np.zeros((len(images), len(classes)), np.int8), np.ones(len(classes), bool)
    names = ("",) * len(images)
    slices = (names,) * len(images) if prepared.study_slices else ()
    table = LabelTable("", np.arange(len(images)), names, names, labels, annotated, classes, slices=slices)
    split = Split(images, table, device, prepared.pixel_mean, prepared.pixel_deviation)
    logits: Tensor = network(split.view(torch.arange(len(images))))[1].float()
    if not torch.isfinite(logits).all():
        raise FedMendError(f"package {package.name}: expected finite scores, got NaN or infinity")
    return probabilities(package, logits).cpu().numpy()
