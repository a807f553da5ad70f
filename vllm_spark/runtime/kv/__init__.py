"""KV cache that sizes itself in two phases, and a guard that keeps the host alive, on unified memory."""
