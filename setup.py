"""Packaging of specdec_jax. `pip install .` for the core, `.[all]` for everything but T5X."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "specdec_jax/__init__.py").read_text("utf-8"), re.M
)
assert VERSION, "specdec_jax/__init__.py must set __version__"

# Lower bounds are the releases that the tests run on, upper bounds the next that may break.
CORE = [
    "absl-py>=2.1,<3",
    "flax>=0.12.8,<0.13",
    "gin-config>=0.5,<0.6",
    "jax>=0.10.2,<0.11",
    "msgpack>=1.1,<2",
    "numpy>=2,<3",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.8,<0.13",
    "rich>=13,<16",
    "safetensors>=0.8,<0.9",
    "sentencepiece>=0.2,<0.3",
    "tensorstore>=0.1.86,<0.2",
]

EXTRAS = {
    # TensorFlow comes with it: 2.7 GB.
    "seqio": ["seqio>=0.0.20,<0.1"],
    # What a checkout of T5X needs of the package index; the README installs T5X itself.
    "t5x": [
        "cached_property>=2",
        "clu>=0.0.12",
        "fiddle>=0.3",
        "jestimator>=0.3.3",
        "seqio>=0.0.20,<0.1",
        "tensorboard>=2.20",
        "tensorflow-cpu>=2.20",
        "tensorflow-text>=2.20",
    ],
    "report": ["matplotlib>=3.9,<4", "rouge-score>=0.1.2,<0.2", "sacrebleu>=2.5,<3"],
    "test": [
        "hypothesis>=6.100,<7",
        "ipykernel>=6.29,<8",
        "matplotlib>=3.9,<4",
        "mypy>=2,<3",
        "nbclient>=0.10,<0.12",
        "nbformat>=5.10,<6",
        "pytest>=9,<10",
        "pytest-cov>=7,<8",
        "pytest-xdist>=3.6,<4",
        "rouge-score>=0.1.2,<0.2",
        "ruff>=0.17,<0.18",
        "sacrebleu>=2.5,<3",
    ],
    "notebook": ["ipywidgets>=8,<9", "jupyterlab>=4,<5", "matplotlib>=3.9,<4"],
}
EXTRAS["all"] = sorted({need for needs in EXTRAS.values() for need in needs})

# The gin files live at the top, as T5X users expect, and travel as this subpackage.
GIN_PACKAGE = "specdec_jax.gin"

setup(
    name="specdec_jax",
    version=VERSION[1],
    description="Speculative decoding for T5 in JAX: exact, fast, and understood",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["specdec_jax", "specdec_jax.*"]), GIN_PACKAGE],
    package_dir={GIN_PACKAGE: "gin"},
    package_data={"specdec_jax": ["py.typed", "assets/**/*"], GIN_PACKAGE: ["**/*.gin"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["specdec = specdec_jax.main:run"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
