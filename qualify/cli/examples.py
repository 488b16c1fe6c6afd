"""Examples below each command's help: lines that can be pasted."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "check": (
        "qualify check Qwen/Qwen3-8B",
        "qualify check ./my-model --save matrices/my-model.yaml",
        "qualify check qwen3-8b --engine vllm --backend FLASH_ATTN",
    ),
    "init": (
        "qualify init",
        "qualify init --model qwen3-8b --ci github --yes",
    ),
    "run": (
        "qualify run smoke",
        "qualify run smoke --select decode --select '!fp16'",
        "qualify run matrices/serving.yaml --level full --db postgresql+psycopg://qualify@db/qualify",
        "qualify run smoke --resume latest",
    ),
    "plan": (
        "qualify plan smoke",
        "qualify plan smoke --here --kernel 'torch-*'",
    ),
    "gate": (
        "qualify gate --matrix matrices/serving.yaml --max-age 24h --stack here",
        "qualify gate --run latest --junit gate.xml --markdown gate.md",
        "qualify gate --run latest --against baseline",
    ),
    "verify": ("qualify verify latest --signed-by keys/",),
    "report": ("qualify report latest", "qualify report latest --against baseline --out reports"),
    "diff": ("qualify diff baseline latest",),
    "bisect": ("qualify bisect baseline latest --plan",),
    "repro": ("qualify repro llama-3.1-8b.tp4/prefill/b2.q277.k277/bf16/causal/tiled-torch > repeat.py",),
    "profile": ("qualify profile llama-3.1-8b.tp4/prefill/b2.q277.k277/bf16/causal/flash-attn-3 --run latest",),
    "model": (
        "qualify model ./my-model --matrix my-model.yaml",
        "qualify model hf://Qwen/Qwen3-8B@b968826d9c46dd6066d109eabc6255188de91218",
    ),
    "cliffs": ("qualify cliffs torch-sdpa --axis head_dim --axis seqlen",),
    "kernels": ("qualify kernels", "qualify kernels --environment next=/opt/next/bin/python"),
    "doctor": ("qualify doctor", "qualify doctor --json"),
    "selftest": ("qualify selftest", "qualify selftest --fault 'lse-*' --level smoke --runs 0"),
    "schema": ("qualify schema matrix > matrix.schema.json",),
    "web": ("qualify web --port 8321",),
    "db upgrade": ("qualify db upgrade --db postgresql+psycopg://qualify@db/qualify",),
    "db export": (
        "qualify db export latest --out run.jsonl.gz",
        "qualify db export latest --duel latest",
        "qualify db export --duel latest",
    ),
    "db import": ("qualify db import run.jsonl.gz",),
    "db prune": ("qualify db prune --keep-days 90 --keep-last 5 --dry-run",),
    "db deletions": ("qualify db deletions", "qualify db deletions --json"),
    "waiver check": ("qualify waiver check matrices/serving.yaml",),
    "baseline accept": ("qualify baseline accept latest --by \"$USER\" --reason 'release 2026.11'",),
    "baseline list": ("qualify baseline list --matrix serving",),
    "baseline show": ("qualify baseline show serving",),
    "baseline export": ("qualify baseline export serving --out serving.baseline.zip",),
    "baseline import": ("qualify baseline import serving.baseline.zip",),
    "traffic import": ("qualify traffic import requests.csv --out traffic/serving.yaml --batch 32",),
    "canary list": ("qualify canary list --cards canaries",),
    "canary explain": ("qualify canary explain nightly",),
    "canary fire": ("qualify canary fire nightly --reason 'new driver'",),
    "canary health": ("qualify canary health --max-age 15m",),
    "canary serve": ("qualify canary serve --cards canaries", "qualify canary serve 'nightly-*' --lease h100"),
    "duel": (
        "qualify duel flash-attn-2 flash-attn-3 hopper --deadline 8m",
        "qualify duel here next hopper --environment next=/opt/next/bin/python",
        "qualify duel --null here hopper",
    ),
    "history": (
        "qualify history --matrix hopper",
        "qualify history 'llama*/decode/*/flash-attn-3' --csv times.csv",
    ),
    "best": ("qualify best hopper", "qualify best hopper --json"),
    "node": ("qualify node hopper", "qualify node plan.json --shard 3 --fleet slurm-4711"),
    "ingest": ("qualify ingest node/*.jsonl.gz --signed-by keys",),
    "collect": ("qualify collect plan.json --fleet slurm-4711", "qualify collect plan.json --fleet slurm-4711 --json"),
    "fleet": ("qualify fleet hopper", "qualify fleet hopper --spread shard --coverage 0.95"),
    "coverage": ("qualify coverage", "qualify coverage latest --json"),
    "signoff": (
        "qualify signoff latest --role release --reason 'read the report' --token-file ~/.config/qualify/token",
        "qualify signoff latest --list",
    ),
    "canary waves": ("qualify canary waves nightly", "qualify canary waves nightly --wave 1"),
    "hold list": ("qualify hold list",),
    "hold acknowledge": ("qualify hold acknowledge 3 --by jane --reason 'I am looking at it'",),
    "hold release": ("qualify hold release 3 --by jane --reason 'the card was replaced'",),
    "access check": ("qualify access check access.yaml",),
    "access token": ("qualify access token jane --right read --right sign",),
}
"""what people type, by the words of the command; a test runs each of them through the parser"""


def epilog(command: str) -> str | None:
    """What stands below the help of a command; None where there are no examples."""
    lines = EXAMPLES.get(command)
    # The lonely \b keeps click from joining the lines that follow into a paragraph.
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None
