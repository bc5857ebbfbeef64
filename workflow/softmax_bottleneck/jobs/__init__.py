"""Resumable jobs: resume states, leases, signals, time limits, memory and GPUs."""
