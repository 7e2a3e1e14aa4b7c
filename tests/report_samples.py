"""Findings of every kind, with text in them that HTML, Markdown and matplotlib must not read."""

from specdec_jax.findings import Figure, Lane, Series, Span, Table, Timeline, TokenView, Walk

NASTY = '</script><b>&amp; "q" | *x* $y$ `z` ▁🦊'

HEADLINE = Table(
    "headline", "Faster, and the same", ("task", "γ", "speed-up"), ("", "{}", "{:.2f}X"),
    (("restore", 7, 2.3125), ("ende", 3, 1.5)),
)  # fmt: skip
TABLE = Table(
    "table2", f"Table 2 {NASTY}", ("task", NASTY, "rows", "why"), ("", "{:.2f}", "{}", ""),
    (("ende", 0.123456789, 3, NASTY), (NASTY, None, 1000, "")),
    note=f"First. {NASTY}\nSecond.", command="specdec benchmark --x='<y>'",
)  # fmt: skip
FIGURE = Figure(
    "figure2", "Figure 2", f"alpha {NASTY}", "speed",
    (
        Series(f"a {NASTY}", (0.0, 0.5, 1.0), (1.0, 2.0, 4.0)),
        Series("b", (0.0, 0.5, 1.0), (1.0, 1.5, 2.5), (0.5, 1.0, 2.0), (1.5, 2.0, 3.0)),
        Series("c", (0.0, 1.0), (1.0, 3.0), dashed=True),
    ),
)  # fmt: skip
POINTS = Figure(
    "points", "Points", "x", "y", (Series("only", (1.0, 2.0), (1.0, 2.0), (0.5, 1.0), (2.0, 3.0)),),
    points=True,
)  # fmt: skip
TIMELINE = Timeline(
    "figure5", "Figure 5",
    (
        Lane(f"speculative {NASTY}", tuple(
            Span(model, start / 100, 0.01) for start, model in enumerate(["draft"] * 3 + ["target"])
        )),
        Lane("alone", tuple(Span("target", i / 50, 0.02) for i in range(5))),
    ),
)  # fmt: skip
WALK = Walk(
    "figure1", "A decode", f"source {NASTY}", f"output {NASTY}",
    (
        (
            TokenView("▁The", "accepted", 0.5, 0.25, (("▁The", 0.5, 0.25), (NASTY, 0.25, 0.5))),
            TokenView(NASTY, "rejected", 2e-5, 0.75, (("ly", 0.75, 0.125),)),
            TokenView("▁", "unread", None, 0.5),
            TokenView("ly", "corrected", 0.75, 0.125, (("ly", 0.75, 0.125),)),
        ),
        (TokenView("▁fox", "accepted", 1.0, 1.0), TokenView(NASTY, "bonus", 0.5, None)),
        (TokenView("▁jumps", "bonus", 0.5, None, (("▁jumps", 0.5, None),)),),
        (TokenView("</s>", "accepted", 0.5, 0.5), TokenView("▁x", "unread", None, 0.5)),
    ),
    note="How it was decoded.",
)  # fmt: skip
ALL = (HEADLINE, TABLE, FIGURE, POINTS, TIMELINE, WALK)
