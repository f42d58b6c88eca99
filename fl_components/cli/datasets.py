"""``prepare`` and ``phantom``: the commands that datasets and phantoms bring along."""

from collections.abc import Sequence

from fl_components.cli.common import subcommands

GROUPS = {  # command → one line about it, and the package whose modules have its commands
    "prepare": ("turn an official download or your own data into site folders", "fedmend.datasets"),
    "phantom": ("write synthetic data", "fedmend.phantoms.specs"),
}


def add(commands, words: Sequence[str] | None) -> None:
    """Adds both commands.

    Args:
        commands: where they are added.
        words: the command line. Datasets are imported only where it begins with one of the two commands: that takes
            seconds, for which no other command should wait. None: import all.

    Raises:
        FedMendError: two datasets have a command of one name.
    """
    for name, (summary, package) in GROUPS.items():
        group = subcommands(commands, name, summary, "DATASET")
        if words is not None and name not in words[:1]:
            continue
        from fedmend.basics.discovery import commands_of

        for command in commands_of(package):
            parser = group.add_parser(command.name, help=command.help)
            command.add_arguments(parser)
            parser.set_defaults(run=command.run)
