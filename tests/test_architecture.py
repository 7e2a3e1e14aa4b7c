"""A module imports only from lower floors; the house is drawn in CONTRIBUTING.md."""

import ast
from pathlib import Path

import specdec_jax

ROOT = Path(specdec_jax.__file__).parent

FLOORS = [
    {
        "analysis",
        "errors",
        "gamma",
        "network",
        "paper_figures",
        "replacing",
        "resources",
        "restoration",
        "sampling",
    },
    {"extras", "findings", "text_lines", "types", "layers", "vocabulary"},
    {
        *("data", "metrics", "ngram", "optimization", "report_plots", "report_values"),
        *("report_walk", "sharding", "stored", "t5", "theory", "verification"),
    },
    {
        *("checkpoints_hf", "checkpoints_t5x", "distill_losses", "drafters.model"),
        *("drafters.prompt_lookup", "lm", "report_page"),
    },
    {"checkpoints", "model", "report_markdown", "teacher_cache", "train_step"},
    {"arguments", "conversion", "drafters.early_exit", "report", "seqio_tasks", "training_run"},
    {"beam", "decoding", "distill_table", "pretrained", "training_setup"},
    {
        "",  # the package itself
        *("acceptance", "costs", "partitioning", "t5x_adapter", "tasks", "teacher", "trace"),
        "train",
    },
    {
        *("distill_data", "generate", "gin_jobs", "plan", "profiling", "t5x_decoding", "t5x_gin"),
        "terminal",
    },
    {
        *("batch_job", "benchmark_table", "distill", "evaluation", "rate_findings", "rule_table"),
        *("speed", "walks"),
    },
    {
        "demo",
        "draft_table",
        "gamma_table",
        "measuring",
        "ngram_training",
        "peers",
        "record",
        "scaling",
        "text_run",
    },
    {"baselines", "infer", "speed_findings", "timeline"},
    {"benchmark", "simulation"},
    {"reproduce"},
    {"main"},
]
FLOOR_OF = {module: number for number, floor in enumerate(FLOORS) for module in floor}


def _modules() -> dict[str, Path]:
    paths = (path for path in ROOT.rglob("*.py") if "gin" not in path.relative_to(ROOT).parts)
    names = {}
    for path in paths:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name != "drafters":
            names[name] = path
    return names


def _imported(path: Path, modules: set[str]) -> set[str]:
    """The modules of this package that a file imports, within functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            inner = [name for name in parts if name.removeprefix("specdec_jax.") in modules]
            # `__version__` is no reason to stand above the whole package.
            names = inner or [node.module] * (parts != ["specdec_jax.__version__"])
        else:
            continue
        for name in names:
            if name == "specdec_jax" or name.startswith("specdec_jax."):
                found.add(name.removeprefix("specdec_jax").removeprefix("."))
    return found


def test_every_module_stands_on_a_floor() -> None:
    assert set(_modules()) == set(FLOOR_OF)


def test_modules_import_from_lower_floors_only() -> None:
    modules = _modules()
    upward = [
        f"{name} imports {other}"
        for name, path in modules.items()
        for other in _imported(path, set(modules))
        if FLOOR_OF[other] >= FLOOR_OF[name]
    ]
    assert not upward, "; ".join(upward)


def _imports(tree: ast.AST) -> set[str]:
    """The packages that a piece of code imports, of any depth."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_adapter_alone_imports_t5x_and_what_it_brings_and_only_when_asked() -> None:
    heavy = {"seqio", "t5x", "tensorflow"}
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in _modules().items()}
    assert {name for name, tree in trees.items() if heavy & _imports(tree)} == {"t5x_adapter"}
    at_import = [
        node for node in trees["t5x_adapter"].body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not heavy & _imports(ast.Module(at_import, []))
