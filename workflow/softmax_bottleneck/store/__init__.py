"""Paths, files and hashes, provenance, fingerprints and errors, which every other subpackage may use."""
