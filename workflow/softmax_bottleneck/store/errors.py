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
    """Another process owns this work, or a time limit was reached: try again later."""

    exit_code = 75


class DivergedResultError(Exception):
    """A run ended as diverged: a result that is written and counted, and that trying again would not change."""

    exit_code = 10


class MemoryExhaustedError(Exception):
    """The machine's memory was too small: the same work may succeed where there is more of it."""

    exit_code = 75
