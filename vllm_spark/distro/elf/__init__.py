"""CUDA machine code inside shared objects: what is there, who can run it, and how to change it in place."""
