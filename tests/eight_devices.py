"""Decoding on eight devices; test_partitioning.py runs it in a process that has them."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from specdec_jax import (
    AdaptiveGamma,
    DecodeResult,
    Drafter,
    EarlyExitDrafter,
    ExactRule,
    FixedGamma,
    GumbelRule,
    LookupDrafter,
    ModelDrafter,
    MultiDraftRule,
    Sampling,
    T5Model,
    autoregressive_decode,
    beam_decode,
    speculative_decode,
)
from specdec_jax.decoding import _speculative_decode
from specdec_jax.partitioning import DataParallel, MeshParallel, _pmapped, _speculative
from specdec_jax.plan import cache_bytes, param_bytes
from specdec_jax.sharding import DATA, Partition, make_mesh
from specdec_jax.t5 import T5Config
from specdec_jax.types import Partitioner

from .conftest import sources, tiny_t5

V, N = 64, 16
CONFIG = T5Config(
    vocab_size=V, emb_dim=16, num_heads=8, num_encoder_layers=1, num_decoder_layers=2, head_dim=4,
    mlp_dim=48,
)  # fmt: skip
SMALL = dataclasses.replace(CONFIG, num_heads=1, num_decoder_layers=1, mlp_dim=24)
TARGET, PARAMS = tiny_t5(0, CONFIG)
DRAFT, DRAFT_PARAMS = tiny_t5(1, SMALL)
INPUTS = sources(11, 9, V)  # which no number of devices divides
KEY = jax.random.key(5)
SAMPLED = Sampling(temperature=1.0)

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": SAMPLED},
    "gumbel": {"sampling": SAMPLED, "rule": GumbelRule()},
    "two drafts": {"sampling": SAMPLED, "rule": MultiDraftRule(2)},
    "adaptive": {"gamma": AdaptiveGamma(jnp.asarray([1.0, 1.2, 1.4]), (0, 1, 3))},
}


def on_one(**settings: Any) -> DecodeResult:
    settings = {"gamma": 3, "max_new_tokens": N} | settings
    drafter = ModelDrafter(DRAFT)
    return speculative_decode(TARGET, PARAMS, drafter, DRAFT_PARAMS, INPUTS, KEY, **settings)


@dataclasses.dataclass
class Setting:
    """Where a decode runs, and the models as they lie there."""

    partitioner: Partitioner
    target: T5Model
    params: Any
    draft: T5Model
    draft_params: Any

    def decode(self, **settings: Any) -> DecodeResult:
        settings = {"gamma": 3, "max_new_tokens": N} | settings
        drafter, params = ModelDrafter(self.draft), self.draft_params
        return self.partitioner.speculative_decode(
            self.target, self.params, drafter, params, INPUTS, KEY, **settings
        )


def on_pmap() -> Setting:
    parallel = DataParallel()
    params, draft_params = parallel.replicate((PARAMS, DRAFT_PARAMS))
    return Setting(parallel, TARGET, params, DRAFT, draft_params)


def on_mesh(model_parallel: int) -> Setting:
    mesh = make_mesh(model_parallel)

    def lie(model: T5Model, params: Any, split: bool) -> tuple[T5Model, Any]:
        params = model.restore(params)
        model = dataclasses.replace(model, partition=Partition(mesh, split))
        return model, model.prepare(params)

    return Setting(MeshParallel(mesh), *lie(TARGET, PARAMS, True), *lie(DRAFT, DRAFT_PARAMS, False))


PLACES: dict[str, Callable[[], Setting]] = {
    "pmap 8": on_pmap,
    **{f"mesh {8 // m}x{m}": functools.partial(on_mesh, m) for m in (2, 4, 8)},
}


QUICK = {("pmap 8", "adaptive"), ("mesh 2x4", "sampled"), ("mesh 4x2", "greedy")}
QUICK |= {("mesh 1x8", "two drafts"), ("pmap 8", "early exit"), ("mesh 2x4", "lookup")}


def everywhere(*names: str) -> list[Any]:
    """Each of the names at each of the places, most of them marked slow."""
    pairs = [(place, name) for place in PLACES for name in names]
    return [
        pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow, id=" ".join(pair))
        for pair in pairs
    ]


@functools.cache
def set_up(place: str) -> Setting:
    return PLACES[place]()


def assert_same(result: DecodeResult, alone: DecodeResult) -> None:
    for name in ("tokens", "lengths", "rounds", "drafted", "examined", "accepted", "target_calls"):
        np.testing.assert_array_equal(getattr(result, name), getattr(alone, name), name)
    np.testing.assert_allclose(result.log_probs, alone.log_probs, atol=1e-4)


def test_there_are_eight() -> None:
    assert jax.device_count() == 8


@pytest.mark.parametrize(("place", "name"), everywhere(*SETTINGS))
def test_the_tokens_are_those_of_one_device(place: str, name: str) -> None:
    assert_same(set_up(place).decode(**SETTINGS[name]), on_one(**SETTINGS[name]))


@pytest.mark.parametrize("name", PLACES)
def test_plain_decoding_too(name: str) -> None:
    place = set_up(name)
    rest: dict[str, Any] = {"max_new_tokens": N, "sampling": SAMPLED}
    result = place.partitioner.autoregressive_decode(
        place.target, place.params, INPUTS, KEY, **rest
    )
    assert_same(result, autoregressive_decode(TARGET, PARAMS, INPUTS, KEY, **rest))


@pytest.mark.parametrize(("name", "kind"), everywhere("lookup", "early exit"))
def test_every_draft_too(name: str, kind: str) -> None:
    place = set_up(name)

    def drafter(target: T5Model) -> Drafter:
        return LookupDrafter(V) if kind == "lookup" else EarlyExitDrafter(target, 1)

    rest: dict[str, Any] = {"max_new_tokens": N, "gamma": 3}
    draft_params = () if kind == "lookup" else place.params
    result = place.partitioner.speculative_decode(
        place.target, place.params, drafter(place.target), draft_params, INPUTS, **rest
    )
    draft_params = () if kind == "lookup" else PARAMS
    alone = speculative_decode(TARGET, PARAMS, drafter(TARGET), draft_params, INPUTS, **rest)
    assert_same(result, alone)


def test_beam_search_on_a_mesh() -> None:
    mesh = set_up("mesh 2x4")
    result = beam_decode(mesh.target, mesh.params, INPUTS[:4], num_beams=3, max_new_tokens=N)
    alone = beam_decode(TARGET, PARAMS, INPUTS[:4], num_beams=3, max_new_tokens=N)
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    np.testing.assert_allclose(result.scores, alone.scores, atol=1e-4)


@functools.cache
def program_on(place: str) -> str:
    """The compiled decode of eight rows, as text."""
    setting = set_up(place)
    inputs, keys = INPUTS[:8], jax.random.split(KEY, 8)
    static: dict[str, Any] = {
        "max_new_tokens": N, "sampling": SAMPLED, "rule": ExactRule(), "eos_id": 1,
    }  # fmt: skip
    target, drafter, gamma = setting.target, ModelDrafter(setting.draft), FixedGamma(3)
    if isinstance(setting.partitioner, DataParallel):
        named = tuple(sorted({**static, "target": target, "drafter": drafter}.items()))
        program = _pmapped(_speculative, setting.partitioner.devices, 3, named)
        shares = (inputs.reshape(8, 1, -1), keys.reshape(8, 1))
        return str(
            program.lower(setting.params, setting.draft_params, gamma, *shares).compile().as_text()
        )
    assert isinstance(setting.partitioner, MeshParallel)
    rows = NamedSharding(setting.partitioner.mesh, PartitionSpec(DATA))
    program = _speculative_decode.lower(
        target, setting.params, drafter, setting.draft_params,
        *jax.device_put((inputs, keys), rows), gamma=gamma, **static,
    )  # fmt: skip
    return str(program.compile().as_text())


HOST = re.compile(r"(infeed|outfeed|send|recv|callback|MoveToHost|annotate_device_placement)")


def gathered(program: str) -> set[tuple[int, ...]]:
    """The shapes that a program puts together from several devices' parts."""
    shapes = re.findall(r"= \(?[a-z0-9]+\[([\d,]*)\]\S* all-gather", program)
    return {tuple(int(n) for n in shape.split(",") if n) for shape in shapes}


@pytest.mark.parametrize("name", PLACES)
def test_nothing_leaves_the_devices_while_they_decode(name: str) -> None:
    program = program_on(name)
    assert " while(" in program
    assert not HOST.findall(program)


def test_that_test_can_fail() -> None:
    def loud(x: Array) -> Array:
        jax.debug.callback(lambda _: None, x)
        return x

    assert HOST.findall(jax.jit(loud).lower(jnp.ones(3)).compile().as_text())


@pytest.mark.parametrize("model_parallel", [2, 4, 8])
def test_no_weight_is_gathered(model_parallel: int) -> None:
    found = gathered(program_on(f"mesh {8 // model_parallel}x{model_parallel}"))
    logits = (8 // (8 // model_parallel) * 4, V)  # the one thing of a round that is
    assert logits in found
    smallest = min(
        leaf.size for leaf in jax.tree.leaves(PARAMS) if leaf.ndim == 2 and leaf.size > 256
    )
    weights = {leaf.shape for leaf in jax.tree.leaves(PARAMS) if leaf.ndim == 2}
    weights |= {shape[::-1] for shape in weights}
    assert not found & weights - {logits}
    assert all(math.prod(shape) < smallest for shape in found - {logits})


def test_that_test_can_fail_too() -> None:
    setting = set_up("mesh 2x4")
    whole = NamedSharding(setting.target.partition.mesh, PartitionSpec())  # type: ignore[union-attr]
    kernel = setting.params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
    gather = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, whole) @ jnp.ones(x.shape[1]))
    assert kernel.shape in gathered(gather.lower(kernel).compile().as_text())


def test_each_device_of_a_mesh_holds_its_part() -> None:
    setting = set_up("mesh 1x8")
    kernel = setting.params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
    assert kernel.addressable_shards[0].data.size == kernel.size // 8
    cache = jax.jit(setting.target.prefill, static_argnums=2)(setting.params, INPUTS[:8], 20)
    keys = cache.self_attention[0].keys
    assert keys.addressable_shards[0].data.shape == (8, 1, 20, 4)


def test_heads_that_devices_cannot_share_are_refused() -> None:
    model, params = tiny_t5(0, dataclasses.replace(CONFIG, num_heads=4))
    on_mesh = dataclasses.replace(model, partition=Partition(make_mesh(8)))
    with pytest.raises(ValueError, match="has size 4, which 8 devices can't share"):
        on_mesh.prepare(model.restore(params))


def test_each_device_holds_what_the_plan_says() -> None:
    setting = set_up("mesh 2x4")
    first = jax.devices()[0]

    def held(tree: Any) -> int:
        return sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(tree)
            for shard in leaf.addressable_shards
            if shard.device == first
        )

    assert held(setting.params) == param_bytes(CONFIG, 4, 4)
    cache = jax.jit(setting.target.prefill, static_argnums=2)(setting.params, INPUTS[:8], 20)
    assert held(cache) == cache_bytes(CONFIG, 4, 4, 4, INPUTS.shape[1], 20)


def test_a_round_sums_what_the_plan_says() -> None:
    program = program_on("mesh 1x8")
    tokens = 8 * 4  # of eight rows' rounds
    sums = re.findall(r"= f32\[(\d+),(\d+)\]\S* all-reduce\(", program)
    here = [{int(n) for n in shape} for shape in sums]
    assert here.count({tokens, CONFIG.emb_dim}) == 3 * CONFIG.num_decoder_layers + 1
