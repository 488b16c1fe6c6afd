"""Condenses evidence into the small files of docs/evidence, from which ``docs/generate.py`` writes tables.

::

    python docs/condense.py runs --db URL [--run RUN …] [--extract FILE …] --out docs/evidence/DATE-GPU.json
    python docs/condense.py incidents NAME [EVIDENCE.json] REPORT.json [REPORT.json …]
    python docs/condense.py spent RUN docs/evidence/DATE-GPU.json

``runs`` reads stored runs; docs/evidence/README.md says where the runs behind each file are kept. ``incidents`` writes
docs/evidence/incidents-NAME.json from reports of runs of the matrix `incidents`, all on one stack, each of some
kernels. ``spent`` prints on what a run spent its time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from condensing.figures import figures
from condensing.files import read, text_of
from condensing.incidents import incidents
from condensing.runs import gathered
from condensing.spent import spent
from qualify.errors import QualifyError

EVIDENCE = Path(__file__).resolve().parent / "evidence"


def main() -> None:
    """Read the command line, and condense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("runs", help="stored runs -> figures")
    runs.add_argument("--db", action="append", default=[], help="evidence store; may be repeated")
    runs.add_argument("--run", action="append", default=[], help="run id; default: all runs of the stores")
    runs.add_argument("--extract", action="append", default=[], type=Path, help="file of runs that were never exported")
    runs.add_argument("--out", required=True, type=Path, help="where to write the figures")
    replays = commands.add_parser("incidents", help="reports -> what a stack showed of every incident")
    replays.add_argument("name", help="of the stack, as docs/incidents.md shows it")
    replays.add_argument("reports", nargs="+", type=Path, help="earlier evidence, if any, then reports")
    times = commands.add_parser("spent", help="print where the time of a run went")
    times.add_argument("run", help="run id")
    times.add_argument("figures", type=Path, help="a file that `runs` wrote")
    arguments = parser.parse_args()
    if arguments.command == "spent":
        print(spent(read(arguments.figures), arguments.run))
        return
    if arguments.command == "incidents":
        arguments.out = EVIDENCE / f"incidents-{arguments.name}.json"
        text = text_of(incidents([read(report) for report in arguments.reports]))
    else:
        if not (arguments.db or arguments.extract):
            parser.error("name the evidence with --db or --extract")
        try:
            text = text_of(figures(gathered(arguments.db, arguments.run, arguments.extract)))
        except QualifyError as error:
            parser.error(str(error))
    arguments.out.write_text(text)
    print(f"wrote {arguments.out}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
