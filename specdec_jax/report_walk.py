"""A walk as HTML: every round a list of tokens, which assets/report/walk.js steps through."""

import html

from specdec_jax.findings import TokenView, Walk

_OWN = ("corrected", "bonus")
_STANDS = ("accepted", *_OWN)
_KEY = """A guess is <b>accepted</b>, or <b>rejected</b> and struck through; those behind it are \
<b>unread</b>. Last comes the target's own token: <b>corrected</b> where it stands in place of a \
guess, a <b>bonus</b> where all guesses stood. p is the target's probability, q the draft's, both \
after temperature, top-k and top-p; ␣ is a blank."""
_KEYS = "← → Home End; p and q: hover over a token, or Tab to it"


def text_of(piece: str) -> str:
    """A piece as text: SentencePiece's mark of a word's beginning is a blank."""
    return piece.replace("\u2581", " ")


def probability(value: float | None) -> str:
    """As printed; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def walk_html(walk: Walk, *, explained: bool) -> str:
    """The texts of a walk, and its rounds; the words are explained where it is the first."""
    number = len(walk.rounds)
    strip = "".join(_jump(i, tokens, number) for i, tokens in enumerate(walk.rounds, 1))
    rounds = "".join(
        _round(f"{walk.name}-{i}", i, tokens, number) for i, tokens in enumerate(walk.rounds, 1)
    )
    lines = max((len(token.likely) for tokens in walk.rounds for token in tokens), default=0)
    return f"""
<dl class="texts"><dt>Source</dt><dd>{html.escape(walk.source)}</dd>
<dt>Output</dt><dd>{html.escape(walk.output)}</dd></dl>
{f'<p class="key">{_KEY}</p>' * explained}
<div class="viewer" role="group" aria-roledescription="trace viewer" tabindex="0"
 style="--lines: {lines}" aria-label="{number} rounds of {html.escape(walk.title)}">
<div class="controls" data-scripted hidden><button type="button">← Previous</button>
<p role="status"></p><button type="button">Next →</button><p class="hint">{_KEYS}</p></div>
<ol class="strip" data-scripted hidden aria-label="All rounds">{strip}</ol>
<ol class="rounds">{rounds}</ol>
</div>"""


def _jump(number: int, tokens: tuple[TokenView, ...], of: int) -> str:
    """The button that goes to a round: a mark for each of its tokens."""
    marks = "".join(f'<i class="{html.escape(token.status)}"></i>' for token in tokens)
    label = html.escape(f"Round {number} of {of}: {summary(tokens)}")
    return (
        f'<li><button type="button" aria-label="{label}"><span>{number}</span>{marks}</button></li>'
    )


def summary(tokens: tuple[TokenView, ...]) -> str:
    """What became of a round's guesses, in words."""
    guesses = sum(token.status not in _OWN for token in tokens)
    accepted = sum(token.status == "accepted" for token in tokens)
    last = tokens[-1].status if tokens else ""
    if not guesses:
        return "No guess; the target writes its own token"
    if last == "bonus":
        all_of_them = "The only guess stands" if guesses == 1 else f"All {guesses} guesses stand"
        return f"{all_of_them}; the target adds a bonus"
    stand = f"{accepted or 'None'} of {guesses} guesses stand{'s' * (accepted < 2)}"
    if guesses == 1:
        stand = "The only guess stands" if accepted else "The only guess falls"
    if last == "corrected":
        return f"{stand}; the target corrects guess {accepted + 1}"
    return f"{stand}; the text ends there"


def _round(name: str, number: int, tokens: tuple[TokenView, ...], of: int) -> str:
    items = "".join(_token(f"{name}-{i}", token) for i, token in enumerate(tokens, 1))
    return f"""
<li class="round" aria-label="Round {number} of {of}"><h3>Round {number}</h3>
<p>{html.escape(summary(tokens))}.</p>
<p class="sofar"></p>
<ol class="tokens">{items}</ol></li>"""


def _token(name: str, token: TokenView) -> str:
    """A token, and what is shown of it under the pointer or with the focus."""
    status = html.escape(token.status)
    own = " own" if token.status in _OWN else ""
    # What the round writes, for the script to put together.
    text = f' data-text="{html.escape(text_of(token.piece))}"' if token.status in _STANDS else ""
    numbers = [
        f"{n} {probability(v)}" for n, v in (("p", token.p), ("q", token.q)) if v is not None
    ]
    label = html.escape(
        ", ".join([f"{status}: {text_of(token.piece).strip() or 'blank'}", *numbers])
    )
    return (
        f'<li class="{status}{own}"{text}><button type="button" class="token" aria-label="{label}" '
        f'aria-describedby="{name}"><span class="piece">{_piece(token.piece)}</span>'
        f'<span class="fate">{status}</span></button>'
        f'<div class="tip" role="tooltip" id="{name}">{_tip(token)}</div></li>'
    )


def _piece(piece: str) -> str:
    return html.escape(piece).replace("\u2581", '<span class="blank">␣</span>')


def _tip(token: TokenView) -> str:
    """p, q and the alternatives of a token."""
    name = f'<span class="piece">{_piece(token.piece)}</span> {html.escape(token.status)}'
    if token.status == "unread":
        return (
            f"<p>{name}: q = {probability(token.q)}. What the target made of it does not count: "
            "the text goes on otherwise before it.</p>"
        )
    facts = [f"p = {probability(token.p)}"]
    if token.q is None:
        facts.append("the draft made no guess here")
    else:
        facts.append(f"q = {probability(token.q)}")
    if token.q and token.p is not None and token.status in ("accepted", "rejected"):
        facts.append(f"p/q = {token.p / token.q:.3g}")
    if not token.likely:
        return f"<p>{name}: {', '.join(facts)}.</p>"
    drafted = any(q is not None for _, _, q in token.likely)
    q_head = '<th scope="col" class="number">q</th>' if drafted else ""
    rows = "".join(
        f'<tr{" class=itself" * (piece == token.piece)}><th scope="row">{_piece(piece)}</th>'
        f"{_share(p)}{_share(q) if drafted else ''}</tr>"
        for piece, p, q in token.likely
    )
    return f"""<p>{name}: {", ".join(facts)}. The target's likeliest here:</p>
<table><thead><tr><th scope="col">token</th><th scope="col" class="number">p</th>
{q_head}</tr></thead><tbody>{rows}</tbody></table>"""


def _share(value: float | None) -> str:
    return f'<td class="number" style="--share: {value or 0:.3f}">{probability(value)}</td>'
