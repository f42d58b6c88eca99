"""The register of a site: what left it, a line for each answer, written before the answer leaves.

One JSON object per line: number, UTC time, job, run, task, round, names and bytes of what left, epsilon, the sentence
if it was one, the SHA-256 of it all, and that of the line before. So a line that is changed or taken out is named by
its number. A mark beside the register holds number and hash of the last line, so lines that are cut off at the end are
missed. Whoever can write the folder can make all of it anew; only a hash that was noted elsewhere shows that.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import OWNER, append_text, failing_disk, locked, make_folder, write_text
from fedmend.errors import FedMendError
from fedmend.messages import SiteResult

FOLDER = ".register"  # in state_dir, beside the folders of runs, whose names start with a letter or number
PATIENCE = 30.0  # seconds until another job of this site has written its line
TAIL = 2**18  # bytes at the end of the file that hold its last line
BEGIN = hashlib.sha256(b"").hexdigest()  # stands before the first line


def register_file(state_dir: Path, site: str) -> Path:
    """Where the register of a ``site`` is in its ``state_dir``."""
    return state_dir / FOLDER / f"{site}.jsonl"


def told(result: SiteResult) -> dict[str, Any]:
    """What the register says of an answer: round, names and bytes of its parts, epsilon, sentence and digest.

    Args:
        result: as it leaves; the site's name in it does not count, since the server sets that.
    """
    named = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "site"}
    sizes: dict[str, int] = {}
    for name, value in named.items():
        if name == "weights" or not isinstance(value, Mapping):
            sizes |= {name: size_of(value)} if value else {}
        else:
            sizes |= {f"{name} {inner}": size_of(part) for inner, part in value.items()}
    about = {"round": result.round_num, "fields": dict(sorted(sizes.items())), "digest": digest_of(named)}
    about |= {"epsilon": result.privacy["epsilon"]} if result.privacy else {}
    return about | ({"error": result.error} if result.error else {})


def size_of(value: object) -> int:
    """Bytes of arrays, mappings, sequences, texts and single numbers."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(size_of(k) + size_of(v) for k, v in value.items())
    return len(value) if isinstance(value, str | bytes) else 8


def digest_of(value: object) -> str:
    """SHA-256 of arrays, mappings, texts and single numbers, whatever the order in the mappings."""
    total = hashlib.sha256()
    for part in _parts(value):
        total.update(part)
    return total.hexdigest()


def _parts(value: object) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield b"{%d" % len(value)
        for name in sorted(value):
            yield from _parts(name)
            yield from _parts(value[name])
    elif isinstance(value, np.ndarray):
        yield f"[{value.dtype.str}{value.shape}".encode()
        yield np.ascontiguousarray(value).view(np.uint8) if value.size else b""
    else:
        content = value if isinstance(value, bytes) else repr(value).encode()
        yield b"%d:" % len(content)
        yield content


def note(state_dir: Path, site: str, about: Mapping[str, Any]) -> None:
    """Writes one line; it is on the disk afterwards.

    Args:
        state_dir: of the site.
        site: its name.
        about: what the line says between its time and the hash of the line before, see :func:`told`.

    Raises:
        FedMendError: the register cannot be written, so the answer must not leave.
    """
    file, where = register_file(state_dir, site), f"{site}: register of what left"
    with failing_disk(where):
        make_folder(file.parent)
        with locked(file.with_suffix(".lock"), patience=PATIENCE) as alone:
            if not alone:
                raise FedMendError(f"{where}: expected to write it, got no lock")
            file.touch(mode=0o600)
            end, last = _last_line(file)
            number, before = _mark(file) or (0, BEGIN)
            if last:
                known = _read(last) or {}
                if not number or (known.get("number"), known.get("before")) == (number + 1, before):
                    number, before = known.get("number", number + 1), _hash(last)  # killed before it left its mark
            line = json.dumps({"number": number + 1, "time": _now(), **about, "before": before})
            append_text(file, end, line + "\n")
            mark = {"number": number + 1, "hash": _hash(line.encode())}
            write_text(_mark_file(file), json.dumps(mark) + "\n", mode=OWNER)


def read_register(file: Path) -> list[dict[str, Any]]:
    """The lines of a register that can be read, in their order.

    Args:
        file: as :func:`register_file` says.
    """
    return [known for line in _lines(file) if (known := _read(line)) is not None]


def problems(file: Path, noted: str = "") -> list[str]:
    """What is wrong with a register, in words that name lines by their numbers; empty: nothing that can be seen.

    Args:
        file: as :func:`register_file` says.
        noted: hash of a line that somebody noted earlier, which must still be there; empty: none.
    """
    found: list[str] = []
    number, before, hashes = 0, BEGIN, set()
    for place, line in enumerate(_lines(file), 1):
        known = _read(line)
        if known is None:
            found.append(f"line {place} is none that FedMend wrote")
            number, before = number + 1, ""
            continue
        if known["number"] > number + 1:
            found.append(_missing(number + 1, known["number"] - 1))
        elif known["number"] <= number:
            found.append(f"line {known['number']} stands behind line {number}")
            continue
        elif before not in ("", known["before"]):
            found.append(f"line {number} has been changed" if number else "the lines before line 1 are missing")
        number, before = known["number"], _hash(line)
        hashes.add(before)
    mark = _mark(file)
    if mark is None:
        found += ["its mark is missing"] if number else []
    elif mark[0] > number:
        found.append(_missing(number + 1, mark[0]))
    elif mark[0] == number and mark[1] != before:
        found.append(f"line {number} has been changed")
    elif mark[0] < number - 1:  # one line may come without its mark where a process was killed
        found.append(f"its mark is that of line {mark[0]}, there are {number}")
    return found + ([f"no line has the hash {noted:.64}"] if noted and noted not in hashes else [])


def last_hash(file: Path) -> str:
    """Hash of the last line, to be noted where nobody of the site can change it; empty where there is no line."""
    _, last = _last_line(file)
    return _hash(last) if last else ""


def _missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _lines(file: Path) -> Sequence[bytes]:
    """The whole lines: what a killed process left of one behind them has not left."""
    return file.read_bytes().split(b"\n")[:-1] if file.is_file() else []


def _last_line(file: Path) -> tuple[int, bytes]:
    """Where the whole lines end, in bytes, and the last of them."""
    with open(file, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL))
        *whole, rest = stream.read().split(b"\n")
    return size - len(rest), whole[-1] if whole else b""


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        known = json.loads(line)
        right = type(known["number"]) is int and isinstance(known["before"], str)
    except (ValueError, KeyError, TypeError):
        return None
    return known if right else None


def _mark_file(file: Path) -> Path:
    return file.with_suffix(".mark")


def _mark(file: Path) -> tuple[int, str] | None:
    try:
        known = json.loads(_mark_file(file).read_bytes())
        return int(known["number"]), str(known["hash"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
