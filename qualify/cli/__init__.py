"""The command line: parse, call, print, exit. Results go to stdout, the log to stderr.

Everything heavy is imported inside the command that needs it, so ``qualify --help`` answers at once.

::

    earlier                                      files of an earlier command, which go before anything is imported
    entry                                        the list of commands; errors become messages and exit codes
    run  gate  report  diff  repro  ...          one module for each command, or for two that share their work
    baseline  canary  db  traffic  waiver        one module for each group of subcommands
    shared                                       options, and printing, that several of them have
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``qualify``. Ctrl-C ends it with a message also while Python still imports it, and at its end."""
    try:
        from qualify.cli.earlier import remove_outputs

        remove_outputs(sys.argv[1:])
        from qualify.cli import entry

        entry.main()
    except KeyboardInterrupt:
        print("qualify: interrupted", file=sys.stderr)
        sys.exit(130)
