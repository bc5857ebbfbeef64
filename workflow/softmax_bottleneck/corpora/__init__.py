"""Corpora: download, tokenise, check; and synthetic languages with a known next-word distribution."""
