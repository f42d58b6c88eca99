"""``policy``: the site policy that follows from the code."""

import argparse
from pathlib import Path

from fedmend.errors import FedMendError


def add(commands) -> None:
    """Adds the command."""
    policy = commands.add_parser("policy", help="bring the policy files of a checkout up to date with its methods")
    policy.add_argument("--checkout", type=Path, default=Path(), help="default: the current folder")
    policy.add_argument("--check", action="store_true", help="only say which files are out of date; exit code 1 if any")
    policy.set_defaults(run=_policy)


def _policy(args: argparse.Namespace) -> None:
    from fl_components.policy import RESOURCES, stale, write_policy

    if not (args.checkout / RESOURCES).is_file():
        raise FedMendError(f"policy: expected a FedMend checkout with {RESOURCES}, not found")
    if args.check:
        if files := stale(args.checkout):
            raise FedMendError(
                f"policy: expected files that follow from the code, got old ones: {', '.join(map(str, files))}"
            )
        print("the policy files follow from the code")
        return
    for file in (changed := write_policy(args.checkout)):
        print(f"written: {file}; read the difference: it is what sites agree to")
    if not changed:
        print("the policy files follow from the code already")
