"""From run folders to records: collected once, verified, summarised."""
