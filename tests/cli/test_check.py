"""``qualify check``: a model's name in, ten lines out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, call, environment

sys.path.append(str(Path(__file__).resolve().parents[1] / "cards" / "config"))
from hub_server import Hub, serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SDPA = ("--engine", "transformers", "--backend", "sdpa")


def on_cpu(**changes: str) -> dict[str, str]:
    """The environment without a GPU, with a cache of the hub of its own."""
    kept = {name: value for name, value in environment().items() if not name.startswith(("HF_", "HUGGING"))}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **changes}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended, Ended]:
    """A folder with a config.json; the check of it as text, and as JSON, which takes the evidence over."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    text = call("check", "tiny", *SDPA, "--save", "mine.yaml", cwd=folder, env=on_cpu())
    data = call("check", "tiny", *SDPA, "--json", cwd=folder, env=on_cpu())
    return folder, text, data


def test_the_answer_is_about_ten_lines(checked: tuple[Path, Ended, Ended]) -> None:
    """A kernel for each phase and why, whether it is correct, and what to do; a CPU is called a demonstration first."""
    _, text, _ = checked
    assert 0 == text.code, text.out + text.err
    lines = text.out.splitlines()
    assert "demonstration on a CPU, at reduced shapes: it proves nothing about a GPU" == lines[0]
    assert lines[1].startswith("model: tiny, from tiny/config.json: 8 heads on 4, head_dim 32, causal")
    assert "engine: transformers (attn_implementation): sdpa is torch-cpu-flash, torch-cpu-math" == lines[2]
    named = {line.split(" (")[0]: line for line in lines[3:7]}
    assert ["prefill", "chunked prefill", "ragged batch", "decode"] == list(named)
    assert all("fastest of 2 that are correct" in line and "aten::" in line for line in named.values()), named
    assert lines[7].startswith("correct: 10 of 10 cases passed every check")
    assert any(
        line.startswith("do: this result says nothing about a GPU; run it on the GPU host: qualify check")
        for line in lines
    )
    assert len(lines) <= 12


def test_the_saved_matrix_is_one_that_plan_accepts(checked: tuple[Path, Ended, Ended]) -> None:
    """With the geometry of the config.json and the pin of its content."""
    folder, _, _ = checked
    planned = call("plan", "mine.yaml", cwd=folder)
    assert (0, 10) == (planned.code, len(planned.out.splitlines()))


def test_a_gate_has_the_command_of_the_check_for_the_gpu_host(checked: tuple[Path, Ended, Ended]) -> None:
    """As the check itself printed it, to be pasted: with the model, its engine and the backend."""
    folder, _, data = checked
    (told,) = (line for line in data.data["do"] if "on the GPU host" in line)
    assert told.endswith(f": qualify check tiny {' '.join(SDPA)}")
    assert f"do: {told}\n" in call("gate", "--run", data.data["run"], cwd=folder).out


@pytest.mark.parametrize("kept", [1.0, 0.5, 0.0])
def test_a_check_that_was_killed_is_tried_again(checked: tuple[Path, Ended, Ended], kept: float) -> None:
    """It left its matrix, or the beginning of it: the same command goes on, and nobody has to remove the file."""
    folder, _, _ = checked
    text = (folder / "mine.yaml").read_text()
    (folder / "killed.yaml").write_text(text[: int(len(text) * kept)])
    again = call("check", "tiny", *SDPA, "--save", "killed.yaml", cwd=folder, env=on_cpu())
    assert (0, text) == (again.code, (folder / "killed.yaml").read_text()), again.err


@pytest.mark.parametrize("place", ["of mine", "a folder", "a loop"])
def test_a_check_writes_over_no_other_file(checked: tuple[Path, Ended, Ended], tmp_path: Path, place: str) -> None:
    """A matrix that somebody changed stays as it is, and so does what is no file."""
    folder, _, _ = checked
    other = tmp_path / "other.yaml"
    if place == "of mine":
        other.write_text("# mine\n" + (folder / "mine.yaml").read_text())
    elif place == "a folder":
        other.mkdir()
    else:
        other.symlink_to(other)
    again = call("check", "tiny", *SDPA, "--save", other, cwd=folder, env=on_cpu())
    assert (2, "") == (again.code, again.out)
    assert f"--save {other}: exists already, and is not what would be written; give another name" in again.err


def test_json_has_every_kernel_of_every_phase(checked: tuple[Path, Ended, Ended]) -> None:
    """Beside the fields of `qualify run --json`; the second check takes over what the first one passed."""
    folder, _, data = checked
    assert 0 == data.code, data.err
    found = data.data
    assert ("qualify.check/1", True, "PASS") == (found["schema"], found["demonstration"], found["verdict"])
    assert ["prefill", "chunked", "varlen", "decode"] == [line["phase"] for line in found["phases"]]
    kernels = found["phases"][0]["kernels"]
    assert {"torch-cpu-flash", "torch-cpu-math"} == {each["kernel"] for each in kernels}
    assert all(each["right"] and each["latency_us"] > 0 and each["kernel_launched"] for each in kernels)
    assert {"sdpa": ["torch-cpu-flash", "torch-cpu-math"]} == found["engine"]["backends"]
    page = (folder / found["report"]).read_text()
    assert found["headline"].startswith("check-tiny: demonstration on a CPU, which proves nothing about a GPU: ")
    assert 'class="badge NOT_REQUIRED"' in page, "the page calls it what the terminal does"
    assert str(Path(".qualify/checks/tiny.yaml")) == found["matrix_path"]


def test_parts_of_the_model_that_no_case_tests_stand_in_the_answer(tmp_path: Path) -> None:
    """Linear layers, an unread tower and a long window. The log says none of them as well."""
    kinds = {"layer_types": ["linear_attention", "sliding_attention"], "sliding_window": 4096}
    text = CONFIG | {"model_type": "qwen3_5_text", "head_dim": 32} | kinds
    tower = {"model_type": "a_new_tower"}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen3_5", "text_config": text, "vision_config": tower})
    )
    told = call("check", "config.json", *SDPA, "-q", cwd=tmp_path, env=on_cpu())
    assert (0, "") == (told.code, told.err)
    (line,) = (line for line in told.out.splitlines() if line.startswith("not tested: "))
    assert line.startswith("not tested: 1 of 2 layers, which have no attention; vision_config.model_type: a_new_tower")
    logged = call("check", "config.json", *SDPA, "--json", cwd=tmp_path, env=on_cpu())
    assert "from config.json\n" in logged.err
    assert not [words for words in ("hides nothing", "a_new_tower") if words in logged.err]
    data = logged.data
    idle = "a window or chunk of 4,096 keys, which hides nothing at these shapes: the longest sequence has 512 keys"
    assert line.endswith(f"; {idle}")
    assert ["1 of 2 layers, which have no attention", idle] == [data["untested"][0], data["untested"][-1]]
    assert ["unread"] == [each["kind"] for each in data["findings"]]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["qwen3-9b"], 2, "no model card and no repository; perhaps you meant qwen3-8b. Give one of"),
        (
            ["https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json"],
            2,
            "is a web address. Give the model by its name on the hub: Qwen/Qwen3-8B",
        ),
        (["./my-model"], 2, "./my-model: is no file, no folder, no model card and no repository"),
        (["../my-model"], 2, "../my-model: is no file, no folder, no model card and no repository"),
        (["my-model/config.json"], 2, "my-model/config.json: is no file, no folder, no model card and no repository"),
        ([""], 2, "an argument is empty: the variable that it comes from is probably not set"),
        (["."], 2, ".: the folder has no config.json. Give the folder of a model"),
        (["qwen3-8b", "--backend", "sdpa"], 2, "--backend sdpa needs --engine: transformers, vllm or sglang"),
        (
            ["qwen3-8b", "--engine", "vllm", "--backend", "FLASH_ATN"],
            2,
            "is not in the table of vLLM 0.33.0; perhaps you meant FLASH_ATTN. It has FLASH_ATTN, ",
        ),
        (["phi-2", "--engine", "vllm", "--backend", "FLASHINFER"], 2, "head_size not supported (head_dim 80)"),
        (["gemma-2-9b", *SDPA], 2, "scaled_dot_product_attention yet (model_type gemma2)"),
        (["qwen3-8b", "--engine", "vllm"], 4, "On the GPU host: qualify check qwen3-8b --engine vllm"),
        (["qwen3-8b", "--tensor-parallel", "7"], 2, "32 query heads on 8; give one of 1, 2, 4, 8, 16, 32"),
        (
            ["qwen3-8b", "--engine", "vllm", "--backend", "FLASH_ATTN", "--dtype", "fp16"],
            4,
            "On the GPU host: qualify check qwen3-8b --engine vllm --backend FLASH_ATTN --dtype fp16",
        ),
        (
            ["qwen3-8b", "--engine", "transformers", "--backend", "flash_attention_2"],
            4,
            "Here --backend can be sdpa. On the GPU host: qualify check qwen3-8b --engine transformers",
        ),
        (
            ["qwen3-8b", "--engine", "vllm", "--backend", "CPU_ATTN"],
            2,
            "Without --backend qualify compares all that vLLM",
        ),
        (
            ["qwen3-8b", "--engine", "vllm", "--backend", "FLASH_ATTN", "--dtype", "bf16_kv_fp8_e4m3"],
            2,
            "vLLM quantizes the queries too where its cache is in fp8: ask for --dtype fp8_e4m3 (dtype bf16_kv_fp8_e4m",
        ),
        (
            ["deepseek-v3", "--engine", "vllm", "--backend", "FLASHMLA", "--dtype", "fp8_e4m3"],
            2,
            "has no GPU). No other backend can be checked for this model in this dtype either.",
        ),
        (["Qwen/Qwen3-8B"], 4, "qualify has a model card of that name, which needs no hub: qwen3-8b"),
        (["organisation/Some-Model"], 4, "is not in the cache, and HF_HUB_OFFLINE forbids a download. Unset "),
    ],
)
def test_what_cannot_be_checked_says_why(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    """The last line of the log; nothing is stored."""
    ended = call("check", *arguments, cwd=tmp_path, env=on_cpu(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub")))
    assert (code, "") == (ended.code, ended.out)
    assert message in ended.err.splitlines()[-1]
    assert not (tmp_path / ".qualify").exists()


def test_an_engine_without_a_backend_for_this_machine_gives_each_reason_once(tmp_path: Path) -> None:
    """A line for each reason, with the backends that it stops; then the next command."""
    ended = call("check", "qwen3-8b", "--engine", "vllm", cwd=tmp_path, env=on_cpu())
    lines = ended.err.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("qualify: vLLM 0.33.0: no backend"))
    assert "  FLASH_ATTN, FLASHINFER: compute capability not supported (this machine has no GPU)" == lines[start + 1]
    assert any(line.startswith("  TRITON_ATTN, FLEX_ATTENTION: qualify has no kernel card") for line in lines)
    assert lines[-1].startswith("On the GPU host: ")


def test_a_model_that_the_engine_refuses_everywhere_is_not_sent_to_a_gpu(tmp_path: Path) -> None:
    """The GPU would refuse it, too."""
    ended = call("check", "gemma-2-9b", *SDPA, cwd=tmp_path, env=on_cpu())
    assert 2 == ended.code
    assert "GPU host" not in ended.err


def test_a_model_of_the_hub_is_printed_with_its_commit(tmp_path: Path) -> None:
    """The newest commit of main; offline the cache answers, and the line says so."""
    content = json.dumps(CONFIG).encode()
    name = "organisation/Some-Model"
    asked = ("check", name, "--engine", "transformers", "--backend", "eager")  # no card: nothing has to run
    home: dict[str, Any] = {"HF_HOME": str(tmp_path / "hub")}
    with serve(Hub(files={(name, "main"): content, (name, COMMIT): content}, answers_with=COMMIT)) as hub:
        online = call(*asked, cwd=tmp_path, env=on_cpu(HF_ENDPOINT=hub.url, **home))
    offline = call(*asked, cwd=tmp_path, env=on_cpu(HF_HUB_OFFLINE="1", **home))
    assert f"model: {name}@{COMMIT}" == online.err.splitlines()[0]
    assert f"model: {name}@{COMMIT}, as the local cache has it: the hub gave no answer" == offline.err.splitlines()[0]
    assert [tmp_path / "hub"] == list(tmp_path.iterdir())
