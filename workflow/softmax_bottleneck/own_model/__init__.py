"""The rank of anybody's model."""
