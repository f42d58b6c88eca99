"""The documentation as a site: it builds without a warning, its links hold, it loads nothing from other hosts."""

import json
import os
import posixpath
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from factories import ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))
import pages

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(HTMLParser):
    """What a page loads, where its links lead, and which anchors it has."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.anchors = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADED:
                self.loads.add(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.add(value)


def test_the_pages_of_the_reference_are_all_public_modules():
    found = pages.modules()
    assert {"fedmend.method", "fedmend.methods", "fedmend.methods.fedmlp", "fl_components.run.watch"} <= set(found)
    assert not [name for name in found if "._" in name or name.startswith(("tests", "benchmarks"))]


def test_every_page_is_in_the_navigation():
    # its own tags, which a plain reader does not know, are outside the navigation
    config = SimpleNamespace(nav=yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"])
    text = json.dumps(pages.on_config(config).nav)
    for pattern in pages.PAGES:
        for page in ROOT.glob(pattern):
            assert text.count(f'"{pages.path(page)}"') == 1
    assert '"reference/fedmend.method.md"' in text


def test_a_link_to_a_module_leads_to_its_page_and_lists_keep_their_numbers():
    text = (
        "[x](../custom/fedmend/methods/fedia.py)\n\n1. One\n   ```\n     a\n   ```\n   more\n2. Two\n```\n   code\n```"
    )
    assert pages.on_page_markdown(text).splitlines() == [
        "",
        "[x](../reference/fedmend.methods.fedia.md)",
        "",
        "1. One",
        "    ```",
        "      a",
        "    ```",
        "    more",
        "",
        "2. Two",
        "```",
        "   code",
        "```",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]  # --quiet counts no warning
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def parsed(site):
    """Path in the site → page."""
    return {file.relative_to(site).as_posix(): Page(file.read_text()) for file in site.rglob("*.html")}


@pytest.mark.slow
def test_no_link_of_the_site_is_broken(site, parsed):
    @cache
    def exists(path):
        return (site / path).is_file()

    broken = []
    for name, page in parsed.items():
        if name == "404.html":
            continue  # its links are absolute, for the place where the site will be
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
            )
            path = posixpath.join(path, "index.html") if (site / path).is_dir() else path
            anchor = unquote(parts.fragment)
            if not exists(path) or (anchor and path in parsed and anchor not in parsed[path].anchors):
                broken.append(f"{name}: {link}")
    assert broken == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site, parsed):
    assert {link for page in parsed.values() for link in page.loads if urlsplit(link).netloc} == set()
    styles = "".join(file.read_text() for file in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)
    assert not any("mermaid" in page.links | page.anchors for page in parsed.values())


@pytest.mark.slow
def test_every_public_module_is_in_the_reference_and_found_by_the_search(site, parsed):
    for name in pages.modules():
        assert name in parsed[f"reference/{name}/index.html"].anchors
    index = json.loads((site / "search" / "search_index.json").read_text())
    titles = {entry["title"] for entry in index["docs"]}
    assert {"fedmend.methods.fedmlp", "Watch a run", "Architecture"} <= titles
