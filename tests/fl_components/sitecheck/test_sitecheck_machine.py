from importlib import metadata
from types import SimpleNamespace

import psutil
import pytest
import torch
from sitecheck_factories import found, shown

from fl_components.sitecheck import machine


def installed(monkeypatch, *requires, python=">=3.11"):
    fedmend = SimpleNamespace(version="1.2", requires=list(requires), metadata={"Requires-Python": python})
    monkeypatch.setattr(machine, "_distribution", lambda: fedmend)


def test_python_is_compared_with_what_fedmend_needs(site, monkeypatch):
    monkeypatch.setattr("platform.python_version", lambda: "3.12.1")
    installed(monkeypatch)
    assert found("python", site) == ["ok    python: expected >=3.11, got 3.12.1"]
    installed(monkeypatch, python=">=3.13")
    assert found("python", site) == ["fail  python: expected >=3.13, got 3.12.1"]


def test_packages_are_compared_with_what_fedmend_needs(site, monkeypatch):
    versions = {"numpy": "2.4.6", "torch": "2.14.1+cpu"}
    monkeypatch.setattr(metadata, "version", lambda name: versions[name])
    installed(monkeypatch, "numpy>=2", "torch>=2.11", 'pytest>=8; extra == "dev"')
    assert found("packages", site) == ["ok    packages: fedmend 1.2, numpy 2.4.6, torch 2.14.1+cpu"]


def test_missing_and_old_packages_are_named_and_end_the_list(site, monkeypatch):
    installed(monkeypatch, "numpy>=99", "no-such-package>=1,<2", "torch")
    version = metadata.version("numpy")
    assert shown(site)[1:] == [
        f"fail  packages: expected numpy>=99, got {version}; expected no-such-package<2,>=1, not installed",
        "skip  all other checks: need the packages",
    ]


def test_a_checkout_that_is_not_installed_is_refused(site, monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    assert found("python", site) == ["fail  python: expected FedMend installed with pip, not found"]


def test_a_gpu_is_named_with_its_memory_and_none_is_a_warning(site, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found("gpu", site) == ["warn  gpu: expected a GPU, got none: trainings run on the CPU"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    device = SimpleNamespace(name="Model 1", total_memory=24_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    assert found("gpu", site) == ["ok    gpu: Model 1, 24.0 GB, Model 1, 24.0 GB"]


@pytest.mark.parametrize(("free", "status"), [(4.0, "ok  "), (3.9, "warn")])
def test_memory_is_compared_with_what_a_site_takes(site, monkeypatch, free, status):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free * 1e9))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    assert found("memory", site) == [f"{status}  memory: expected 4.0 GB free, got {free} GB; 8 CPU cores"]
