"""Commands for users: plan, check, start and package a study, and look up its results."""
