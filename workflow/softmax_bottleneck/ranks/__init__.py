"""Singular values of log-probability matrices, and the ranks that are read off them."""
