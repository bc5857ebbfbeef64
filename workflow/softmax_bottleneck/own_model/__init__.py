"""The rank of the output layer of any language model: from a saved model, from arrays, or from log-probabilities."""
