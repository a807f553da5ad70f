"""What maintainers run: from pinned upstream files to wheels, index and release. Imports neither torch nor vLLM."""
