"""The wheel that the project admin sends to server and hospitals: all modules are in it, and it needs no checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from factories import ROOT

pytestmark = pytest.mark.slow
SOURCES = {"fedmend": ROOT / "custom" / "fedmend", "fl_components": ROOT / "fl_components"}
FILES = {
    f"{package}/{file.relative_to(folder).as_posix()}"
    for package, folder in SOURCES.items()
    for file in folder.rglob("*")
    if file.is_file() and "__pycache__" not in file.parts
}
WHERE = "import importlib, json, sys; print(json.dumps({n: importlib.import_module(n).__file__ for n in sys.argv[1:]}))"


def module(file):
    path = PurePosixPath(file).with_suffix("")
    return ".".join(path.parent.parts if path.name == "__init__" else path.parts)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made from a copy, as the build leaves folders in the checkout; setuptools is there because torch needs it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("custom", "fl_components"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    words = ["-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(out), str(source)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = out.glob("fedmend-*.whl")
    return file


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def python(words, *, folder, cwd):
    """Python that finds our modules in this folder before it looks for the checkout."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "HOME": str(cwd)}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_both_packages_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"fedmend/methods/fedmlp.py", "fl_components/controller.py"} <= FILES
    assert names == FILES


def test_every_module_of_the_wheel_is_imported_from_it(unpacked, tmp_path):
    names = sorted(module(file) for file in FILES if file.endswith(".py"))
    found = json.loads(python(["-c", WHERE, *names], folder=unpacked, cwd=tmp_path).splitlines()[-1])
    assert sorted(found) == names
    assert [file for file in found.values() if not Path(file).is_relative_to(unpacked)] == []


def test_the_command_of_the_wheel_works(unpacked, tmp_path):
    said = python(["-m", "fl_components.cli", "--help"], folder=unpacked, cwd=tmp_path)
    assert said.startswith("usage: ")
    assert "sitecheck" in said
    (entry,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "fedmend = fl_components.cli:main" in entry.read_text().splitlines()
