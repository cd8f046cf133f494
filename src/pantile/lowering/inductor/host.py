"""The host program of a graph: what Inductor wrote, on our own small header.

Inductor's text is one class with all of AOTInductor's interface round it. Of that, the declarations
of the kernels and the body of `run_impl` are kept; `host.h` gives the words in them a meaning.
"""

from __future__ import annotations

import re
from importlib.resources import files

from pantile.errors import ProgramError

_DECLARATIONS_END = "namespace torch::aot_inductor {\nnamespace {\nclass AOTInductorModelKernels"
_INTERFACE_END = '} // extern "C"\n'
_BODY_BEGIN = "    __check_inputs_outputs(input_handles, output_handles);\n"
_BODY_END = "} // AOTInductorModel::run_impl"
_INPUT = re.compile(r"auto (\w+) = std::move\(inputs\[(\d+)\]\);")
_DROPPED = (
    "if (_check_aoti_runtime_check_inputs_env())",
    "auto inputs = steal_from_raw_handles_to_raii_handles",
    "inputs.clear();",
    "[[maybe_unused]] auto& kernels",
)


def host_program(wrapper: str, outputs: int) -> str:
    """The C++ text of the host program made from Inductor's wrapper."""
    declarations = _between(wrapper, _INTERFACE_END, _DECLARATIONS_END)
    body = _between(wrapper, _BODY_BEGIN, _BODY_END)
    lines = [_line(line) for line in body.splitlines() if not line.strip().startswith(_DROPPED)]
    return "\n".join(
        (
            _header(),
            f"const int64_t pantile_output_count = {outputs};",
            declarations,
            "static void run_program(",
            "    AtenTensorHandle* input_handles, AtenTensorHandle* output_handles) {",
            "    [[maybe_unused]] void* proxy_executor = nullptr;",
            *lines,
            "}",
        )
    )


def _header() -> str:
    return files("pantile.lowering.inductor").joinpath("host.h").read_text(encoding="utf-8")


def _line(line: str) -> str:
    line = _INPUT.sub(r"RAIIAtenTensorHandle \1(pantile::marked(input_handles[\2]));", line)
    return line.replace("this->device_idx_", "0")


def _between(text: str, begin: str, end: str) -> str:
    """What stands between the last `begin` before the first `end`, and that `end`."""
    stop = text.find(end)
    start = text.rfind(begin, 0, stop)
    if stop < 0 or start < 0:
        raise ProgramError(
            "the text of Inductor's host program is not of the form this version knows",
            fix='run with Options.engine("reference"), and report the torch version',
        )
    return text[start + len(begin) : stop]
