"""Which family computes an operator."""

from __future__ import annotations

from typing import Any

import torch

from pantile.lowering.kernels import operators as own
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.outside import outside
from pantile.lowering.kernels.rules.avg_pool import AvgPool, AvgPoolInput
from pantile.lowering.kernels.rules.cat import Cat
from pantile.lowering.kernels.rules.conv import ConvForward, ConvInput, ConvWeight
from pantile.lowering.kernels.rules.elementwise import Elementwise
from pantile.lowering.kernels.rules.gemm import PRODUCTS, Gemm
from pantile.lowering.kernels.rules.index_put import INDEX_PUTS, IndexPut
from pantile.lowering.kernels.rules.outside import Outside
from pantile.lowering.kernels.rules.parts import PARTS
from pantile.lowering.kernels.rules.pool import MaxPool, MaxPoolInput
from pantile.lowering.kernels.rules.reduce import OPERATIONS, Reduce
from pantile.lowering.kernels.rules.scan import SCANS

aten = torch.ops.aten

ELEMENTWISE = Elementwise()

FAMILIES: dict[Any, Family] = {
    **dict.fromkeys(OPERATIONS, Reduce()),
    **dict.fromkeys(PRODUCTS, Gemm()),
    **dict.fromkeys(INDEX_PUTS, IndexPut()),
    aten.convolution.default: ConvForward(),
    own.conv_input: ConvInput(),
    own.conv_weight: ConvWeight(),
    own.max_pool: MaxPool(),
    own.max_pool_input: MaxPoolInput(),
    own.avg_pool: AvgPool(),
    own.avg_pool_input: AvgPoolInput(),
    **PARTS,
    **SCANS,
    aten.cat.default: Cat(),
    outside: Outside(),
}
