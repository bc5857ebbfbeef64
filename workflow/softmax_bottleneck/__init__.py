"""The science of the softmax bottleneck study: heads, bodies, training, rank analysis, tables and the report."""

__version__ = "0.1.0"
