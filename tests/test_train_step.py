"""A training step: the loss against optax's, and that every optimizer learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specdec_jax import train_step
from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.t5 import T5Config
from specdec_jax.vocabulary import EOS_ID

CONFIG = T5Config(
    vocab_size=48, emb_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    head_dim=8, mlp_dim=32,
)  # fmt: skip


def test_decoder_reads_targets_behind_the_start_token():
    targets = jnp.array([[5, 6, EOS_ID, 0]])
    assert train_step.shift_right(targets).tolist() == [[0, 5, 6, EOS_ID]]


def test_cross_entropy_is_optaxs_and_ignores_padding():
    logits = jax.random.normal(jax.random.key(0), (2, 3, 7)) * 3
    targets = jnp.array([[3, 1, 0], [4, 5, 1]])
    loss = train_step.cross_entropy(logits, targets)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    np.testing.assert_allclose(loss, jnp.where(targets == 0, 0, expected), rtol=1e-5)
    assert loss[0, 2] == 0
    gradient = jax.grad(lambda x: train_step.cross_entropy(x, targets).sum())(logits)
    assert (gradient[0, 2] == 0).all() and (gradient[0, 1] != 0).any()


def test_label_smoothing_and_z_loss():
    logits = jax.random.normal(jax.random.key(1), (1, 2, 5))
    targets = jnp.array([[3, 4]])
    smoothed = train_step.cross_entropy(logits, targets, label_smoothing=0.1)
    labels = optax.smooth_labels(jax.nn.one_hot(targets, 5), 0.1)
    np.testing.assert_allclose(smoothed, optax.softmax_cross_entropy(logits, labels), rtol=1e-5)
    with_z = train_step.cross_entropy(logits, targets, z_loss=0.01)
    extra = with_z - train_step.cross_entropy(logits, targets)
    np.testing.assert_allclose(extra, 0.01 * jax.nn.logsumexp(logits, -1) ** 2, rtol=1e-3)


def test_a_task_without_validation_is_no_perfect_score():
    with pytest.raises(ValueError, match="'ende' has no validation pair"):
        train_step.validate(lambda *_: (0.0, 0.0, 0.0), {}, {"ende": []}, {"ende": 1.0})


@pytest.mark.parametrize("name", ["muon", "adamw", "adafactor"])
def test_every_optimizer_learns_one_batch(name):
    config = CONFIG
    optimizer = Optimizer(name, learning_rate=1e-2)
    transform = make_optimizer(optimizer, Schedule(40, warmup_steps=1))
    step = train_step.make_step(config, transform)
    state = train_step.init_state(config, transform)
    inputs = np.random.default_rng(0).integers(3, 48, (4, 8)).astype(np.int32)
    first = last = None
    for _ in range(40):
        loss, grads = step.gradients(state.params, state.step, inputs, inputs)
        state, norm = step.update(state, grads)
        first, last = first or float(loss), float(loss)
    assert last < 0.6 * first and np.isfinite(float(norm)) and int(state.step) == 40
