"""What every package leans on and no package owns: files and locks, JSON, state, work on several cores, pages."""
