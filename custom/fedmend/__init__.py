"""FedMend: federated learning on medical images whose labels are imperfect.

This package holds the methods, the data path and the site-side state. It imports no NVIDIA FLARE; the FLARE
components that use it live in :mod:`fl_components`.
"""

__version__ = "0.1.0"
