import subprocess

import numpy as np
import pytest
from factories import refused

from fedmend.records.package_files import is_package, package_digest, read_package, write_package

WEIGHTS = {"b": np.ones(2, np.float32), "a": np.arange(6, dtype=np.float32).reshape(3, 2).T}


@pytest.fixture
def package(tmp_path):
    write_package(tmp_path / "run.fedmend", {"name": "run"}, WEIGHTS)
    return tmp_path / "run.fedmend"


def test_what_is_written_is_read_and_its_bytes_are_the_same_every_time(package, tmp_path):
    from safetensors.numpy import load_file

    assert is_package(package)
    assert read_package(package) == {"format": 1, "name": "run"}
    found = load_file(package / "weights.safetensors")
    assert {name: value.tolist() for name, value in found.items()} == {k: v.tolist() for k, v in WEIGHTS.items()}
    digest = package_digest(package)
    write_package(package, {"name": "run"}, dict(reversed(WEIGHTS.items())))  # in the place of an earlier one
    assert package_digest(package) == digest
    write_package(package, {"name": "run"}, {**WEIGHTS, "b": np.zeros(2, np.float32)})
    assert package_digest(package) != digest


def test_a_package_that_cannot_be_written_leaves_the_one_before(package):
    def fails(folder):
        raise OSError("no space")

    digest = package_digest(package)
    with pytest.raises(OSError, match="no space"):
        write_package(package, {"name": "other"}, WEIGHTS, sign=fails)
    assert (read_package(package)["name"], package_digest(package)) == ("run", digest)


def test_the_sums_are_those_of_a_common_tool(package):
    said = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=package, capture_output=True, text=True).stdout
    assert said == "package.json: OK\nweights.safetensors: OK\n"


@pytest.mark.parametrize("name", ["package.json", "weights.safetensors"])
def test_a_changed_byte_names_the_file(package, name):
    content = bytearray((package / name).read_bytes())
    content[-3] ^= 1
    (package / name).write_bytes(content)
    with refused(f"package run.fedmend, {name}: expected the file that SHA256SUMS lists, got one that has changed"):
        read_package(package)


def test_a_folder_that_lacks_a_file_is_no_package(package):
    (package / "weights.safetensors").unlink()
    with refused("package run.fedmend: expected weights.safetensors with a line in SHA256SUMS, not found"):
        read_package(package)
    (package / "package.json").unlink()
    assert not is_package(package)
    with refused("package run.fedmend: expected a folder with package.json, not found"):
        read_package(package)


def test_a_package_of_another_format_is_refused(package):
    write_package(package, {"format": 2}, WEIGHTS)
    with refused("package run.fedmend, package.json, field format: expected 1, got 2"):
        read_package(package)
