"""Who may import whom, also inside functions, and how long files and functions may be; read from the source.

``python tests/test_layers.py`` writes the picture of :data:`LAYERS` into ``docs/architecture.md``.
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FEDMEND = ROOT / "custom" / "fedmend"
GLUE = ROOT / "fl_components"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BEGIN, END = (
    "<!-- made by `python tests/test_layers.py`: begin -->",
    "<!-- made by `python tests/test_layers.py`: end -->",
)
# Room of fedmend → the rooms that it imports. A room is a folder, or a module at the top of the package.
LAYERS = {
    "errors": "",
    "labels": "",
    "basics": "errors",
    "fields": "errors",
    "preprocessing": "basics errors fields labels",
    "data": "basics errors labels",
    "method": "averaging basics data errors fields labels",
    "averaging": "fields",
    "messages": "errors method",
    "repairs": "basics data errors labels",
    "datasets": "basics data errors labels",
    "phantoms": "basics data datasets errors",
    "learning": "basics data errors fields labels method",
    "kinds": "data errors labels learning method repairs",
    "methods": "averaging data errors fields labels learning method repairs",
    "baselines": "averaging data errors fields labels learning method methods",
    "records": "basics errors labels",
    "advice": "basics data errors kinds labels records",
    "review": "basics data errors kinds labels package records repairs",
    "site": "basics data errors fields kinds labels learning messages method phantoms preprocessing records repairs",
    "evaluation": "basics data errors fields kinds labels learning method preprocessing report",
    "package": "basics data errors evaluation labels learning preprocessing records",
    "worth": "basics data errors kinds labels learning method methods package records repairs",
    "report": "advice basics errors labels records",
    "server": "averaging basics errors fields kinds labels learning messages method preprocessing records report",
    "comparison": "basics errors kinds records report",
    "local": "basics errors fields learning messages method records repairs report server site",
}
FAMILY = {"baselines", "labelsets", "alone"}  # of FedAvg, in the folder of the methods: what papers are made from
STAGES = "fedcorr_stages"  # of both methods of one paper
FRONT_DOOR = FEDMEND / "__init__.py"  # fedmend.Job and fedmend.Run come from the glue, when somebody asks for them
SOURCES = [FEDMEND.parent, GLUE, ROOT / "provisioning", ROOT / "benchmarks"]
SHIPPED = [*FEDMEND.rglob("*.py"), *GLUE.rglob("*.py")]
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


def module_of(file):
    root = FEDMEND.parent if file.is_relative_to(FEDMEND) else ROOT
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def module_imports():
    """Module of ours → the modules of ours that it imports; a package counts where something of its own is taken."""
    files = {module_of(file): file for folder in (FEDMEND, GLUE) for file in modules(folder) if file != FRONT_DOOR}
    found = {}
    for name, file in files.items():
        names = imports_of(file)
        own = {n for n in names if n in files}
        packages = {n for n in own if files[n].name == "__init__.py"}
        packages -= {p for p in packages if all(n in own for n in names if n.rpartition(".")[0] == p)}
        found[name] = {n for n in own if files[n].name != "__init__.py"} | packages
    return found


def circles(graph):
    """Groups of names each of which reaches all others of its group."""
    reached = {}
    for start in graph:
        seen, queue = set(), [start]
        while queue:
            for name in graph[queue.pop()] - seen:
                seen.add(name)
                queue.append(name)
        reached[start] = seen
    return sorted({tuple(sorted(b for b in reached[a] if a in reached[b])) for a in graph if a in reached[a]})


def rooms():
    """Room of fedmend → the other rooms that its modules import."""
    found = {}
    for file in modules(FEDMEND):
        if file != FRONT_DOOR:
            parts = module_of(file).split(".")
            others = {n.split(".")[1] for n in within(imports_of(file), "fedmend") if n != "fedmend"}
            found.setdefault(parts[1], set()).update(others - {parts[1]})
    return found


def floors(layers):
    """Room → the length of the longest way down from it."""
    found = {}
    while len(found) < len(layers):
        for room, below in layers.items():
            if all(b in found for b in below.split()):
                found[room] = max((found[b] + 1 for b in below.split()), default=0)
    return found


def picture(layers):
    """Markdown: the rooms floor by floor, the upper ones first, then the rooms that each of them imports."""
    by_room = floors(layers)
    drawn = [f"{f:2d}  {'   '.join(r for r in layers if by_room[r] == f)}" for f in sorted({*by_room.values()})]
    rows = [
        f"| `{room}` | {', '.join(layers[room].split()) or 'nothing'} |"
        for room in sorted(layers, key=lambda r: (-by_room[r], r))
    ]
    return "\n".join(["```", *reversed(drawn), "```", "", "| room | imports |", "|---|---|", *rows])


def page_with(drawn):
    before, _, rest = ARCHITECTURE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{drawn}\n\n{END}{rest.partition(END)[2]}"


def test_the_reader_of_imports_sees_every_way_to_import():
    text = "import a.b\ndef f():\n    from c import d\n    from . import e\n    from ..g import h\n"
    assert imported(text, "p.q") == {"a.b", "c", "c.d", "p.q", "p.q.e", "p.g", "p.g.h"}


def test_the_finder_of_circles_sees_a_long_one_and_lets_a_tree_pass():
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b", "c")]


def test_each_room_imports_the_rooms_that_the_layer_rule_names_and_no_other():
    found = rooms()
    assert {room: sorted(others) for room, others in sorted(found.items())} == {
        room: below.split() for room, below in sorted(LAYERS.items())
    }


def test_what_runs_at_a_site_and_what_runs_at_the_server_never_import_each_other():
    for one, other in (("site", "server"), ("server", "site")):
        below, queue = set(), [one]
        while queue:
            below |= (new := set(LAYERS[queue.pop()].split()) - below)
            queue += new
        assert other not in below


def test_no_modules_import_each_other_in_a_circle():
    assert circles(module_imports()) == []


def test_the_page_of_the_architecture_shows_the_layer_rule():
    assert ARCHITECTURE.read_text(encoding="utf-8") == page_with(picture(LAYERS))


def test_the_picture_has_a_room_above_all_that_it_imports():
    by_room = floors(LAYERS)
    assert all(by_room[room] > by_room[b] for room, below in LAYERS.items() for b in below.split())


def test_fedmend_knows_neither_flare_nor_the_glue():
    found = {
        name_of(f): within(imports_of(f), "nvflare") + within(imports_of(f), "fl_components") for f in modules(FEDMEND)
    }
    assert {k: v for k, v in found.items() if v} == {
        name_of(FRONT_DOOR): ["fl_components", *(f"fl_components.api{name}" for name in ("", ".Job", ".Run"))]
    }


def test_the_front_door_opens_only_when_somebody_asks():
    assert imported_at_once(FRONT_DOOR.read_text()) == {"typing"}


def test_the_glue_knows_no_method():
    found = {
        name_of(f): within(imports_of(f), "fedmend.methods") + within(imports_of(f), "fedmend.baselines")
        for f in modules(GLUE)
    }
    assert {k: v for k, v in found.items() if v} == {}


def test_no_method_imports_that_of_another_paper_and_what_is_shared_imports_none():
    for folder, least in (("methods", {"fedmlp", "fednoro", "fedlsm", "fedia"}), ("baselines", {"moon", "fixmatch"})):
        papers = {f.stem for f in (FEDMEND / folder).glob("*.py")} - FAMILY - {"__init__", STAGES}
        assert papers >= least
        for file in [*modules(FEDMEND / "methods"), *modules(FEDMEND / "baselines")]:
            names = imports_of(file)
            others = {paper for paper in papers if within(names, f"fedmend.{folder}.{paper}")} - {file.stem}
            assert others == set(), name_of(file)
    for file in modules(FEDMEND / "methods" / "shared"):
        inside = [n for n in within(imports_of(file), "fedmend.methods") if not within({n}, "fedmend.methods.shared")]
        assert inside == [], name_of(file)


def test_provisioning_knows_the_tools_of_flare_alone():
    found = {n for f in modules(ROOT / "provisioning") for n in within(imports_of(f), "nvflare")}
    assert found
    assert [n for n in found if not within({n}, "nvflare.lighter")] == []


def test_every_folder_of_modules_is_a_package_of_the_wheel():
    wanted = {module_of(f).rpartition(".")[0] if f.name != "__init__.py" else module_of(f) for f in SHIPPED}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(wanted)


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
    "onnx",
    "onnxruntime",
    "pynetdicom",
    "dicomweb_client",
    "starlette",
    "uvicorn",
}  # monai: 6 s and 340 MB
PAGE = FEDMEND / "review" / "app.py"  # built on one of them, and imported when a review is served


def imported_at_once(text):
    """Packages that are imported when a module is, not when one of its functions is called, nor for a type checker."""
    found, queue = set(), [ast.parse(text)]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            queue += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            queue += ast.iter_child_nodes(node)
    return found


def test_the_reader_of_imports_at_once_leaves_out_those_inside_functions_and_for_type_checkers():
    text = "import a.b\nif x:\n    from c import d\nclass K:\n    import e\n    def f(self):\n        import g\n"
    assert imported_at_once(f"{text}if TYPE_CHECKING:\n    import h\nelse:\n    import i\n") == {"a", "c", "e", "i"}


def test_packages_that_take_seconds_are_imported_where_they_are_used():
    """FLARE may start a process per task: a site would pay for them in every round."""
    at_once = re.compile(
        r"^(from fedmend.review.app |from fedmend.review import .*app|import .*review.app)", re.MULTILINE
    )
    files = [f for f in [*modules(FEDMEND), *modules(GLUE)] if f != PAGE]
    assert [name_of(f) for f in files if imported_at_once(f.read_text()) & SLOW or at_once.search(f.read_text())] == []


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


def test_no_file_and_no_function_is_too_long_to_be_read_at_once():
    files = {name_of(f): f for folder in SOURCES for f in modules(folder)}
    functions = {name: long for name, f in files.items() if (long := long_functions(f.read_text()))}
    lengths = {n: len(f.read_text().splitlines()) for n, f in files.items() if not ONE_SUBJECT & {f.stem, *f.parts}}
    assert (functions, {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}) == ({}, {})


# ---- jobs -----------------------------------------------------------------------------------------------------------


def test_jobs_hold_configuration_only():
    jobs = ROOT / "jobs"
    assert modules(jobs) == []
    assert list(jobs.rglob("custom")) == []  # such a folder would switch FLARE's check of classes off


if __name__ == "__main__":
    ARCHITECTURE.write_text(page_with(picture(LAYERS)), encoding="utf-8")
