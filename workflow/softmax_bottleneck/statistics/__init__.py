"""The rules of inference as pure functions of arrays: estimates, intervals, tests, shares; only NumPy and SciPy."""
