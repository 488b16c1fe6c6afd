"""Adapters that nothing provides: told with their place before a case crashes of it, and not where they may come."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import call
from environments import make_environment, site_of

from qualify import assets
from qualify.cards.environments import parse_environments
from qualify.cards.load import load_kernels, load_matrix
from qualify.errors import CardError
from qualify.fleet.probe import list_kernels
from qualify.plan.host import Host
from qualify.plan.offered import unoffered
from qualify.plan.plan import Plan, make_plan

CPU = Host(kind="cpu", name="a CPU", compute_capability="")
UNKNOWN = "adapter: unknown adapter tiled_torhc; perhaps you meant tiled_torch. qualify ships flash_attn, "


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    """A folder with a kernel whose adapter is mistyped, and a matrix of it."""
    shipped = (assets.shipped("kernels") / "tiled-torch.yaml").read_text()
    text = shipped.replace("kernel: tiled-torch", "kernel: mine").replace(
        "adapter: tiled_torch", "adapter: tiled_torhc"
    )
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "m.yaml").write_text(
        "matrix: m\nmodels: [llama-3.1-8b]\nphases: {prefill: {seqlen: 64}}\ndtypes: [fp32]\nkernels: [mine]\n"
    )
    return tmp_path


def planned(cards: Path, *environments: str, host: Host | None = CPU) -> Plan:
    """The plan of the matrix for a machine."""
    loaded = load_matrix(str(cards / "m.yaml"), (cards,), parse_environments(environments))
    return make_plan(loaded, load_kernels((cards,)), host=host)


def offer(site: Path) -> None:
    """A distribution that offers the adapter."""
    info = site / "acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[qualify.adapters]\ntiled_torhc = acme:create\n")


def test_a_machine_with_the_kernel_and_without_its_adapter_refuses_the_card(cards: Path) -> None:
    """Its cases could only crash."""
    with pytest.raises(CardError) as caught:
        planned(cards)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{cards / 'mine.yaml'}:5:10: {UNKNOWN}"), line
    assert line.endswith("offers another. Correct it, or install the distribution that offers it"), line


def test_what_is_not_installed_may_lack_its_adapter_too(cards: Path) -> None:
    """The kernel is refused as one that is not installed."""
    path = cards / "mine.yaml"
    path.write_text(path.read_text().replace("shipped_by: torch>=2.11", "shipped_by: acme-attention"))
    assert ("not installed (pip install 'acme-attention')",) == planned(cards).refused[0][1]


def test_an_adapter_of_another_distribution(cards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own interpreter has it."""
    (cards / "site").mkdir()
    offer(cards / "site")
    monkeypatch.syspath_prepend(str(cards / "site"))
    assert ("mine",) == planned(cards).kernels
    assert [] == unoffered(load_kernels((cards,)).values())
    (listed,) = (kernel for kernel in list_kernels((cards,), {}) if kernel["kernel"] == "mine")
    assert listed["available"]


def test_an_adapter_of_another_environment(cards: Path) -> None:
    """Its kernel runs there. Where none of them has it, the card is told once."""
    python = make_environment(cards / "env", torch="2.12")
    with pytest.raises(CardError) as caught:
        planned(cards, f"next={python}")
    assert 1 == len(caught.value.problems)
    offer(site_of(cards / "env"))
    again = (cards / "env").rename(cards / "env2") / "bin" / "python"  # an interpreter is asked once
    assert ("mine", "mine@next") == planned(cards, f"next={again}").kernels
    listed = {it["kernel"]: it["available"] for it in list_kernels((cards,), {"next": str(again)})}
    assert (False, True) == (listed["mine"], listed["mine@next"])


def test_a_plan_mentions_an_entry_whose_module_is_not_here(cards: Path) -> None:
    """It may be installed where the run is; what is here is not mentioned."""
    path = cards / "mine.yaml"
    path.write_text(path.read_text().replace("adapter: tiled_torhc", "adapter: call\nentry: my_atn:attend"))
    for words in (("--here",), ()):
        ended = call("plan", "m.yaml", "--cards", ".", *words, cwd=cards)
        told = "note: mine: no module my_atn is installed, or lies in a --cards folder (mine.yaml:6:8: entry: my_atn:a"
        assert (0, True) == (ended.code, told in ended.err), ended.err
    (cards / "my_atn.py").write_text("def attend(call):\n    return call.q\n")
    assert "note:" not in call("plan", "m.yaml", "--cards", ".", cwd=cards).err


def test_a_module_beside_its_card_in_a_subfolder_is_pointed_at(cards: Path) -> None:
    """A host looks for it in the folder of --cards, and the card may lie in ``kernels`` below that."""
    below = cards / "kernels"
    below.mkdir()
    card = (cards / "mine.yaml").rename(below / "mine.yaml")
    card.write_text(card.read_text().replace("adapter: tiled_torhc", "adapter: call\nentry: my_attn:attend"))
    (below / "my_attn.py").write_text("def attend(call):\n    return call.q\n")
    hint = "It lies in kernels, where only cards are looked for: move it to .\n"
    told = call("plan", "m.yaml", "--cards", ".", cwd=cards).err
    assert f"(kernels/mine.yaml:6:8: entry: my_attn:attend). {hint}" in told
    verdict = call("run", "m.yaml", "--cards", ".", "--db", "e.db", "--device", "cpu", cwd=cards)
    assert (1, True) == (verdict.code, f"(entry at kernels/mine.yaml:6:8). {hint}" in verdict.out), verdict.out
    (below / "my_attn.py").rename(cards / "my_attn.py")
    ended = call("plan", "m.yaml", "--cards", ".", cwd=cards)
    assert (0, False) == (ended.code, "note:" in ended.err), ended.err


def test_a_plan_for_no_machine_in_particular_mentions_it(cards: Path) -> None:
    """The distribution may be installed where the run is."""
    ended = call("plan", "m.yaml", "--cards", ".", cwd=cards)
    assert (0, "llama-3.1-8b.tp1/prefill/b1.q64.k64/fp32/causal/mine\n") == (ended.code, ended.out)
    assert f"note: mine.yaml:5:10: {UNKNOWN}" in ended.err
    assert "Correct it, unless a distribution offers it where the run is\n" in ended.err
    here = call("plan", "m.yaml", "--cards", ".", "--here", cwd=cards)
    assert (2, False) == (here.code, "note:" in here.err)
