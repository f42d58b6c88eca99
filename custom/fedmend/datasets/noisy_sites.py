"""A single-label data set → site folders of which some are noisy: the data protocol of FedNoRo (Wu et al., IJCAI 2023).

The training samples are dealt out by FedCorr's partition; noisy sites then get flipped labels (Algorithm 1). The test
split keeps its labels and is dealt out evenly.
"""

import csv
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from fedmend.data.card import WINDOWS
from fedmend.data.store import open_store
from fedmend.datasets.checks import need, one_of
from fedmend.datasets.imperfections import (
    bernoulli_dirichlet_partition,
    draw_noisy_sites,
    instance_dependent_noise,
    uniform_noise,
)
from fedmend.datasets.samples import Samples, Say, Share, check_trainable, sizes
from fedmend.datasets.site_folders import check_out, write_sites
from fedmend.errors import FedMendError

WHERE = "noisy sites"
SMALLEST_IMAGE = 8  # the annotator halves the edge three times


@dataclass(frozen=True, kw_only=True)
class NoiseProtocol:
    """How samples get to sites and labels get noisy; the defaults are the paper's ICH experiment.

    Attributes:
        sites: S sites, at least 1.
        alpha: Dirichlet concentration of the partition, > 0.
        presence: probability in (0, 1] that a site owns a class.
        partition_seed: seed of the partition and of the test split; the released partition has 100.
        noisy_share: share of noisy sites in 0..1 (the paper's rho).
        noise_low: smallest noise rate of a noisy site.
        noise_high: largest noise rate of a noisy site.
        noise: ``instance`` (hard samples are flipped to what an annotator network, trained at the site, takes them for)
            or ``uniform`` (FedCorr's random noise).
        noise_seed: seed of the noisy sites, their rates and their flips.

    Raises:
        FedMendError: unknown ``noise``; other values are checked where they are used.
    """

    sites: int = 20
    alpha: float = 2.0
    presence: float = 0.9
    partition_seed: int = 100
    noisy_share: float = 0.4
    noise_low: float = 0.5
    noise_high: float = 0.7
    noise: str = "instance"
    noise_seed: int = 0

    def __post_init__(self) -> None:
        good, expected = one_of("instance", "uniform")
        need(good(self.noise), "noise protocol, field noise", expected, repr(self.noise))


def write_noisy_sites(
    out: Path,
    data: Samples,
    test: np.ndarray,
    protocol: NoiseProtocol,
    source_name: str,
    soft_labels: Path | None = None,
    progress: Say | None = None,
    *,
    annotator_pixels: int = 48,
    cache_dir: Path | None = None,
) -> None:
    """Writes ``out/site-1`` .. ``out/site-S``; the images stay where they are.

    Each site gets ``train.csv`` with the noisy labels, its share of the test split in ``test.csv`` with the true ones,
    and ``truth/train.csv`` with the true labels of ``train.csv``. The card's provenance says, for people, whether the
    site is noisy. The result depends on the arguments, the order of images included, and the pixels alone.

    Args:
        out: folder for the site folders; made when missing.
        data: single-label samples, which are dealt out.
        test: (N,) bool, the samples of the test split.
        protocol: partition and noise.
        source_name: what the cards name as source; synthetic data says so here.
        soft_labels: CSV with probabilities that take the place of the annotator networks of ``instance`` noise: image
            name without folder and ending in the first column, then one column per class.
        progress: called with one line of text at a time.
        annotator_pixels: edge length that the annotator networks see, at least 8.
        cache_dir: where the annotators' image stores are kept; None keeps none.

    Raises:
        FedMendError: a wrong argument, site folders in ``out`` already, an image that an annotator cannot read, a site
            without samples, or one whose training labels have fewer than 2 classes.
    """
    out, say = Path(out), progress or (lambda line: None)
    data = replace(data, image_root=Path(data.image_root).resolve(), labels=np.asarray(data.labels))
    check_out(out, WHERE)
    _check_arguments(data, test, annotator_pixels)
    train = np.flatnonzero(~test)
    known = None
    if soft_labels is not None:
        known = _read_soft_labels(Path(soft_labels), [data.images[i] for i in train.tolist()], data.classes)
    given, seed = {"alpha": protocol.alpha, "presence": protocol.presence}, protocol.partition_seed
    count = len(data.classes)
    site_of = bernoulli_dirichlet_partition(data.labels[train], protocol.sites, **given, seed=seed, num_classes=count)

    def judge(s: int, seed: int) -> np.ndarray:
        """p(.|x) of the training samples of a site, (n, C)."""
        if known is not None:
            return known[site_of == s]
        say(f"site-{s + 1}: annotator network for {(site_of == s).sum()} samples")
        return _annotator(data, train[site_of == s], s, seed, annotator_pixels, cache_dir)

    parts = [train[site_of == s] for s in range(protocol.sites)]
    shown, rates = _noisy_labels(data, parts, protocol, judge)
    about = {"source": source_name, "protocol": asdict(protocol), "soft_labels": soft_labels is not None}
    about["annotator_pixels"] = annotator_pixels
    shares = _shares(data, parts, shown, rates, np.flatnonzero(test), seed=seed)
    write_sites(out, data, shares, about, shown=shown)
    say(f"{protocol.sites} site folders written, {sum(rate is not None for rate in rates)} of them noisy")


def _noisy_labels(
    data: Samples, parts: Sequence[np.ndarray], protocol: NoiseProtocol, judge: Callable[[int, int], np.ndarray]
) -> tuple[np.ndarray, list[float | None]]:
    """(N,) labels as the sites show them, and the noise rate of each site, None of a clean one; ``judge`` says p(.|x)
    of the training samples of a site.
    """
    given = {"noisy_share": protocol.noisy_share, "low": protocol.noise_low, "high": protocol.noise_high}
    noisy, rates = draw_noisy_sites(protocol.sites, **given, seed=protocol.noise_seed)
    everything = np.ones(len(data.classes), dtype=bool)
    for s, part in enumerate(parts, start=1):
        check_trainable(f"site-{s}: truth/train.csv", data.classes, data.labels[part], everything)
    seeds = np.random.SeedSequence(protocol.noise_seed).generate_state(protocol.sites).tolist()
    shown = data.labels.astype(np.int64)
    for s in np.flatnonzero(noisy).tolist():
        own = data.labels[parts[s]]
        if protocol.noise == "instance":
            shown[parts[s]] = instance_dependent_noise(own, judge(s, seeds[s]), rates[s], seed=seeds[s])
        else:
            shown[parts[s]] = uniform_noise(own, rates[s], num_classes=len(data.classes), seed=seeds[s])
    return shown, [float(rate) if flag else None for flag, rate in zip(noisy, rates, strict=True)]


def _annotator(data: Samples, part: np.ndarray, s: int, seed: int, pixels: int, cache_dir: Path | None) -> np.ndarray:
    """p(.|x) of an annotator network, (n, C); messages name rows of the table that the site will have."""
    from fedmend.datasets.annotators import annotator_probabilities  # torch, which the rest does without

    with tempfile.TemporaryDirectory() as temporary:
        store = open_store(
            cache_dir or Path(temporary),
            data.image_root,
            [data.images[i] for i in part],
            window=WINDOWS.get(data.window, data.window) if isinstance(data.window, str) else data.window,
            size=pixels,
            where=lambda i: f"site-{s + 1}: train.csv row {i + 2}",
            color=data.color,
        )
        return annotator_probabilities(store.images, data.labels[part], len(data.classes), seed=seed)


def _shares(
    data: Samples,
    parts: Sequence[np.ndarray],
    shown: np.ndarray,
    rates: Sequence[float | None],
    test: np.ndarray,
    *,
    seed: int,
) -> list[Share]:
    """What each site gets; the test split is dealt out evenly."""
    shuffled, shares = np.random.default_rng((seed, 1)).permutation(test), []
    for s, (part, rate) in enumerate(zip(parts, rates, strict=True)):
        own = {"train": part, "test": np.sort(shuffled[s :: len(parts)])}
        wrong = int((shown[part] != data.labels[part]).sum())
        about = {"noisy": rate is not None, "noise_rate": rate or 0.0, "wrong_labels": wrong, "sizes": sizes(own)}
        shares.append(Share(parts=own, known=np.ones(len(data.classes), dtype=bool), about=about))
    return shares


def _read_soft_labels(file: Path, images: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """(N, C) float64 probabilities of N images."""
    try:
        with open(file, newline="", encoding="utf-8-sig") as stream:
            header, *rows = [row for row in csv.reader(stream) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error):
        raise FedMendError("soft labels: expected a CSV file that can be read, got another") from None
    missing = [c for c in classes if c not in header[1:]]
    need(not missing, "soft labels, header", "a column for every class", f"none for {missing}")
    columns, found = [header.index(c) for c in classes], dict[str, list[float]]()
    for number, row in enumerate(rows, start=2):
        try:
            said = [float(row[c]) for c in columns]
        except (ValueError, IndexError):
            raise FedMendError(f"soft labels row {number}: expected one number per class, got another form") from None
        same = found.setdefault(row[0], said) == said
        need(same, f"soft labels row {number}", "the numbers that an earlier row gives for this image", "others")
    names = [PurePosixPath(image).stem for image in images]
    lacking = sum(name not in found for name in names)
    need(not lacking, "soft labels", "a row for every training image", f"none for {lacking} of {len(names)}")
    return np.array([found[name] for name in names])


def _check_arguments(data: Samples, test: np.ndarray, annotator_pixels: int) -> None:
    def check(name: str, good: object, expected: str, got: object) -> None:
        need(good, f"{WHERE}, argument {name}", expected, got)

    count, num_classes, labels = len(data.images), len(data.classes), data.labels
    check("classes", num_classes >= 2, "at least 2 classes", num_classes)
    check("images", len(set(data.images)) == count, "each image once", f"{count - len(set(data.images))} repeated")
    numbers = labels.shape == (count,) and np.issubdtype(labels.dtype, np.integer)
    inside = numbers and ((labels >= 0) & (labels < num_classes)).all()
    check("labels", inside, f"{count} class numbers in 0..{num_classes - 1}", "others")
    check("test", test.shape == (count,) and test.dtype == bool, f"{count} truth values", f"{test.dtype} {test.shape}")
    check("patients", len(data.patients) in (0, count), f"none or {count} keys", len(data.patients))
    known = not isinstance(data.window, str) or data.window == "file" or data.window in WINDOWS
    check("window", known, f"None, 'file', one of {sorted(WINDOWS)} or (centre, width)", repr(data.window))
    check("annotator_pixels", annotator_pixels >= SMALLEST_IMAGE, f"at least {SMALLEST_IMAGE}", annotator_pixels)
