"""The `specdec` command.

    specdec generate "A sentence." ...      decode text
    specdec demo                            the shipped pair on held-out sentences
    specdec evaluate                        a pair's scores and acceptance on its tasks
    specdec drafts                          every kind of draft, side by side
    specdec gammas                          fixed and adaptive gamma, side by side
    specdec rules                           the rules of verification, side by side
    specdec benchmark --gin_file=FILE ...   the paper's Table 2 for a pair, configured by gin
    specdec reproduce --level=LEVEL ...     the paper's tables and figures, and a page of them
    specdec profile                         where a round's time goes
    specdec train --gin_file=FILE ...       train, configured by gin
    specdec distill --gin_file=FILE ...     train a draft on its target, configured by gin
    specdec infer --gin_file=FILE ...       decode a file, configured by gin
    specdec train_ngram                     count an n-gram table, which is a draft
    specdec convert SOURCE OUTPUT           T5X's or Hugging Face's weights as ours
    specdec plan                            the memory a pair needs of its devices
    specdec report RUN_DIR                  what a run found, as a page
    specdec version

Reads flags and files, and says in one sentence what is wrong with them; what it
does is in the modules it calls, which load when a subcommand needs them.
"""

import argparse
import dataclasses
import importlib
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specdec_jax import __version__
from specdec_jax.errors import UserError

if TYPE_CHECKING:
    from specdec_jax.generate import Settings
    from specdec_jax.pretrained import Pair

USAGE_ERROR, FAILED, INTERRUPTED = 2, 1, 130
_NO_MEMORY = "There is not enough memory: try a smaller batch_size or fewer max_new_tokens."


class UsageError(Exception):
    """Flags that don't go together; the message says what to do."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _complain(message: str, code: int) -> int:
    print(f"specdec: {message}", file=sys.stderr, flush=True)
    return code


# Configured by gin, whose flags are no parser's.
_GIN_JOBS = ("benchmark", "distill", "infer", "reproduce", "train")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specdec", description="Speculative decoding for T5.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    _add_generate(commands)
    _add_demo(commands)
    _add_evaluate(commands)
    _add_drafts(commands)
    _add_gammas(commands)
    _add_rules(commands)
    _add_train_ngram(commands)
    commands.add_parser(
        "train", help="train, configured by gin: --gin_file=FILE --gin.NAME=VALUE", add_help=False
    )
    commands.add_parser(
        "distill",
        help="train a draft on its target, configured by gin: --gin_file=FILE --gin.NAME=VALUE",
        add_help=False,
    )
    commands.add_parser(
        "infer",
        help="decode a file, configured by gin: --gin_file=FILE --gin.NAME=VALUE",
        add_help=False,
    )
    commands.add_parser(
        "benchmark",
        help="measure a pair, configured by gin: --gin_file=FILE --gin.NAME=VALUE",
        add_help=False,
    )
    commands.add_parser(
        "reproduce",
        help="the paper's tables and figures: --level=embedded --run_dir=DIR",
        add_help=False,
    )
    _add_profile(commands)
    _add_convert(commands)
    _add_plan(commands)
    _add_report(commands)
    commands.add_parser("version", help="print the version")
    return parser


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="decode sentences, a file, or standard input",
        description="Decodes text, a source a line. Predictions go to standard output, a line "
        "each, or to a JSONL file. A line without text gets an empty prediction; bytes that are "
        "not UTF-8 are replaced, with a warning.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("sentences", nargs="*", metavar="SENTENCE", help="sources; or use --input")
    add("--input", metavar="FILE", help="read sources from a file, a line each; - is stdin")
    add(
        "--output",
        metavar="FILE",
        help="write JSONL; a rerun goes on where one stopped; - is stdout",
    )
    add("--overwrite", action="store_true", help="replace --output, or start over with it")
    _add_models(parser)
    add(
        "--task", metavar="NAME", help="restore, ende or synopsis: puts T5's prefix before a source"
    )
    add("--prefix", help="put before every source, where there is no --task")
    _add_sampling(parser)
    add("--batch_size", type=int, help="sources decoded together (1)")
    add("--max_new_tokens", type=int, help="the most tokens of a prediction (128)")
    add("--input_length", type=int, help="the most tokens of a source (512)")
    add("--on_long", choices=("cut", "error"), help="what becomes of a longer one (cut)")
    add("--rule", help="exact (the default), lenient or gumbel: what makes a guess stand")
    add("--lenience", type=float, help="of the lenient rule: l in [0, 1], 1 is exact")
    add("--num_drafts", type=int, help="guesses for each position, tried in turn (1)")
    add("--num_beams", type=int, help="beam search of this width (1 is none)")
    add("--num_draft_beams", type=int, help="the draft's beams (twice as many)")
    add("--compare", action="store_true", help="also run the target alone: same output? how fast?")
    add(
        "--trace",
        action=argparse.BooleanOptionalAction,
        help="show the rounds of a single sentence; on a terminal they are shown anyway",
    )
    parser.set_defaults(run=_generate)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--temperature", type=float, default=0.0, help="0, the default, takes the likeliest token")
    add("--top_k", type=int, default=0, help="sample from the k likeliest tokens; 0 is all")
    add("--top_p", type=float, default=1.0, help="sample from the likeliest of this mass")
    add("--seed", type=int, help="of all sampling (0)")


def _add_models(parser: argparse.ArgumentParser, *, gamma: bool = True) -> None:
    add = parser.add_argument
    add("--model", default="debian", metavar="NAME|DIR", help="a shipped pair, or a directory")
    add(
        "--draft",
        metavar="DRAFT",
        help="unigram, bigram, lookup, lookup+DRAFT, early_exit:K, or a pair or a directory",
    )
    if gamma:
        add("--gamma", type=_gamma, help="guesses a round (7); auto measures and adapts")


def _gamma(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number or auto, not {text!r}") from None


def _add_trained_length(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input_length",
        type=int,
        default=64,
        help="the most tokens of a source (64, as the shipped pair was trained)",
    )


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo", help="show the shipped pair on held-out sentences", allow_abbrev=False
    )
    _add_models(parser)
    add = parser.add_argument
    add("--num_sentences", type=int, default=60)
    add("--repeats", type=int, default=3, help="timed runs of each sentence, each way")
    _add_trained_length(parser)
    add("--sentences", metavar="FILE", help="other sentences: JSONL of task and inputs")
    parser.set_defaults(run=_demo)


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score a pair's text and its draft on text pairs",
        description="Scores the greedy output of every task of which the directory has a file, "
        "beside what copying the source would score, and measures the acceptance rate at "
        "temperatures 0 and 1. Needs specdec_jax[report].",
        allow_abbrev=False,
    )
    _add_models(parser)
    add = parser.add_argument
    add("--data_dir", default="data/debian", metavar="DIR", help="<task>-<split>.tsv in it")
    add("--split", default="test", help="train, validation or test (test)")
    add("--max_examples", type=int, default=500, help="of each task, the first of its file (500)")
    add("--output", metavar="FILE", help="write the figures and predictions as JSON too")
    add("--seed", type=int, help="of all sampling (0)")
    add("--batch_size", type=int, default=16, help="sources decoded together (16)")
    add("--max_new_tokens", type=int, help="the most tokens of a prediction (128)")
    _add_trained_length(parser)
    parser.set_defaults(run=_evaluate)


def _add_drafts(commands: Any) -> None:
    parser = commands.add_parser(
        "drafts",
        help="compare drafts: alpha, cost, speed-up expected and measured",
        description="Decodes held-out sentences with each draft, at batch 1, and prints a Markdown "
        "table. Takes some minutes; do nothing else on the machine meanwhile.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", default="debian", metavar="NAME|DIR", help="a shipped pair, or a directory")
    add(
        "--drafts",
        nargs="+",
        default=["model", "unigram", "bigram", "trigram", "lookup", "lookup+model", "early_exit:2"],
        metavar="DRAFT",
        help="see --draft of specdec generate",
    )
    add("--num_sentences", type=int, default=12, help="of each task (12)")
    add("--repeats", type=int, default=3, help="timed runs of each sentence, each way (3)")
    add("--max_new_tokens", type=int, default=64, help="the most tokens of a prediction (64)")
    _add_trained_length(parser)
    add("--sentences", metavar="FILE", help="other sentences: JSONL of task and inputs")
    add("--output", metavar="FILE", help="write the rows as JSON too")
    parser.set_defaults(run=_drafts)


def _drafts(arguments: argparse.Namespace) -> int:
    from specdec_jax import draft_table, pretrained, terminal

    if arguments.repeats < 1:
        raise UsageError("--repeats must be 1 or above.")
    settings, rows = _settings(arguments), _some_of_each_task(arguments)
    tasks = len({row["task"] for row in rows})
    with terminal.progress(len(arguments.drafts) * tasks, 0) as advance:
        table = draft_table.compare_drafts(
            lambda draft: pretrained.load(arguments.model, draft=draft),
            arguments.drafts,
            rows,
            settings,
            repeats=arguments.repeats,
            progress=advance,
        )
    print(f"{draft_table.table(table)}\n\n{draft_table.summary(table)}")
    if arguments.output:
        text = json.dumps([row._asdict() for row in table], indent=1)
        Path(arguments.output).write_text(f"{text}\n", "utf-8")
    return 0


def _some_of_each_task(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from specdec_jax import pretrained

    if arguments.num_sentences < 1:
        raise UsageError("--num_sentences must be 1 or above.")
    sentences = pretrained.held_out(arguments.sentences)
    return [
        row
        for task in dict.fromkeys(row["task"] for row in sentences)
        for row in [r for r in sentences if r["task"] == task][: arguments.num_sentences]
    ]


def _add_gammas(commands: Any) -> None:
    parser = commands.add_parser(
        "gammas",
        help="compare policies of gamma: speed against the target alone",
        description="Decodes held-out sentences by each policy in turn, at batch 1, and prints a "
        "Markdown table. Takes some minutes; do nothing else on the machine meanwhile.",
        allow_abbrev=False,
    )
    _add_models(parser, gamma=False)
    add = parser.add_argument
    add("--num_sentences", type=int, default=20, help="of each task, at most (20)")
    add("--repeats", type=int, default=3, help="timed runs of each sentence, each way (3)")
    add("--max_new_tokens", type=int, default=64, help="the most tokens of a prediction (64)")
    _add_sampling(parser)
    _add_trained_length(parser)
    add("--sentences", metavar="FILE", help="other sentences: JSONL of task and inputs")
    parser.set_defaults(run=_gammas)


def _gammas(arguments: argparse.Namespace) -> int:
    from specdec_jax import gamma_table, terminal

    if arguments.repeats < 1:
        raise UsageError("--repeats must be 1 or above.")
    settings, rows = _settings(arguments), _some_of_each_task(arguments)
    pair = _load(arguments)
    with terminal.progress(len(rows), 0) as advance:
        table = gamma_table.compare_gammas(
            pair, rows, settings, repeats=arguments.repeats, progress=advance
        )
    print(gamma_table.table(table))
    return 0


def _add_rules(commands: Any) -> None:
    parser = commands.add_parser(
        "rules",
        help="compare the rules of verification: alpha, tokens per target call",
        description="Decodes held-out sentences by each rule and prints a Markdown table.",
        allow_abbrev=False,
    )
    _add_models(parser)
    add = parser.add_argument
    add("--num_sentences", type=int, default=30, help="of each task, at most (30)")
    add("--batch_size", type=int, default=10, help="sources decoded together (10)")
    add("--max_new_tokens", type=int, default=64, help="the most tokens of a prediction (64)")
    _add_trained_length(parser)
    add("--sentences", metavar="FILE", help="other sentences: JSONL of task and inputs")
    parser.set_defaults(run=_rules, gamma=3)


def _rules(arguments: argparse.Namespace) -> int:
    from specdec_jax import rule_table, terminal

    settings, rows = _settings(arguments), _some_of_each_task(arguments)
    if not isinstance(settings.gamma, int):
        raise UsageError("alpha is measured at a fixed gamma: give a number, not auto.")
    pair = _load(arguments)
    steps = len(rule_table.RULES) * len({row["task"] for row in rows})
    with terminal.progress(steps, 0) as advance:
        table = rule_table.compare_rules(pair, rows, settings, progress=advance)
    print(rule_table.table(table))
    return 0


def _add_profile(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="where a round's time goes: calls, sampling, the loop",
        description="Times the target's call on 1 to gamma + 1 tokens, the draft's, sampling and "
        "verification, and whole rounds, on a held-out sentence, and prints what of a round each "
        "takes. With --scaling also tokens early and late, rows together, and compilation.",
        allow_abbrev=False,
    )
    _add_models(parser)
    add = parser.add_argument
    add("--temperature", type=float, default=0.0, help="of the sampling (0)")
    add("--batch_size", type=int, default=1, help="rows (1)")
    add("--max_new_tokens", type=int, default=64, help="tokens of a timed decode (64)")
    _add_trained_length(parser)
    add("--sentences", metavar="FILE", help="other sentences: JSONL of task and inputs")
    add(
        "--sizes",
        nargs=2,
        metavar=("TARGET", "DRAFT"),
        help="random weights in place of --model, of sizes of gin/models: t5_1_1_base t5_1_1_small",
    )
    add("--scaling", action="store_true", help="also cost by position and rows, and compilation")
    parser.set_defaults(run=_profile, top_k=0, top_p=1.0)


def _profile(arguments: argparse.Namespace) -> int:
    from specdec_jax import profiling, scaling

    settings = _settings(arguments)
    if not isinstance(settings.gamma, int):
        raise UsageError("A round is timed at a fixed gamma: give a number, not auto.")
    models, inputs, key = _profiled(arguments, settings)
    rest: dict[str, Any] = {
        "gamma": settings.gamma,
        "max_new_tokens": settings.max_new_tokens,
        "sampling": settings.sampling,
    }
    print(profiling.table(profiling.profile(models, inputs, key, **rest)))
    if arguments.scaling:
        print(scaling.table(scaling.scaling(models, inputs, key[0], **rest)))
    return 0


def _profiled(arguments: argparse.Namespace, settings: "Settings") -> tuple[Any, Any, Any]:
    """The models, a batch of sources and its keys."""
    from specdec_jax import pretrained, simulation
    from specdec_jax.generate import batches, decoders

    if arguments.sizes:
        if arguments.model != pretrained.DEFAULT or arguments.draft or arguments.sentences:
            raise UsageError("--sizes takes the place of --model, --draft and --sentences.")
        models = simulation.random_pair(*arguments.sizes)
        rows, length = settings.batch_size, settings.input_length
        return models, *simulation.random_sources(rows, length, models.target.vocab_size)
    lines = [row["inputs"] for row in pretrained.held_out(arguments.sentences)]
    pair = _load(arguments)
    batch = next(batches(pair, lines, settings))
    return decoders(pair), batch.inputs, batch.keys


def _add_train_ngram(commands: Any) -> None:
    parser = commands.add_parser(
        "train_ngram",
        help="count an n-gram table: a draft at almost no cost",
        description="Counts the n-grams of texts, a text a line, or of the targets of text pairs "
        "(.tsv: source, tab, target), and writes a table that --draft takes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="texts, or .tsv of text pairs")
    add("--vocabulary", required=True, metavar="FILE", help="the target's spiece.model")
    add("--vocab_size", type=int, help="the target's, where it is padded to more ids than pieces")
    add("--output", required=True, metavar="DIR", help="the table")
    add("--overwrite", action="store_true", help="replace --output")
    add("--order", type=int, default=3, help="n (3); the table serves the lower orders too")
    add("--min_count", type=int, default=2, help="leave out what is rarer (2)")
    add("--max_continuations", type=int, default=64, help="keep so many a context (64)")
    add("--validation", nargs="+", default=[], metavar="FILE", help="texts to score it on")
    parser.set_defaults(run=_train_ngram)


def _train_ngram(arguments: argparse.Namespace) -> int:
    from specdec_jax import ngram_training

    ngram_training.train(
        arguments.files,
        arguments.vocabulary,
        arguments.output,
        vocab_size=arguments.vocab_size,
        order=arguments.order,
        min_count=arguments.min_count,
        max_continuations=arguments.max_continuations,
        validation=arguments.validation,
        overwrite=arguments.overwrite,
    )
    return 0


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="write weights of T5X or Hugging Face as ours",
        description="Reads a checkpoint of T5X (legacy or Orbax, local or gs://), or a directory "
        "of Hugging Face's config.json and safetensors, and writes weights as specdec_jax keeps "
        "them, with the vocabulary where there is one.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="the checkpoint")
    add("output", metavar="OUTPUT", type=Path, help="the directory to write")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="(float32)")
    add("--config", type=Path, metavar="FILE", help="a config.json, where SOURCE has none")
    add("--vocabulary", type=Path, metavar="FILE", help="a SentencePiece model to put beside")
    add("--overwrite", action="store_true", help="replace OUTPUT")
    parser.set_defaults(run=_convert)


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="the memory and the traffic of a pair on accelerators",
        description="Prints what each device must hold and what a round moves, as a Markdown "
        "table; computed, nothing is run.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--target", default="t5_1_1_xxl", metavar="NAME|FILE", help="of gin/models (t5_1_1_xxl)")
    add("--draft", default="t5_1_1_small", metavar="NAME|FILE", help="(t5_1_1_small)")
    add("--hardware", nargs="+", metavar="NAME", help="default: all that are known")
    add("--model_parallel", type=int, help="devices that hold one target (the fewest that can)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(bfloat16)")
    add("--batch_size", type=int, default=1, help="rows, over all devices (1)")
    add("--input_length", type=int, default=512, help="tokens of a source (512)")
    add("--max_new_tokens", type=int, default=128, help="tokens of a prediction (128)")
    add("--gamma", type=int, default=7, help="guesses a round (7)")
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from specdec_jax import gin_jobs, plan

    for name in ("batch_size", "input_length", "max_new_tokens", "gamma"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name} must be 1 or above.")
    target, draft = (gin_jobs.model_config(name) for name in (arguments.target, arguments.draft))
    options = ("model_parallel", "dtype", "batch_size", "input_length", "max_new_tokens", "gamma")
    plans = [
        plan.make_plan(target, draft, name, **{o: getattr(arguments, o) for o in options})
        for name in arguments.hardware or plan.HARDWARE
    ]
    print(plan.table(plans))
    return 0


def _add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="what a run found, as one page: tables, plots, a decode to step through",
        description="Writes RUN_DIR/report.html, report.md and tables/*.csv from what is under "
        "RUN_DIR/findings, and prints their paths. Needs specdec_jax[report].",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="of specdec reproduce")
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    from specdec_jax import report

    for path in report.report_files(arguments.run_dir):
        print(path)
    return 0


def _load(arguments: argparse.Namespace) -> "Pair":
    from specdec_jax import pretrained

    return pretrained.load(arguments.model, draft=arguments.draft)


def _settings(arguments: argparse.Namespace) -> "Settings":
    from specdec_jax.generate import Settings
    from specdec_jax.sampling import Sampling

    names = {field.name for field in dataclasses.fields(Settings)}
    given = {k: v for k, v in vars(arguments).items() if k in names and v is not None}
    try:
        if "temperature" in arguments:
            given["sampling"] = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
        return Settings(**given)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _demo(arguments: argparse.Namespace) -> int:
    from specdec_jax import demo, pretrained

    if arguments.num_sentences < 1 or arguments.repeats < 1:
        raise UsageError("--num_sentences and --repeats must be 1 or above.")
    settings = _settings(arguments)
    rows = demo.choose(pretrained.held_out(arguments.sentences), arguments.num_sentences)
    identical = demo.demo(_load(arguments), rows, settings, repeats=arguments.repeats)
    return 0 if identical else FAILED


def _evaluate(arguments: argparse.Namespace) -> int:
    from specdec_jax import data, evaluation, terminal
    from specdec_jax.generate import TASKS

    if arguments.max_examples < 1:
        raise UsageError("--max_examples must be 1 or above.")
    settings = _settings(arguments)
    directory = Path(arguments.data_dir)
    files = {task: directory / f"{task}-{arguments.split}.tsv" for task in TASKS}
    texts = {
        task: [side[: arguments.max_examples] for side in data.read_pairs(os.fspath(file))]
        for task, file in files.items()
        if file.is_file()
    }
    if not texts:
        raise FileNotFoundError(
            f"{directory} holds no text pairs: none of {', '.join(f.name for f in files.values())} "
            "is there; scripts/build_corpora.py makes them, --data_dir names another directory."
        )
    evaluation.check_metrics(texts)
    pair = _load(arguments)
    rows = 2 * sum(len(sources) for sources, _ in texts.values())
    with terminal.progress(rows, 0) as advance:
        reports = [
            evaluation.evaluate(pair, task, sources, references, settings, progress=advance)
            for task, (sources, references) in texts.items()
        ]
    print(evaluation.table(reports))
    if arguments.output:
        figures = [
            {**report._asdict(), "acceptance": [at._asdict() for at in report.acceptance]}
            for report in reports
        ]
        text = json.dumps(figures, ensure_ascii=False, indent=1)
        Path(arguments.output).write_text(f"{text}\n", "utf-8")
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from specdec_jax import conversion

    given = {k: v for k, v in vars(arguments).items() if k not in ("command", "run")}
    conversion.convert(**given)
    return 0


def _gin_job(name: str, arguments: Sequence[str]) -> int:
    """A job of `_GIN_JOBS`: the function of the module's own name."""
    from specdec_jax import gin_jobs

    module = importlib.import_module(f"specdec_jax.{name}")
    if {"-h", "--help"} & set(arguments):
        print(f"specdec {name}: {getattr(module, 'USAGE', gin_jobs.__doc__)}")
        return 0
    _keep_compiled_programs()
    gin_jobs.log_own_messages()
    if name == "reproduce":  # its own flags stand for gin's
        arguments = module.gin_flags(arguments)
    result = gin_jobs.run(getattr(module, name), arguments)
    return 0 if getattr(result, "finished", True) else INTERRUPTED


def _read_lines(arguments: argparse.Namespace) -> list[str]:
    """The sources: of the command line, of a file, or of standard input."""
    from specdec_jax.text_lines import split_lines

    if arguments.sentences and arguments.input:
        raise UsageError("Give sentences or --input, not both.")
    if arguments.sentences:
        # Bytes of the command line that are not UTF-8 come as lone surrogates.
        encoded = (s.encode(errors="surrogateescape") for s in arguments.sentences)
        return [s.decode(errors="replace") for s in encoded]
    if arguments.input not in (None, "-"):
        data = Path(arguments.input).read_bytes()
    elif sys.stdin is None or (arguments.input is None and sys.stdin.isatty()):
        raise UsageError("Nothing to decode: give a sentence in quotes, --input FILE, or a pipe.")
    else:
        data = sys.stdin.buffer.read()
    lines, invalid = split_lines(data)
    if invalid:
        warnings.warn(
            f"{len(invalid)} of {len(lines)} lines are not UTF-8 (the first is line {invalid[0]}): "
            "what could not be read was replaced.",
            stacklevel=2,
        )
    return lines


def _generate(arguments: argparse.Namespace) -> int:
    from specdec_jax import pretrained, text_run

    settings, lines = _settings(arguments), _read_lines(arguments)
    trace = arguments.trace
    if trace and len(lines) != 1:
        raise UsageError(f"--trace shows a single sentence, not {len(lines)}.")
    if trace and settings.num_beams > 1:
        raise UsageError("--trace shows rounds of guesses, which beam search does not make.")
    if trace is None and settings.num_beams == 1:
        trace = len(lines) == 1 and not arguments.output and sys.stdout.isatty()
    run = text_run.TextRun(
        lambda: _load(arguments), lines, settings, compare=arguments.compare, trace=trace
    )
    if arguments.output in (None, "-"):
        run.to_standard_output(as_json=arguments.output == "-")
    else:
        names = {
            "model": arguments.model,
            "draft": arguments.draft,
            "checkpoint": pretrained.fingerprint(arguments.model, draft=arguments.draft),
        }
        run.to_file(arguments.output, names, overwrite=arguments.overwrite)
    return 0


def _keep_compiled_programs() -> None:
    """Compiles a program once per machine, not once per run of the command."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache = os.path.join(home, "specdec_jax")
        try:
            os.makedirs(cache, exist_ok=True)
        except OSError:
            return  # a home that can't be written to: compile every time
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"specdec: warning: {message}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Runs the command -> its exit status: 0, 1 failed, 2 wrong usage, 130 interrupted."""
    if argv and argv[0] in _GIN_JOBS:
        return _gin_job(argv[0], argv[1:])
    arguments = _build_parser().parse_args(argv)
    if arguments.command == "version":
        print(f"specdec_jax {__version__}")
        return 0
    _keep_compiled_programs()
    return arguments.run(arguments)


def _prepare_streams() -> None:
    """UTF-8 in all of the world; what the shell has closed swallows what is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def run(argv: Sequence[str] | None = None) -> int:
    """The console script: `main`, with every mistake of the user told in one sentence."""
    _prepare_streams()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            return main(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        return _complain(str(error), USAGE_ERROR)
    except KeyboardInterrupt as interrupt:
        return _complain(str(interrupt) or "Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (UserError, ValueError, OSError, ArithmeticError, ImportError, MemoryError) as error:
        if os.environ.get("SPECDEC_TRACEBACK"):
            raise
        return _complain(_one_line(error), FAILED)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or os.environ.get("SPECDEC_TRACEBACK"):
            raise
        return _complain(_NO_MEMORY, FAILED)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if isinstance(error, MemoryError):
        return _NO_MEMORY
    return " ".join(str(error).split())
