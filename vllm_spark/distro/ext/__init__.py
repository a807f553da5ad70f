"""The compiled extension: its toolchain from pinned wheels, and its build."""
