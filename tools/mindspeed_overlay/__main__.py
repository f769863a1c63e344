"""`python -m mindspeed_overlay` is the command-line tool."""

from mindspeed_overlay.cli import main

main()
