"""``qualify model``: the attention of a config.json."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from qualify.cli.shared import CardsOption, JsonOption, emit_json, typed
from qualify.cli.terminal import emit, say
from qualify.errors import UsageError
from qualify.files import exists
from qualify.text import one_line


def model(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="Path of a config.json, or hf://organisation/name@COMMIT.")
    ],
    matrix: Annotated[
        Path | None, typer.Option("--matrix", metavar="OUT", help="Write a matrix of the model to this new file.")
    ] = None,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name of the model. Default: from its file, folder or repository."),
    ] = "",
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the attention geometry of a model from its config.json. Nothing in it is executed."""
    from qualify.cards.config.reading import read_model
    from qualify.cards.config.writing import to_data, to_lines, write_matrix
    from qualify.cards.named import model_names

    taken = model_names(tuple(cards or ()))
    _refuse_name(config, taken)
    if matrix and name in taken:
        raise UsageError(
            f"--name {name}: a model card has that name, and a matrix names one of them; give another name"
        )
    read = read_model(config, name, taken)
    if matrix:
        write_matrix(read, matrix)
    if as_json:
        emit_json("model", to_data(read))
        return
    for line in to_lines(read):
        emit(line)
    if matrix:
        say(f"wrote {one_line(str(matrix))}; next: {typed(cards=cards).command('plan', str(matrix))}")


def _refuse_name(config: str, cards: Collection[str]) -> None:
    """Raises UsageError for the name of a model card or of a repository, which `qualify check` takes."""
    from qualify.cards.config.hub import is_hub, is_repository, repository_at
    from qualify.cards.problems import meant

    if exists(Path(config)):
        return
    if config in cards:
        raise UsageError(
            f"{config}: is a model card and no config.json. A matrix takes it by this name; "
            f"`qualify check {config} --save my-model.yaml` checks it and writes such a matrix"
        )
    is_name = is_repository(config) and not is_hub(config)
    if name := config.partition("@")[0] if is_name else repository_at(config):
        raise UsageError(
            f"{config}: no such file or folder. A model of the hub is hf://{name}@COMMIT, with the 40 hex digits of "
            f"a commit; `qualify check {name}` finds and prints it"
        )
    if not Path(config).suffix and "/" not in config:
        raise UsageError(
            f"{config}: no such file or folder, and no model card{meant(config, cards)}. Give the path of a "
            "config.json; a model of the hub is organisation/name, which `qualify check` takes"
        )
