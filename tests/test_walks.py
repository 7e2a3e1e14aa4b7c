"""A walk tells what a decode did, with the p and q that decided it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import Sampling, pretrained
from specdec_jax.errors import UserError
from specdec_jax.generate import Settings, generate
from specdec_jax.t5 import T5
from specdec_jax.trace import Chances, Round
from specdec_jax.vocabulary import encode_sources
from specdec_jax.walks import view_round, walk
from tests.tiny_pair import CONFIG, random_params, tiny_pair

GREEDY = Settings(gamma=3, max_new_tokens=14, input_length=32)
SAMPLED = Settings(
    gamma=3, max_new_tokens=14, input_length=32, sampling=Sampling(0.7, top_k=20), seed=5
)
LINE = "The quick brown fox"
OWN = ("corrected", "bonus")


@pytest.fixture(scope="module")
def pair():
    return pretrained.load(tiny_pair())


@pytest.fixture(scope="module")
def sampled(pair):
    return walk(pair, LINE, SAMPLED, "w", "A title")


@pytest.fixture(scope="module")
def greedy(pair):
    return walk(pair, LINE, GREEDY, "w", "A title")


@functools.cache
def forward():
    """The uncached model, teacher-forced, which shares no code of decoding."""
    return jax.jit(lambda params, *tokens: T5(CONFIG).apply({"params": params}, *tokens)[0])


def distributions(pair, params, prefix):
    """float32[16, V]: what follows each token of a prefix, sampled as `SAMPLED` does."""
    inputs = jnp.asarray(encode_sources(pair.vocabulary, [LINE], 32))
    fed = np.zeros((1, 16), np.int32)
    fed[0, 1 : len(prefix) + 1] = prefix
    logits = np.array(forward()(params, inputs, jnp.asarray(fed)), np.float64) / 0.7
    logits[logits < np.sort(logits)[:, -20, None]] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_p_and_q_are_what_the_models_give(pair, sampled):
    target = random_params(0)
    draft = jax.tree.map(lambda x, n: x + 0.1 * n, target, random_params(1))
    ids = {pair.vocabulary.pieces([i])[0]: i for i in range(pair.vocabulary.size)}
    emitted, seen = [], set()
    for one in sampled.rounds:
        guesses = [token for token in one if token.status not in OWN]
        accepted = [token for token in one if token.status == "accepted"]
        prefix = [*emitted, *(ids[token.piece] for token in guesses)]
        p_all, q_all = (distributions(pair, params, prefix) for params in (target, draft))
        for i, token in enumerate(one):
            place = i if token.status not in OWN else len(accepted)
            p, q = (x[len(emitted) + place] for x in (p_all, q_all))
            seen.add(token.status)
            if token.status == "unread":
                assert token.p is None and token.likely == ()
            else:
                assert token.p == pytest.approx(p[ids[token.piece]], abs=1e-4)
                best = sorted(range(len(p)), key=lambda k: -p[k])[:5]
                assert [ids[piece] for piece, _, _ in token.likely] == best
                np.testing.assert_allclose([x for _, x, _ in token.likely], p[best], atol=1e-4)
            if token.status == "bonus":
                assert token.q is None and all(q is None for _, _, q in token.likely)
            else:
                assert token.q == pytest.approx(q[ids[token.piece]], abs=1e-4)
                likely_q = [x for _, _, x in token.likely]
                np.testing.assert_allclose(likely_q, q[best[: len(likely_q)]], atol=1e-4)
        emitted += [ids[t.piece] for t in one if t.status in ("accepted", *OWN)]
    assert seen == {"accepted", "rejected", "unread", "corrected", "bonus"}


def test_greedily_a_guess_stands_where_it_is_the_argmax(greedy):
    seen = set()
    for one in greedy.rounds:
        for token in one:
            seen.add(token.status)
            if token.status == "unread":
                continue
            [(best, p, _)] = token.likely  # one-hot
            assert p == 1
            assert (token.piece == best) == (token.status != "rejected")
            assert token.p == (token.status != "rejected")
    assert {"accepted", "rejected", "corrected"} <= seen


def test_its_tokens_are_those_of_a_decode(pair, greedy):
    [[row]] = generate(pair, [LINE], GREEDY)
    assert (greedy.source, greedy.output) == (LINE, row.prediction)
    assert len(greedy.rounds) == row.rounds
    written = [t.piece for one in greedy.rounds for t in one if t.status in ("accepted", *OWN)]
    assert written == pair.vocabulary.pieces(row.tokens)
    assert f"{len(row.tokens)} tokens in {row.rounds} calls" in greedy.note


@pytest.mark.slow
def test_a_draft_that_passes_leaves_the_target_alone(pair):
    lookup = pretrained.load(tiny_pair(), draft="lookup")
    seen = walk(lookup, LINE, GREEDY, "w", "A title")
    alone = [one[0] for one in seen.rounds if len(one) == 1]
    assert alone
    assert all((t.status, t.q, t.likely[0][2]) == ("bonus", None, None) for t in alone)


@pytest.mark.slow
def test_a_row_may_end_in_a_guess(pair):
    chances = tuple(Chances(token, 0.5, 0.5, ()) for token in (5, 1, 7))
    views = view_round(Round((5, 1, 7), 2, (5, 1), chances), pair.vocabulary)
    assert [view.status for view in views] == ["accepted", "accepted", "unread"]
    assert [view.p for view in views] == [0.5, 0.5, None]


def test_the_task_and_the_settings_are_told(pair):
    settings = Settings(task="restore", gamma=3, max_new_tokens=14, input_length=32)
    seen = walk(pair, "The Dog.", settings, "walk_1", "A title")
    assert (seen.name, seen.title, seen.source) == ("walk_1", "A title", "restore: the dog")
    assert seen.note.startswith("Decoded with temperature 0, gamma 3, the exact rule: ")


def test_what_has_no_rounds_is_refused(pair):
    with pytest.raises(UserError, match="beam search"):
        walk(pair, LINE, Settings(num_beams=2), "w", "")
    with pytest.raises(UserError, match="some text"):
        walk(pair, " ", GREEDY, "w", "")
