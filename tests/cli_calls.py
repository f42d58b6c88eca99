"""How tests call the console command."""

from fl_components.cli import main


def call(*words):
    """Exit code of ``fedmend`` with these words."""
    return main([str(w) for w in words])


def capture(monkeypatch, target):
    """Puts a function that notes its arguments in the place of ``target``."""
    seen = []
    monkeypatch.setattr(target, lambda *args, **kwargs: seen.append((args, kwargs)))
    return seen
