// What products are made of: operands are packed, and tiles are summed in registers (gemm.h).

#pragma once

// --------------------------------------------------------------------------------------- packing

// So many steps ahead rows of B are fetched that lie far apart.
constexpr int AHEAD = 32;

// to[k][width] = the columns n < count of B, zeros beyond. Where k is contiguous, squares of
// numbers are transposed in registers.
template <Contiguous C, class Number>
SHARED void pack_panel(const Number* B, i64 BK, i64 BN, float* to, int K, int width, int count) {
  if constexpr (C == ALONG_N) {
    for (int k = 0; k < K; k++, B += BK, to += width) {
      int j = 0;
      ROLLED for (; j + LANES <= count; j += LANES) {
        __builtin_prefetch(B + j + AHEAD * BK, 0, 2);
        store(to + j, load(B + j));
      }
      if (j < count) store(to + j, load_first(B + j, count - j));
    }
  } else if constexpr (C == ALONG_K) {
    for (int j = 0; j < count; j += LANES) {
      const int columns = smaller(LANES, count - j);
      for (int k = 0; k < K; k += LANES) {
        const int steps = smaller(LANES, K - k);
        const Number* from = B + i64(j) * BN + k;
        float* out = to + i64(k) * width + j;
        vec square[LANES];
        if (steps == LANES && columns == LANES) {
          UNROLLED for (int i = 0; i < LANES; i++) square[i] = load(from + i * BN);
        } else {
          ROLLED for (int i = 0; i < LANES; i++)
            square[i] = i < columns ? load_first(from + i * BN, steps) : vec{};
        }
        transpose(square);
        if (steps == LANES) {
          UNROLLED for (int i = 0; i < LANES; i++) store(out + i * width, square[i]);
        } else {
          ROLLED for (int i = 0; i < steps; i++) store(out + i * width, square[i]);
        }
      }
    }
  } else {
    for (int k = 0; k < K; k++)
      for (int j = 0; j < width; j++)
        to[i64(k) * width + j] = j < count ? widened(B[k * BK + j * BN]) : 0;
  }
}

// to[strip][k][ROWS] = the strips of `rows` rows of A, a few k at a time, so that the lines they
// share stay in L1: often they are a page apart, and a set of it has room for eight of those.
template <int ROWS, bool CONTIGUOUS, class Number>
SHARED void pack_strips(const Number* A, i64 AM, i64 AK, float* to, int rows, int K) {
  constexpr int FEW = 8;
  for (int k0 = 0; k0 < K; k0 += FEW)
    for (int s = 0; s * ROWS < rows; s++) {
      const int steps = smaller(FEW, K - k0), here = smaller(ROWS, rows - s * ROWS);
      const Number* from = A + s * ROWS * AM + k0 * AK;
      float* out = to + (i64(s) * K + k0) * ROWS;
      ROLLED for (int k = 0; k < steps; k++, from += AK, out += ROWS) {
        if (CONTIGUOUS && here == ROWS && sizeof(Number) == 4) memcpy(out, from, 4 * ROWS);
        else if (CONTIGUOUS && here == ROWS)
          UNROLLED for (int i = 0; i < ROWS; i++) out[i] = widened(from[i]);
        else for (int i = 0; i < here; i++) out[i] = widened(from[i * AM]);
      }
    }
}

// to[row][K, and some] = `rows` rows of A, K contiguous numbers each.
template <class Number>
SHARED void pack_rows(const Number* A, i64 AM, float* to, i64 step, int rows, int K) {
  ROLLED for (int i = 0; i < rows; i++, A += AM, to += step) {
    int k = 0;
    ROLLED for (; k + LANES <= K; k += LANES) store(to + k, load(A + k));
    if (k < K) store(to + k, load_first(A + k, K - k));
  }
}

// ------------------------------------------------------------------------------------------ tiles

// What an epilogue will write (or read): row m of each array starts at first + m * row. And a part
// of the next panel, `steps` steps along k. A tile fetches its part while it multiplies, a row or step
// at a time: all at once would keep its own operands waiting.
struct Ahead {
  static constexpr int MOST = 4;
  i64 row = 0;
  int arrays = 0;
  const float* first[MOST] = {};
  int steps = 0;
  const float* panel = nullptr;
};

// The arrays from a place on; none if they are not wanted yet.
INLINE Ahead from_place(const Ahead& ahead, i64 place, bool wanted) {
  Ahead here{ahead.row, wanted ? ahead.arrays : 0};
  for (int i = 0; i < here.arrays; i++) here.first[i] = ahead.first[i] + place;
  return here;
}

template <int VECTORS> INLINE void fetch_row(const Ahead& ahead, int m) {
  for (int i = 0; i < ahead.arrays; i++)
    UNROLLED for (int j = 0; j < VECTORS; j++)
      __builtin_prefetch(ahead.first[i] + m * ahead.row + j * LANES, 1);
}

template <int VECTORS> INLINE void fetch_step(const Ahead& ahead, int k) {
  UNROLLED for (int j = 0; j < VECTORS; j++)
    __builtin_prefetch(ahead.panel + (i64(k) * VECTORS + j) * LANES, 0, 2);
}

// Additions in a row before the sum is put aside: a longer chain would lose digits.
constexpr int LONGEST_SUM = 512;

// Sums that are handed over from registers.
constexpr int SHORT_SUM = 32;

// The sums of MR rows and NV vectors of columns. Few sums would wait for each other: then U
// successive k have sums of their own. MASKED: only `last` lanes of the last vector exist.
// `before` holds the sums of earlier k, if there are any. Strides are arguments, so that all
// products share the few kinds of tiles; only many rows (AM != 0) need theirs known, for want of
// registers to point at them.
template <int MR, int NV, int AM, bool MASKED, bool PAIRS, class Number>
SHARED void outer_tile(const float* A, i64 a_row, i64 AK, const Number* B, i64 BK, int K,
                       const float* before, float* tile, int last, const Ahead& ahead) {
  constexpr int U = MR * NV >= 8 ? 1 : MR * NV >= 4 ? 2 : 4;
  vec sums[U][MR][NV];
  const i64 row = AM ? AM : a_row;
  i64 at = 0;
  auto step = [&](vec(&into)[MR][NV]) INLINE_CALL {
    vec b[NV];
    UNROLLED for (int j = 0; j < NV; j++)
      b[j] = MASKED && j == NV - 1 ? load_first(B + LANES * j, last) : load(B + LANES * j);
    UNROLLED for (int i = 0; i < MR; i++) {
      if constexpr (PAIRS) {
        const vec a = spread_pair(A + i * row + at);
        UNROLLED for (int j = 0; j < NV; j++) into[i][j] = add_pairs(into[i][j], a, b[j]);
      } else {
        const vec a = spread((A + i * row)[at]);
        UNROLLED for (int j = 0; j < NV; j++) into[i][j] += a * b[j];
      }
    }
    at += AK;
    B += BK;
  };
  constexpr int LONGEST = LONGEST_SUM / (PAIRS ? 2 : 1);
  const int rows = ahead.arrays && K >= 64 ? MR : 0, fetches = rows > ahead.steps ? rows : ahead.steps;
  const int piece = fetches ? pieces(K, fetches) : LONGEST;
  int k = 0, fetched = 0;
  do {
    const int until = smaller(K, k + LONGEST);
    UNROLLED for (int u = 0; u < U; u++)
      UNROLLED for (int i = 0; i < MR; i++)
        UNROLLED for (int j = 0; j < NV; j++) sums[u][i][j] = vec{};
    if constexpr (U == 1) {
      while (k < until) {
        if (fetched < rows) fetch_row<NV>(ahead, fetched);
        if (fetched < ahead.steps) fetch_step<NV>(ahead, fetched);
        fetched++;
        const int end = smaller(until, k + piece);
        ROLLED for (; k < end; k++) step(sums[0]);
      }
    } else {
      ROLLED for (; k + U <= until; k += U) {
        UNROLLED for (int u = 0; u < U; u++) step(sums[u]);
      }
      ROLLED for (; k < until; k++) step(sums[0]);
    }
    UNROLLED for (int i = 0; i < MR; i++)
      UNROLLED for (int j = 0; j < NV; j++) {
        vec sum = sums[0][i][j];
        UNROLLED for (int u = 1; u < U; u++) sum += sums[u][i][j];
        if (before) sum += load(before + (i * NV + j) * LANES);
        store(tile + (i * NV + j) * LANES, sum);
      }
    before = tile;
  } while (k < K);
}

// The same for a short sum in one go, where storing a tile to read it again would take as long as a
// quarter of the sum: take(i, row) gets each row as its sums leave the registers.
template <int MR, int NV, int AM, bool MASKED, class Number, class Take>
INLINE void outer_short(const float* A, i64 a_row, i64 AK, const Number* B, i64 BK, int K, int last,
                        Take take) {
  vec sums[MR][NV];
  const i64 row = AM ? AM : a_row;
  UNROLLED for (int i = 0; i < MR; i++)
    UNROLLED for (int j = 0; j < NV; j++) sums[i][j] = vec{};
  i64 at = 0;
  ROLLED for (int k = 0; k < K; k++, at += AK, B += BK) {
    vec b[NV];
    UNROLLED for (int j = 0; j < NV; j++)
      b[j] = MASKED && j == NV - 1 ? load_first(B + LANES * j, last) : load(B + LANES * j);
    UNROLLED for (int i = 0; i < MR; i++) {
      const vec a = spread((A + i * row)[at]);
      UNROLLED for (int j = 0; j < NV; j++) sums[i][j] += a * b[j];
    }
  }
  UNROLLED for (int i = 0; i < MR; i++) {
    alignas(64) float line[NV * LANES];
    UNROLLED for (int j = 0; j < NV; j++) store(line + j * LANES, sums[i][j]);
    take(i, line);
  }
}

// LANES columns of C (rows of transposed B) times LANES rows, stored row by row of C. The first
// `lanes` of these rows and the first COLUMNS of these columns exist.
template <int BN, int COLUMNS, class Number>
SHARED void turned_tile(const float* A, i64 AK, int lanes, const Number* B, i64 BK, int K,
                        float* tile) {
  vec sums[LANES];
  UNROLLED for (int j = 0; j < LANES; j++) sums[j] = vec{};
  ROLLED for (int k = 0; k < K; k++) {
    const vec a = load_first(A, lanes);
    UNROLLED for (int j = 0; j < COLUMNS; j++) sums[j] += a * spread(widened(B[i64(j) * BN]));
    A += AK;
    B += BK;
  }
  transpose(sums);
  UNROLLED for (int i = 0; i < LANES; i++) store(tile + i * LANES, sums[i]);
}

// MR x NC dot products along k, both sides contiguous; rows of the tile are `width` apart.
template <int MR, int NC, class Left, class Right>
SHARED void dots_tile(const Left* A, i64 AM, const Right* B, i64 BN, int K, float* tile,
                      int width) {
  vec sums[MR][NC];
  UNROLLED for (int i = 0; i < MR; i++)
    UNROLLED for (int j = 0; j < NC; j++) sums[i][j] = vec{};
  auto step = [&](auto&& get, i64 k) INLINE_CALL {
    vec a[MR];
    UNROLLED for (int i = 0; i < MR; i++) a[i] = get((A + i * AM) + k);
    UNROLLED for (int j = 0; j < NC; j++) {
      const vec b = get((B + j * BN) + k);
      UNROLLED for (int i = 0; i < MR; i++) sums[i][j] += a[i] * b;
    }
  };
  const int rest = K % LANES;
  ROLLED for (i64 k = 0; k < K - rest; k += LANES)
    step([](auto* from) INLINE_CALL { return load(from); }, k);
  if (rest) step([&](auto* from) INLINE_CALL { return load_first(from, rest); }, K - rest);
  UNROLLED for (int i = 0; i < MR; i++) {
    const vec row = lane_sums<NC>(sums[i]);
    UNROLLED for (int j = 0; j < NC; j++) tile[i * width + j] = row[j];
  }
}
