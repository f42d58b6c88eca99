"""How a run goes on, for StatsD, and by its exporter for Prometheus."""

import os

try:
    from datadog import DogStatsd
except ImportError as e:
    from fedmend.errors import FedMendError, not_installed

    raise FedMendError(f"server: {not_installed(str(e.name), 'statsd')}") from None
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

from fedmend.errors import FedMendError
from fl_components.tracking import EVENTS

SENT = {"round/sites": "fedmend_sites", "round/seconds": "fedmend_seconds"}  # nothing that is computed from data
ADDRESS = "FEDMEND_STATSD"


class StatsD(AnalyticsReceiver):
    """Sends three gauges after each round to the StatsD of ``FEDMEND_STATSD=HOST:PORT`` in the environment of the
    server, by default ``localhost:9125``: ``fedmend_round``, ``fedmend_sites`` (valid answers) and ``fedmend_seconds``.

    They go by UDP: nobody waits for an answer, and a job goes on where nobody listens.

    Raises:
        FedMendError: the environment names no host and port.
    """

    def __init__(self) -> None:
        super().__init__(events=EVENTS)
        host, _, port = os.environ.get(ADDRESS, "localhost:9125").rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise FedMendError(f"server: environment, {ADDRESS}: expected HOST:PORT, got something else")
        # telemetry: how much it has sent; origin: the number of the container
        self._statsd = DogStatsd(host, int(port), disable_telemetry=True, origin_detection_enabled=False)

    def initialize(self, fl_ctx: FLContext) -> None:
        """Called by FLARE when the job starts."""

    def save(self, fl_ctx: FLContext, shareable: Shareable, record_origin: str) -> None:
        """Called by FLARE for each number of the server."""
        data = AnalyticsData.from_dxo(from_shareable(shareable))
        if data is not None and data.tag in SENT:
            self._statsd.gauge("fedmend_round", data.step)
            self._statsd.gauge(SENT[data.tag], data.value)

    def finalize(self, fl_ctx: FLContext) -> None:
        """Called by FLARE when the job ends."""
        self._statsd.flush()
