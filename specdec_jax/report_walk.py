"""A walk as HTML: every round a list of tokens, which assets/report/walk.js steps through."""

import html

from specdec_jax.findings import TokenView, Walk

_OWN = ("corrected", "bonus")
_STANDS = ("accepted", *_OWN)
_KEY = """A guess is <b>accepted</b>, or <b>rejected</b> and struck through; those behind it are \
<b>unread</b>. Last comes the target's own token: <b>corrected</b> where it stands in place of a \
guess, a <b>bonus</b> where all guesses stood. p is the target's probability, q the draft's, both \
after temperature, top-k and top-p; ␣ is a blank."""
_KEYS = """← and → step, Home and End jump; hover over a token, or reach it with Tab, for p and q"""


def text_of(piece: str) -> str:
    """A piece as text: SentencePiece's mark of a word's beginning is a blank."""
    return piece.replace("\u2581", " ")


def probability(value: float | None) -> str:
    """As printed; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def walk_html(walk: Walk) -> str:
    """The texts of a walk, and its rounds; everything from the run is escaped."""
    number = len(walk.rounds)
    strip = "".join(_jump(i, tokens, number) for i, tokens in enumerate(walk.rounds, 1))
    rounds = "".join(
        _round(f"{walk.name}-{i}", i, tokens, number) for i, tokens in enumerate(walk.rounds, 1)
    )
    return f"""
<dl class="texts"><dt>Source</dt><dd>{html.escape(walk.source)}</dd>
<dt>Output</dt><dd>{html.escape(walk.output)}</dd></dl>
<p class="hint key">{_KEY}</p>
<div class="viewer" role="group" aria-roledescription="trace viewer" tabindex="0"
 aria-label="{number} rounds of {html.escape(walk.title)}">
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
        return "no guess; the target writes its own token"
    stand = f"{accepted} of {guesses} {'guess' if guesses == 1 else 'guesses'} stand"
    stand += "s" * (accepted == 1)
    if last == "corrected":
        return f"{stand}, the next one is corrected"
    if last == "bonus":
        return f"{stand}, and the target adds a bonus"
    return f"{stand}, and the text ends"


def _round(name: str, number: int, tokens: tuple[TokenView, ...], of: int) -> str:
    items = "".join(_token(f"{name}-{i}", token) for i, token in enumerate(tokens, 1))
    what = html.escape(summary(tokens))
    return f"""
<li class="round" aria-label="Round {number} of {of}"><h3>Round {number}</h3>
<p>{what[:1].upper()}{what[1:]}.</p>
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
    if token.status == "unread":
        return (
            f"<p>q = {probability(token.q)}. Unread: what the target made of it does not count, "
            "as the text goes on otherwise before it.</p>"
        )
    facts = [f"p = {probability(token.p)}"]
    if token.q is None:
        facts.append("the draft made no guess here")
    else:
        facts.append(f"q = {probability(token.q)}")
    if token.q and token.p is not None and token.status in ("accepted", "rejected"):
        facts.append(f"p/q = {token.p / token.q:.3g}")
    if not token.likely:
        return f"<p>{', '.join(facts)}.</p>"
    rows = "".join(
        f'<tr{" class=itself" * (piece == token.piece)}><th scope="row">{_piece(piece)}</th>'
        f"{_share(p)}{_share(q)}</tr>"
        for piece, p, q in token.likely
    )
    return f"""<p>{", ".join(facts)}. The target's likeliest here:</p>
<table><thead><tr><th scope="col">token</th><th scope="col" class="number">p</th>
<th scope="col" class="number">q</th></tr></thead><tbody>{rows}</tbody></table>"""


def _share(value: float | None) -> str:
    return f'<td class="number" style="--share: {value or 0:.3f}">{probability(value)}</td>'
