"""Corpora: fetched, tokenised, checked; and languages whose law is known."""
