"""Finds what the modules of a package bring along, so that a new module needs no change to an existing one."""

import importlib
import pkgutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from fedmend.errors import FedMendError


@dataclass(frozen=True)
class Command:
    """A word on the command line; a module lists its own in a tuple ``COMMANDS``.

    Attributes:
        name: the word.
        help: one line about it.
        add_arguments: adds arguments to the command's parser.
        run: does it, with the parsed arguments; gives the exit code back, or None for 0.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int | None]


def modules_of(package: str) -> list[ModuleType]:
    """Imports and returns the modules of a package, sorted by name; its sub-packages are left out."""
    folders = importlib.import_module(package).__path__
    names = sorted(found.name for found in pkgutil.iter_modules(folders) if not found.ispkg)
    return [importlib.import_module(f"{package}.{name}") for name in names]


def commands_of(package: str) -> list[Command]:
    """The commands that the modules of a package list in ``COMMANDS``, in the order of modules.

    Raises:
        FedMendError: two modules have a command of one name.
    """
    owners: dict[str, str] = {}
    found: list[Command] = []
    for module in modules_of(package):
        for command in getattr(module, "COMMANDS", ()):
            if other := owners.get(command.name):
                both = f"{other} and {module.__name__}"
                raise FedMendError(f"{package}: expected one command {command.name}, got those of {both}")
            owners[command.name] = module.__name__
            found.append(command)
    return found
