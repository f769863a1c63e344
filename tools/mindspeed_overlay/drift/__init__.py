"""Drift: upstream code that an overlay edits or relies on, and what becomes of it by release."""
