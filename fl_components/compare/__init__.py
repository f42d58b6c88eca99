"""Many runs of one job: which, for how long, and their tables."""
