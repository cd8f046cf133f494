// Squares and rows of vectors: what the templates of products are made of.

#pragma once

// Compiled once for all who call it; without `noclone`, gcc copies it for every caller's strides.
#define SHARED static __attribute__((noinline, noclone))

constexpr int pieces(i64 a, i64 b) { return (a + b - 1) / b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int round_lanes(int a) { return pieces(a, LANES) * LANES; }

// The first `count` numbers at `from`, zeros after them; nothing beyond them is touched.
INLINE vec load_first(const float* from, int count) {
#if defined(__AVX512F__)
  return __builtin_ia32_loadups512_mask(from, vec{}, (unsigned short)((1u << count) - 1));
#else
  vec value{};
  for (int i = 0; i < count; i++) value[i] = from[i];
  return value;
#endif
}

// The first `count` numbers to `to`; nothing beyond them is touched.
INLINE void store_first(float* to, vec value, int count) {
#if defined(__AVX512F__)
  __builtin_ia32_storeups512_mask(to, value, (unsigned short)((1u << count) - 1));
#else
  for (int i = 0; i < count; i++) to[i] = value[i];
#endif
}

// One step of a transposition: blocks of S lanes change places between two vectors.
template <int S> INLINE void exchange(vec& a, vec& b) {
  lane_mask low, high;
  UNROLLED for (int j = 0; j < LANES; j++) {
    low[j] = (j & S) ? LANES + j - S : j;
    high[j] = (j & S) ? LANES + j : j + S;
  }
  const vec first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(a, b, high);
  a = first;
  b = second;
}

template <int S> INLINE void transpose_from(vec (&rows)[LANES]) {
  if constexpr (S < LANES) {
    UNROLLED for (int i = 0; i < LANES; i++) if (!(i & S)) exchange<S>(rows[i], rows[i + S]);
    transpose_from<2 * S>(rows);
  }
}

// A square of LANES x LANES numbers, rows become columns.
INLINE void transpose(vec (&rows)[LANES]) { transpose_from<1>(rows); }

// Lane j of the result is the sum over all lanes of v[j]. COUNT is a power of two, at most LANES.
template <int COUNT, int S = 1> INLINE vec lane_sums(vec* v) {
  if constexpr (COUNT > 1) {
    UNROLLED for (int i = 0; i < COUNT; i += 2) {
      exchange<S>(v[i], v[i + 1]);
      v[i / 2] = v[i] + v[i + 1];
    }
    return lane_sums<COUNT / 2, 2 * S>(v);
  } else if constexpr (S < LANES) {
    lane_mask other;
    UNROLLED for (int j = 0; j < LANES; j++) other[j] = j ^ S;
    v[0] += __builtin_shuffle(v[0], other);
    return lane_sums<1, 2 * S>(v);
  } else {
    return v[0];
  }
}

// Which index of B[k*BK + n*BN] has its numbers side by side.
enum Contiguous { ALONG_N, ALONG_K, NOWHERE };

constexpr Contiguous contiguous(int BK, int BN) {
  return BN == 1 ? ALONG_N : BK == 1 ? ALONG_K : NOWHERE;
}
