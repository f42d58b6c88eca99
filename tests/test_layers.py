"""Who may import whom; read from the source, so that imports inside functions count too."""

import ast
import itertools

import pytest
from factories import ROOT

FEDMEND = ROOT / "custom" / "fedmend"
METHODS = FEDMEND / "methods"
SHARED = {"__init__", "base", "labelsets"}  # modules of the methods' folder that are no method of a paper


def modules(folder):
    return sorted(folder.rglob("*.py"))


def imported(text, package):
    """Dotted names that a module of ``package`` imports, with the names taken out of a module."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, node.module or ""]).strip(".")
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def imports_of(file):
    package = ".".join(["fedmend", *file.relative_to(FEDMEND).parent.parts])
    return imported(file.read_text(), package)


def within(names, package):
    return sorted(n for n in names if n == package or n.startswith(f"{package}."))


def test_the_reader_of_imports_sees_every_way_to_import():
    text = "import a.b\ndef f():\n    from c import d\n    from . import e\n    from ..g import h\n"
    assert imported(text, "p.q") == {"a.b", "c", "c.d", "p.q", "p.q.e", "p.g", "p.g.h"}


@pytest.mark.parametrize("file", modules(FEDMEND), ids=lambda f: str(f.relative_to(FEDMEND)))
def test_fedmend_knows_neither_flare_nor_the_glue(file):
    names = imports_of(file)
    assert within(names, "nvflare") == []
    assert within(names, "fl_components") == []


def test_a_method_never_imports_another_one():
    methods = [f for f in modules(METHODS) if f.stem not in SHARED]
    assert len(methods) >= 2
    for file, other in itertools.permutations(methods, 2):
        assert within(imports_of(file), f"fedmend.methods.{other.stem}") == [], file.name


def test_jobs_hold_configuration_only():
    jobs = ROOT / "jobs"
    assert modules(jobs) == []
    assert list(jobs.rglob("custom")) == []  # such a folder would switch FLARE's check of classes off
