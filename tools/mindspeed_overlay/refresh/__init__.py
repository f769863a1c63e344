"""Refresh: write an overlay's patches anew, from their own text or from an edited work tree."""
