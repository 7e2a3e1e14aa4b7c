"""Speculative decoding for T5 in JAX: exact, fast, and understood."""

from specdec_jax.beam import BeamResult, beam_decode, speculative_beam_decode
from specdec_jax.decoding import autoregressive_decode, speculative_decode, speculative_step
from specdec_jax.drafters.early_exit import EarlyExitDrafter
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.drafters.prompt_lookup import LookupDrafter
from specdec_jax.gamma import AdaptiveGamma, AssistedGamma, ConfidentGamma, FixedGamma, GammaPolicy
from specdec_jax.lm import LMConfig
from specdec_jax.model import LMModel, T5Model, lm_model, t5_model
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.t5 import T5Config
from specdec_jax.types import DecodeResult, Draft, Drafter, Model, Verdict, VerifyRule
from specdec_jax.verification import ExactRule, GumbelRule, LenientRule, MultiDraftRule

__version__ = "0.1.0"

__all__ = [
    "GREEDY",
    "AdaptiveGamma",
    "AssistedGamma",
    "BeamResult",
    "ConfidentGamma",
    "DecodeResult",
    "Draft",
    "Drafter",
    "EarlyExitDrafter",
    "ExactRule",
    "FixedGamma",
    "GammaPolicy",
    "GumbelRule",
    "LMConfig",
    "LMModel",
    "LenientRule",
    "LookupDrafter",
    "Model",
    "ModelDrafter",
    "MultiDraftRule",
    "Sampling",
    "T5Config",
    "T5Model",
    "Verdict",
    "VerifyRule",
    "autoregressive_decode",
    "beam_decode",
    "lm_model",
    "speculative_beam_decode",
    "speculative_decode",
    "speculative_step",
    "t5_model",
]
