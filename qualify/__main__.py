"""``python -m qualify``: the same as the ``qualify`` command."""

from qualify.cli import main

main()
