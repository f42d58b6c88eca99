"""The notebooks of the documentation: what is stored with them, and that they run."""

import os
import re

import nbformat
import pytest
from factories import ROOT
from nbclient import NotebookClient

BOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 300_000  # bytes
PLACE = re.compile(r"(?<![\w./])/(?:home|root|tmp|opt|usr|var|mnt|Users|private)/|[A-Z]:\\\\")
each_book = pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def kinds(notebook):
    return {kind for output in outputs(notebook) for kind in output.get("data", ())}


def test_there_are_notebooks():
    assert [book.stem for book in BOOKS] == ["after_training", "compare_methods", "incomplete_labels"]


@each_book
def test_a_notebook_is_stored_with_tables_and_figures_and_without_places_of_a_machine(book):
    notebook = nbformat.read(book, as_version=4)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert "text/html" in kinds(notebook)
    assert {"image/svg+xml", "image/png"} & kinds(notebook)
    assert [output for output in outputs(notebook) if output.output_type == "error"] == []
    assert PLACE.findall(str(outputs(notebook))) == []
    assert book.stat().st_size < LARGEST


@pytest.mark.slow
@each_book
def test_a_notebook_runs_and_shows_what_is_stored(book, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "custom"), str(ROOT)]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where a notebook makes its folder
    notebook = nbformat.read(book, as_version=4)
    stored = kinds(notebook)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert kinds(notebook) == stored
