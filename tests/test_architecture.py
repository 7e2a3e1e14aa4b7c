"""A module imports only from lower floors (CONTRIBUTING.md draws the house)."""

import ast
import pathlib

import pytest

import specdec_jax

ROOT = pathlib.Path(specdec_jax.__file__).parent

FLOORS = [
    {"sampling", "errors", "restoration"},
    {"types", "layers"},
    {"verification", "t5"},
    {"model", "drafters.model", "checkpoints", "vocabulary"},
    {"decoding"},
    {"pretrained"},
    {"train"},
    {"main"},
]
