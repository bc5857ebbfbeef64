"""Measurements of a trained model: perplexity, ranks, predictions, word similarity."""
