"""vllm-spark: vLLM for NVIDIA DGX Spark, and the system that builds it.

`runtime` is what vLLM imports, `host` what owners run, `distro` what maintainers run. Importing the package
itself costs nothing, since vLLM imports it in every process.
"""
