"""Reads a job: its folder, where a lead has it, and its app, where a server or site gets it.

FLARE finds a configuration in any folder below an app, in formats that include files and variables of the machine, and
puts variables of the environment and paths of the site in the place of ``{...}`` in every string, of JSON too. Our jobs
need none of it: all of their values are literal, and server and sites refuse a job that holds anything else. Whoever
prepares a job for them reads it as strictly as they do; a run on one's own machine may have further files, such as
initial weights, in its app.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedmend.basics.json_files import parse_json, texts
from fedmend.errors import FedMendError

META, CLIENT, SERVER = "meta.json", "config_fed_client.json", "config_fed_server.json"
FOLDER, CODE = "config", "custom"
SIGNATURES = {
    ".__nvfl_sig.json",
    ".__nvfl_submitter.crt",
}  # FLARE puts them into every folder; it takes 0.1 s to import
KNOWN = {FOLDER, f"{FOLDER}/{CLIENT}", f"{FOLDER}/{SERVER}", *SIGNATURES, *(f"{FOLDER}/{s}" for s in SIGNATURES)}
LARGEST = 2**20  # bytes of a file; those of our jobs have 2,000
LONGEST = 200  # characters of a name or class
ENCRYPTION = re.compile(r"(^|\.)(he|homomorphic_encryption)\.|(^|\.)HE[A-Z]\w*$")
TYPED = "utf-8-sig"  # with or without the mark that Windows editors put before what a person writes
CLASS_KEYS = ("path", "class_path", "name")
# What executors of ours and of FLARE's statistics workflow answer; their own constants take seconds to import.
TASKS = ("census", "train", "collect", "evaluate", "keep", "fed_stats", "fed_stats_pre_run")
GUARD = "fl_components.guard.ReportGuard"  # its module takes seconds to import
BASELINES = "fedmend.baselines."  # classes that a kit lists only where its project asks for them


@dataclass(frozen=True)
class JobFiles:
    """What the files of a job folder say.

    Attributes:
        folder: the job folder.
        content: name below the folder → content: ``meta.json``, then the configurations of the clients and the server.
        strict: nothing in them would be refused when the job arrives.
    """

    folder: Path
    content: Mapping[str, dict]
    strict: bool

    @property
    def meta(self) -> dict:
        """Content of ``meta.json``."""
        return self.content[META]

    @property
    def configs(self) -> tuple[dict, dict]:
        """Content of ``config_fed_client.json`` and of ``config_fed_server.json``."""
        _, client, server = self.content.values()
        return client, server

    @property
    def sites(self) -> list[str]:
        """The sites that ``deploy_map`` names, in order; FLARE takes ``@ALL`` for all that there are."""
        return sorted({site for place in self.meta["deploy_map"].values() for site in place} - {"server"})

    @property
    def app(self) -> Path:
        """The app folder of the clients."""
        return (self.folder / list(self.content)[1]).parents[1]

    def read_again(self) -> "JobFiles":
        """What these files would be as JSON, after somebody has changed their content.

        Raises:
            FedMendError: see :func:`read`.
        """
        changed = {name: _parsed(json.dumps(says), name, self.strict) for name, says in self.content.items()}
        return replace(self, content=changed)


def read(job: Path, *, strict: bool = False) -> JobFiles:
    """Reads a job folder.

    Args:
        job: the folder, with ``meta.json`` and one configuration of the server and one of the clients.
        strict: also refuse what server and sites would refuse when the job arrives, see :func:`read_app`. A job with
            code of its own is left to the right ``byoc``.

    Raises:
        FedMendError: another folder, a file that does not parse or is no part of a job, or one that is refused.
    """
    if not (job / META).is_file():
        name = job.resolve().name
        raise FedMendError(f"job {name}: expected a folder with {META}, such as jobs/fedmlp_ich, not found")
    strict = strict and not has_code(job)
    content = {META: _parsed(_text(job / META, TYPED), META, strict)}
    for app in sorted(folder.parent for folder in job.glob(f"*/{FOLDER}")):
        read_here = read_app(app, strict=strict, encoding=TYPED)
        content |= {f"{app.name}/{FOLDER}/{name}": says for name, says in read_here.items()}
    names = sorted(content, key=lambda name: (name != META, Path(name).name))
    if [Path(name).name for name in names] != [META, CLIENT, SERVER]:
        raise FedMendError("job: expected one configuration of the server and one of the clients, got others")
    return JobFiles(job, {name: content[name] for name in names}, strict)


def has_code(job: Path) -> bool:
    """Whether a job folder brings code of its own."""
    return any(job.glob(f"*/{CODE}"))


def read_app(app: Path, *, strict: bool = True, encoding: str = "utf-8") -> dict[str, dict]:
    """Reads the configurations of a job's app.

    Args:
        app: the folder, as it lies in a job folder or as FLARE has deployed it.
        strict: as server and sites do when a job arrives.
        encoding: of the files; FLARE cannot read a mark before UTF-8, so that a job must not arrive with one.

    Returns:
        File name → content, of those that are there.

    Raises:
        FedMendError: JSON that does not parse, has a name twice or is no configuration. If strict, also a file that is
            not known, at any depth; a string with a brace; a class of homomorphic encryption; or an executor of other
            tasks than ours.
    """
    for place in app.rglob("*") if strict else ():
        if place.is_symlink() or place.relative_to(app).as_posix() not in KNOWN:
            raise FedMendError(f"job: expected no files besides {CLIENT} and {SERVER} in {FOLDER}, got others too")
    files = [app / FOLDER / name for name in (CLIENT, SERVER)]
    return {file.name: _parsed(_text(file, encoding), file.name, strict) for file in files if file.exists()}


def _text(file: Path, encoding: str) -> str:
    try:
        if file.stat().st_size > LARGEST:
            raise FedMendError(f"job, {file.name}: expected at most {LARGEST} bytes, got more")
        return file.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError):
        raise _unread(file.name) from None


def _unread(name: str) -> FedMendError:
    return FedMendError(f"job, {name}: expected JSON with each name once, got a file that does not parse")


def _parsed(text: str, name: str, strict: bool) -> dict:
    """The object that the text of a job's file means, in whose strings FLARE would replace nothing if it is strict."""
    name = Path(name).name
    where = f"job, {name}"
    try:
        content = parse_json(text)
    except ValueError:
        raise _unread(name) from None
    if not isinstance(content, dict):
        raise FedMendError(f"{where}: expected a JSON object, got {type(content).__name__}")
    if strict and any("{" in word or "}" in word for word in texts(content)):
        raise FedMendError(
            f"{where}: expected literal values, got a string with a brace, in whose place FLARE would put a variable or"
            " path of the machine"
        )
    if name == META:
        _check_meta(content)
    else:
        _check_config(content, where, strict)
    return content


def _check_meta(meta: Mapping) -> None:
    places = meta.get("deploy_map")
    known = isinstance(places, dict) and all(isinstance(s, list) and all(map(_is_word, s)) for s in places.values())
    if not (known and _is_word(meta.get("name"))):
        raise FedMendError(f"job, {META}: expected name and deploy_map with lists of site names, got others")


def _check_config(config: Mapping, where: str, strict: bool) -> None:
    try:
        named = [component for _, component in components(config)]
    except (AttributeError, KeyError, TypeError, RecursionError):
        raise FedMendError(f"{where}: expected a FLARE configuration, got one that does not read") from None
    problem = config.get("problem", "")
    if not _is_word(problem) or "/" in problem:
        raise FedMendError(f"{where}: expected a word as problem, got another value")
    if strict:
        refuse_encryption(named, where)
        for executor in config.get("executors", []):
            if not (isinstance(asked := executor.get("tasks", []), list) and all(task in TASKS for task in asked)):
                raise FedMendError(f"{where}: expected executors with tasks out of {list(TASKS)}, got another task")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST


def components(config: Mapping) -> Iterator[tuple[str, Mapping]]:
    """Everything that FLARE builds from a configuration, and, as FLARE writes it, where it stands.

    Raises:
        AttributeError, KeyError, TypeError: the configuration is none.
    """
    for place, part in listed(config):
        yield place, part
        yield from _nested(part.get("args", {}), f"{place}.args")


def listed(config: Mapping) -> Iterator[tuple[str, Mapping]]:
    """What :func:`components` gives, without what FLARE builds for the arguments of others."""
    for i, part in _numbered(config, "executors"):
        yield f"executors.#{i}.executor", _component(part["executor"])
    for name in ("workflows", "components"):
        for i, part in _numbered(config, name):
            yield f"{name}.#{i}", _component(part)
    for name in ("task_data_filters", "task_result_filters"):
        for i, part in _numbered(config, name):
            for k, chosen in _numbered(part, "filters"):
                yield f"{name}.#{i}.filters.#{k}", _component(chosen)


def _numbered(config: Mapping, name: str) -> Iterable[tuple[int, Mapping]]:
    values = config.get(name, [])
    if not isinstance(values, list):
        raise TypeError(name)
    return enumerate(values, 1)


def _component(part: Mapping) -> Mapping:
    if not part.keys() & set(CLASS_KEYS):
        raise KeyError("path")
    words = all(_is_word(part.get(key, "")) for key in ("id", *CLASS_KEYS))
    if not (words and isinstance(part.get("args", {}), dict)):
        raise TypeError("args")
    return part


def _nested(value: object, place: str) -> Iterator[tuple[str, Mapping]]:
    """FLARE builds a component that stands in the arguments of another."""
    if isinstance(value, list):
        value = {f"#{i}": inner for i, inner in enumerate(value, 1)}
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(inner, Mapping) and inner.keys() & {"path", "class_path"}:
            yield f"{place}.{name}", inner
        yield from _nested(inner, f"{place}.{name}")


def refuse_encryption(named: Iterable[Mapping], where: str) -> None:
    """Refuses homomorphic encryption before anybody trains: the server could not check or compare what it gets.

    Raises:
        FedMendError: one of the components or filters encrypts weights.
    """
    for component in named:
        if any(ENCRYPTION.search(str(component.get(key, ""))) for key in CLASS_KEYS):
            raise FedMendError(
                f"{where}: expected plain weights, which the checks and distances of the server need, got homomorphic"
                " encryption"
            )


def refuse_baseline(path: str) -> None:
    """Says of a class that a policy does not list how a kit comes to list it.

    Raises:
        FedMendError: it belongs to a method that only comparisons need.
    """
    if path.startswith(BASELINES):
        raise FedMendError(
            f"job, method: {path} belongs to a method that only comparisons need, and this policy does not list it:"
            " expected `baselines: true` under SitePolicyBuilder in project.yml when the kits were made"
        )
