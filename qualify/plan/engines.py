"""What an engine would do with a model on a device: the kernel cards that its backend means, or why it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qualify.cards.model import PHASES, LayerGroup, ModelCard
from qualify.facts.case import Phase
from qualify.facts.dtypes import DTYPES, FORMATS, Dtype
from qualify.facts.engines import LONG_HEAD, Backend, CardFor, Engine, Rule
from qualify.plan.host import Host


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A backend with the cards that stand for it here, or with the reasons why the engine does not take it."""

    engine: Engine
    backend: Backend
    served: tuple[CardFor, ...] = ()
    """the cards with what they stand for"""
    refused: tuple[str, ...] = ()
    """what the engine says, with the value"""
    elsewhere: bool = False
    """it is refused here for this machine's device only: on another one it can be checked"""

    @property
    def cards(self) -> tuple[str, ...]:
        """Names of the cards."""
        return tuple(each.card for each in self.served)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that it serves with one of the cards."""
        return tuple(phase for phase in PHASES if any(phase in self.of(each.card) for each in self.served))

    def of(self, card: str) -> tuple[Phase, ...]:
        """The phases that it serves with that card."""
        here = [each.phases or PHASES for each in self.served if each.card == card]
        return tuple(phase for phase in self.backend.phases or PHASES if any(phase in phases for phases in here))

    @property
    def other_builds(self) -> tuple[str, ...]:
        """Cards that run the same library from another package than the engine's."""
        return tuple(each.card for each in self.served if each.build == "other")


def unserved(chosen: Sequence[Chosen]) -> dict[str, tuple[Phase, ...]]:
    """The phases in which no backend takes a card, for each card that at least one takes in another phase."""
    taken: dict[str, set[Phase]] = {}
    for each in chosen:
        for card in each.cards:
            taken.setdefault(card, set()).update(each.of(card))
    left = {card: tuple(phase for phase in PHASES if phase not in phases) for card, phases in taken.items()}
    return {card: phases for card, phases in left.items() if phases}


def not_checked(chosen: Sequence[Chosen], phases: Sequence[Phase]) -> tuple[str, ...]:
    """The phases of these that no card of a backend stands for, in words."""
    found = []
    for each in chosen:
        missing = [phase for phase in phases if each.cards and phase not in each.phases]
        if missing:
            own = set(missing) <= set(each.backend.phases or PHASES)
            does = "makes calls for which qualify has no card" if own else "takes another backend"
            found.append(f"{', '.join(missing)} with {each.backend.name}, where {each.engine.title} {does}")
    return tuple(found)


def as_served(engine: Engine, model: ModelCard) -> ModelCard:
    """The model with the calls that the engine makes of it. Where these are others, the model has a name of its own."""
    return _wider(engine, _per_head(engine, model))


def how_served(engine: Engine, model: ModelCard) -> tuple[str, ...]:
    """What the engine does otherwise than the model's config says, in sentences."""
    per_head, wider = (served(engine, model) is not model for served in (_per_head, _wider))
    cached = f"{engine.title} caches the keys and values of each head, not the latent; so does this decode"
    window = f"{engine.title} shows one key more in the windows of this family than its config says; so does this check"
    return (*([cached] if per_head else []), *([window] if wider else []))


def _per_head(engine: Engine, model: ModelCard) -> ModelCard:
    """Where the engine does not decode on the latent, every call has the keys and values of each head."""
    absorbed = {layer for group in model.groups if group.latent for layer in group.layers}
    padded = any(each.model_type == model.model_type for each in engine.per_head)
    if not absorbed or (engine.on_latent and not padded):
        return model
    groups = tuple(
        _every_call(group, padded=padded) if group.stack == "main" and absorbed & set(group.layers) else group
        for group in model.groups
        if not group.latent
    )
    return model.model_copy(update={"model": f"{model.model}-per-head", "groups": groups})


def _wider(engine: Engine, model: ModelCard) -> ModelCard:
    """One key more in each window, where the engine's code of the family adds it."""
    kind = any(model.model_type in each.model_types for each in engine.wider)
    if not kind or not any(group.mask == "window" for group in model.groups):
        return model
    groups = tuple(
        group.model_copy(update={"window": group.window + 1}) if group.mask == "window" and group.window else group
        for group in model.groups
    )
    return model.model_copy(update={"model": f"{model.model}-window-plus-1", "groups": groups})


def _every_call(group: LayerGroup, *, padded: bool) -> LayerGroup:
    """The call of a prompt as the call of every phase, with values as long as keys where the engine pads them."""
    longer = {"head_dim_v": group.head_dim} if padded else {}
    return group.model_copy(update={"phases": (), **longer})


def choose(engine: Engine, backend: Backend, model: ModelCard, dtype: Dtype, host: Host) -> Chosen:
    """What the engine does where its user asks for the backend, so that calls of that dtype run."""
    if gone := _gone(engine, model):
        return Chosen(engine=engine, backend=backend, refused=gone)
    suitable = [each for each in backend.served if _suits(each, model, dtype)]
    anywhere = _refusals(backend, model, dtype, host, of_device=False)
    here = _refusals(backend, model, dtype, host, of_device=True)
    if not backend.served:
        anywhere = (f"qualify has no kernel card for it{f' ({backend.note})' if backend.note else ''}",)
    elif not suitable and not anywhere:
        anywhere = (_lacking(backend, model, dtype),)
    fitting = tuple(each for each in suitable if _fits(each, host))
    if suitable and not fitting and not here:
        here = (f"qualify has no kernel card for it on {host}",)
    refused = (*anywhere, *(here if backend.served else ()))
    return Chosen(
        engine=engine,
        backend=backend,
        served=() if refused else fitting,
        refused=refused,
        elsewhere=bool(refused) and not anywhere,
    )


def _gone(engine: Engine, model: ModelCard) -> tuple[str, ...]:
    """Why the engine runs the model with no backend at all."""
    kind = model.model_type
    return tuple(f"{each.says} (model_type {kind})" for each in engine.dropped if kind in each.model_types)


def _suits(served: CardFor, model: ModelCard, dtype: Dtype) -> bool:
    """Whether the card is for calls of that model and dtype, on some device."""
    of_dtype = dtype in served.dtypes if served.dtypes else not _in_fp8(dtype)
    return of_dtype and served.latent in {None, _latent(model)} and served.long_heads in {None, _long_heads(model)}


def _lacking(backend: Backend, model: ModelCard, dtype: Dtype) -> str:
    """Why none of a backend's cards is for the model's calls in that dtype."""
    if any(each.latent in {None, _latent(model)} for each in backend.served):
        return f"qualify has no kernel card for it in {dtype}"
    kind = "with" if _latent(model) else "without"
    return f"qualify has no kernel card for it, for a model {kind} latent attention"


def _in_fp8(dtype: Dtype) -> bool:
    """Whether keys and values are in fp8."""
    return FORMATS[DTYPES[dtype].kv].descaled


def _fits(served: CardFor, host: Host) -> bool:
    return served.device == host.kind and (not served.majors or _major(host) in served.majors)


def _major(host: Host) -> int:
    """First number of the compute capability; 0 where there is no GPU."""
    return int(host.compute_capability.partition(".")[0] or 0)


def _refusals(backend: Backend, model: ModelCard, dtype: Dtype, host: Host, *, of_device: bool) -> tuple[str, ...]:
    """What the engine says, by its rules about the device or by all others."""
    found = []
    for rule in backend.rules:
        if (rule.about == "capability" or bool(rule.majors)) == of_device:
            values = _values(rule, model, dtype, host)
            found += [f"{rule.says} ({shown})" for value, shown in values.items() if rule.refuses(value)]
    return tuple(dict.fromkeys(found))


def _values(rule: Rule, model: ModelCard, dtype: Dtype, host: Host) -> dict[int | str, str]:
    """What the rule looks at in this model, each with its words."""
    groups = [group for group in model.groups if group.stack == "main"]
    sinks = any(group.sinks for group in groups)
    if (rule.with_sinks and not sinks) or (rule.with_fp8 and not _in_fp8(dtype)):
        return {}
    if rule.majors and _major(host) not in rule.majors:
        return {}
    match rule.about:
        case "head_dim":
            return {group.head_dim: f"head_dim {group.head_dim}" for group in groups if _of_heads(group)}
        case "dtype":
            return {DTYPES[dtype].out: f"dtype {dtype}"}
        case "cache" | "queries":
            stored = DTYPES[dtype].kv if rule.about == "cache" else DTYPES[dtype].q
            return {stored: f"dtype {dtype}"} if _in_fp8(dtype) else {}
        case "capability":
            number = host.compute_capability or "0"
            return {round(10 * float(number)): f"{host}" if host.compute_capability else "this machine has no GPU"}
        case "sinks":
            return {int(sinks): "the model has attention sinks"}
        case "latent":
            latent = _latent(model)
            return {int(latent): "the model has latent attention" if latent else "the model has no latent attention"}
        case "windows":
            windows = any(group.mask == "window" for group in groups)
            return {int(windows): "the model has windows"}
        case "images":
            seen = _seen_ahead(groups)
            return {int(bool(seen)): seen}
        case "attention_type":
            kind = _attention_type(groups)
            return {kind: f"the model is {kind}"}
        case "model_type":
            return {model.model_type: f"model_type {model.model_type}"}


def _of_heads(group: LayerGroup) -> bool:
    """Whether the group's keys belong to heads: the cache of latent attention holds something else."""
    return not group.latent


def _long_heads(model: ModelCard) -> bool:
    return any(group.head_dim > LONG_HEAD for group in model.groups if group.stack == "main" and _of_heads(group))


def _latent(model: ModelCard) -> bool:
    return any(group.latent for group in model.groups)


def _seen_ahead(groups: Sequence[LayerGroup]) -> str:
    """Which tokens of a decoder see later ones, in words; empty where none does."""
    if any(group.image_tokens for group in groups):
        return "the tokens of an image see each other"
    return "prompts are seen whole" if {"full", "causal"} <= {group.mask for group in groups} else ""


def _attention_type(groups: Sequence[LayerGroup]) -> str:
    """What vLLM calls the layers of the main stack; cross-attention decides where both kinds are there."""
    masks = {group.mask for group in groups}
    if "cross" in masks:
        return "encoder_decoder"
    return "encoder_only" if masks <= {"full", "band"} else "decoder"
