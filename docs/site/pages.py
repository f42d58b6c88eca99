"""Lays out the pages of the site as they lie in the repository, so that their links hold there and here, and makes one
page of the API reference per public module. A hook of MkDocs."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/*.md", "jobs/*/README.md", "provisioning/*.md", "provisioning/deploy/*.md")
OTHERS = (
    "LICENSE",
    "CITATION.cff",
    "docs/*.png",
    "docs/figures/*",
    "docs/notebooks/*.ipynb",
    "provisioning/project.yml",
    "provisioning/*.json",
    "simulator_workspace/local/*.json",
)
PACKAGES = {"fedmend": ROOT / "custom", "fl_components": ROOT, "provisioning": ROOT}
REFERENCE = "reference"
MODULE = re.compile(r"\((\.\./[./]*)(?:custom/)?((?:fedmend|fl_components|provisioning)/[\w/]+)\.py\)")
IN_LIST = re.compile(r"^ {3}(?=\S|  )")  # what belongs to an item of a list with numbers, for which it wants 4

ITEM = re.compile(r"\d+\. ")


def modules() -> list[str]:
    """Full names of the public modules, packages before what is in them."""
    found = []
    for package, root in PACKAGES.items():
        for file in sorted((root / package).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if not any(part.startswith("_") for part in parts):
                found.append(".".join(parts))
    return sorted(found)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages whose names nobody should have to keep up to date to the navigation."""
    jobs = [path(page) for page in sorted(ROOT.glob("jobs/*/README.md"))]
    provisioning = [path(page) for page in sorted(ROOT.glob("provisioning/*.md"))]
    reference = [{name: page_of(name)} for name in modules()]
    (guide,) = (entry["Guide"] for entry in config.nav if "Guide" in entry)
    listed = {page if isinstance(page, str) else next(iter(page.values())) for page in guide}
    guide += sorted({path(page) for page in ROOT.glob("docs/*.md")} - listed)
    config.nav += [
        {"Jobs": jobs},
        {"Provisioning": [*provisioning, "provisioning/deploy/README.md"]},
        {"API reference": [f"{REFERENCE}/index.md", *reference]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replaces the files of ``docs`` by those of the repository, and adds the reference."""
    theme = [file for file in files if not Path(file.abs_src_path or "").is_relative_to(ROOT / "docs")]
    ours = [file for pattern in (*PAGES, *OTHERS) for file in sorted(ROOT.glob(pattern))]
    found = [File.generated(config, path(file), abs_src_path=str(file)) for file in ours]
    table = "\n".join(f"- [`{name}`]({Path(page_of(name)).name})" for name in modules())
    made = {f"{REFERENCE}/index.md": f"# API reference\n\n{table}\n"}
    made |= {page_of(name): f"::: {name}\n" for name in modules()}
    found += [File.generated(config, uri, content=text) for uri, text in made.items()]
    return Files([*theme, *found])


def on_page_markdown(markdown: str, **_) -> str:
    """A link to a module leads to its page here. And GitHub takes three spaces for what belongs to an item of a list
    with numbers, Python-Markdown four, and an empty line before the next item."""
    lines, fenced = [""], False
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        if ITEM.match(line) and lines[-1].startswith(" "):
            lines.append("")
        lines.append(line if fenced else IN_LIST.sub("    ", line))
    return MODULE.sub(lambda match: f"({match[1]}{page_of(match[2].replace('/', '.'))})", "\n".join(lines))


def path(file: Path) -> str:
    """Its place in the repository."""
    return file.relative_to(ROOT).as_posix()


def page_of(module: str) -> str:
    """The page of a module."""
    return f"{REFERENCE}/{module}.md"
