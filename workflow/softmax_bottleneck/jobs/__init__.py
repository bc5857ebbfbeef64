"""A job that survives: resume states, leases, signals, time limits, memory, devices."""
