"""A static package index for pip and uv: a list of facts in, a tree of files out, nothing fetched."""
