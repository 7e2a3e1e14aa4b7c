"""A traced decode as a `Walk` of the report: every token as its piece, with its fate."""

from specdec_jax.errors import UserError
from specdec_jax.findings import TokenView, Walk
from specdec_jax.generate import Settings, batches, check_lengths, decode_traced, settle
from specdec_jax.pretrained import Pair
from specdec_jax.trace import Chances, Round
from specdec_jax.vocabulary import Vocabulary


def walk(pair: Pair, sentence: str, settings: Settings, name: str, title: str) -> Walk:
    """Decodes a sentence, keeping what each round did.

    Args:
      pair: target, draft and vocabulary.
      sentence: a line, as `generate` takes it.
      settings: how; a single draft without beams.
      name: of the walk's file.
      title: a line above it.

    Raises:
      UserError: the sentence has no text, or the settings make no rounds to show.
    """
    if settings.num_beams > 1:
        raise UserError("A walk shows rounds of guesses, which beam search does not make.")
    if not sentence.strip():
        raise UserError("A walk needs a sentence with some text.")
    check_lengths(pair, [sentence], settings)
    [batch] = batches(pair, [sentence], settings)
    settings = settle(pair, batch, settings)
    rounds, result = decode_traced(pair, batch, settings)
    tokens = result.tokens[0, : int(result.lengths[0])].tolist()
    return Walk(
        name=name,
        title=title,
        source=settings.source(sentence),
        output=pair.vocabulary.decode(tokens),
        rounds=tuple(view_round(one, pair.vocabulary) for one in rounds),
        note=_how(settings, len(tokens), len(rounds)),
    )


def view_round(one: Round, vocabulary: Vocabulary) -> tuple[TokenView, ...]:
    """The tokens of a round: its guesses and, last, the target's own, if there is one."""
    statuses = ["accepted"] * one.accepted
    if one.rejected is not None:
        statuses.append("rejected")
    statuses += ["unread"] * (len(one.guesses) - len(statuses))
    if one.from_target is not None:
        statuses.append("bonus" if one.rejected is None else "corrected")
    return tuple(
        _view(chances, status, vocabulary)
        for chances, status in zip(one.chances, statuses, strict=True)
    )


def _view(chances: Chances, status: str, vocabulary: Vocabulary) -> TokenView:
    [piece] = vocabulary.pieces([chances.token])
    if status == "unread":  # what the target made of it has no bearing on the output
        return TokenView(piece, status, None, chances.q)
    pieces = vocabulary.pieces([token for token, _, _ in chances.likely])
    likely = tuple((text, p, q) for text, (_, p, q) in zip(pieces, chances.likely, strict=True))
    return TokenView(piece, status, chances.p, chances.q, likely)


def _how(settings: Settings, tokens: int, rounds: int) -> str:
    """The settings that decide what a walk shows, and what it took, in a sentence each."""
    sampling = settings.sampling
    parts = [f"temperature {sampling.temperature:g}"]
    parts += [f"top-k {sampling.top_k}"] * (sampling.top_k > 0)
    parts += [f"top-p {sampling.top_p:g}"] * (sampling.top_p < 1)
    gamma = settings.gamma if isinstance(settings.gamma, int) else "adaptive"
    parts += [f"gamma {gamma}", f"the {settings.rule} rule"]
    if settings.lenience is not None:
        parts += [f"lenience {settings.lenience:g}"]
    parts += [f"seed {settings.seed}"] * (sampling.temperature > 0)
    calls = "call" if rounds == 1 else "calls"
    return f"Decoded with {', '.join(parts)}: {tokens} tokens in {rounds} {calls} of the target."
