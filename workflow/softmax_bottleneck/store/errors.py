"""Errors that people can act on, each with its exit code (docs/running.md, "Exit codes")."""


class ExpectedError(Exception):
    """An error that a person or another attempt can solve; its message is one line, shown without a traceback."""

    exit_code = 1


class UserError(ExpectedError):
    """An error in configuration, data or arguments. The message is one line: where, what, and how to fix it."""

    exit_code = 2


class DataError(UserError):
    """A file with a wrong hash or wrong counts, or truncated or malformed."""


class IncompleteError(ExpectedError):
    """Missing or damaged results."""

    exit_code = 3


class BusyError(ExpectedError):
    """Another process does this work, or a time limit was reached: try again later."""

    exit_code = 75


class DivergedResultError(ExpectedError):
    """A run that diverged: a recorded result, which another attempt would not change."""

    exit_code = 10


class MemoryExhaustedError(ExpectedError):
    """The machine's memory was too small; more memory may help."""

    exit_code = 75
