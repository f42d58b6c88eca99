"""The files of a model package, a folder ``NAME.fedmend``: what the model is, its weights, and a checksum of both.

``package.json`` says what :class:`fedmend.package.Package` shows; ``weights.safetensors`` holds the floating tensors of
the network, which no code has to be unpickled for; ``SHA256SUMS`` is as ``sha256sum`` writes it, so that
``sha256sum --check SHA256SUMS`` tells whether anything has changed.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import make_folder, sha256, whole_folder, write_text
from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError

SUFFIX, ABOUT, WEIGHTS, SUMS = ".fedmend", "package.json", "weights.safetensors", "SHA256SUMS"
FORMAT = 1


def write_package(
    folder: Path,
    about: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    *,
    sign: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Writes a package, in the place of an earlier one, which is there until this one is whole.

    Args:
        folder: its name ends with ``.fedmend``.
        about: content of ``package.json`` without ``format``.
        weights: name → floating array.
        sign: is given the folder with all files before it gets its name; by default the package stays unsigned.
    """
    from safetensors.numpy import save

    make_folder(folder.parent)
    with whole_folder(folder, replaces=True) as temporary:
        (temporary / WEIGHTS).write_bytes(save({k: np.ascontiguousarray(v) for k, v in weights.items()}))
        write_text(temporary / ABOUT, json.dumps({"format": FORMAT, **about}, indent=2) + "\n")
        write_text(temporary / SUMS, "".join(f"{sha256(temporary / name)}  {name}\n" for name in (ABOUT, WEIGHTS)))
        sign(temporary)


def is_package(place: Path | str) -> bool:
    """Whether there is a package."""
    return (Path(place) / ABOUT).is_file()


def read_package(folder: Path | str) -> dict[str, Any]:
    """The content of ``package.json``, when every file is as it was written.

    Args:
        folder: the package.

    Raises:
        FedMendError: no package, one of another format, or a file that is missing or has changed, which is named.
    """
    folder = Path(folder)
    where = f"package {folder.name}"
    if not is_package(folder):
        raise FedMendError(f"{where}: expected a folder with {ABOUT}, not found")
    listed = (folder / SUMS).read_text(encoding="utf-8", errors="replace") if (folder / SUMS).is_file() else ""
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in listed.splitlines())}
    for name in (ABOUT, WEIGHTS):
        if name not in sums or not (folder / name).is_file():
            raise FedMendError(f"{where}: expected {name} with a line in {SUMS}, not found")
        if sha256(folder / name) != sums[name]:
            raise FedMendError(f"{where}, {name}: expected the file that {SUMS} lists, got one that has changed")
    about = read_document(folder / ABOUT, f"{where}, {ABOUT}", "in the package")
    found = about.get("format") if isinstance(about, dict) else None
    if not isinstance(about, dict) or found != FORMAT:
        raise FedMendError(f"{where}, {ABOUT}, field format: expected {FORMAT}, got {found!r:.20}")
    return about


def read_weights(folder: Path | str) -> dict[str, np.ndarray]:
    """The weights of a package, name → floating array.

    Args:
        folder: the package.

    Raises:
        FedMendError: a file that does not load, or tensors of other types.
    """
    from safetensors.numpy import load_file

    folder = Path(folder)
    try:
        weights = load_file(folder / WEIGHTS)
    except Exception:  # safetensors raises many types, for types of numbers that numpy lacks too
        weights = {}
    if not weights or not all(np.issubdtype(value.dtype, np.floating) for value in weights.values()):
        raise FedMendError(f"package {folder.name}, {WEIGHTS}: expected floating tensors, got others or none that load")
    return weights


def package_digest(folder: Path | str) -> str:
    """SHA-256 of the list of checksums, which stands for the whole package."""
    return hashlib.sha256((Path(folder) / SUMS).read_bytes()).hexdigest()
