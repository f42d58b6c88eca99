"""``local/fedmend.json``: the settings that belong to a site (or to the server) and never travel."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend.basics.checked import AMOUNT, COUNT, FLAG, Check, checked, one_of, taking, that, whole
from fedmend.basics.json_files import read_document
from fedmend.errors import FedMendError
from fedmend.site.gpu_settings import Gpu
from fedmend.site.privacy import Privacy

CONFIG_NAME = "fedmend.json"
PHANTOM = "phantom"
NAMES = that(lambda value: isinstance(value, list) and all(isinstance(v, str) and v for v in value), "names")
NAMED = that(lambda value: isinstance(value, str) and value, "a folder")
FIELD_NAMES = (
    that(lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v), "a list of names of fields"),
    Check(tuple, "a list"),
)
COLUMNS = Check(lambda value: tuple(NAMES.read(value)), "a list of names of columns")
FOLDER = (NAMED, Check(Path, "a folder"))


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
        min_federation: fewest sites that train in a round with this one. 2, so that no lead gets a model that is this
            site's alone; 1: any number.
        refuse_fields: names of report fields that never leave this site; it takes part in no job of a method that
            reports one.
        gallery: write pictures of repaired masks beside the ledger, for the site's own eyes.
        gpu: which GPUs it uses and how, see :mod:`fedmend.site.devices`.
        share_verdicts: tell the server how many repairs of each class people have judged right and wrong.
        evaluate_by: columns by which jobs may count subgroups in an evaluation.
        keep_model: keep the model of a run, as a package beside its ledger, if its job shares it.
        approve: ``ask``: a job of FLARE waits until somebody of the site has approved it; ``no``: it begins by itself.
        privacy: differential privacy of the site's patients, see :mod:`fedmend.site.privacy`; None: none.
    """

    data_root: Path | None = taking(NAMED, Check(lambda name: None if name == PHANTOM else Path(name), "a folder"))
    cache_dir: Path = taking(*FOLDER)
    state_dir: Path = taking(*FOLDER)
    min_count: int = taking(COUNT, default=5)
    max_unreadable: int = taking(COUNT, default=0)
    threads: int = taking(COUNT, default=0)
    max_rounds: int = taking(COUNT, default=1000)
    max_epochs: int = taking(COUNT, default=100)
    max_hours: float = taking(AMOUNT, default=720.0)
    memory_gb: float = taking(AMOUNT, default=0.0)
    min_federation: int = taking(whole(1), default=2)
    refuse_fields: tuple[str, ...] = taking(*FIELD_NAMES, default=())
    gallery: bool = taking(FLAG, default=False)
    share_verdicts: bool = taking(FLAG, default=False)
    evaluate_by: tuple[str, ...] = taking(COLUMNS, default=())
    keep_model: bool = taking(FLAG, default=False)
    approve: str = taking(one_of(["no", "ask"]), default="no")
    gpu: Gpu = taking(Gpu, default=Gpu())
    privacy: Privacy | None = taking(Privacy, default=None)
    weights_dir: Path = taking(*FOLDER, default=Path("weights"))


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
    raw = read_document(file, where, "in the workspace (data_root, cache_dir, state_dir)")
    config = checked(SiteConfig, raw, where, got=_shown)

    def folder(name: str, path: Path) -> Path:
        try:
            return (root / Path(str(path).replace("{SITE_NAME}", site)).expanduser()).resolve()
        except (RuntimeError, OSError):  # no such account; a name that is too long, or links in a circle
            raise FedMendError(f"{where}, field {name}: expected a folder, got one that cannot be looked up") from None

    folders: dict[str, Any] = {k: folder(k, path) for k, path in vars(config).items() if isinstance(path, Path)}
    return replace(config, **folders)


def _shown(value: object) -> str:
    """The value for a sentence that the server sees, unless it could be a path."""
    kinds = {str: "text", list: "a list", dict: "an object", type(None): "nothing"}
    return "''" if value == "" else kinds.get(type(value), f"{value!r:.40}")
