"""Checks of the computer."""

import platform
from importlib import metadata

from fedmend.errors import FedMendError
from fedmend.site.gpu_settings import GB
from fl_components.sitecheck.site import FAIL, OK, WARN, CheckedSite, Result

MEMORY = 4 * GB  # FLARE's two processes of a site and a training; twice what was measured


def python(site: CheckedSite) -> Result:
    """Python itself."""
    from packaging.specifiers import SpecifierSet

    wanted, found = _distribution().metadata["Requires-Python"], platform.python_version()
    return Result(OK if found in SpecifierSet(wanted) else FAIL, f"expected {wanted}, got {found}")


def packages(site: CheckedSite) -> Result:
    """What FedMend needs, as its installation says."""
    from packaging.requirements import Requirement

    fedmend = _distribution()
    found, wrong = [f"fedmend {fedmend.version}"], []
    for requirement in map(Requirement, fedmend.requires or []):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"expected {wanted}, not installed")
            continue
        found.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"expected {wanted}, got {version}")
    return Result(FAIL, "; ".join(wrong)) if wrong else Result(OK, ", ".join(found))


def gpu(site: CheckedSite) -> Result:
    """A GPU that torch finds."""
    import torch

    if not torch.cuda.is_available():
        return Result(WARN, "expected a GPU, got none: trainings run on the CPU")
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return Result(OK, ", ".join(f"{d.name}, {d.total_memory / GB:.1f} GB" for d in devices))


def memory(site: CheckedSite) -> Result:
    """Free memory."""
    import psutil

    free = psutil.virtual_memory().available
    text = f"expected {MEMORY / GB:.1f} GB free, got {free / GB:.1f} GB; {psutil.cpu_count()} CPU cores"
    return Result(OK if free >= MEMORY else WARN, text)


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("fedmend")
    except metadata.PackageNotFoundError:
        raise FedMendError("expected FedMend installed with pip, not found") from None


CHECKS = {"gpu": gpu, "memory": memory}  # after python and packages, without which no other check can run
