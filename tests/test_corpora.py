"""The corpora's sources, filters and splits, and the scripts that build them."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import string
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import build_corpora as build
import corpora_sources as sources
import corpora_text as text_rules
import train_vocabulary as vocabulary
from corpora_apt import Apt
from corpora_sources import CorpusError, Pair

from specdec_jax.restoration import strip_case_and_punctuation

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures" / "corpora"
FLAGS = {
    "--packages_file": FIXTURES / "Packages",
    "--translation_en": FIXTURES / "Translation-en",
    "--translation_de": FIXTURES / "Translation-de",
    "--ding_file": FIXTURES / "de-en",
    "--help_en_dir": FIXTURES / "help" / "en-US" / "text",
    "--help_de_dir": FIXTURES / "help" / "de" / "text",
}


def run_script(
    name: str, arguments: Sequence[object], path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script as a user does, with the package importable."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ({"PATH": path} if path else {})
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=300
    )


def build_from_fixtures(output_dir: Path, *more: object) -> subprocess.CompletedProcess[str]:
    flags = [part for flag, path in FLAGS.items() for part in (flag, path)]
    return run_script("build_corpora.py", ["--output_dir", output_dir, *flags, *more])


def read_rows(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]


# --- restoration -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("Hello, World!", "hello world"),
        ("It's a well-known fact.", "it's a well-known fact"),
        ("Ein- und Ausgabe – kurz: E/A.", "ein und ausgabe kurz e/a"),
        ("»Ja«, sagte sie (leise) …", "ja sagte sie leise"),
        ("Version 3.5 at 10:30, 1,000 times.", "version 3.5 at 10:30 1,000 times"),
        ("One,two;three", "one two three"),
        ("z.B. die Nutzer' -x --y", "z b die nutzer x y"),
        ("50 % of C++ & Äpfel", "50 % of c++ & äpfel"),
        ("", ""),
    ],
)
def test_strip_examples(text: str, stripped: str) -> None:
    assert strip_case_and_punctuation(text) == stripped


@given(st.text())
def test_strip_is_idempotent(text: str) -> None:
    once = strip_case_and_punctuation(text)
    assert strip_case_and_punctuation(once) == once


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@given(st.text(st.sampled_from("aBÜß1 .,;:!?'’-–\"„“»«()[]\n\t")) | st.text())
def test_strip_keeps_every_word_in_order(text: str) -> None:
    assert words(strip_case_and_punctuation(text)) == words(text.lower())


@given(st.text(st.sampled_from("aBÜß1 .,;:!?'’-–\"„“»«()[]\n\t")))
def test_strip_leaves_no_lone_mark(text: str) -> None:
    stripped = strip_case_and_punctuation(text)
    assert not re.search(r"[;!?\"„“»«()\[\]–\n\t]|(?<!\w)['’-]|['’-](?!\w)|  ", stripped)
    assert not re.search(r"(?<!\d)[.,:]|[.,:](?!\d)", stripped)


# --- text rules ------------------------------------------------------------


def test_sentences_do_not_end_at_abbreviations() -> None:
    text = 'He met Dr. Smith, e.g. On May 3. It rained! "Why?" Am 3. Mai kam z.B. Anna. Ende.'
    assert list(text_rules.split_sentences(text)) == [
        "He met Dr. Smith, e.g. On May 3. It rained!",
        '"Why?"',
        "Am 3. Mai kam z.B. Anna.",
        "Ende.",
    ]


def test_sentences_together_are_the_paragraph() -> None:
    text = "One is here.  Two\nfollows it? Three (the last.) And a tail without point"
    assert " ".join(text_rules.split_sentences(text)) == " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "The pear is a green fruit that many people like.",
        "Die Birne ist, wie man weiß, eine grüne Frucht.",
        "Kommt Zeit, kommt Rat.",
        "Do you like the pears (and the figs) in C++?",
        "Die Ein- und Ausgabe ist hier ganz anders.",
        "Es gibt z.B. Äpfel, Birnen usw. in diesem Garten.",
    ],
)
def test_prose_is_kept(text: str) -> None:
    assert text_rules.is_prose_sentence(text)


@pytest.mark.parametrize(
    "text",
    [
        "the pear is a fruit without a capital.",
        "The pear is a fruit without a point",
        "Pears are all good.",
        "Extraordinarily delicious pears.",
        "Read the page at https://example.org for more.",
        "Edit the file /etc/pear.conf before you start it.",
        "Run it with pear --peel and wait for a while.",
        "Choose File - Open to see the other pears.",
        "The function pear() gives the number of pears.",
        "The pear (and the fig is a green fruit.",
        'The pear is a "green fruit that many people like.',
        "The file pear.txt has the names of the pears.",
        "The pear is good. lower case goes on after it.",
        "ALL OF THIS IS SHOUTED, LIKE A HEADLINE.",
        "Груша is the name of the pear in Russian, they say.",
        "The pear <b>is</b> a green fruit with some markup.",
        "The pear is a fruit. " + "It is green and good " * 12 + "too.",
        "The numbers 12, 30, 42 and 1789 make 14 of 1871.",
        "The manual page pear(8) tells more about the pears.",
        "The pear is a hyphen- ated fruit in this line.",
        "The C++- library is a hyphenated one in this line.",
        "Deletes the selected row(s) from the whole table.",
    ],
)
def test_other_than_prose_is_dropped(text: str) -> None:
    assert not text_rules.is_prose_sentence(text)


@pytest.mark.parametrize(
    ("english", "german", "good"),
    [
        ("green fruit", "grüne Frucht", True),
        ("LibreOffice", "libreoffice", False),
        ("pear", "Eine sehr lange Erklärung zu einer Frucht, die kein Mensch braucht", False),
        ("use <tt>pear</tt>", "benutze die Birne", False),
        ("see www.example.org", "siehe die Birne", False),
        ("the pear" * 100, "die Birne" * 100, False),
        ("зелёная pear", "grüne Birne", False),
        ("", "Birne", False),
    ],
)
def test_good_pairs(english: str, german: str, good: bool) -> None:
    assert text_rules.is_good_pair(english, german) is good


def test_a_summary_is_told_by_its_text() -> None:
    text = "Pears are fruits. This package contains the seeds for planting."
    assert text_rules.tells_of(text, "fruit with seeds")
    assert text_rules.tells_of(text, "green pears for all")
    assert not text_rules.tells_of(text, "conversion between primitive integers")
    assert not text_rules.tells_of(text, "seeds whose primitive integers convert backwards")
    assert not text_rules.tells_of(text, "a to z")


def test_marks_become_plain() -> None:
    assert text_rules.plain_marks("I’m  “here”\nﬁrst", "en") == 'I\'m "here" first'
    assert text_rules.plain_marks("„So“ geht’s", "de") == "„So“ geht's"


def test_equal_but_for_case_marks_and_numbers() -> None:
    assert text_rules.text_key("The Pear, 12!") == text_rules.text_key("the  pear 3")
    assert text_rules.text_key("the pear") != text_rules.text_key("the pears")


def test_the_split_is_stable_and_of_the_right_size() -> None:
    """The expected splits were computed once; a change would move documents."""
    assert text_rules.split_of("package:apple") == "train"
    assert text_rules.split_of("package:fig") == "validation"
    assert text_rules.split_of("ding:Limette") == "test"
    splits = [text_rules.split_of(f"document:{i}") for i in range(20_000)]
    assert 0.955 < splits.count("train") / 20_000 < 0.965
    assert 0.015 < splits.count("validation") / 20_000 < 0.025
    assert 0.015 < splits.count("test") / 20_000 < 0.025


# --- sources ---------------------------------------------------------------


def read_fixture_descriptions(language: str) -> dict[str, sources.Description]:
    documents = sources.package_documents([FIXTURES / "Packages"])
    path = FIXTURES / f"Translation-{language}"
    return sources.read_descriptions([path], language, documents)


def test_packages_belong_to_their_source_without_versions() -> None:
    documents = sources.package_documents([FIXTURES / "Packages"])
    assert documents["apple-12"] == documents["apple-13"] == "package:apple"
    assert documents["libpear-dev"] == "package:pear"
    assert sources.source_family("llvm-toolchain-15") == "llvm-toolchain"
    assert sources.source_family("linux-signed-amd64 (6.1)") == "linux"
    assert sources.source_family("0ad") == "0ad"
    assert sources.source_family("7") == "7"


def test_descriptions_have_paragraphs_and_gaps_for_lists() -> None:
    apple = read_fixture_descriptions("en")["aaaa0000000000000000000000000001"]
    assert apple.synopsis == "crisp fruit for compilers"
    assert apple.blocks == (
        (
            "The apple is a round fruit that every compiler likes to read about. "
            "It keeps for a long time, e.g. in a cool cellar."
        ),
        "Features:",
        None,
        "It falls not far from its tree.",
    )


def test_descriptions_align_by_checksum_and_paragraph() -> None:
    german, english = read_fixture_descriptions("de"), read_fixture_descriptions("en")
    pairs = list(sources.align_descriptions(english, german))
    texts = {(pair.english, pair.german) for pair in pairs}
    assert ("It falls not far from its tree.", "Er fällt nicht weit von seinem Stamm.") in texts
    assert ("sweet fruit with many seeds", "süße Frucht mit vielen Samen") in texts
    # The German pear has fewer paragraphs: its synopsis counts, its text does not.
    of_pear = [pair for pair in pairs if pair.document == "package:pear"]
    assert [pair.source for pair in of_pear] == ["synopses"]
    # A translation whose original is gone has nothing to align with.
    assert not any("Mispel" in pair.german for pair in pairs)


def test_help_aligns_by_page_and_id_whatever_the_order() -> None:
    english, german = (sources.read_help(FLAGS[f"--help_{code}_dir"]) for code in ("en", "de"))
    assert list(sources.align_help(english, german)) == [
        Pair("help", "help:swriter/table.html", ours, theirs)
        for ours, theirs in [
            ("Inserting Tables in Text", "Tabellen in Text einfügen"),
            (
                (
                    "Choose the number of rows and columns from the grid. "
                    "Release the mouse button when you are done."
                ),
                (
                    "Wählen Sie die Anzahl der Zeilen und Spalten im Raster. "
                    "Lassen Sie die Maustaste los, wenn Sie fertig sind."
                ),
            ),
            # The variant for macOS is left out.
            (
                "Open the Options page of this program.",
                "Öffnen Sie die Seite Optionen dieses Programms.",
            ),
        ]
    ]


def test_help_texts_are_paragraphs_without_code_and_footer() -> None:
    pages = sources.read_help(FIXTURES / "help" / "en-US" / "text")
    texts = [text.text for text in sources.help_texts(pages, "en")]
    assert "Only the English page has this paragraph." in texts
    assert len(texts) == 3


def test_ding_gives_sentences_only() -> None:
    pairs, texts = sources.read_ding(FIXTURES / "de-en")
    german = [pair.german for pair in pairs]
    assert german[:2] == ["Der Apfel fällt nicht weit vom Stamm.", "Die Birnen sind reif!"]
    assert pairs[0].english == "The apple doesn’t fall far from the tree."
    assert pairs[1].english == "The pears are ripe!"
    assert pairs[0].document == "ding:Apfel"
    # Placeholders (sb.) and alternatives (a/b) are a dictionary's, not prose.
    assert not any("etw" in text.text or "sth" in text.text for text in texts)
    # Unequal numbers of parts can't be aligned, but each part is a sentence.
    plum = [text.text for text in texts if text.document == "ding:Pflaume"]
    assert plum == [
        "Im Garten stehen zwei alte Pflaumen.",
        "In the garden there are two old plums.",
    ]
    assert not any(pair.document == "ding:Pflaume" for pair in pairs)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress("Äpfel".encode()))
    assert sources.read_text(path) == "Äpfel"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorpusError, match="text.gz: its compression is damaged"):
        sources.read_text(path)


# --- rows, duplicates, leaks -----------------------------------------------

TRAIN, VALIDATION, TEST = "package:apple", "package:fig", "ding:Limette"


def row(document: str, inputs: str, targets: str, task: str = "ende") -> build.Row:
    return build.Row(task, "ding", document, "en-de", inputs, targets)


def test_duplicates_on_either_side_go() -> None:
    rows = [
        row(TRAIN, "a pear", "eine Birne"),
        row(TRAIN, "A  pear!", "eine andere Birne"),
        row(TRAIN, "one pear", "Eine Birne"),
        row(TRAIN, "a fig", "eine Feige"),
    ]
    kept, dropped = build.deduplicate(rows)
    assert {r.targets for r in kept["ende-train"]} == {"eine Birne", "eine Feige"}
    assert dropped == {"ende": 2, "synopsis": 0, "restore": 0}


def test_a_text_of_train_is_in_no_other_split_of_any_task() -> None:
    rows = [
        row(TEST, "the same pear", "Diese Birne ist im Training.", "ende"),
        row(VALIDATION, "this pear", "A new target.", "restore"),
        row(TEST, "only here", "Nur im Test."),
        row(TRAIN, "diese birne ist im training", "Diese Birne ist im Training.", "restore"),
        row(TRAIN, "This pear", "diese Birne"),
    ]
    kept, dropped = build.deduplicate(rows)
    assert [r.targets for r in kept["ende-test"]] == ["Nur im Test."]
    assert kept["restore-validation"] == []
    assert (dropped["ende"], dropped["restore"]) == (1, 1)


def test_the_order_does_not_depend_on_the_order_of_the_sources() -> None:
    rows = [row(TRAIN, f"pear {chr(97 + i)}x", f"Birne {chr(97 + i)}y") for i in range(20)]
    forwards, _ = build.deduplicate(rows)
    backwards, _ = build.deduplicate(reversed(rows))
    assert forwards == backwards
    assert forwards["ende-train"] != rows


def test_summaries_are_of_whole_prose_sentences() -> None:
    long = "The pear is a green fruit that many people like. " * 40
    description = sources.Description("package:pear", "fruit", ("Features:", None, long))
    text = build.summarized_text(description)
    assert len(text) <= 1000
    assert text.startswith("The pear") and text.endswith("like.")


def test_restoration_rows_are_determined_by_their_targets() -> None:
    texts = [sources.Text("help", "help:x", "de", "Die Birne, z.B. diese, ist reif. und so weiter")]
    assert list(build.restoration_rows(texts)) == []
    texts = [sources.Text("help", "help:x", "de", "Die Birne, z.B. diese, ist reif. Siehe /x/y.")]
    (only,) = build.restoration_rows(texts)
    assert only.targets == "Die Birne, z.B. diese, ist reif."
    assert only.inputs == "die birne z b diese ist reif"


# --- the scripts as a whole ------------------------------------------------


def test_build_from_named_files(tmp_path: Path) -> None:
    sample_file = tmp_path / "sample.jsonl"
    result = build_from_fixtures(tmp_path / "out", "--sample_file", sample_file)
    assert result.returncode == 0, result.stderr
    assert "restore" in result.stdout and "validation" in result.stdout
    files = {path.name: read_rows(path) for path in (tmp_path / "out").glob("*.tsv")}
    assert len(files) == 9
    assert all(len(columns) == 2 for rows in files.values() for columns in rows)
    assert (
        "The lime is smaller than the lemon, but it is greener.",
        "Die Limette ist kleiner als die Zitrone, aber sie ist grüner.",
    ) in files["ende-test.tsv"]
    assert files["synopsis-validation.tsv"][0][1] == "sweet fruit with many seeds"
    assert (
        "many people boil the quince with sugar until it becomes a red jelly",
        "Many people boil the quince with sugar until it becomes a red jelly.",
    ) in files["restore-train.tsv"]

    train = {
        text_rules.text_key(text)
        for name, rows in files.items()
        if "-train" in name
        for columns in rows
        for text in columns
    }
    others = [columns for name, rows in files.items() if "-train" not in name for columns in rows]
    assert others
    assert not any(text_rules.text_key(text) in train for columns in others for text in columns)

    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    for name, rows in files.items():
        entry = summary["files"][name.removesuffix(".tsv")]
        assert entry["rows"] == len(rows) == sum(entry["by_source"].values())
    assert summary["dropped_duplicates"]["restore"] >= 3
    cited = {
        name.split("/")[0] for entry in summary["files"].values() for name in entry["by_source"]
    }
    assert cited <= set(summary["licences"])

    sample = [json.loads(line) for line in sample_file.read_text(encoding="utf-8").splitlines()]
    assert {entry["task"] for entry in sample} == {"ende", "restore"}
    for entry in sample:
        prefix = build.PREFIXES[entry["task"]]
        assert entry["inputs"].startswith(prefix)
        columns = (entry["inputs"].removeprefix(prefix), entry["targets"])
        assert columns in files[f"{entry['task']}-test.tsv"]


def test_a_second_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert build_from_fixtures(tmp_path / name).returncode == 0
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def assert_one_clear_sentence(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert all(part in result.stderr for part in parts), result.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    result = run_script("build_corpora.py", ["--output_dir", tmp_path, "--ding_file", missing])
    assert_one_clear_sentence(result, "no file", str(missing))


def test_sources_without_a_pair_are_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n", encoding="utf-8")
    result = run_script("build_corpora.py", ["--output_dir", tmp_path, "--ding_file", empty])
    assert_one_clear_sentence(result, "No usable pair")
    assert not list(tmp_path.glob("*.tsv"))


def test_a_folder_without_help_pages_is_an_error(tmp_path: Path) -> None:
    result = run_script("build_corpora.py", ["--output_dir", tmp_path, "--help_en_dir", tmp_path])
    assert_one_clear_sentence(result, "No help page")


def test_without_apt_the_flags_are_named(tmp_path: Path) -> None:
    result = run_script("build_corpora.py", ["--output_dir", tmp_path / "out"], path=str(tmp_path))
    assert_one_clear_sentence(result, "apt-get isn't on this machine", "--translation_de")


# A stand-in for apt-get: it notes its calls, makes lists by `update`, and has one package.
FAKE_APT = """#!/bin/sh
echo "$*" >> "$FAKE_LOG"
case "$*" in
  *broken*) echo "E: Unable to locate package broken" >&2; exit 100 ;;
  *update*) touch "$FAKE_LISTS/packages" "$FAKE_LISTS/en" "$FAKE_LISTS/de" ;;
  *indextargets*)
    printf 'Packages\\t\\t%s\\n' "$FAKE_LISTS/packages"
    printf 'Translations\\ten\\t%s\\n' "$FAKE_LISTS/en"
    printf 'Translations\\tde\\t%s\\n' "$FAKE_LISTS/de" ;;
  *download*) touch pear_1.0_all.deb ;;
esac
"""
FAKE_DPKG = '#!/bin/sh\nmkdir -p "$3/usr"\necho seeds > "$3/usr/pear"\n'


@pytest.fixture
def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-ins first in the PATH; returns the log of apt-get's calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "lists").mkdir()
    for name, script in (("apt-get", FAKE_APT), ("dpkg-deb", FAKE_DPKG)):
        (programs / name).write_text(script, encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LISTS", str(tmp_path / "lists"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_apt_keeps_to_its_own_folder_and_is_asked_once(tmp_path: Path, fake_apt: Path) -> None:
    work = tmp_path / "work"
    for _ in range(2):
        apt = Apt(work)
        assert [path.name for path in apt.indices()["de"]] == ["de"]
        assert (apt.unpack("pear") / "usr" / "pear").read_text(encoding="utf-8") == "seeds\n"
    calls = fake_apt.read_text(encoding="utf-8").splitlines()
    assert sum("update" in call for call in calls) == 1
    assert sum("download" in call for call in calls) == 1
    config = f"-c {work / 'apt.conf'} -o Acquire::Languages=en,de "
    assert all(call.startswith(config) for call in calls)
    assert f'Dir::State::Lists "{work}/lists"' in (work / "apt.conf").read_text(encoding="utf-8")


def test_a_package_that_cannot_be_had_is_named(tmp_path: Path, fake_apt: Path) -> None:
    with pytest.raises(CorpusError, match="download the package broken: Unable to locate"):
        Apt(tmp_path / "work").unpack("broken")


# --- the vocabulary and the committed sample --------------------------------


def test_the_vocabulary_follows_t5(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    draw = random.Random(0)
    letters = string.ascii_lowercase
    invented = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(600)]
    lines = (f"{' '.join(draw.choices(invented, k=8))}\tein Ziel\n" for _ in range(2000))
    (tmp_path / "ende-train.tsv").write_text("".join(lines), encoding="utf-8")
    models = []
    for name in ("one", "two"):
        arguments = ["--data_dir", tmp_path, "--model_file", tmp_path / name, "--vocab_size", 500]
        result = run_script("train_vocabulary.py", arguments)
        assert result.returncode == 0, result.stderr
        models.append((tmp_path / name).read_bytes())
    assert models[0] == models[1]
    pieces = sentencepiece.SentencePieceProcessor(model_proto=models[0])
    ids = (pieces.pad_id(), pieces.eos_id(), pieces.unk_id(), pieces.bos_id())
    assert ids == (0, 1, 2, -1)
    assert pieces.get_piece_size() == 500
    # No other text has these words, and yet they are not spelt letter by letter.
    for prefix in build.PREFIXES.values():
        assert len(pieces.encode(prefix)) <= 0.7 * len(prefix)
    assert pieces.unk_id() not in pieces.encode("ÄÖÜ äöüß »so« „so“ & [1];")


def test_a_vocabulary_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ende-train.tsv").write_text("a pear\teine Birne\n", encoding="utf-8")
    result = run_script("train_vocabulary.py", ["--data_dir", tmp_path])
    assert_one_clear_sentence(result, "SentencePiece says", "too high")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--vocab_size", 0], "--vocab_size must be 113 or above"),
        (["--vocab_size", 50], "--vocab_size must be 113 or above"),
        (["--model_file", "nodir/x.model"], "there is no directory nodir"),
    ],
)
def test_wrong_flags_are_told_before_the_training(
    tmp_path: Path, arguments: list[object], part: str
) -> None:
    (tmp_path / "ende-train.tsv").write_text("a pear\teine Birne\n", encoding="utf-8")
    result = run_script("train_vocabulary.py", ["--data_dir", tmp_path, *arguments])
    assert_one_clear_sentence(result, part)


def test_without_apt_its_compressions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "APT_HELPER", str(tmp_path / "apt-helper"))
    with pytest.raises(CorpusError, match=r"Packages.lz4 needs .*apt-helper, which is not here"):
        sources.read_text(tmp_path / "Packages.lz4")


def test_both_scripts_use_the_same_prefixes() -> None:
    assert set(vocabulary.PREFIXES) == set(build.PREFIXES.values())


def test_the_vocabulary_needs_the_corpora(tmp_path: Path) -> None:
    result = run_script("train_vocabulary.py", ["--data_dir", tmp_path])
    assert_one_clear_sentence(result, "run build_corpora.py first")


def test_the_committed_sample_is_well_formed() -> None:
    path = ROOT / "specdec_jax" / "assets" / "heldout.jsonl"
    sample = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    counts = {task: sum(entry["task"] == task for entry in sample) for task in build.PREFIXES}
    assert counts == {"restore": 64, "ende": 24, "synopsis": 24}
    for entry in sample:
        assert set(entry) == {"task", "inputs", "targets", "source"}
        assert entry["inputs"].startswith(build.PREFIXES[entry["task"]])
    restored = [entry for entry in sample if entry["task"] == "restore"]
    assert sum(entry["source"].endswith("/de") for entry in restored) == 32
    for entry in restored:
        assert 40 <= len(entry["targets"]) <= 160
        expected = "restore: " + strip_case_and_punctuation(entry["targets"])
        assert entry["inputs"] == expected
