"""Everything that an installation needs, by hash, in one folder or tar, for machines without a network."""
