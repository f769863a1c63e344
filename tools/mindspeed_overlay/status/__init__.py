"""Status: what state each overlay is in on each pinned release, and why."""
