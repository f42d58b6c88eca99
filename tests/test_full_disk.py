from importlib import import_module

import pytest
from full_disk import full_disk


def test_a_module_imported_on_a_full_disk_can_be_imported_again(tmp_path, monkeypatch):
    """Also where PYTHONDONTWRITEBYTECODE is not set."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_full_disk.py").write_text(f"words = {list(range(999))}\n")
    with full_disk(500):
        import_module("of_a_full_disk")
        with pytest.raises(OSError, match="File too large"):
            (tmp_path / "file").write_bytes(bytes(501))
    assert not (tmp_path / "__pycache__").exists()
