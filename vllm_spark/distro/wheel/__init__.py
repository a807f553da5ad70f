"""Wheels: read, rewrite without recompressing, describe and audit."""
