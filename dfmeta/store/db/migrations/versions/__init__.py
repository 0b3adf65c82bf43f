"""The migrations, one file for each step. A released migration is never edited; add a new one."""
