"""One command from pinned upstream files to wheels and index."""
