"""A release that is built from a commit, as the project admin does."""

import hashlib
import json
import shutil
import subprocess

import pytest
from factories import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cyclonedx-py"), reason="needs cyclonedx-py (requirements-dev.txt)"),
]


def build(folder, umask):
    words = [ROOT / "provisioning" / "deploy" / "build", folder]
    done = subprocess.run(words, umask=umask, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_commit_gives_the_same_wheel_lock_and_parts_list_whenever_and_by_whomever_it_is_built(tmp_path):
    files = build(tmp_path / "one", 0o022)
    assert build(tmp_path / "two", 0o077) == files
    (wheel,) = [name for name in files if name.endswith(".whl")]
    assert set(files) == {wheel, "requirements.lock", "fedmend.cdx.json"}
    lines = files["requirements.lock"].decode().splitlines()
    version = wheel.split("-")[1]
    assert lines[-1] == f"fedmend=={version} --hash=sha256:{hashlib.sha256(files[wheel]).hexdigest()}"
    parts = {f"{part['name']}=={part['version']}" for part in json.loads(files["fedmend.cdx.json"])["components"]}
    assert parts == {line.split()[0] for line in lines[:-1] if "==" in line}
