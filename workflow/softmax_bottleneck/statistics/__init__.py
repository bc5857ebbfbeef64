"""The rules of inference, as pure functions of arrays: estimates, intervals, tests, shares and Holm's correction.

This subpackage imports only NumPy and SciPy. It knows nothing of studies, files or heads.
"""
