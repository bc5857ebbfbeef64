"""The package of the softmax-bottleneck workflow: output heads, bodies, training, ranks, tables and the report."""

__version__ = "0.1.0"
