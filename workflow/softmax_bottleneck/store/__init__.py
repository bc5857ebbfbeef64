"""Paths, files and hashes, provenance, fingerprints, errors: the room that every other may use."""
