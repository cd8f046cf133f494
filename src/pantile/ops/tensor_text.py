"""Text form of a tensor, with the choices `ipu_print_tensor` offers.

((1.0000, 2.0000, 3.0000),
 (4.0000, 5.0000, 6.0000))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


@dataclass(frozen=True)
class TextStyle:
    """How to print: when to leave the middle out, how wide, which digits, which brackets."""

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"


def tensor_text(tensor: torch.Tensor, style: TextStyle) -> str:
    """`tensor` as nested rows, the middle left out if it has more elements than the threshold."""
    values = tensor.detach().cpu()
    short = values.numel() > style.summarise_threshold
    return _rows(values, style, short=short, indent=0)


def _rows(values: torch.Tensor, style: TextStyle, *, short: bool, indent: int) -> str:
    if values.dim() == 0:
        return _number(values.item(), style)
    count = values.shape[0]
    edge = style.edge_items
    cut = short and count > 2 * edge
    shown = [*range(edge), *range(count - edge, count)] if cut else list(range(count))
    inner = indent + len(style.open_bracket)
    parts = [_rows(values[i], style, short=short, indent=inner) for i in shown]
    if cut:
        parts.insert(edge, "...")
    body = (
        _wrapped(parts, style, inner)
        if values.dim() == 1
        else (style.separator.rstrip() + "\n" + " " * inner).join(parts)
    )
    return style.open_bracket + body + style.close_bracket


def _wrapped(parts: list[str], style: TextStyle, indent: int) -> str:
    """Items on one line, or on several that start below each other."""
    lines, line = [], ""
    for part in parts:
        longer = line + style.separator + part if line else part
        if line and indent + len(longer) > style.max_line_width:
            lines.append(line)
            longer = part
        line = longer
    lines.append(line)
    return (style.separator.rstrip() + "\n" + " " * indent).join(lines)


def _number(value: bool | float | complex, style: TextStyle) -> str:
    if not isinstance(value, float) or style.float_format == "none":
        return str(value)
    if style.float_format == "scientific":
        return f"{value:.{style.digits}e}"
    if style.float_format == "fixed":
        return f"{value:.{style.digits}f}"
    plain = value == 0 or 10.0**-style.digits <= abs(value) < 1e6
    return f"{value:.{style.digits}f}" if plain else f"{value:.{style.digits}e}"
