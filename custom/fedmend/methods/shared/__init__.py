"""What several methods compute alike; no job names a class of it."""
