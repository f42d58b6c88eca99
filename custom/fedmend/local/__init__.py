"""Server and sites in one process: the same numbers without FLARE."""
