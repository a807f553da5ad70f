"""Chooses a scheme for every layer, quantises weights as they arrive, and keeps the result."""
