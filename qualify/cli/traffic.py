"""``qualify traffic``: what production asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.shared import LARGEST, JsonOption, emit_json
from qualify.cli.terminal import emit

app = typer.Typer(help="Which calls production makes, and how often.", no_args_is_help=True, rich_markup_mode=None)


@app.command("import")
def traffic_import(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="CSV or JSONL, one line for each request.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new traffic file.")],
    batch: Annotated[
        int,
        typer.Option(
            min=1, max=LARGEST, metavar="N", help="Sequences decoded together; the log does not say how many."
        ),
    ] = 1,
    page_size: Annotated[
        int, typer.Option(min=0, max=LARGEST, metavar="N", help="Keys per page of the cache; 0 = contiguous.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a traffic file from a log of requests with token counts.

    A traffic file is a histogram of calls, which a matrix can name.
    """
    from qualify.cards.request_log import read_log, traffic_name, write_traffic

    histogram = read_log(log)
    name = traffic_name(out)
    buckets = write_traffic(histogram, name=name, log=log.name, batch=batch, page_size=page_size, out=out)
    if as_json:
        counts = {"requests": histogram.requests, "left_out": histogram.empty, "buckets": buckets}
        emit_json("traffic", {"traffic": name, "file": str(out), **counts})
    else:
        emit(f"{out}: {buckets} buckets from {histogram.requests} requests; in a matrix: traffic: {out}")
