"""Turns the roles of our docstrings, such as :class:`fedmend.method.Site`, into links of the site, and gives a method
that overrides one of ours and says nothing the docstring of that one. For griffe."""

import contextlib
import re
from collections.abc import Iterator

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([\w.]+)`")
OURS = ("fedmend", "fl_components", "provisioning")


class References(griffe.Extension):
    """Runs over a package when it is loaded."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_) -> None:
        """Called by griffe."""
        for found in _all(pkg):
            if found.docstring:
                text = found.docstring.value
                found.docstring.value = ROLE.sub(lambda match, of=found: _link(match[1], of, loader), text)
        for found in _all(pkg):
            if found.is_function and found.parent.is_class and not found.is_private and not found.docstring:
                above = [c.members[found.name] for c in found.parent.mro() if found.name in c.members]
                found.docstring = next((m.docstring for m in above if m.docstring), None)


def _all(found: griffe.Object) -> Iterator[griffe.Object]:
    yield found
    for member in found.members.values():
        if not member.is_alias:
            yield from _all(member)


def _link(name: str, where: griffe.Object, loader: griffe.GriffeLoader) -> str:
    """A link to something of ours that has a place in the reference, by its full name or as it is seen from where it is
    named; else its name."""
    first, *rest = name.split(".")
    with contextlib.suppress(griffe.NameResolutionError):
        name = name if first in OURS else ".".join([where.resolve(first), *rest])
    if name.split(".")[0] not in OURS:
        return f"`{name}`"
    try:
        target = loader.modules_collection[name]
        if not target.has_docstring or target.is_private:  # such as constants: no place of their own
            return f"`{name}`"
    except KeyError:  # a strict build says so
        pass
    return f"[`{name}`][{name}]"
