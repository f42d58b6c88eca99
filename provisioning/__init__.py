"""Startup kits of a federation with FedMend's site policy."""
