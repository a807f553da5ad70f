"""The upstream release: its pins, its files, its source as a git repository."""
