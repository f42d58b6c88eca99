"""What a job may hold: files that are known, JSON that means what it says, no encryption of weights.

FLARE finds a configuration in any folder below an app, in formats that include files and variables of the machine, and
puts variables of the environment and paths of the site in the place of ``{...}`` in every string, of JSON too. Our jobs
need none of it: all of their values are literal.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from fedmend.errors import FedMendError

CLIENT, SERVER = "config_fed_client.json", "config_fed_server.json"
FOLDER, CODE = "config", "custom"
SIGNATURES = {NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE}  # FLARE puts them into every folder
KNOWN = {FOLDER, f"{FOLDER}/{CLIENT}", f"{FOLDER}/{SERVER}", *SIGNATURES, *(f"{FOLDER}/{s}" for s in SIGNATURES)}
LARGEST = 2**20  # bytes of a configuration; those of our jobs have 2,000
ENCRYPTION = re.compile(r"(^|\.)(he|homomorphic_encryption)\.|(^|\.)HE[A-Z]\w*$")
CLASS_KEYS = ("path", "class_path", "name")
BASELINES = "fedmend.baselines."  # classes that a kit lists only where its project asks for them


def check_job(job: Path) -> None:
    """Refuses a job folder that server and sites would refuse, before it is sent.

    Args:
        job: with ``meta.json`` and apps; code in an app is left to the right ``byoc``.

    Raises:
        FedMendError: see :func:`read_app`; or ``meta.json`` is not literal.
    """
    if (job / "meta.json").is_file():
        read_literal(job / "meta.json")
    for config in sorted(job.glob(f"*/{FOLDER}")):
        if not (config.parent / CODE).exists():
            read_app(config.parent)


def read_app(app: Path) -> dict[str, dict]:
    """Reads the configurations of a job's app.

    Args:
        app: the folder, as it lies in a job folder or as FLARE has deployed it.

    Returns:
        File name → content, of those that are there.

    Raises:
        FedMendError: a file that is not known, at any depth; JSON that does not parse or is not literal; or a class of
            homomorphic encryption.
    """
    for place in app.rglob("*"):
        if place.is_symlink() or place.relative_to(app).as_posix() not in KNOWN:
            raise FedMendError(f"job: expected no files besides {CLIENT} and {SERVER} in {FOLDER}, got others too")
    configs = {name: app / FOLDER / name for name in (CLIENT, SERVER)}
    found = {name: read_literal(file) for name, file in configs.items() if file.exists()}
    for name, config in found.items():
        try:
            named = list(components(config))
        except (AttributeError, KeyError, TypeError, RecursionError):
            raise FedMendError(f"job, {name}: expected a FLARE configuration, got one that does not read") from None
        refuse_encryption((component for _, component in named), f"job, {name}")
    return found


def read_literal(file: Path) -> dict:
    """Reads a JSON object whose strings are what they say: without braces, names twice, NaN or infinity.

    Raises:
        FedMendError: anything else.
    """
    where = f"job, {file.name}"
    try:
        if file.stat().st_size > LARGEST:
            raise FedMendError(f"{where}: expected at most {LARGEST} bytes, got more")
        text = file.read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=_names_once, parse_constant=_no_number)
        if not isinstance(content, dict):
            raise FedMendError(f"{where}: expected a JSON object, got {type(content).__name__}")
        braces = any("{" in word or "}" in word for word in _strings(content))
    except (OSError, ValueError, RecursionError):
        raise FedMendError(f"{where}: expected JSON with each name once, got a file that does not parse") from None
    if braces:
        raise FedMendError(
            f"{where}: expected literal values, got a string with a brace, in whose place FLARE would put a variable or"
            " path of the machine"
        )
    return content


def _names_once(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")  # readers differ in which of them counts
    return found


def _no_number(text: str) -> None:
    raise ValueError(text)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def components(config: Mapping) -> Iterator[tuple[str, Mapping]]:
    """Everything that FLARE builds from a configuration, and, as FLARE writes it, where it stands.

    Raises:
        AttributeError, KeyError, TypeError: the configuration is none.
    """
    for name in ("components", "workflows"):
        for i, part in enumerate(config.get(name, []), 1):
            yield from _component(part, f"{name}.#{i}")
    for i, part in enumerate(config.get("executors", []), 1):
        yield from _component(part["executor"], f"executors.#{i}.executor")
    for name in ("task_data_filters", "task_result_filters"):
        for i, part in enumerate(config.get(name, []), 1):
            for k, chosen in enumerate(part.get("filters", []), 1):
                yield from _component(chosen, f"{name}.#{i}.filters.#{k}")


def _component(part: Mapping, place: str) -> Iterator[tuple[str, Mapping]]:
    if not part.keys() & set(CLASS_KEYS):
        raise KeyError("path")
    yield place, part
    yield from _nested(part.get("args", {}), f"{place}.args")


def _nested(value: object, place: str) -> Iterator[tuple[str, Mapping]]:
    """FLARE builds a component that stands in the arguments of another."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, Mapping) and inner.keys() & {"path", "class_path"}:
                yield f"{place}.{name}", inner
            yield from _nested(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value, 1):
            if isinstance(inner, Mapping) and inner.keys() & {"path", "class_path"}:
                yield f"{place}.#{i}", inner
            yield from _nested(inner, f"{place}.#{i}")


def refuse_encryption(named: Iterator[Mapping], where: str) -> None:
    """Refuses homomorphic encryption before anybody trains: the server could not check or compare what it gets.

    Args:
        named: components or filters.
        where: first words of the sentence.

    Raises:
        FedMendError: one of them encrypts weights.
    """
    for component in named:
        if any(ENCRYPTION.search(str(component.get(key, ""))) for key in CLASS_KEYS):
            raise FedMendError(
                f"{where}: expected plain weights, which the checks and distances of the server need, got homomorphic"
                " encryption"
            )


def refuse_baseline(path: str) -> None:
    """Says of a class that a policy does not list how a kit comes to list it.

    Args:
        path: the class's full name.

    Raises:
        FedMendError: it belongs to a method that only comparisons need.
    """
    if path.startswith(BASELINES):
        raise FedMendError(
            f"job, method: {path} belongs to a method that only comparisons need, and this policy does not list it:"
            " expected `baselines: true` under SitePolicyBuilder in project.yml when the kits were made"
        )
