"""The migrations, one file a step. A released one is never edited; a new one is added."""
