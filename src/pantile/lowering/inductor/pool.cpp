// Max pooling over planes of floats: the window's taps in the outer loops, a row of results in the
// inner one, so that the compiler can use vectors. The result is ATen's, bit for bit: the first of
// equal numbers wins, and so does a NaN.

#include <cstdint>
#include <limits>
#include <vector>

namespace {

struct Window {
  int64_t kernel, stride, padding, dilation, size, results;

  // The results for which this tap reads inside the plane.
  int64_t first(int64_t tap) const {
    int64_t before = padding - tap * dilation;
    return before <= 0 ? 0 : (before + stride - 1) / stride;
  }
  int64_t last(int64_t tap) const {
    int64_t room = size - 1 + padding - tap * dilation;
    int64_t end = room < 0 ? 0 : room / stride + 1;
    return end < results ? end : results;
  }
};

// One tap for one row of results. With the stride a constant, loads become shuffles.
template <int64_t Stride>
void take(const float* source, float* best, int32_t* place, int64_t count, int64_t stride,
          int32_t at, int32_t step) {
  const int64_t by = Stride > 0 ? Stride : stride;
  for (int64_t i = 0; i < count; i++) {
    const float value = source[i * by];
    const bool wins = (value > best[i]) | (value != value) | (place[i] < 0);
    best[i] = wins ? value : best[i];
    place[i] = wins ? at + static_cast<int32_t>(i) * step : place[i];
  }
}

void row(const float* plane, float* best, int32_t* place, const Window& down, const Window& across,
         int64_t result) {
  for (int64_t i = 0; i < across.results; i++) {
    best[i] = -std::numeric_limits<float>::infinity();
    place[i] = -1;
  }
  for (int64_t kh = 0; kh < down.kernel; kh++) {
    const int64_t y = result * down.stride - down.padding + kh * down.dilation;
    if (y < 0 || y >= down.size) continue;
    for (int64_t kw = 0; kw < across.kernel; kw++) {
      const int64_t begin = across.first(kw), end = across.last(kw);
      if (end <= begin) continue;
      const int64_t x = begin * across.stride - across.padding + kw * across.dilation;
      const int64_t start = y * across.size + x;
      auto* function = across.stride == 1 ? take<1> : across.stride == 2 ? take<2> : take<0>;
      function(plane + start, best + begin, place + begin, end - begin, across.stride,
               static_cast<int32_t>(start), static_cast<int32_t>(across.stride));
    }
  }
}

inline void challenge(float other, int32_t offset, float& value, int32_t& at) {
  const bool wins = (other > value) | (other != other);
  value = wins ? other : value;
  at = wins ? offset : at;
}

// A row of windows of two by two that lie side by side.
void pairs(const float* __restrict upper, int64_t width, int64_t start, float* __restrict best,
           int64_t* __restrict place, int64_t count) {
  const float* __restrict lower = upper + width;
  const int32_t below = static_cast<int32_t>(width);
  for (int64_t i = 0; i < count; i++) {
    float value = upper[2 * i];
    int32_t at = 0;
    challenge(upper[2 * i + 1], 1, value, at);
    challenge(lower[2 * i], below, value, at);
    challenge(lower[2 * i + 1], below + 1, value, at);
    best[i] = value;
    place[i] = start + 2 * i + at;
  }
}

bool is_tiled(const Window& window, int64_t size) {
  return window.kernel == size && window.stride == size && window.padding == 0 &&
         window.dilation == 1;
}

}  // namespace

extern "C" void pantile_max_pool2d(
    const float* source, float* result, int64_t* indices, int64_t planes, const int64_t* down_given,
    const int64_t* across_given) {
  const Window down{down_given[0], down_given[1], down_given[2],
                    down_given[3], down_given[4], down_given[5]};
  const Window across{across_given[0], across_given[1], across_given[2],
                      across_given[3], across_given[4], across_given[5]};
  if (is_tiled(down, 2) && is_tiled(across, 2)) {
#pragma omp parallel for
    for (int64_t plane = 0; plane < planes; plane++) {
      const float* in = source + plane * down.size * across.size;
      for (int64_t y = 0; y < down.results; y++) {
        const int64_t at = (plane * down.results + y) * across.results;
        const int64_t start = 2 * y * across.size;
        pairs(in + start, across.size, start, result + at, indices + at, across.results);
      }
    }
    return;
  }
#pragma omp parallel
  {
    std::vector<int32_t> place(across.results);
#pragma omp for
    for (int64_t plane = 0; plane < planes; plane++) {
      const float* in = source + plane * down.size * across.size;
      for (int64_t y = 0; y < down.results; y++) {
        const int64_t at = (plane * down.results + y) * across.results;
        row(in, result + at, place.data(), down, across, y);
        for (int64_t i = 0; i < across.results; i++) indices[at + i] = place[i];
      }
    }
  }
}
