"""Where a site's data lie: its own folder, or its part of a phantom."""

from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.phantoms.sites import PhantomSpec, ensure_phantom
from fedmend.site.config import CONFIG_NAME, SiteConfig


def site_folder(name: str, config: SiteConfig, phantom: PhantomSpec | None) -> Path:
    """The site folder: ``data_root``, or where that is the word ``phantom``, the site's part of the job's phantom, made
    when missing.

    Raises:
        FedMendError: the job has no phantom, or none for this site, or it cannot be made.
    """
    if config.data_root is not None:
        return config.data_root
    if phantom is None:
        field = f"local/{CONFIG_NAME}, field data_root"
        raise FedMendError(f"{name}: {field}: expected a folder, as this job has no phantom")
    folder = ensure_phantom(config.cache_dir, phantom) / name
    if not folder.is_dir():
        raise FedMendError(f"{name}: phantom: expected a site name from site-1 to site-{phantom.sites}, got {name}")
    return folder
