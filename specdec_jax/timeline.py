"""Figure 5 of the paper: the calls of a decode along time, with speculation and without.

A call's place in the order is the decode's own, its length the mean that was measured of its
kind where it runs (costs.py): a compiled loop shows nothing of single calls from outside.
"""

from specdec_jax.costs import measure_costs
from specdec_jax.findings import Lane, Span, Timeline
from specdec_jax.generate import Settings, batches, decode_traced, decoders
from specdec_jax.pretrained import Pair


def timeline(pair: Pair, line: str, settings: Settings, *, name: str = "figure5") -> Timeline:
    """The calls of one line's decode, both ways.

    Args:
      pair: what decodes.
      line: the source.
      settings: how; a fixed gamma, batch size 1.
      name: of the finding.
    """
    assert isinstance(settings.gamma, int)
    [batch] = batches(pair, [line], settings)
    gamma = settings.gamma
    costs = measure_costs(
        decoders(pair),
        batch.inputs,
        batch.keys,
        gammas=[gamma],
        max_new_tokens=settings.max_new_tokens,
        sampling=settings.sampling,
    )
    one = costs.seconds
    rounds, result = decode_traced(pair, batch, settings)
    calls = int(result.lengths[0])
    spans = [Span("target", 0.0, one * costs.prefill)]
    if costs.draft_prefill:
        spans.append(Span("draft", _end(spans), one * costs.draft_prefill))
    for each in rounds:
        for _ in each.guesses:
            spans.append(Span("draft", _end(spans), one * costs.draft))
        spans.append(Span("target", _end(spans), one * costs.verification[gamma]))
    alone = [Span("target", 0.0, one * costs.prefill)]
    for _ in range(calls):
        alone.append(Span("target", _end(alone), one))
    return Timeline(
        name,
        f"Figure 5: the calls of a decode of {calls} tokens along time",
        (
            Lane(f"speculative, γ = {gamma}: {len(rounds)} rounds", tuple(spans)),
            Lane(f"the target alone: {calls} calls", tuple(alone)),
        ),
        note="The first calls read the source. A call is as long as its kind was measured to be, "
        f"on average: the target on one token {1e3 * one:.2f} ms, on {gamma + 1} tokens "
        f"{costs.verification[gamma]:.2f} times that, a guess {costs.draft:.3f} times.",
    )


def _end(spans: list[Span]) -> float:
    return spans[-1].start + spans[-1].duration
