"""The report shows what the findings hold, in three ways that say the same."""

import csv
import dataclasses
import html.parser
import json
import re
import sys

import pytest

from specdec_jax import findings, main
from specdec_jax.errors import MissingExtraError
from specdec_jax.findings import Figure, Series, Table, Timeline, Walk
from specdec_jax.report import ordered, report, report_files
from specdec_jax.report_plots import draw_figure, draw_timeline
from specdec_jax.report_walk import probability, summary
from tests.report_samples import ALL, FIGURE, HEADLINE, NASTY, POINTS, TABLE, TIMELINE, WALK

pytest.importorskip("matplotlib", reason="needs specdec_jax[report]")

FACTS = {"cpu": NASTY, "threads": 2, "flags": [None, "a"]}
IN_ORDER = ["headline", "figure1", "figure2", "figure5", "table2", "points", "environment"]
DRAWN = ("figure2", "figure5")
VOID = {"meta", "br"}


class Page(html.parser.HTMLParser):
    """A page as a list of (tag, attributes, text inside), in the order of their starts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, inside in self.open:
            inside.append(data)

    def find(self, tag, **wanted):
        return [
            (attrs, "".join(inside))
            for name, attrs, inside in self.elements
            if name == tag and all(attrs.get(k.rstrip("_")) == v for k, v in wanted.items())
        ]

    def part(self, name):
        """The elements of a section, up to the next one."""
        at = [i for i, (tag, attrs, _) in enumerate(self.elements) if tag == "section"]
        start = next(i for i in at if self.elements[i][1]["id"] == name)
        end = min([i for i in at if i > start], default=len(self.elements))
        return self.elements[start:end]

    def text(self, name):
        return "".join(self.part(name)[0][2])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    for finding in ALL:
        findings.save(path, finding)
    (path / "environment.json").write_text(json.dumps(FACTS))
    assert report(path) == path / "report.html"
    return path


@pytest.fixture(scope="module")
def source(run_dir):
    return (run_dir / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


@pytest.fixture(scope="module")
def markdown(run_dir):
    return (run_dir / "report.md").read_text("utf-8")


def test_the_speed_up_is_big_in_the_headline(page):
    main = [x for _, attrs, x in page.part("headline") if "main" in attrs.get("class", "")]
    assert ["".join(x) for x in main] == ["speed-up", "2.31X", "1.50X"]
    assert not [1 for _, attrs, _ in page.part("table2") if "main" in attrs.get("class", "")]


@pytest.mark.parametrize("table", [HEADLINE, TABLE], ids=lambda table: table.name)
def test_tables_are_the_same_in_all_three(run_dir, page, markdown, table):
    cells = ["".join(x) for tag, _, x in page.part(table.name) if tag in ("th", "td")]
    assert cells == [*table.columns, *(cell for row in table.cells() for cell in row)]

    section = markdown.split("\n## ")[1 + IN_ORDER.index(table.name)]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    split = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines]
    shown = [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in split]
    assert [shown[0], *shown[2:]] == [list(table.columns), *table.cells()]

    with open(run_dir / f"tables/{table.name}.csv", encoding="utf-8", newline="") as f:
        head, *rows = csv.reader(f)
    assert tuple(head) == table.columns
    assert rows == [["" if v is None else str(v) for v in row] for row in table.rows]


def test_plots_come_with_their_values(run_dir, page):
    with open(run_dir / "tables/figure2.csv", encoding="utf-8", newline="") as f:
        head, *rows = csv.reader(f)
    assert head == ["series", FIGURE.x_label, FIGURE.y_label, "low", "high"]
    assert [row[1:] for row in rows if row[0] == "b"] == [
        ["0.0", "1.0", "0.5", "1.5"], ["0.5", "1.5", "1.0", "2.0"], ["1.0", "2.5", "2.0", "3.0"],
    ]  # fmt: skip
    shown = ["".join(x) for tag, _, x in page.part("figure2") if tag in ("th", "td")]
    assert len(shown) == 5 * (1 + len(rows))
    with open(run_dir / "tables/figure5.csv", encoding="utf-8", newline="") as f:
        assert len(list(csv.reader(f))) == 1 + sum(len(lane.spans) for lane in TIMELINE.lanes)


def test_it_needs_nothing_beside_it(page, source):
    tags = {tag for tag, _, _ in page.elements}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "image"}
    assert len(page.find("script")) == 1
    for _, attrs, _ in page.elements:
        assert not attrs.keys() & {"src", "srcset", "action", "data", "background", "xlink:href"}
        assert attrs.get("href", "#").startswith("#")
    assert not re.search(r"https?:|@import|url\((?!#)", source)
    [(policy, _)] = page.find("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'")


def test_every_reference_has_its_element(page):
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    asked = [
        attrs[name].removeprefix("#")
        for _, attrs, _ in page.elements
        for name in ("href", "aria-labelledby", "aria-describedby")
        if name in attrs
    ]
    asked += [x for _, attrs, _ in page.elements for x in re.findall(r"url\(#(.*?)\)", str(attrs))]
    assert set(asked) <= set(ids)


def test_text_is_text_and_no_markup(page):
    assert "b" not in {tag for tag, _, _ in page.part("table2")}
    assert f"Table 2 {NASTY}" in page.text("table2")
    assert "specdec benchmark --x='<y>'" in page.text("table2")
    assert f"First. {NASTY}" in page.text("table2")
    drawn = {name: [x for tag, _, x in page.part(name) if tag == "text"] for name in DRAWN}
    texts = {name: ["".join(x) for x in parts] for name, parts in drawn.items()}
    assert f"alpha {NASTY}" in texts["figure2"] and f"a {NASTY}" in texts["figure2"]
    assert any(text.startswith(f"speculative {NASTY} (") for text in texts["figure5"])
    assert f"source {NASTY}" in page.text("figure1")
    assert page.text("environment").split("\n", 3)[3] == f"cpu{NASTY}\nthreads2\nflagsnone, a\n"
    [svg] = [attrs for tag, attrs, _ in page.part("figure2") if tag == "svg"]
    assert svg["role"] == "img" and f"a {NASTY}" in svg["aria-label"]


def test_the_order_is_headline_contents_findings_environment(page, markdown):
    at = IN_ORDER
    assert [attrs["id"] for attrs, _ in page.find("section")] == at
    titles = {finding.name: finding.title for finding in ALL} | {"environment": "Environment"}
    [(_, contents)] = page.find("nav")
    assert contents.split("\n")[2:-1] == [titles[name] for name in at[1:]]
    heads = re.findall(r"^## (.*)$", markdown, re.M)
    assert [re.sub(r"\\(.)", r"\1", head) for head in heads] == [titles[name] for name in at]


def named(*names):
    def make(name):
        if name.startswith("figure"):
            return Figure(name, "", "", "", ())
        if name.startswith("walk"):
            return Walk(name, "", "", "", ())
        return Timeline(name, "", ()) if name == "timeline" else Table(name, "", (), (), ())

    return [make(name) for name in names]


def test_findings_stand_as_the_paper_has_them():
    names = ["walk2", "table10", "zeta", "figure10", "table2", "figure2", "table1", "timeline",
             "alpha", "figure1", "walk10", "figure3"]  # fmt: skip
    assert [f.name for f in ordered(named(*names))] == [
        "figure1", "table1", "figure2", "figure3", "figure10", "table2", "table10",
        "alpha", "zeta", "timeline", "walk2", "walk10",
    ]  # fmt: skip
    some = ordered(named("a", "b", "table1"), ["b", "gone"])
    assert [f.name for f in some] == ["b", "table1", "a"]


def test_a_run_may_say_its_own_order(tmp_path):
    for finding in named("a", "b", "c"):
        findings.save(tmp_path, finding)
    (tmp_path / "findings" / "order").write_text("c\nb\n")
    sections = Page(report(tmp_path).read_text("utf-8")).find("section")
    assert [attrs["id"] for attrs, _ in sections] == ["c", "b", "a"]


def test_any_name_of_a_task_will_do(tmp_path):
    findings.save(tmp_path, dataclasses.replace(FIGURE, name='figure of "wmt:de<en>"'))
    found = Page(report(tmp_path).read_text("utf-8"))
    assert [attrs["id"] for attrs, _ in found.find("section")] == ["figure-of--wmt-de-en--"]
    assert (tmp_path / "tables/figure-of--wmt-de-en--.csv").is_file()


def test_lines_differ_without_colour_and_take_the_colours_of_the_page():
    svg = draw_figure(FIGURE)
    assert not re.search(r"#[0-9a-f]{6}\b", svg)
    assert svg.count("stroke-dasharray") == 2  # the dashed line, and its sample
    markers = set(re.findall(r'<use href="#(figure2-m\w+)"[^>]*var\(--series', svg))
    assert len(markers) >= 3
    for i in range(3):
        assert f"var(--series-{i})" in svg
    assert "currentColor" in svg
    assert draw_figure(FIGURE) == svg


def test_dashed_lines_look_like_the_lines_they_belong_to():
    x = (0.0, 1.0)
    lines = [Series(f"{i}", x, x, dashed=i > 1) for i in range(4)]
    svg = draw_figure(Figure("f", "", "x", "y", tuple(lines)))
    assert "var(--series-1)" in svg and "var(--series-2)" not in svg
    svg = draw_figure(Figure("f", "", "x", "y", tuple(lines[1:])))
    assert "var(--series-2)" in svg


def test_points_have_no_line_and_their_intervals():
    svg = draw_figure(POINTS)
    assert len(re.findall(r"<path[^>]*stroke: var\(--series-0\)[^>]*/>", svg, re.S)) - 1 == 2


def test_a_timeline_draws_every_call():
    svg = draw_timeline(TIMELINE)
    bars = [len(re.findall(rf"<(?:path|use)[^>]*fill: var\(--series-{i}\)", svg)) for i in (0, 1)]
    assert bars == [6 + 1, 3 + 1]  # and a sample of each
    assert "(1 target call, 3 draft calls, 40 milliseconds)" in svg
    assert "alone (5 target calls, 100 milliseconds)" in svg


def test_a_walk_lists_all_rounds_without_the_script(page):
    part = page.part("figure1")
    rounds = ["".join(x) for _, attrs, x in part if attrs.get("class") == "round"]
    assert len(rounds) == len(WALK.rounds)
    for text, tokens in zip(rounds, WALK.rounds, strict=True):
        for token in tokens:
            assert token.piece.replace("▁", "␣") in text
            assert token.status in text
    hidden = [attrs for _, attrs, _ in part if "hidden" in attrs]
    assert all("data-scripted" in attrs for attrs in hidden) and len(hidden) == 2


def test_tokens_tell_p_and_q_to_the_keyboard_and_to_readers(page):
    part = page.part("figure1")
    buttons = [attrs for tag, attrs, _ in part if tag == "button" and attrs.get("class") == "token"]
    tips = {attrs["id"]: "".join(x) for _, attrs, x in part if attrs.get("role") == "tooltip"}
    assert len(buttons) == sum(map(len, WALK.rounds))
    assert buttons[0]["aria-label"] == "accepted: The, p 0.500, q 0.250"
    assert buttons[1]["aria-label"].endswith(", p 2.0e-05, q 0.750")
    assert buttons[2]["aria-label"] == "unread: blank, q 0.500"
    told = [tips[attrs["aria-describedby"]] for attrs in buttons]
    assert "p = 0.500, q = 0.250, p/q = 2." in told[0]
    assert f"{NASTY.replace('▁', '␣')}0.2500.500" in told[0]
    assert "does not count" in told[2]
    assert "p/q" not in told[3]
    assert "the draft made no guess here" in told[6]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "1 of 3 guesses stands; the target corrects guess 2"),
        (1, "The only guess stands; the target adds a bonus"),
        (2, "No guess; the target writes its own token"),
        (3, "1 of 2 guesses stands; the text ends there"),
    ],
)
def test_a_round_is_summed_up(number, words):
    assert summary(WALK.rounds[number]) == words


def test_a_walk_in_markdown(markdown):
    nasty = r"\</script>\<b>\&amp; \"q\" \| \*x\* $y$ \`z\`  🦊".replace(r"\"", '"')
    assert f"1. The~~{nasty}~~**ly**\n2. fox**{nasty}**\n3. **jumps**\n4. \\</s>" in markdown


def test_small_probabilities_stay_apart_from_none():
    assert [probability(x) for x in (None, 0.0, 1.0, 0.001, 2e-5)] == [
        "", "0.000", "1.000", "0.001", "2.0e-05",
    ]  # fmt: skip


def test_the_command_prints_the_files(run_dir, capsys):
    before = (run_dir / "report.html").read_bytes()
    assert main.run(["report", str(run_dir)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(path) for path in report_files(run_dir)]
    names = {"headline", "table2", "figure2", "figure5", "points"}
    assert set(printed) == {str(run_dir / name) for name in ("report.html", "report.md")} | {
        str(run_dir / f"tables/{name}.csv") for name in names
    }
    assert (run_dir / "report.html").read_bytes() == before
    assert not list(run_dir.rglob("*.partial"))


def complaint(capsys, *arguments):
    assert main.run(["report", *map(str, arguments)]) == 1
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err


def test_mistakes_are_told_in_a_sentence(tmp_path, capsys, monkeypatch):
    assert "no findings to report" in complaint(capsys, tmp_path / "nowhere")
    findings.save(tmp_path, HEADLINE)
    (tmp_path / "environment.json").write_text("[1]")
    assert "no JSON object" in complaint(capsys, tmp_path)
    (tmp_path / "environment.json").unlink()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert report(tmp_path).is_file()  # a table needs no matplotlib
        findings.save(tmp_path, FIGURE)
        assert "pip install 'specdec_jax[report]'" in complaint(capsys, tmp_path)
        with pytest.raises(MissingExtraError):
            draw_timeline(TIMELINE)


def test_a_series_of_many_points_is_no_row_of_marks():
    x = tuple(float(i) for i in range(200))
    svg = draw_figure(Figure("f", "", "x", "y", (Series("s", x, x),)))
    assert 5 <= len(re.findall(r'<use href="#f-m\w+"[^>]*var\(--series-0', svg)) <= 12
