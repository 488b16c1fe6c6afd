"""Compares the table of engines with released wheels: each of its quotes, and flags of transformers' model classes.

::

    python docs/check_engines.py                  downloads the newest wheels of vllm, sglang and transformers from PyPI
    python docs/check_engines.py --wheels DIR     reads the wheels in DIR

It also compares vLLM's list of architectures that it dropped with the families that qualify reads.

It exits 1 and names every line of qualify/facts/backends.py, vllm_backends.py and vllm_rules.py that the sources no
longer confirm. It reads the sources of wheels as text, and installs or runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from qualify.cards.config.families import FAMILIES
from qualify.cards.config.wrappers import WRAPPERS
from qualify.facts.backends import ENGINES, NO_FLASH, NO_FLEX, NO_SDPA
from qualify.facts.engines import Engine, Quote
from qualify.facts.vllm_rules import DROPPED, FALLS_BACK, REGISTRY

FLAGS = {"_supports_sdpa": NO_SDPA, "_supports_flash_attn": NO_FLASH, "_supports_flex_attn": NO_FLEX}
"""class attributes of transformers (False where a class does not set them), each with the families it excludes"""

PARTS = ("modeling", "configuration")
"""files of a model in transformers, by how their names begin"""


def main(arguments: list[str] | None = None) -> int:
    """Print all differences; returns the exit code, 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="folder with the wheels; else they are downloaded")
    folder = parser.parse_args(arguments).wheels
    with tempfile.TemporaryDirectory() as temporary:
        problems = [problem for engine in ENGINES for problem in compare(engine, folder or Path(temporary), folder)]
    print("\n".join(problems))
    return 1 if any(not problem.startswith("read ") for problem in problems) else 0


def compare(engine: Engine, place: Path, given: Path | None) -> Iterator[str]:
    """Which wheel was read, then every difference between the table and that wheel."""
    if given is None:
        download(engine.name, place)
    found = sorted(place.glob(f"{engine.name}-*.whl"))
    if not found:
        yield f"{engine.name}: no wheel in {place}"
        return
    with zipfile.ZipFile(found[-1]) as wheel:
        yield f"read {found[-1].name} (the table names {engine.version})"
        yield from unquoted(engine, wheel)
        if engine.name == "transformers":
            yield from other_flags(wheel)
            yield from other_fallbacks(wheel)
        if engine.name == "vllm":
            yield from other_architectures(wheel)


def download(name: str, place: Path) -> None:
    """Download the newest wheel of a distribution, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(place), name], check=True)


def unquoted(engine: Engine, wheel: zipfile.ZipFile) -> Iterator[str]:
    """Quotes of the table that the sources do not contain."""
    for name, quote in quotes(engine):
        try:
            text = wheel.read(quote.file).decode()
        except KeyError:
            yield f"{engine.name} {name}: no file {quote.file}"
            continue
        if quote.text not in re.sub(r"\s+", " ", text):
            yield f"{engine.name} {name}: {quote.file} does not hold: {quote.text}"


def quotes(engine: Engine) -> Iterator[tuple[str, Quote]]:
    """(backend or family, quote) of everything that the table says of an engine."""
    for backend in engine.backends:
        chosen = [quote for served in backend.served for quote in served.quotes]
        for quote in [backend.named, *chosen, *(rule.quote for rule in backend.rules if rule.quote)]:
            yield backend.name, quote
    for family in engine.per_head:
        yield family.model_type, family.quote
    for wider in engine.wider:
        yield wider.model_types[0], wider.quote
    for dropped in engine.dropped:
        yield dropped.model_types[0], dropped.quote


def other_architectures(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Architectures that vLLM dropped or took back, where the table says otherwise of a family that qualify reads."""
    text = wheel.read(REGISTRY).decode()
    read = [*(each.model_types for each in FAMILIES), *(each.model_types for each in WRAPPERS)]
    known = {plain(name): name for names in read for name in names}
    told = {*FALLS_BACK, *(name for each in DROPPED for name in each.model_types)}
    for architecture, until in re.findall(r'"(\w+)":\s*"(\d+(?:\.\d+)+)"', text):
        family = known.get(plain(re.sub("(For[A-Z].*|LMHeadModel|Model)$", "", architecture)))
        if family and family not in told:
            yield f"vllm: {architecture} is gone since {until}, and the table plans model_type {family}"
    for each in DROPPED:
        if re.search(rf'"{each.architecture}":\s*\(', text):
            yield f"vllm: {each.architecture} is there again, and the table refuses model_type {each.model_types[0]}"


def plain(name: str) -> str:
    """A name without what models and classes write differently."""
    return re.sub("[^a-z0-9]", "", name.lower())


def other_fallbacks(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Families that vLLM dropped, where the table is wrong about whether it can run the code of transformers."""
    folders = dict(model_types(wheel))
    for families, runs in ((FALLS_BACK, True), ([name for each in DROPPED for name in each.model_types], False)):
        for family in families:
            if (family in folders and runs_in_vllm(wheel, folders[family])) != runs:
                yield f"transformers: vLLM {'cannot run' if runs else 'can run'} its code of {family}"


def runs_in_vllm(wheel: zipfile.ZipFile, folder: str) -> bool:
    """Whether vLLM takes a model's code: another function can do its attention, and its image tokens are counted.

    vLLM asks for the count where the config holds that of a text model.
    """
    code, config = (wheel.read(f"transformers/models/{folder}/{kind}_{folder}.py").decode() for kind in PARTS)
    processor = zipfile.Path(wheel, f"transformers/models/{folder}/processing_{folder}.py")
    told = processor.read_text() if processor.exists() else ""
    counts = "text_config" not in config or "def _get_num_multimodal_tokens" in told
    return counts and ("_supports_attention_backend = True" in code or "ALL_ATTENTION_FUNCTIONS.get_interface(" in code)


def other_flags(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Families of the table whose classes now support a kind of attention that the table denies.

    A family that the table does not name is no difference, because qualify reads fewer families than transformers has.
    """
    folders = dict(model_types(wheel))
    for flag, families in FLAGS.items():
        for family in families:
            folder = folders.get(family)
            if folder is None:
                yield f"transformers: no configuration has model_type {family}"
            elif flags_of(wheel, folder).get(flag, False):
                yield f"transformers: {family} sets {flag}, and the table refuses it"


def model_types(wheel: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """(model_type, folder of the model) of each model."""
    for name in wheel.namelist():
        match = re.fullmatch(r"transformers/models/(\w+)/configuration_\w+\.py", name)
        if match:
            for found in re.finditer(r'^\s+model_type(?:: \w+)? = "([^"]+)"', wheel.read(name).decode(), re.MULTILINE):
                yield found[1], match[1]


def flags_of(wheel: zipfile.ZipFile, folder: str) -> dict[str, bool]:
    """The flags that a model's base class sets."""
    name = f"transformers/models/{folder}/modeling_{folder}.py"
    for node in ast.parse(wheel.read(name)).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("PreTrainedModel"):
            return {
                target.id: isinstance(line.value, ast.Constant) and line.value.value is True
                for line in node.body
                if isinstance(line, ast.Assign)
                for target in line.targets
                if isinstance(target, ast.Name) and target.id in FLAGS
            }
    return {}


if __name__ == "__main__":
    sys.exit(main())
