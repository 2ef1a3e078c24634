"""The table of scores and recurrences: their names, their publications, and what makes them.

A row here is a mechanism in every function by name, and a layer of it with linear projections in every model;
`models.mechanisms` has those that differ in their projections.
"""

from typing import NamedTuple

from attention.recurrences.gated import GatedDelta, GatedLinear
from attention.recurrences.linear import Delta, LinearAttention
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.mamba import Mamba3
from attention.recurrences.product import DeltaProduct
from attention.recurrences.retention import Retention
from attention.recurrences.rwkv import RWKV7
from attention.recurrences.selective import GatedDelta2, KimiDelta, StateSpace
from attention.score import Mixer
from attention.scores.alibi import Alibi
from attention.scores.cosine import Cosine
from attention.scores.differential import Differential, DifferentialV2
from attention.scores.dot import DotProduct, ScalableSoftmax
from attention.scores.forgetting import Forgetting
from attention.scores.gaussian import Gaussian
from attention.scores.location import Location
from attention.scores.luong import Bilinear
from attention.scores.pairwise import Additive, Neural
from attention.scores.path import Path
from attention.scores.positional import FactorisedPositional, Positional
from attention.scores.relative import Relative
from attention.scores.soft_cap import Power, SoftCap
from attention.scores.sparse.deepseek import DeepSeekSparse
from attention.scores.sparse.native import NativeSparse


class Row(NamedTuple):
    """A score or recurrence with its default options, and the publication and equation that define it."""

    score: Mixer
    source: str


SCORES = {
    "dot_product": Row(DotProduct(), "Vaswani et al. 2017, eq. 1"),
    "neural": Row(Neural(), "DiGiugno eq. 3 to 9"),
    "additive": Row(Additive(), "Bahdanau et al. 2014; Wikipedia"),
    "luong_dot": Row(DotProduct(scale=1.0), "Luong et al. 2015, eq. 8; Wikipedia"),
    "luong_general": Row(Bilinear(), "Luong et al. 2015, eq. 8; Wikipedia"),
    "luong_concat": Row(Additive(), "Luong et al. 2015, eq. 8"),
    "location": Row(Location(), "Luong et al. 2015, eq. 9; Wikipedia"),
    "gaussian": Row(Gaussian(), "Sanger eq. 14"),
    "positional": Row(Positional(), "Wikipedia"),
    "positional_factorised": Row(FactorisedPositional(), "Wikipedia"),
    "sigmoid": Row(DotProduct(normaliser="sigmoid"), "Ramapuram et al. 2024"),
    "sink": Row(DotProduct(normaliser="sink(learned=True)"), "GPT-OSS (arXiv:2508.10925)"),
    "softpick": Row(DotProduct(normaliser="softpick"), "Zuhri et al. 2025"),
    "scalable_softmax": Row(ScalableSoftmax(), "Nakanishi 2025"),
    "power": Row(Power(), "Gelada et al. 2025"),
    "hard": Row(DotProduct(normaliser="hard"), "Xu et al. 2015; Wikipedia"),
    "soft_cap": Row(SoftCap(), "Gemma 2 (arXiv:2408.00118)"),
    "cosine": Row(Cosine(), "Liu et al. 2022, eq. 2"),
    "alibi": Row(Alibi(), "Press et al. 2022, section 3"),
    "forgetting": Row(Forgetting(), "Lin et al. 2025, section 3"),
    "path": Row(Path(), "Yang et al. 2025 (arXiv:2505.16381)"),
    "stick_breaking": Row(DotProduct(normaliser="stick_breaking"), "Tan et al. 2024, section 2"),
    "moba": Row(DotProduct(normaliser="blocks"), "Lu et al. 2025, section 2.2"),
    "native_sparse": Row(NativeSparse(), "Yuan et al. 2025, section 3"),
    "deepseek_sparse": Row(DeepSeekSparse(), "DeepSeek-V3.2 (arXiv:2512.02556)"),
    "relative": Row(Relative(), "Raffel et al. 2020, section 2.1"),
    "differential": Row(Differential(), "Ye et al. 2024, eq. 1 to 3"),
    "differential_v2": Row(DifferentialV2(), "Microsoft 2026, published code"),
    "linear": Row(LinearAttention(), "Katharopoulos et al. 2020; Wikipedia"),
    "delta": Row(Delta(), "Schlag et al. 2021; Wikipedia"),
    "retention": Row(Retention(), "Sun et al. 2023, eq. 6"),
    "gated_linear": Row(GatedLinear(), "Yang et al. 2023, eq. 3"),
    "gated_delta": Row(GatedDelta(), "Yang et al. 2024, eq. 10"),
    "state_space": Row(StateSpace(), "Dao & Gu 2024, section 7"),
    "kimi_delta": Row(KimiDelta(), "Kimi Linear (arXiv:2510.26692)"),
    "gated_delta2": Row(GatedDelta2(), "Gated DeltaNet-2 (arXiv:2605.22791)"),
    "delta_product": Row(DeltaProduct(), "Siems et al. 2025 (arXiv:2502.10297)"),
    "rwkv7": Row(RWKV7(), "Peng et al. 2025 (arXiv:2503.14456)"),
    "mamba3": Row(Mamba3(), "Lahoti et al. 2026 (arXiv:2603.15569)"),
    "log_linear": Row(LogLinear(), "Guo et al. 2025 (arXiv:2506.04761)"),
}
ALIASES = {"bilinear": "luong_general"}
