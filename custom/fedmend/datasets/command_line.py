"""Command-line arguments that several converters and phantoms share."""

import argparse
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.swapped_labels import SwapNoise

Protocol = TypeVar("Protocol")


def given(args: Namespace, *names: str) -> dict[str, Any]:
    """Name → value of these arguments."""
    return {name: getattr(args, name) for name in names}


def made(kind: type[Protocol], said: object, **others: object) -> Protocol:
    """A protocol: each field is the attribute of its name, one of ``others``, or what it is by default.

    Args:
        kind: a dataclass.
        said: parsed arguments, or a phantom.
        others: fields with other values.
    """
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]  # no type says that a class is a dataclass
    return kind(**{name: getattr(said, name) for name in names if hasattr(said, name)} | others)


def options(parser: ArgumentParser, protocol: object, **helps: str) -> None:
    """Adds an argument for each of these fields of a protocol, which has their defaults; None: a whole number or none.

    Args:
        parser: of the command.
        protocol: a dataclass, or an object of one.
        helps: field → a line of help, which may be empty.
    """
    for name, words in helps.items():
        default = getattr(protocol, name)
        kind = int if default is None else type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=words)


def source_and_out(parser: ArgumentParser, source: str) -> None:
    """Adds the folder of a download, of which ``source`` says what is in it, and the folder for the site folders."""
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("out", type=Path, help="folder for site-1, site-2, ...")


def missing_class_arguments(parser: ArgumentParser) -> None:
    """Adds which site annotates which class, see :func:`fedmend.datasets.imperfections.annotated_classes`."""
    parser.add_argument("--sites", type=int, default=5, help="number of sites (default 5)")
    words = "classes that each site annotates (default 1)"
    parser.add_argument("--annotated-per-site", type=int, default=1, help=words)
    parser.add_argument("--rule", choices=["one_each", "random"], default="one_each", help="how they are chosen")
    swap_noise_arguments(parser)
    parser.add_argument("--seed", type=int, default=1037)


def swap_noise_arguments(parser: ArgumentParser) -> None:
    """Adds the fields of :class:`fedmend.datasets.swapped_labels.SwapNoise`."""
    options(parser, SwapNoise, noisy_share="share of noisy sites (default 0: none)", **_RATES)


_RATES = {"noise_low": "smallest noise rate (default 0.5)", "noise_high": "largest noise rate (default 0.7)"}


def noise_arguments(parser: ArgumentParser, **defaults: Any) -> None:
    """Adds the fields of :class:`fedmend.datasets.noisy_sites.NoiseProtocol`, some of them with other defaults."""
    protocol = NoiseProtocol(**defaults)
    helps = {
        "sites": f"number of sites (default {protocol.sites})",
        "alpha": f"Dirichlet concentration (default {protocol.alpha})",
        "presence": f"probability that a site owns a class (default {protocol.presence})",
        "partition_seed": "",
        "noisy_share": "share of noisy sites, rho (default 0.4)",
    }
    options(parser, protocol, **helps, **_RATES)
    words = "instance: an annotator network, trained at each noisy site, confuses what it finds hard"
    parser.add_argument("--noise", choices=["instance", "uniform"], default="instance", help=words)
    options(parser, protocol, noise_seed="")


def soft_labels_argument(parser: ArgumentParser) -> None:
    """Adds the table that takes the place of annotator networks."""
    words = "CSV with class probabilities per image, instead of annotator networks"
    parser.add_argument("--soft-labels", type=Path, help=words)


def share_or_all(text: str) -> float | None:
    """A number, or None of the word ``all``."""
    try:
        return None if text == "all" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or 'all', got {text!r}") from None
