"""Runs of a comparison on a Dask cluster, each on a worker of its own."""

import contextlib
import secrets
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import fedmend
from fedmend.errors import FedMendError, not_installed

PATIENCE = 20.0  # seconds until a scheduler has answered


@contextlib.contextmanager
def connected(address: str, out: Path) -> Iterator[tuple[Executor, int]]:
    """Workers that take runs.

    Args:
        address: of the scheduler, e.g. ``tcp://10.0.0.1:8786``.
        out: folder of the comparison, which all workers must see under this path.

    Yields:
        An executor, and the number of workers.

    Raises:
        FedMendError: Dask is not installed, no scheduler answers, or a worker is not fit for runs; or one was lost.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise FedMendError(f"--cluster: {not_installed('distributed', 'cluster')}") from None
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError):
        raise FedMendError(f"--cluster: expected a Dask scheduler at {address}, got no answer") from None
    with client:
        _check_workers(client, out)
        pool = client.get_executor(pure=False)
        try:
            yield pool, len(client.nthreads())
        except KilledWorker:
            raise FedMendError("--cluster: expected workers that live until a run ends, lost one (memory?)") from None
        finally:
            pool.shutdown()  # runs that have begun are kept


def _check_workers(client: Any, out: Path) -> None:
    threads = client.nthreads()
    if not threads or set(threads.values()) != {1}:
        got = ", ".join(map(str, sorted(set(threads.values())))) or "no worker"
        raise FedMendError(f"--cluster: expected workers of one thread each (dask worker --nthreads 1), got {got}")
    token = out / f".cluster-{secrets.token_hex(8)}"
    out.mkdir(parents=True, exist_ok=True)
    token.write_text(fedmend.__version__)
    try:
        found = client.run(look, str(token), on_error="return")
    finally:
        token.unlink()
    versions = {version for version, _ in (told for told in found.values() if isinstance(told, tuple))}
    if versions != {fedmend.__version__} or any(not isinstance(told, tuple) for told in found.values()):
        got = ", ".join(sorted(versions)) or "none"
        raise FedMendError(f"--cluster: expected FedMend {fedmend.__version__} at every worker, got {got}")
    if not all(seen for _, seen in found.values()):
        raise FedMendError("--cluster: expected workers that see the folder of --out under the same path, one does not")


def look(token: str) -> tuple[str, bool]:
    """What a worker says of itself: FedMend's version, and whether it sees a file."""
    return fedmend.__version__, Path(token).is_file()
