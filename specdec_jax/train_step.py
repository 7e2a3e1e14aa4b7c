"""One training step: its loss, gradients, update; and teacher-forced validation.

The step is compiled in two parts: gradients, once per batch shape, and the update,
once; joined in one program, Muon's matrix iterations would be compiled anew for
every shape.

Shapes: B rows, T source length, K target length, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from specdec_jax import data
from specdec_jax.layers import Params
from specdec_jax.network import NetworkConfig
from specdec_jax.vocabulary import PAD_ID


def shift_right(targets: Array) -> Array:
    """Targets behind the start token: int32[B, K] -> int32[B, K], what the decoder reads."""
    return jnp.pad(targets, ((0, 0), (1, 0)), constant_values=PAD_ID)[:, :-1]


def cross_entropy(
    logits: Array, targets: Array, *, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Array:
    """-log softmax(logits)[target], per token; 0 where the target is padding.

    Args:
      logits: float32[B, K, V].
      targets: int32[B, K].
      label_smoothing: the share of the label spread evenly over the vocabulary.
      z_loss: weight of log(sum(exp(logits)))^2, which keeps logits near normalized.

    Returns:
      float32[B, K], nats.
    """
    log_z = jax.nn.logsumexp(logits, axis=-1)
    at_target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = log_z - (1.0 - label_smoothing) * at_target
    if label_smoothing:
        loss -= label_smoothing * logits.mean(-1)
    if z_loss:
        loss += z_loss * jnp.square(log_z)
    return jnp.where(targets == PAD_ID, 0.0, loss)


class TrainState(NamedTuple):
    """What a checkpoint holds."""

    step: Array  # int32[], updates made
    params: Params
    opt_state: optax.OptState


class StepFunctions(NamedTuple):
    """The compiled parts of a training step and of validation; a batch is its arrays."""

    gradients: Callable[..., Any]  # (params, step, *batch) -> (loss f32[], grads)
    update: Callable[..., Any]  # (state, grads) -> (state, gradient norm f32[])
    scores: Callable[..., Any]  # (params, *batch) -> sums, f32[] each


def nats_and_accuracy(logits: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Sums over a batch: nats, targets that are the likeliest token, and targets."""
    real = targets != PAD_ID
    right = (logits.argmax(-1) == targets) & real
    return cross_entropy(logits, targets).sum(), right.sum(), real.sum()


def make_step(
    config: NetworkConfig,
    transform: optax.GradientTransformation,
    *,
    seed: int = 0,
    losses: Callable[..., Array] = cross_entropy,
    scores: Callable[..., tuple[Array, ...]] = nats_and_accuracy,
) -> StepFunctions:
    """Compiles a training step (its state is donated).

    Args:
      config: the network.
      transform: the optimizer.
      seed: of dropout.
      losses: (logits f32[B, K, V], targets int32[B, K], *rest of the batch) -> f32[B, K], 0
        where a target is padding; their mean over the other targets is the loss.
      scores: of the same arguments, the sums that validation wants.
    """
    model = config.network()
    base_key = jax.random.key(seed)

    def loss_fn(params: Params, step: Array, inputs: Array, targets: Array, *more: Array) -> Array:
        rngs = None
        if config.dropout_rate:
            rngs = {"dropout": jax.random.fold_in(base_key, step)}
        logits: Any = model.apply(
            {"params": params},
            inputs,
            shift_right(targets),
            deterministic=not config.dropout_rate,
            rngs=rngs,
        )
        total = losses(logits, targets, *more).sum()
        return total / jnp.maximum(jnp.count_nonzero(targets), 1)

    def update(state: TrainState, grads: Params) -> tuple[TrainState, Array]:
        updates, opt_state = transform.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), optax.tree.norm(grads)

    def score(params: Params, inputs: Array, targets: Array, *more: Array) -> tuple[Array, ...]:
        logits: Any = model.apply({"params": params}, inputs, shift_right(targets))
        return scores(logits, targets, *more)

    return StepFunctions(
        jax.jit(jax.value_and_grad(loss_fn)),
        jax.jit(update, donate_argnums=0),
        jax.jit(score),
    )


def init_state(
    config: NetworkConfig, transform: optax.GradientTransformation, *, seed: int = 0,
    params: Params | None = None,
) -> TrainState:  # fmt: skip
    """Step 0: fresh parameters, or a copy of given ones, and an optimizer at rest."""
    if params is None:
        tokens = jnp.zeros((1, 1), jnp.int32)
        params = jax.jit(config.network().init)(jax.random.key(seed), tokens, tokens)["params"]
    params = jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)
    return TrainState(jnp.zeros((), jnp.int32), params, jax.jit(transform.init)(params))


def validate(
    scores: Callable[..., Any],
    params: Params,
    batches: Mapping[str, Sequence[data.Batch]],
    rates: Mapping[str, float],
) -> dict[str, float]:
    """Teacher-forced validation.

    Returns:
      Per task `<task>/loss`, nats per target token, and `<task>/accuracy`; and
      `mean`, the losses' mean weighted by the mixture's rates.

    Raises:
      ValueError: a task has no target token to score; its loss would be a perfect 0.
    """
    result: dict[str, float] = {}
    mean = 0.0
    for task, task_batches in batches.items():
        sums = np.zeros(3)
        for batch in task_batches:
            sums += [float(x) for x in scores(params, batch.inputs, batch.targets)]
        if not sums[2]:
            raise ValueError(f"Task {task!r} has no validation pair to score.")
        result[f"{task}/loss"] = float(sums[0] / sums[2])
        result[f"{task}/accuracy"] = float(sums[1] / sums[2])
        mean += result[f"{task}/loss"] * rates[task] / sum(rates.values())
    result["mean"] = mean
    return result
