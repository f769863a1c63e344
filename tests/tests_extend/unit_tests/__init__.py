"""Holds `common`, as in MindSpeed's tests_extend."""
