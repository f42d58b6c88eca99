"""What the pages name exists: files, headings, commands, options, jobs, variants, settings and tests."""

import argparse
import json
import re
from functools import cache
from pathlib import Path

from fl_components.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
PARSER = build_parser()
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("jobs/*/README.md"), *ROOT.glob("provisioning/*.md")]
)
LONGEST = {"README.md": 130, "docs/results.md": 80}  # lines
PROBLEM_PAGES = sorted(ROOT.glob("docs/results_*.md"))
OF_OTHER_PROGRAMS = {"--force"}  # options that a page names without their command
FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def code(page: Path) -> list[str]:
    """The lines of fenced blocks, each with the indented lines that continue it, and all spans in backticks."""
    lines = []
    for block in FENCE.findall(page.read_text()):
        margin = min((len(line) - len(line.lstrip()) for line in block.splitlines() if line.strip()), default=0)
        for line in (raw[margin:] for raw in block.splitlines()):
            line = re.sub(r"(^|\s\s)#\s.*", "", line)
            if line.startswith(" ") and lines:
                lines[-1] = lines[-1].rstrip(" \\") + " " + line.strip()
            else:
                lines.append(line)
    return lines + SPAN.findall(FENCE.sub("", page.read_text()))


@cache
def headings(page: Path) -> set[str]:
    """Anchors of a page, made from its headings as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The sub-commands of a command."""
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def options(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a command and of all commands below it."""
    return set(parser._option_string_actions).union(*(options(p) for p in below(parser).values()))


def commands(line: str) -> list[str]:
    """What follows the word ``fedmend`` wherever a command begins in a line."""
    return re.split(r"(?:^|(?<=[\s(]))fedmend (?=[a-z])", line)[1:]


def complaint(command: str) -> str:
    """What is wrong with the words of a command; "" if nothing is."""
    parser, words = PARSER, command.split()
    while (known := below(parser)) and words and re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
        if words[0] not in known:
            return f"no command {words[0]!r}"
        parser = known[words.pop(0)]
    unknown = set(OPTION.findall(command)) - options(parser)
    return f"no option {', '.join(sorted(unknown))}" if unknown else ""


@cache
def variants(job: str) -> frozenset[str]:
    """Names of a job's variants: its own, and those that it shares with the other jobs of its problem."""
    problem = json.loads((ROOT / "jobs" / job / "app/config/config_fed_server.json").read_text()).get("problem")
    shared = ROOT.glob(f"jobs/variants/{problem}/*.json") if problem else ()
    return frozenset(f.stem for f in [*ROOT.glob(f"jobs/{job}/variants/*.json"), *shared])


@cache
def jobs() -> list[str]:
    return sorted(f.parent.name for f in ROOT.glob("jobs/*/meta.json"))


def jobs_of(line: str) -> list[str]:
    """The job that a line names; all jobs if it names none of ours."""
    named = [job for job in re.findall(r"\bjobs/([a-z0-9_]+)", line) if job in jobs()]
    return named or jobs()


@cache
def settings(job: str) -> str:
    """The text of a job's configuration and variants, in which every setting is a key."""
    problem = json.loads((ROOT / "jobs" / job / "app/config/config_fed_server.json").read_text()).get("problem")
    folders = (f"jobs/{job}/app/config", f"jobs/{job}/variants", f"jobs/variants/{problem}")
    files = [file for folder in folders for file in ROOT.glob(f"{folder}/*.json")]
    return "".join(f.read_text() for f in files)


def test_the_front_page_and_the_page_of_results_are_short():
    assert {page: n for page, n in LONGEST.items() if len((ROOT / page).read_text().splitlines()) > n} == {}


def test_a_page_of_results_begins_with_what_to_try_first_and_is_linked_from_the_table_of_all():
    assert len(PROBLEM_PAGES) == 4
    for page in PROBLEM_PAGES:
        beginning = page.read_text().partition("\n\n")[2].partition("\n\n")[0]
        assert "**Try first:**" in beginning
        assert f"]({page.name})" in (ROOT / "docs/results.md").read_text()


def test_every_link_leads_to_a_file_and_a_heading():
    dead = []
    for page in PAGES:
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            if re.match(r"https?://", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in headings(target)):
                dead.append(f"{name(page)}: {link}")
    assert not dead


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    pages = [f.name for f in ROOT.glob("docs/*.md") if f.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []


def test_every_command_and_option_that_a_page_shows_exists():
    wrong = []
    for page in PAGES:
        for line in code(page):
            found = [(command, complaint(command)) for command in commands(line)]
            if line.startswith("--"):  # an option by itself
                unknown = set(OPTION.findall(line)) - options(PARSER) - OF_OTHER_PROGRAMS
                found += [(line, "no such option")] if unknown else []
            wrong += [f"{name(page)}: fedmend {command}: {why}" for command, why in found if why]
    assert not wrong


def test_every_job_that_a_page_names_exists():
    named = {(name(page), job) for page in PAGES for job in re.findall(r"\bjobs/([a-z0-9_]+)", page.read_text())}
    assert sorted(n for n in named if n[1] not in [*jobs(), "variants"]) == []


def test_every_variant_that_a_page_names_exists():
    wrong = []
    for page in PAGES:
        for line in code(page):
            known = set().union(*map(variants, jobs_of(line)))
            for words in re.findall(r"--variant[ =]([a-z][\w|,]*)", line):
                wrong += [f"{name(page)}: {v}" for v in re.split(r"[|,]", words) if v not in known]
    assert not wrong


def test_the_page_of_methods_explains_every_variant():
    explained = set(code(ROOT / "docs/methods.md"))
    assert set().union(*map(variants, jobs())) - explained == set()


def test_every_setting_that_a_page_sets_is_one_of_the_job():
    wrong = []
    for page in PAGES:
        for line in code(page):
            for values in re.findall(r"--set ((?:'?[\w.]+=(?:\S+)\s*)+)", line):
                names = re.findall(r"(?:^|\s)'?(\w+)[\w.]*=", values)
                texts = [settings(job) for job in jobs_of(line)]
                wrong += [f"{name(page)}: {n}" for n in names if n != "name" and not any(f'"{n}"' in t for t in texts)]
    assert not wrong


def test_a_data_sheet_that_says_so_has_every_setting_of_its_job():
    sheets = [page for page in PAGES if "hold every setting" in page.read_text()]
    missing = []
    for page in sheets:
        configs = [json.loads(f.read_text()) for f in page.parent.glob("app/config/*.json")]
        args = [e["executor"]["args"] for c in configs for e in c.get("executors", [])]
        args += [p.get("args", {}) for c in configs for p in [*c.get("workflows", []), *c["components"]]]
        names = {name for some in args for name in some} - {"events"}  # of TensorBoard's receiver
        missing += [f"{name(page)}: {n}" for n in sorted(names) if n not in code(page)]
    assert sheets
    assert not missing


def test_every_test_that_a_page_names_exists():
    source = {f: f.read_text() for f in (ROOT / "tests").rglob("test_*.py")}
    files = {str(f.relative_to(ROOT / "tests")) for f in source}
    wrong = []
    for page in (ROOT / "docs/security.md", ROOT / "docs/faults.md", ROOT / "docs/review.md"):
        for word in code(page):
            path, _, function = word.removeprefix("tests/").rpartition("::")
            if re.fullmatch(r"[\w/]*test_\w+\.py", function):
                wrong += [word] if not any(f == function or f.endswith(f"/{function}") for f in files) else []
            elif re.fullmatch(r"test_\w+", function):
                where = [text for f, text in source.items() if str(f).endswith(path)]
                wrong += [word] if not any(f"def {function}(" in text for text in where) else []
    assert not wrong


def test_every_file_that_the_page_of_the_architecture_names_exists():
    words = [w for w in code(ROOT / "docs/architecture.md") if re.fullmatch(r"[\w/]+(\.py|/)", w)]
    assert words
    missing = [w for w in words if not any((base / w).exists() for base in (ROOT, ROOT / "custom/fedmend"))]
    assert not missing
