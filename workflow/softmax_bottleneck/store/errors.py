"""Errors that a user can act on, each with its exit code (docs/running.md, "Exit codes")."""


class ExpectedError(Exception):
    """An error that is not a bug of this package: the user can correct the cause, or a later attempt may succeed.

    A command that ends with this error prints the one-line message without a traceback. The exit code of the command is
    the attribute `exit_code` of the error's class.
    """

    exit_code = 1


class UserError(ExpectedError):
    """An error in configuration, data or arguments. Its one-line message says where, what is wrong, and what to do."""

    exit_code = 2


class DataError(UserError):
    """An error in a file: a wrong hash, wrong counts, truncated or malformed content."""


class IncompleteError(ExpectedError):
    """The error of a command on a whole study, such as `verify`, if results are missing or damaged.

    `verify` also raises it if a planned run diverged or failed. A function that reads one damaged file raises DataError
    instead.
    """

    exit_code = 3


class BusyError(ExpectedError):
    """An error that a later attempt solves: another process works on the same run, or a time limit was reached."""

    exit_code = 75


class DivergedResultError(ExpectedError):
    """The error for a run that diverged; the run is recorded as diverged, and another attempt would diverge again."""

    exit_code = 10


class MemoryExhaustedError(ExpectedError):
    """The error for a machine with too little memory; another attempt with more memory may succeed."""

    exit_code = 75
