"""The records of a study: collected from the run folders once, verified, and summarised."""
