"""Who may import whom, also inside functions, and how long files and functions may be; read from the source."""

import ast
import re

import pytest
from factories import ROOT

FEDMEND = ROOT / "custom" / "fedmend"
METHODS = FEDMEND / "methods"
GLUE = ROOT / "fl_components"
# Modules of the methods' folder that are no method of a paper; every other one is.
SHARED = {
    "__init__",
    "baselines",
    "dimensions",
    "fedcorr_stages",
    "labelsets",
    "mean_teacher",
    "noisy_sites",
    "prototypes",
    "pseudo_labels",
    "ramp_up",
    "readings",
    "singlelabel",
    "slices",
}
FRONT_DOOR = FEDMEND / "__init__.py"  # fedmend.Job and fedmend.Run come from the glue, when somebody asks for them
SOURCES = [FEDMEND.parent, GLUE, ROOT / "provisioning", ROOT / "benchmarks"]
LONGEST_FILE, LONGEST_FUNCTION = 400, 60  # lines
ONE_SUBJECT = {"phantoms"}  # files and folders of this name may be longer: what they draw belongs together


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
    root = FEDMEND.parent if file.is_relative_to(FEDMEND) else ROOT
    return imported(file.read_text(), ".".join(file.relative_to(root).parent.parts))


def name_of(file):
    return str(file.relative_to(ROOT))


def within(names, package):
    return sorted(n for n in names if n == package or n.startswith(f"{package}."))


def test_the_reader_of_imports_sees_every_way_to_import():
    text = "import a.b\ndef f():\n    from c import d\n    from . import e\n    from ..g import h\n"
    assert imported(text, "p.q") == {"a.b", "c", "c.d", "p.q", "p.q.e", "p.g", "p.g.h"}


@pytest.mark.parametrize("file", modules(FEDMEND), ids=name_of)
def test_fedmend_knows_neither_flare_nor_the_glue(file):
    names = imports_of(file)
    assert within(names, "nvflare") == []
    assert within(names, "fl_components") == (["fl_components", "fl_components.api"] if file == FRONT_DOOR else [])


def test_the_front_door_opens_only_when_somebody_asks():
    assert imported_at_once(FRONT_DOOR.read_text()) == set()


@pytest.mark.parametrize("file", modules(GLUE), ids=name_of)
def test_the_glue_knows_no_method(file):
    methods = [n for n in within(imports_of(file), "fedmend.methods") if n != "fedmend.methods"]  # to look through
    assert methods == []


def test_no_method_imports_that_of_another_paper_and_what_is_shared_imports_none():
    found = [f.stem for f in modules(METHODS)]
    papers = set(found) - SHARED
    assert papers >= {"fedmlp", "fednoro", "fedlsm", "fedia", "moon", "fixmatch"}
    assert set(found) >= SHARED
    for file in modules(METHODS):
        names = imports_of(file)
        others = {paper for paper in papers if within(names, f"fedmend.methods.{paper}")} - {file.stem}
        assert others == set(), file.name


@pytest.mark.parametrize("file", modules(ROOT / "provisioning"), ids=name_of)
def test_provisioning_knows_the_tools_of_flare_alone(file):
    assert [n for n in within(imports_of(file), "nvflare") if not within({n}, "nvflare.lighter")] == []


# ---- time -----------------------------------------------------------------------------------------------------------


SLOW = {
    "monai",
    "timm",
    "torchvision",
    "safetensors",
    "cleanlab",
    "opacus",
    "distributed",
    "dask",
    "highdicom",
    "starlette",
    "uvicorn",
}  # monai: 6 s and 340 MB


def imported_at_once(text):
    """Packages that are imported when a module is, not when one of its functions is called."""
    found, queue = set(), [ast.parse(text)]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            queue += ast.iter_child_nodes(node)
    return found


def test_the_reader_of_imports_at_once_leaves_out_those_inside_functions():
    text = "import a.b\nif x:\n    from c import d\nclass K:\n    import e\n    def f(self):\n        import g\n"
    assert imported_at_once(text) == {"a", "c", "e"}


PAGE = FEDMEND / "review" / "app.py"  # built on one of them, and imported when a review is served


@pytest.mark.parametrize("file", [f for f in [*modules(FEDMEND), *modules(GLUE)] if f != PAGE], ids=name_of)
def test_packages_that_take_seconds_are_imported_where_they_are_used(file):
    """FLARE may start a process per task: a site would pay for them in every round."""
    text = file.read_text()
    assert imported_at_once(text) & SLOW == set()
    assert not re.search(
        r"^(from fedmend.review.app |from fedmend.review import .*app|import .*review.app)", text, re.M
    )


# ---- length ---------------------------------------------------------------------------------------------------------


def long_functions(text):
    """Functions with more lines than there may be, from ``def`` to their last line."""
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {f"{f.name} (line {f.lineno})": f.end_lineno - f.lineno + 1 for f in functions}
    return {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}


def test_the_reader_of_lengths_counts_from_def_to_the_last_line():
    body = "    x = 1\n" * LONGEST_FUNCTION
    assert long_functions("def f():\n" + body[: -len("    x = 1\n")]) == {}
    assert long_functions("def f():\n" + body) == {"f (line 1)": LONGEST_FUNCTION + 1}


@pytest.mark.parametrize("file", [file for folder in SOURCES for file in modules(folder)], ids=name_of)
def test_no_file_and_no_function_is_too_long_to_be_read_at_once(file):
    text = file.read_text()
    if not ONE_SUBJECT & {file.stem, *file.relative_to(ROOT).parts}:
        lines = len(text.splitlines())
        assert lines <= LONGEST_FILE
    assert long_functions(text) == {}


# ---- jobs -----------------------------------------------------------------------------------------------------------


def test_jobs_hold_configuration_only():
    jobs = ROOT / "jobs"
    assert modules(jobs) == []
    assert list(jobs.rglob("custom")) == []  # such a folder would switch FLARE's check of classes off
