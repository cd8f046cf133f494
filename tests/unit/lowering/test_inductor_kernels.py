"""What is thrown in a parallel loop of a kernel is caught in it and thrown again after it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pantile.errors import CompilerMissing
from pantile.lowering.compiler import find_compiler
from pantile.lowering.inductor.kernels import catch_in_loops

QUIET = """
extern "C"  void  quiet(const float* in_ptr0,
                       float* out_ptr0)
{
    #pragma omp parallel
    {
        int tid = omp_get_thread_num();
        #pragma omp for
        for(int64_t x0=0; x0<8; x0+=1)
        {
            out_ptr0[x0] = in_ptr0[x0];
        }
    }
}
"""
CHECKED = """
extern "C"  void  checked(const int64_t* in_ptr0,
                       int64_t* out_ptr0)
{
    #pragma omp parallel
    {
        int tid = omp_get_thread_num();
        {
            #pragma omp for collapse(2)
            for(int64_t x0=0; x0<4; x0+=1)
            {
                for(int64_t x1=0; x1<2; x1+=1)
                {
                    auto tmp0 = in_ptr0[2*x0 + x1];
                    AOTI_TORCH_CHECK((0 <= tmp0) & (tmp0 < 5L), "index out of bounds");
                    out_ptr0[2*x0 + x1] = tmp0;
                }
            }
        }
        #pragma omp single
        {
            {
                AOTI_TORCH_CHECK(out_ptr0[0] != 4, "index out of bounds");
            }
        }
    }
}
"""
PROGRAM = """
#include <cstdint>
#include <cstdio>
#include <omp.h>
#include <stdexcept>
#define AOTI_TORCH_CHECK(cond, text) if (!(cond)) throw std::runtime_error(text)
%s
int main() {
  for (int64_t bad : {3, 5, 4}) {
    int64_t values[8] = {bad, 1, 2, 3, 4, 0, 1, 2}, results[8];
    try {
      checked(values, results);
      std::puts("fine");
    } catch (const std::exception& error) {
      std::puts(error.what());
    }
  }
}
"""


def test_a_kernel_that_cannot_throw_stays_as_it_is() -> None:
    assert catch_in_loops(QUIET) == QUIET


def test_only_the_kernel_that_can_throw_changes() -> None:
    changed = catch_in_loops(QUIET + CHECKED + QUIET)

    assert changed.count("pantile_caught.rethrow();") == 1
    assert changed.startswith(QUIET)
    assert changed.endswith(QUIET)


def test_a_check_outside_of_parallel_loops_may_throw() -> None:
    serial = CHECKED.replace("#pragma omp for collapse(2)", "").replace("#pragma omp single", "")

    assert catch_in_loops(serial) == serial


def test_a_failed_check_is_an_exception_of_the_kernel(tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))
    (tmp_path / "main.cpp").write_text(PROGRAM % catch_in_loops(CHECKED))

    command = [compiler, "-std=c++20", "-fopenmp", "-o", "main", "main.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines() == ["fine", "index out of bounds", "index out of bounds"]
