"""The container image: planned from a bundle, built by buildah or docker, and checked by reading its layers."""
