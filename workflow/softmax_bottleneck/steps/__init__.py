"""The steps of the workflow: one module per rule, which reads the inputs, calls a library and writes the outputs."""
