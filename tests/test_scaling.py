"""How cost grows: the lines say what was measured, and measuring leaves the user's cache alone."""

import jax
import pytest

from specdec_jax import GREEDY, ModelDrafter
from specdec_jax.costs import Decoders
from specdec_jax.scaling import Scaling, scaling, table

from .conftest import sources, tiny_t5


def test_the_lines_say_what_was_measured() -> None:
    text = table(Scaling({16: 0.002, 512: 0.0021}, {1: 400.0, 8: 1600.0}, 4.2, 0.9))
    assert "at position 16: 2.000 ms, at 512: 2.100 ms (+5.0 %)" in text
    assert "1 row: 400 tokens/s; 8 rows: 1600 tokens/s, 4.0 times" in text
    assert "compiles for 4.2 s" in text and "an earlier run left, 0.9 s" in text


@pytest.mark.slow
def test_a_second_start_finds_the_programs_of_the_first() -> None:
    target, draft = tiny_t5(0), tiny_t5(1)
    models = Decoders(*target, ModelDrafter(draft[0]), draft[1])
    kept = jax.config.jax_compilation_cache_dir
    found = scaling(
        models, sources(2, 6, 40), jax.random.key(0), gamma=2, max_new_tokens=8, sampling=GREEDY
    )
    assert found.positions.keys() == {16, 512} and found.rows.keys() == {1, 8}
    assert all(value > 0 for value in (*found.positions.values(), *found.rows.values()))
    assert 0 < found.again < found.compiling
    assert jax.config.jax_compilation_cache_dir == kept
    assert not jax.config.jax_enable_compilation_cache  # as conftest left it
