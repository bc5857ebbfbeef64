"""What is measured on a trained model: perplexity, ranks, predictions, word similarity."""
