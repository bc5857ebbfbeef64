"""Errors that people can act on. Each carries the exit code of the command line (README, "Exit codes")."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend: configuration, data or arguments. The message is one line naming where and what."""

    exit_code = 2


class DataError(UserError):
    """A file is not what it claims to be: wrong hash, wrong counts, truncated, malformed."""


class IncompleteError(Exception):
    """Results are missing: the answer exists only in part."""

    exit_code = 3


class BusyError(Exception):
    """Another process owns this work, or the time budget ended: try again later."""

    exit_code = 75
