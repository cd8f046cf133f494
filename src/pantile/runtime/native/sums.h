// Sums of gradients over replicas.
//
// Element by element and from left to right, each sum rounded: the bits are those of a + b + c in
// torch, however the elements are divided among workers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "plan.h"

namespace pantile {

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float from_bfloat16(uint16_t bits) {
  return bits_as<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest even
}

inline float from_float16(uint16_t half) {
  // Shifted into place, the exponent is 112 too small; a multiplication repairs it, subnormal
  // numbers too. Infinity and NaN get the largest exponent.
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const float scaled = bits_as<float>(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
  uint32_t bits = bits_as<uint32_t>(scaled);
  if (scaled >= 65536.0f) bits |= 0x7f800000;
  return bits_as<float>(bits | sign);
}

inline uint16_t to_float16(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t size = bits & 0x7fffffff;
  uint32_t half;
  if (size > 0x7f800000) {
    half = 0x7e00;
  } else if (size >= 0x477ff000) {  // rounds to 65536 or more
    half = 0x7c00;
  } else if (size < 0x38800000) {  // below 2^-14: adding 0.5 rounds at the last subnormal bit
    half = bits_as<uint32_t>(bits_as<float>(size) + 0.5f) - 0x3f000000;
  } else {
    half = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// The target may be one of the operands: ivdep says that this is no dependence between elements.
WIDEST void add_float32(float* target, const float* a, const float* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) target[i] = a[i] + b[i];
}

WIDEST void add_float64(double* target, const double* a, const double* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) target[i] = a[i] + b[i];
}

WIDEST void add_bfloat16(uint16_t* target, const uint16_t* a, const uint16_t* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    target[i] = to_bfloat16(from_bfloat16(a[i]) + from_bfloat16(b[i]));
}

WIDEST void add_float16(uint16_t* target, const uint16_t* a, const uint16_t* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    target[i] = to_float16(from_float16(a[i]) + from_float16(b[i]));
}

template <class Element>
void sum_range(const SumPlan& sum, int64_t begin, int64_t end,
               void (*add)(Element*, const Element*, const Element*, int64_t)) {
  constexpr int64_t block = 4096;  // the partial sums stay in the nearest cache
  Element* target = reinterpret_cast<Element*>(sum.target);
  const auto source = [&](int64_t i) { return reinterpret_cast<const Element*>(sum.sources[i]); };
  for (int64_t at = begin; at < end; at += block) {
    const int64_t n = std::min(block, end - at);
    if (sum.count == 1) {
      if (target != source(0)) std::memcpy(target + at, source(0) + at, n * sizeof(Element));
      continue;
    }
    add(target + at, source(0) + at, source(1) + at, n);
    for (int64_t i = 2; i < sum.count; ++i) add(target + at, target + at, source(i) + at, n);
  }
}

void sum_share(const SumPlan& sum, int64_t worker, int64_t workers) {
  const auto border = [&](int64_t i) {  // whole cache lines, so that no two workers share one
    return i == workers ? sum.elements : sum.elements * i / workers / 64 * 64;
  };
  const int64_t begin = border(worker), end = border(worker + 1);
  switch (sum.kind) {
    case FLOAT32: return sum_range<float>(sum, begin, end, add_float32);
    case FLOAT64: return sum_range<double>(sum, begin, end, add_float64);
    case BFLOAT16: return sum_range<uint16_t>(sum, begin, end, add_bfloat16);
    case FLOAT16: return sum_range<uint16_t>(sum, begin, end, add_float16);
  }
}

}  // namespace pantile
