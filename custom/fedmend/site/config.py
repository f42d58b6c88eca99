"""``local/fedmend.json``: the settings that belong to a site (or to the server) and never travel."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError
from fedmend.site.gpu_settings import Gpu, read_gpu
from fedmend.site.privacy import Privacy, read_privacy

CONFIG_NAME = "fedmend.json"
PHANTOM = "phantom"


@dataclass(frozen=True)
class SiteConfig:
    """Contents of ``fedmend.json`` with all paths made absolute.

    Attributes:
        data_root: the site folder, or None where the setting is the word ``phantom``.
        cache_dir: image stores and phantoms.
        state_dir: ledger, state and checkpoints, one folder per run name.
        min_count: fewest samples behind any number that describes a group of patients.
        max_unreadable: tolerated unreadable images per split.
        threads: CPU threads of the local training, and cores that decode images; 0 = all cores. Results depend on this
            number in the last digits.
        max_rounds: most rounds of a job; 0 = any number.
        max_epochs: most epochs of a round; 0 = any number.
        max_hours: longest time that a job may take; 0 = any.
        memory_gb: most memory of a training step, in GB, by the estimate of :mod:`fedmend.site.limits`; 0 = what is
            free.
        weights_dir: the server's folder of ImageNet weights, see :func:`fedmend.learning.weights.weights_file`.
        gallery: write pictures of repaired masks beside the ledger, for the site's own eyes.
        gpu: which GPUs it uses and how, see :mod:`fedmend.site.devices`.
        share_verdicts: tell the server how many repairs of each class people have judged right and wrong.
        privacy: differential privacy of the site's patients, see :mod:`fedmend.site.privacy`; None: none.
    """

    data_root: Path | None
    cache_dir: Path
    state_dir: Path
    min_count: int = 5
    max_unreadable: int = 0
    threads: int = 0
    max_rounds: int = 1000
    max_epochs: int = 100
    max_hours: float = 720.0
    memory_gb: float = 0.0
    gallery: bool = False
    share_verdicts: bool = False
    privacy: Privacy | None = None
    gpu: Gpu = field(default_factory=Gpu)
    weights_dir: Path = Path("weights")


_TEXT, _WEIGHTS = ("data_root", "cache_dir", "state_dir"), "weights_dir"
_NUMBERS = ("min_count", "max_unreadable", "threads", "max_rounds", "max_epochs")
_AMOUNTS, _FLAGS, _OBJECTS = ("max_hours", "memory_gb"), ("gallery", "share_verdicts"), ("gpu", "privacy")


def read_site_config(file: Path, root: Path, site: str) -> SiteConfig:
    """Reads the ``fedmend.json`` of a site or of the server.

    ``{SITE_NAME}`` in a path becomes the site's name, ``~`` the home directory; relative paths start at the workspace.

    Args:
        file: the file.
        root: the workspace.
        site: name of the site or server.

    Raises:
        FedMendError: missing file, no JSON, unknown or wrong field, or a site name that is no part of a path.
    """
    if site in ("", ".", "..") or re.search(r"[/\\\0]", site):  # it becomes a part of paths
        raise FedMendError(f"site name: expected one without path separators, got {site!r:.40}")
    where = f"{site}: local/{CONFIG_NAME}"
    try:
        raw = read_json(file)
    except (FileNotFoundError, IsADirectoryError):
        raise FedMendError(f"{where}: expected in the workspace (data_root, cache_dir, state_dir), not found") from None
    except ValueError:
        raise FedMendError(f"{where}: expected JSON, got a file that does not parse") from None
    if not isinstance(raw, dict):
        raise FedMendError(f"{where}: expected a JSON object, got {type(raw).__name__}")
    known = [*_TEXT, *_NUMBERS, *_AMOUNTS, *_FLAGS, *_OBJECTS, _WEIGHTS]
    if unknown := sorted(f"{name:.40}" for name in set(raw) - set(known)):
        raise FedMendError(f"{where}: expected the fields {known}, got also {unknown}")
    raw.setdefault(_WEIGHTS, str(SiteConfig.weights_dir))
    for name in (*_TEXT, _WEIGHTS):
        if not isinstance(raw.get(name), str) or not raw[name]:
            raise FedMendError(f"{where}, field {name}: expected a folder, got {_shown(raw.get(name))}")
    for name in (*_NUMBERS, *_AMOUNTS):
        value, kinds = raw.get(name, 0), int if name in _NUMBERS else int | float
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise FedMendError(f"{where}, field {name}: expected a number >= 0, got {_shown(value)}")
    for name in _FLAGS:
        if not isinstance(raw.get(name, False), bool):
            raise FedMendError(f"{where}, field {name}: expected true or false, got {_shown(raw[name])}")

    def folder(name: str) -> Path:
        try:
            return (root / Path(raw[name].replace("{SITE_NAME}", site)).expanduser()).resolve()
        except (RuntimeError, OSError):  # no such account; a name that is too long, or links in a circle
            raise FedMendError(f"{where}, field {name}: expected a folder, got one that cannot be looked up") from None

    return SiteConfig(
        data_root=None if raw["data_root"] == PHANTOM else folder("data_root"),
        cache_dir=folder("cache_dir"),
        state_dir=folder("state_dir"),
        weights_dir=folder(_WEIGHTS),
        gpu=read_gpu(raw.get("gpu"), where),
        privacy=read_privacy(raw.get("privacy"), where),
        **{name: raw[name] for name in (*_NUMBERS, *_AMOUNTS, *_FLAGS) if name in raw},
    )


def _shown(value: object) -> str:
    """The value for a sentence that the server sees, unless it could be a path."""
    kinds = {str: "text", list: "a list", dict: "an object"}
    return kinds.get(type(value), repr(value)) if value else repr(value)
