"""The model of a run, which the server sends when the run is over, kept at a site that wants it.

The server sends the files of a package as they are (:mod:`fedmend.records.package_files`). What it says is hostile
until it is checked: names and sizes before anything is written, signature, checksums, the run's name, classes and
network, and the tensors before the package gets its name. None of these files is unpickled, or called.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fedmend.basics.files import failing_disk, locked, sweep, whole_folder
from fedmend.basics.json_files import parse_json
from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError, said_by
from fedmend.learning.networks import build_network
from fedmend.learning.weights import set_weights
from fedmend.messages import LONGEST_ERROR, Question, RunSpec, SiteResult
from fedmend.records.package_files import ABOUT, SUFFIX, SUMS, WEIGHTS, read_package, read_weights
from fedmend.records.signature import SIGNATURE, Trust, verify_package
from fedmend.site.config import CONFIG_NAME, SiteConfig
from fedmend.site.limits import count_task

LOG = logging.getLogger("fedmend.executor")
FOLDER = "model"  # beside the ledger of the run
PREDECESSOR = 30.0  # seconds until the last task of the run has ended
SMALL = 2**22  # bytes of a file without weights, and of what is not weights in the one with them


def keep(name: str, question: Question, config: SiteConfig, trust: Trust | None) -> SiteResult:
    """Keeps the package that the server sends, in the place of an earlier one of the same run.

    Args:
        name: of the site.
        question: file name → (bytes,) uint8 as its weights.
        config: the site's settings.
        trust: whose signature the package must have; None: a federation without certificates.

    Returns:
        An answer without content; or one sentence, and then nothing has been kept.
    """
    try:
        with failing_disk(name):
            _keep(name, question, config, trust)
    except FedMendError as e:
        message = said_by(name, e)
        LOG.error("%s", message)
        return SiteResult(error=message[:LONGEST_ERROR])
    return SiteResult(round_num=question.round_num)


def _keep(name: str, question: Question, config: SiteConfig, trust: Trust | None) -> None:
    run = question.run
    folder, goal = config.state_dir / run.run_name / name, config.state_dir / run.run_name / name / FOLDER
    if not config.keep_model:
        raise FedMendError(f"keep_model of this site's {CONFIG_NAME}: expected no model from the server, got one")
    if not folder.is_dir():
        raise FedMendError("model of the server: expected one of a run in which this site takes part, got another")
    with locked(folder / "in_use", patience=PREDECESSOR) as alone:
        if not alone:
            raise FedMendError("model of the server: expected no other task of this run at this site, one goes on")
        count_task(name, config, StateStore(folder), question.name)
        files = _checked(question.weights, run, folder)
        sweep(folder, FOLDER)
        with whole_folder(goal, replaces=True) as temporary:
            package = temporary / f"{_name(files[ABOUT], run)}{SUFFIX}"
            package.mkdir()
            for file, content in files.items():
                (package / file).write_bytes(content.tobytes())
            found = verify_package(package, trust)
            _check(package, run)
    by = f"signed by {found.name}" if found else "unsigned, as this federation has no certificates"
    LOG.info("%s: keeps the model of run %s, %s", name, run.run_name, by)


def _checked(files: Mapping[str, object], run: RunSpec, folder: Path) -> dict[str, np.ndarray]:
    """The files, of names and sizes that a package of the run can have."""
    if not {ABOUT, WEIGHTS, SUMS} <= {*files} <= {ABOUT, WEIGHTS, SUMS, SIGNATURE}:
        raise FedMendError("model of the server: expected the files of a package, got others")
    with torch.device("meta"):
        network = build_network(run.network, len(run.classes))
    size = sum(t.nbytes for t in network.state_dict().values() if t.is_floating_point())
    found: dict[str, np.ndarray] = {}
    for name, content in files.items():
        if not (isinstance(content, np.ndarray) and content.dtype == np.uint8 and content.ndim == 1):
            raise FedMendError(f"model of the server, {name}: expected bytes, got something else")
        most = SMALL + (size if name == WEIGHTS else 0)
        if len(content) > most:
            raise FedMendError(f"model of the server, {name}: expected at most {most} bytes, got {len(content)}")
        found[name] = content
    if 2 * sum(map(len, found.values())) > shutil.disk_usage(folder).free:
        raise FedMendError("model of the server: expected twice its size of free space in state_dir, got less")
    return found


def _name(content: np.ndarray, run: RunSpec) -> str:
    """The name of the package, one of the two that a run gives; refuses one of something else than the run."""
    where = f"model of the server, {ABOUT}"
    try:
        about = parse_json(content.tobytes().decode())
        network = about["network"]["name"]
        found = {"classes": (list(run.classes), about["classes"]), "network": (run.network, network)}
        name = next(name for name in (run.run_name, f"{run.run_name}-best") if name == about["name"])
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        raise FedMendError(f"{where}: expected a package of the run, got another") from None
    for field, (wanted, got) in found.items():
        if wanted != got:
            raise FedMendError(f"{where}, field {field}: expected that of the run, got another")
    return name


def _check(package: Path, run: RunSpec) -> None:
    """Refuses tensors that are not those of the run's network."""
    read_package(package)
    tensors = {name: torch.from_numpy(value) for name, value in read_weights(package).items()}
    set_weights(build_network(run.network, len(run.classes)), tensors)
