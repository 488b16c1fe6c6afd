"""The script that compares the table of engines with wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import check_engines
from qualify.facts.backends import ENGINES, NO_FLASH, NO_FLEX, NO_SDPA
from qualify.facts.vllm_rules import FALLS_BACK, REGISTRY

FLAGS = ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn")


def write_wheels(folder: Path, *, forget: str = "", sets: str = "", lists: str = "", runs: str = "") -> None:
    """Wheels whose sources hold what the table quotes, in other lines.

    Args:
        forget: a quote that is gone.
        sets: a family of transformers that supports all kinds of attention.
        lists: a line more in vLLM's list of architectures.
        runs: a family more whose code in transformers vLLM can run.
    """
    for engine in ENGINES:
        files: dict[str, str] = {}
        for _name, quote in check_engines.quotes(engine):
            if quote.text != forget:
                files[quote.file] = files.get(quote.file, "") + quote.text.replace(" ", "\n    ") + "\n"
            files.setdefault(quote.file, "")
        if engine.name == "transformers":
            for name in {*NO_SDPA, *NO_FLASH, *NO_FLEX, *FALLS_BACK, "mllama"}:
                lines = "".join(f"    {flag} = {name == sets}\n" for flag in FLAGS)
                if name in {*FALLS_BACK, "mllama", runs}:
                    lines += "    _supports_attention_backend = True\n"
                files[f"transformers/models/{name}/configuration_{name}.py"] = f'class C:\n    model_type = "{name}"\n'
                files[f"transformers/models/{name}/modeling_{name}.py"] = f"class XPreTrainedModel:\n{lines}"
            counts = "def _get_num_multimodal_tokens(self):\n" if runs == "mllama" else ""
            files["transformers/models/mllama/processing_mllama.py"] = counts
            files["transformers/models/mllama/configuration_mllama.py"] += "    text_config = None\n"
        if engine.name == "vllm":
            files[REGISTRY] += f"{lists}\n"
        with zipfile.ZipFile(folder / f"{engine.name}-1.0-py3-none-any.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)


def test_sources_that_bear_the_table_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it read, and ends with 0."""
    write_wheels(tmp_path)
    assert 0 == check_engines.main(["--wheels", str(tmp_path)])
    assert 3 == len(capsys.readouterr().out.splitlines())


def test_a_line_that_no_longer_stands_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal that is gone, a class that supports more, and a wheel that is not there."""
    write_wheels(tmp_path, forget="return head_size >= 32", sets="gemma2")
    assert 1 == check_engines.main(["--wheels", str(tmp_path)])
    told = capsys.readouterr().out
    assert "vllm TRITON_ATTN: vllm/v1/attention/backends/triton_attn.py does not hold: return head_size >= 32" in told
    assert "transformers: gemma2 sets _supports_sdpa, and the table refuses it" in told
    (tmp_path / "sglang-1.0-py3-none-any.whl").unlink()
    check_engines.main(["--wheels", str(tmp_path)])
    assert f"sglang: no wheel in {tmp_path}" in capsys.readouterr().out


def test_a_family_that_an_engine_no_longer_runs_so_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its quote is compared like that of a backend."""
    (family,) = (each for engine in ENGINES for each in engine.per_head)
    write_wheels(tmp_path, forget=family.quote.text)
    assert 1 == check_engines.main(["--wheels", str(tmp_path)])
    assert f"vllm minicpm3: {family.quote.file} does not hold: {family.quote.text}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        (
            '    "GraniteForCausalLM": "0.34.0",',
            "GraniteForCausalLM is gone since 0.34.0, and the table plans model_type",
        ),
        (
            '    "QWenLMHeadModel": ("qwen", "Q"),',
            "QWenLMHeadModel is there again, and the table refuses model_type qwen",
        ),
    ],
)
def test_an_architecture_that_vllm_drops_or_takes_back_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lists: str, told: str
) -> None:
    """Of the families that qualify reads; others are no difference."""
    write_wheels(tmp_path, lists=f'{lists}\n    "NobodyReadsForCausalLM": "0.34.0",')
    assert 1 == check_engines.main(["--wheels", str(tmp_path)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if not line.startswith("read "))
    assert line.startswith(f"vllm: {told}")


@pytest.mark.parametrize("family", ["mllama", "mpt"])
def test_a_family_that_vllm_can_run_with_other_code_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    """The table refuses it, because the code of transformers did not do what vLLM asks of it."""
    write_wheels(tmp_path, runs=family)
    assert 1 == check_engines.main(["--wheels", str(tmp_path)])
    assert f"transformers: vLLM can run its code of {family}" in capsys.readouterr().out
