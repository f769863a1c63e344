"""Carry overlays from one Megatron release to the next.

From the bottom up: `document` and `units` read a file, `align` and `symbols` say which part of the
old file is which part of the new one, `place`, `statements` and `nodes` carry one edit, `merge` one
file, `threads` and `steps` a whole overlay set from release to release; `state`, `conflicts` and
`accept` keep, lay out and write what came of it, `report` tells.
"""
