"""Repaired labels and masks of a site: what was changed, by which rule, in which round; originals are never written."""
