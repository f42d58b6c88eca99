"""The report of a run: what it left behind → one HTML page with figures, tables and a short plain text."""
