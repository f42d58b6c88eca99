import pytest
from factories import refused

from fedmend.basics.discovery import commands_of, modules_of

COMMAND = """
from fedmend.basics.discovery import Command

COMMANDS = (Command(name={!r}, help="h", add_arguments=print, run=print),)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two modules and a sub-package; each test has one of its own name, as modules stay imported."""
    folder = tmp_path / f"found_{tmp_path.name}"
    (folder / "inner").mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py", "plain.py"):
        (folder / file).write_text("")
    (folder / "brings.py").write_text(COMMAND.format("one"))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_the_modules_of_a_package_are_sorted_and_sub_packages_left_out(package):
    assert [m.__name__.split(".")[1] for m in modules_of(package.name)] == ["brings", "plain"]


def test_a_module_may_bring_commands_or_none(package):
    assert [command.name for command in commands_of(package.name)] == ["one"]


def test_two_commands_of_one_name_are_refused(package):
    (package / "twice.py").write_text(COMMAND.format("one"))
    name = package.name
    with refused(f"{name}: expected one command one, got those of {name}.brings and {name}.twice"):
        commands_of(name)
