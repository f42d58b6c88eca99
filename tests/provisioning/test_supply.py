"""What a release is made of: the lock, the image and the units of systemd."""

import configparser
import re
import shutil
import subprocess
import tomllib

import pytest
from factories import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = ROOT / "requirements.lock"
DEPLOY = ROOT / "provisioning" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
PINNED = re.compile(r"([a-z0-9][a-z0-9-]*)==(\S+) \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
HARDENED = {
    "NoNewPrivileges": "true",
    "ProtectSystem": "strict",
    "ProtectHome": "true",
    "PrivateTmp": "true",
    "CapabilityBoundingSet": "",
    "User": "fedmend",
    "MemorySwapMax": "0",
}


def locked():
    return dict(PINNED.fullmatch(line).groups() for line in LOCK.read_text().splitlines() if "==" in line)


def test_the_lock_pins_what_the_requirements_name_and_everything_that_those_need():
    pins = locked()
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if "==" in line:
            name, version = line.split("==")
            assert pins[canonicalize_name(name)] == version
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for need in map(Requirement, declared):
        assert need.specifier.contains(pins[canonicalize_name(need.name)]), need
    assert "fedmend" not in pins  # its wheel is made from the checkout
    assert len(pins) > 2 * len(declared)


def test_every_pin_of_the_lock_has_hashes_and_none_says_where_to_fetch_it():
    before = ""
    for line in LOCK.read_text().splitlines():
        assert line.startswith("#") or PINNED.fullmatch(line) or HASH.fullmatch(line), line
        if PINNED.fullmatch(before):
            assert HASH.fullmatch(line), before
        before = line
    assert not re.search(r"://|--(extra-)?index|--find-links|(^|\s)-e\s|\.whl|\.tar", LOCK.read_text())


def test_the_lock_says_by_which_command_it_is_made():
    made_by = "uv pip compile requirements.txt --no-emit-package fedmend --generate-hashes --only-binary :all:"
    head = LOCK.read_text()[:500]
    assert made_by in head
    readme = (DEPLOY / "README.md").read_text().replace(" \\\n      ", " ")
    assert re.search(r"uv pip compile .*", head).group().strip() in readme


def test_the_image_is_made_from_wheels_with_hashes_and_runs_without_rights():
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    code = "\n".join(lines)
    assert "--no-index" in code
    assert "--require-hashes" in code
    assert not re.search(r"\b(curl|wget|apt-get|git|ADD|COPY)\b", code)
    assert "USER 10001:10001" in lines
    assert lines[-1].startswith("ENTRYPOINT")


@pytest.mark.parametrize("unit", UNITS, ids=lambda file: file.name)
def test_a_unit_takes_rights_and_memory_away(unit):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(unit)
    service = parser["Service"]
    assert {name: service[name] for name in HARDENED} == HARDENED
    assert service["MemoryMax"].endswith("G")
    assert "/var/lib/fedmend/kit/startup" in service["ReadOnlyPaths"]
    assert "/var/lib/fedmend/kit/local" in service["ReadOnlyPaths"]
    assert ("/srv/fedmend/data" in service["ReadOnlyPaths"]) == (unit.stem == "fedmend-site")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda file: file.name)
def test_systemd_finds_no_fault_and_little_exposure_in_a_unit(unit):
    def analyze(*words):
        done = subprocess.run(["systemd-analyze", *words, str(unit)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert analyze("verify") == (0, "")
    code, said = analyze("security", "--offline=true", "--threshold=20")  # tenths: 2.0 of 10
    assert code == 0, said
