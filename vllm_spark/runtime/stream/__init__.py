"""Loads a checkpoint in bounded memory: headers, plan, reader, vLLM loader."""
