import functools
import sqlite3

import pytest

from fedmend.repairs import verdicts


@pytest.fixture
def opened(monkeypatch):
    """A list that grows by one with every connection that is opened to a ledger file."""
    found = []

    class Counted(sqlite3.Connection):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            found.append(self)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Counted))
    return found


@pytest.fixture
def parsed(monkeypatch):
    """A list that grows by one whenever all verdicts of a ledger are read."""
    found, read = [], verdicts.all_verdicts
    monkeypatch.setattr(verdicts, "all_verdicts", lambda db: found.append(db) or read(db))
    return found
