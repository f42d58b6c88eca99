"""The trained model as a run leaves it: opened without the run, and asked about new images."""

from fedmend.package.package import Package

__all__ = ["Package"]
