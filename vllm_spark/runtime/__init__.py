"""What vLLM imports on the owner's machine. Nothing here needs a library that vLLM does not bring."""
