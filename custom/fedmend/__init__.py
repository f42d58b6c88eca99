"""FedMend: federated learning on medical images whose labels are imperfect.

From Python, in a few lines::

    import fedmend

    run = fedmend.Job("jobs/fedmlp_ich", num_rounds=4).run("local")
    run.metrics().plot(x="round", y="auc")

This package holds the methods, the data path and the site-side state. It imports no NVIDIA FLARE; the FLARE
components that use it live in :mod:`fl_components`, and so does what runs a job: ``Job`` and ``Run`` are taken from
there when they are asked for, which a site or method never does. ``Package`` is what a run leaves: its model.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0"
__all__ = ["Job", "Package", "Run", "__version__"]

if TYPE_CHECKING:
    from fedmend.package import Package
    from fl_components.api import Job, Run
else:  # to a type checker, a module with __getattr__ would have every name

    def __getattr__(name: str) -> object:
        if name in ("Job", "Run"):
            from fl_components import api

            return getattr(api, name)
        if name == "Package":
            from fedmend.package import Package

            return Package
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
