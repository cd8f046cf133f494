"""A convolution as a product on the matrix unit, in the way that is fastest.

    dense     rows = output pixels, inner = input channels, one block for each kernel position
    unfolded  few input channels: kernel positions become channels (the first layer of a CNN)
    combined  few channels in a group: several groups share one block of the matrix unit
    sliced    groups of at most 4 channels: the unit's window mode, at most 32 products a cycle

The gradient for the input is a convolution with channels exchanged; the gradient for the weights
is a product whose inner dimension is all output pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from pantile.machine.products import ELEMENT_BYTES, Product, Spread, spread
from pantile.machine.targets import Chip
from pantile.machine.vectors import copy_cycles

_WINDOW = 4
_WINDOW_PRODUCTS = 32


@dataclass(frozen=True)
class Convolution:
    """One convolution over `pixels` output pixels in all (batch included)."""

    pixels: int
    row_width: int
    channels_in: int
    channels_out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    groups: int = 1
    dtype: str = "float16"
    partials: str = "float16"

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return prod(self.kernel)

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        inner = self.channels_in // self.groups
        return 2.0 * self.pixels * self.channels_out * inner * self.taps

    def backward(self, input_pixels: int) -> Convolution:
        """The convolution that computes the gradient for the input.

        Where the stride skipped pixels, the vendor's library cuts the kernel, so that no
        multiplication with an inserted zero is left: the taps shrink as the pixels grow.
        """
        ratio = max(1.0, input_pixels / max(1, self.pixels))
        taps = max(1, round(self.taps / ratio))
        return replace(
            self,
            pixels=input_pixels,
            channels_in=self.channels_out,
            channels_out=self.channels_in,
            kernel=(taps,),
            stride=(1,) * len(self.stride),
        )


def convolution_cycles(chip: Chip, conv: Convolution, proportion: float) -> Spread:
    """The fastest of the ways to compute a convolution."""
    ways = [spread(chip, product, proportion) for product in _dense(conv)]
    ways += _unfolded(chip, conv, proportion)
    window = _sliced(chip, conv)
    if window is not None:
        ways.append(window)
    return min(ways, key=lambda way: way.cycles)


def weight_gradient_cycles(chip: Chip, conv: Convolution, proportion: float) -> Spread:
    """The product of inputs and output gradients over all pixels."""
    inner, outer = conv.channels_in // conv.groups, conv.channels_out // conv.groups
    share = _share(conv)
    product = Product(
        max(1, conv.groups // share),
        inner * share * conv.taps,
        conv.pixels,
        outer * share,
        conv.dtype,
        conv.partials,
        # Windows overlap: kernel positions along one direction need no copy of their own.
        input_scale=1 / conv.taps**0.5,
    )
    return spread(chip, product, proportion)


def _share(conv: Convolution) -> int:
    """How many groups fit together into a block of 16 by 16."""
    if conv.groups == 1:
        return 1
    widest = max(conv.channels_in, conv.channels_out) // conv.groups
    return max(1, min(conv.groups, 16 // max(1, widest)))


def _dense(conv: Convolution) -> list[Product]:
    inner, outer = conv.channels_in // conv.groups, conv.channels_out // conv.groups
    # A window of k by k shares k - 1 pixels with its neighbour, fewer if windows are apart.
    overlap = max(0.0, (conv.taps**0.5 - 1) / max(conv.stride))
    return [
        Product(
            max(1, conv.groups // share),
            conv.pixels,
            inner * share,
            outer * share,
            conv.dtype,
            conv.partials,
            taps=conv.taps,
            row_width=conv.row_width,
            overlap=overlap,
            input_scale=float(prod(conv.stride)) if conv.taps > 1 else 1.0,
        )
        for share in sorted({1, _share(conv)})
    ]


def _unfolded(chip: Chip, conv: Convolution, proportion: float) -> list[Spread]:
    if conv.groups > 1 or conv.taps == 1 or conv.channels_in >= 16:
        return []
    product = Product(
        1,
        conv.pixels,
        conv.channels_in * conv.taps,
        conv.channels_out,
        conv.dtype,
        conv.partials,
    )
    way = spread(chip, product, proportion)
    nbytes = conv.pixels * conv.channels_in * conv.taps * ELEMENT_BYTES[conv.dtype]
    unfolding = copy_cycles(chip, nbytes, 4)
    return [replace(way, cycles=way.cycles + unfolding, reduce=way.reduce + unfolding)]


def _sliced(chip: Chip, conv: Convolution) -> Spread | None:
    inner, outer = conv.channels_in // conv.groups, conv.channels_out // conv.groups
    if conv.groups == 1 or inner > 4 or outer > 4 or conv.dtype == "float32":
        return None
    products = conv.flops / 2
    width = conv.kernel[-1]
    # Lanes that the window mode leaves idle: kernels not a multiple of 4 wide, narrow groups.
    rate = _WINDOW_PRODUCTS * max(inner, outer) / 4 * width / (ceil(width / _WINDOW) * _WINDOW)
    compute = products / chip.tiles / rate * 1.25 + 400
    nbytes = conv.pixels * (conv.channels_in + conv.channels_out) * 2
    exchange = nbytes / chip.tiles / chip.exchange_bytes_per_cycle
    return Spread(
        compute + exchange + chip.step_cycles,
        compute,
        exchange,
        0.0,
        1,
        int(3 * nbytes / chip.tiles),
        chip.tiles,
        (min(conv.groups, chip.tiles), 1, 1, 1),
        1,
        (conv.pixels, inner, outer),
        swapped=False,
        within_memory=True,
    )
