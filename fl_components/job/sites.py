"""The sites of a job, checked before every start: whatever runs it, the same ones are right."""

import re
from collections import Counter

from fedmend.errors import FedMendError
from fl_components.job.reading import META, JobFiles

SERVER, ALL = "server", "@ALL"
NAME = re.compile(r"[A-Za-z0-9_-]+")  # FLARE's rule for a client; a dot is for it a step between two processes


def check_sites(files: JobFiles) -> None:
    """Refuses a job that FLARE would refuse, or begin and never end, for the sites in its ``meta.json``.

    Args:
        files: what the job folder says.

    Raises:
        FedMendError: no server or no site, a site twice or with a name that FLARE does not bear, or more sites needed
            than named.
    """
    where = f"job, {META}, deploy_map"
    named = Counter(site for sites in files.meta["deploy_map"].values() for site in sites)
    if ALL in map(str.upper, named):
        if list(named) != [ALL]:
            raise FedMendError(f"{where}: expected {ALL} alone or the names of server and sites, got both")
        return
    if SERVER not in named:
        raise FedMendError(f"{where}: expected the server and sites, got no server")
    for site, count in named.items():
        if count > 1:
            raise FedMendError(f"{where}: expected each site once, got {site!r:.60} {count} times")
        if not NAME.fullmatch(site):
            raise FedMendError(
                f"{where}: expected names of letters, digits, - and _, which FLARE needs, got {site!r:.60}"
            )
    sites, needed = len(named) - 1, files.meta.get("min_clients", 1)
    if not sites:
        raise FedMendError(f"{where}: expected the server and sites, got no site")
    if type(needed) is not int or not 1 <= needed <= sites:
        raise FedMendError(
            f"job, {META}, min_clients: expected 1 to {sites}, as deploy_map has {sites}, got {needed!r:.40}"
        )
