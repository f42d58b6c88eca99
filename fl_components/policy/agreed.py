"""One hash for the policy that hospitals have agreed to, and the same of what lies in a startup kit.

FLARE signs no file of a kit, and where hospitals make their kits themselves, the project admin never sees the policy in
them. So the lead makes the hash from ``project.yml``, and each hospital compares it with that of its kit.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from fedmend.basics.json_files import read_json
from fedmend.errors import FedMendError

CHECKOUT = Path(__file__).resolve().parents[2]
PARTS = ("resources", "authorization", "privacy")
LENGTH = 24  # hexadecimal digits of each part: 96 bits, for which nobody finds another file


def policy_hash(kit: Path) -> str:
    """The hash of the policy that is in force in a startup kit.

    It covers what FLARE reads: ``resources.json`` and ``authorization.json`` of ``local/``, or where they are not
    there, their ``.default``; ``privacy.json``; and whatever else FLARE adds to the resources by its name. Blanks and
    the order of fields do not count, and a file that is not there has a hash too.

    Args:
        kit: startup kit of a site.

    Returns:
        Three groups of hexadecimal digits, for resources, authorization and privacy.

    Raises:
        FedMendError: one of the files is not JSON.
    """
    return "-".join(_digest([_content(kit, file) for file in _files(kit, part)]) for part in PARTS)


def _files(kit: Path, part: str) -> Iterator[Path]:
    own, default = kit / "local" / f"{part}.json", kit / "local" / f"{part}.json.default"
    yield own if own.exists() or part == "privacy" else default
    if part == "resources":
        yield from sorted(file for place in ("startup", "local") for file in (kit / place).glob("*_resources.json"))


def _content(kit: Path, file: Path) -> object:
    try:
        return read_json(file)
    except FileNotFoundError:
        return None
    except ValueError:
        raise FedMendError(f"{file.relative_to(kit)}: expected JSON, got a file that does not parse") from None


def _digest(contents: object) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:LENGTH]


def differing(found: str, agreed: str) -> list[str]:
    """The files of ``local/`` by which a kit's policy differs from the agreed one.

    Args:
        found: what :func:`policy_hash` says of the kit.
        agreed: what it said where the policy was agreed.

    Raises:
        FedMendError: ``agreed`` is no such hash.
    """
    theirs = agreed.strip().lower().split("-")
    if [len(group) for group in theirs] != [LENGTH] * len(PARTS):
        raise FedMendError("--policy: expected what `fedmend policy --hash` has printed, got something else")
    return [part for part, ours, other in zip(PARTS, found.split("-"), theirs, strict=True) if ours != other]


def agreed_hash(project: Path) -> str:
    """The hash of the policy that a ``project.yml`` gives to its hospitals: of a kit that is made and thrown away.

    Args:
        project: description of the federation, with a server, a site and the builders.

    Raises:
        FedMendError: no such file, or no kit can be made from it.
    """
    try:
        about = yaml.safe_load(project.read_text(encoding="utf-8-sig"))
        sides = {p["type"]: p for p in about["participants"]}
        kept = {**about, "participants": [sides["server"], sides["client"]]}
        name, site = about["name"], sides["client"]["name"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        raise FedMendError(f"{project}: expected a project.yml with a server, a site and builders, got none") from None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "project.json"
        file.write_text(json.dumps(kept, default=str), encoding="utf-8")  # JSON is YAML
        words = ["provision", "-p", str(file), "-w", folder, "-c", str(CHECKOUT)]
        done = subprocess.run([sys.executable, "-m", "nvflare.cli", *words], capture_output=True, text=True, cwd=folder)
        kit = Path(folder) / str(name) / "prod_00" / str(site)
        if done.returncode or not kit.is_dir():
            lines = (done.stdout + done.stderr).strip().splitlines()
            said = [line for line in lines if not line.startswith(("Hint: ", "Code: "))] or ["nothing"]
            raise FedMendError(f"{project}: expected that a kit can be made from it, FLARE said last: {said[-1]}")
        return policy_hash(kit)
