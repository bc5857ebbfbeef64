"""Resumable jobs, with their resume states, leases, signals, time limits, memory and GPUs."""
