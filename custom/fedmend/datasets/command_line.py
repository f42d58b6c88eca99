"""Command-line arguments that several converters and phantoms share."""

import argparse
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path

from fedmend.datasets.swapped_labels import SwapNoise


def given(args: Namespace, *names: str) -> dict:
    """Name → value of these arguments."""
    return {name: getattr(args, name) for name in names}


def made(kind: type, said: object, **others) -> object:
    """A protocol: each field is the attribute of its name, one of ``others``, or what it is by default.

    Args:
        kind: a dataclass.
        said: parsed arguments, or a phantom.
        others: fields with other values.
    """
    return kind(**{f.name: getattr(said, f.name) for f in fields(kind) if hasattr(said, f.name)} | others)


def source_and_out(parser: ArgumentParser, source: str) -> None:
    """Adds the folder of a download, of which ``source`` says what is in it, and the folder for the site folders."""
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("out", type=Path, help="folder for site-1, site-2, ...")


def missing_class_arguments(parser: ArgumentParser) -> None:
    """Adds which site annotates which class, see :func:`fedmend.datasets.imperfections.annotated_classes`."""
    parser.add_argument("--sites", type=int, default=5, help="number of sites (default 5)")
    parser.add_argument(
        "--annotated-per-site", type=int, default=1, help="classes that each site annotates (default 1)"
    )
    parser.add_argument("--rule", choices=["one_each", "random"], default="one_each", help="how they are chosen")
    swap_noise_arguments(parser)
    parser.add_argument("--seed", type=int, default=1037)


def swap_noise_arguments(parser: ArgumentParser) -> None:
    """Adds the fields of :class:`fedmend.datasets.swapped_labels.SwapNoise`."""
    parser.add_argument(
        "--noisy-share", type=float, default=SwapNoise.noisy_share, help="share of noisy sites (default 0: none)"
    )
    parser.add_argument(
        "--noise-low", type=float, default=SwapNoise.noise_low, help="smallest noise rate (default 0.5)"
    )
    parser.add_argument(
        "--noise-high", type=float, default=SwapNoise.noise_high, help="largest noise rate (default 0.7)"
    )


def noise_arguments(parser: ArgumentParser, *, sites: int = 20, alpha: float = 2.0, presence: float = 0.9) -> None:
    """Adds the fields of :class:`NoiseProtocol`; the numbers are defaults."""
    parser.add_argument("--sites", type=int, default=sites, help=f"number of sites (default {sites})")
    parser.add_argument("--alpha", type=float, default=alpha, help=f"Dirichlet concentration (default {alpha})")
    parser.add_argument(
        "--presence", type=float, default=presence, help=f"probability that a site owns a class (default {presence})"
    )
    parser.add_argument("--partition-seed", type=int, default=100)
    parser.add_argument("--noisy-share", type=float, default=0.4, help="share of noisy sites, rho (default 0.4)")
    parser.add_argument("--noise-low", type=float, default=0.5, help="smallest noise rate (default 0.5)")
    parser.add_argument("--noise-high", type=float, default=0.7, help="largest noise rate (default 0.7)")
    parser.add_argument(
        "--noise",
        choices=["instance", "uniform"],
        default="instance",
        help="instance: an annotator network, trained at each noisy site, confuses what it finds hard",
    )
    parser.add_argument("--noise-seed", type=int, default=0)


def soft_labels_argument(parser: ArgumentParser) -> None:
    """Adds the table that takes the place of annotator networks."""
    parser.add_argument(
        "--soft-labels", type=Path, help="CSV with class probabilities per image, instead of annotator networks"
    )


def lesion_arguments(parser: ArgumentParser, *, levels: str) -> None:
    """Adds who keeps how many lesions; ``levels`` are those of ``completeness_settings``, e.g. ``0..3``."""
    parser.add_argument("--sites", type=int, help="number of sites, 1..4 (default 4)")
    parser.add_argument("--m", type=int, help=f"the paper's level of incompleteness, {levels} (default 0)")
    parser.add_argument(
        "--completeness",
        type=_shares,
        help="share of lesions that each site keeps, e.g. 0.3,0.7, instead of --sites and --m",
    )
    parser.add_argument("--test-share", type=float, help="share of the patients (default 0.2)")
    parser.add_argument("--val-share", type=float, default=0.0, help="share of the other patients (default 0)")
    parser.add_argument(
        "--test-patients", type=_words, default=(), help="the test patients, e.g. lesjak_07, instead of --test-share"
    )
    parser.add_argument("--seed", type=int, default=1037)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def share_or_all(text: str) -> float | None:
    """A number, or None of the word ``all``."""
    try:
        return None if text == "all" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or 'all', got {text!r}") from None


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers like 0.3,0.7, got {text!r}") from None
