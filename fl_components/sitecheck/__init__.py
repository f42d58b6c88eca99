"""The checks that a hospital runs before it joins: its computer, its settings, its data, the job, the way to the
server.

At the top of these modules stands only what works without the packages that a job needs, so that a missing one is a
line like any other.
"""

from fl_components.sitecheck.run import sitecheck

__all__ = ["sitecheck"]
