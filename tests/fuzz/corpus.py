"""What the fuzzers begin with: shipped files and, where one would take long to read, a short one of the same kind."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import stored_runs
from stored_runs import CELL, MATRIX, PASSED, WRONG, store_run, write_waivers

from qualify import assets
from qualify.facts.baseline import Baseline
from qualify.facts.duel import Duel, DuelCell, DuelPair, DuelQuad
from qualify.store.store import Store
from qualify.verdict.duelled import decided_again

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("tiled-torch", "torch-cpu-math", "flash-attn-3")
MATRICES = ("smoke", "traffic", "gpt-oss", "deepseek", "whisper", "fp8")
"""shipped matrices short enough to be read ten thousand times"""
MODELS = ("llama-3.1-8b", "gpt-oss-20b", "gemma-2-9b", "whisper-large", "deepseek-v3")

EVERYTHING = """\
matrix: everything
models:
  - llama-3.1-8b
  - model: toy
    tensor_parallel: [1, 2]
    geometry:
      groups:
        - {layers: [0, 2], heads_q: 8, heads_kv: 2, head_dim: 64, mask: window, window: 128, sinks: true}
        - {layers: [1], heads_q: 8, heads_kv: 2, head_dim: 64, mask: causal, image_tokens: 16, softcap: 30.0}
        - {layers: [0], heads_q: 8, heads_kv: 8, head_dim: 64, mask: cross, cross_keys: 1500, stack: encoder}
phases:
  prefill: {batch: [1, 2], seqlen: [128, 2048]}
  chunked:
    chunk: 512
    context: [0, 1536]
    page_size: [contiguous, 16]
    ragged:
      - {chunk: [130, 1, 17], context: [470, 129, 9], page_size: 256}
  varlen: {lengths: [[1, 17, 256, 3, 0, 129]]}
  decode: {batch: [1, 32], context: [1024], page_size: [contiguous, 16]}
  verify: {draft: [4], context: 64, ragged: [{draft: [1, 2], context: [5, 6]}]}
dtypes: [bf16, fp16]
masks: [model, full, window64, chunked32]
kernels: [tiled-*, torch-cpu-math]
exclude: ["*/fp16/full/*"]
expect:
  - {select: "*/decode/*", kernel: tiled-torch, fallback: torch-cpu-math}
policy: {reference: fp64, timeout_s: 30, limit_cases: 20000, drift: {kernels: fail}}
incidents:
  - incident: example-1
    issue: owner/repository#1
    title: It went wrong.
    trigger: two sequences
    shown_by: [census]
    dtypes: [bf16]
    calls:
      - {heads_q: 4, heads_kv: 2, head_dim: 64, seqlens_q: [1, 2], seqlens_k: [3, 4], batch: 2, window: [-1, 0]}
"""
"""every key that a matrix has, but for files and environments"""

CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
    {
        "model_type": "gemma2",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    | {"head_dim": 64, "sliding_window": 4096, "query_pre_attn_scalar": 64, "attn_logit_softcapping": 50.0},
    {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    | {"head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2},
    {"model_type": "deepseek_v3", "num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8}
    | {
        "num_key_value_heads": 8,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    | {"q_lora_rank": 1536, "rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}},
    {"model_type": "whisper", "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    | {"decoder_attention_heads": 2, "max_source_positions": 1500},
    {
        "model_type": "jamba",
        "num_hidden_layers": 8,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    | {"attn_layer_period": 4, "attn_layer_offset": 1},
    {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 512}}
    | {"vision_config": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "patch_size": 14}},
    {
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "sliding_window": None,
    }
    | {"rope_theta": 1e6, "time_step_limit": [0.0, 1e308], "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}},
)
LOGS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,374,44\n2023-11-16,17,1\n",
    "mooncake.jsonl": '{"t": 2, "input_length": 37, "output_length": 44}\n{"input_length": 1, "output_length": 1}\n',
    "usage.jsonl": '{"id": "a", "usage": {"prompt_tokens": 374, "completion_tokens": 44}}\n',
    "quoted.csv": '"prompt_tokens","completion_tokens","note"\n"10","3","a,\nb"\n10.0,3.0,\n',
}


SHIPPED_KERNELS = ("tiled-torch", "torch-cpu-math")
"""every command that judges or plans reads all that are shipped"""


def shipped_folder(folder: Path) -> Path:
    """A part of what is shipped, so that a command need not read all of it."""
    for name in ("reports", "canaries", "traffic"):
        shutil.copytree(assets.shipped(name), folder / name)
    for name in SHIPPED_KERNELS:
        _copy(assets.shipped("kernels") / f"{name}.yaml", folder / "kernels")
    for path in (assets.shipped("matrices") / "models").glob("*.json"):
        _copy(path, folder / "matrices" / "models")
    for name in ("smoke", "traffic"):
        _copy(assets.shipped("matrices") / f"{name}.yaml", folder / "matrices")
    return folder


def _copy(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder)


def stored(folder: Path) -> Path:
    """A store with two runs, one of them accepted, and their export; beside them what is no file."""
    matrix = folder / "serving.yaml"
    matrix.write_text(MATRIX)
    with Store.open(str(folder / "evidence.db")) as store:
        first = store_run(store, matrix, PASSED)
        run = store_run(store, matrix, lambda case: WRONG if "q9" in case.id else PASSED)
        store.accept(
            Baseline(
                matrix=run.matrix,
                variant="Test CPU",
                run_id=first.id,
                accepted_by="jane",
                reason="good",
                accepted_at=stored_runs.NOW,
            )
        )
        store.add_duel(duel())
        store.export_run(run.id, folder / "run.jsonl.gz", duels=[duel().id])
    write_waivers(folder / "waivers.yaml", {"select": CELL.format(9) + "/*"}, {"stack": {"torch": ">=2.11,<2.12"}})
    (folder / "everything.yaml").write_text(EVERYTHING)
    (folder / "config.json").write_text(json.dumps(CONFIGS[0]))
    (folder / "azure.csv").write_text(LOGS["azure.csv"])
    odd_files(folder)
    return folder


def duel() -> Duel:
    """One cell, timed in one way by two pairs of processes, with what its times say."""
    name, moment = "toy.tp1/decode/b1.q1.k64/bf16/causal/tiled-torch", datetime(2026, 11, 20, tzinfo=UTC)
    cell = DuelCell(
        name=name, a=name, b=f"{name}@next", phase="decode", verdict="AMBIGUOUS", reason="", way="eager", ratios={},
        thrown_away=0,
    )  # fmt: skip
    stack = stored_runs.make_stack()
    quads = (DuelQuad(a_us=(1.5, 2.0), b_us=(2.0, 2.5)), DuelQuad(a_us=(1.5, 2.0), b_us=(2.0, 2.1)))
    pairs = tuple(DuelPair(way="eager", pair=at, quads=quads[at:], thrown_away=0) for at in (0, 1))
    bare = Duel(
        id="duel-20261120T000000Z-000001", matrix="serving", matrix_hash="ab" * 32, select="", a="here", b="next",
        null=False, device="Test CPU", device_uuid="", stack_a=stack, stack_b=stack, started_at=moment,
        finished_at=moment, complete=False, least_pairs=5, cells=(cell,), samples={name: pairs},
    )  # fmt: skip
    return replace(bare, cells=tuple(decided_again(bare, left_early=True).reports()))


def odd_files(folder: Path) -> None:
    """A pipe, a socket and a folder under names of files."""
    os.mkfifo(folder / "pipe.yaml")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.yaml"))
    (folder / "folder.yaml").mkdir()


def export_lines(path: Path) -> list[Any]:
    """The records of an export, without its digest."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()[:-1]]
