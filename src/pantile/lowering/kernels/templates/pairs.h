// Products of bfloat16 by the instruction that multiplies pairs of them and adds both to a float.
//
//   vdpbf16ps    sum[j] += a[2j] * b[2j] + a[2j + 1] * b[2j + 1]       16 sums of float
//
// It does two steps along k in the time of one of float. A pair (k, k + 1) is a word of 32 bits,
// and words are packed, spread and loaded like floats:
//
//   A   lies in words already where its rows are contiguous, even and begin at even places;
//       else its rows are copied, or its strips packed word by word
//   B   is packed: two rows side by side where n is contiguous, squares of words transposed where
//       k is
//
// An odd K ends with a word whose second half is zero on both sides.

#pragma once

INLINE u32 pair(bf16 first, bf16 second) { return first.bits | u32(second.bits) << 16; }

// The first `count` numbers as words, zeros after them.
INLINE vec load_pairs(const bf16* from, int count) {
  if (count >= 2 * LANES) return load((const float*)from);
  alignas(64) u16 numbers[2 * LANES] = {};
  memcpy(numbers, from, 2 * count);
  return load((const float*)numbers);
}

INLINE vec side_by_side(half_lanes first, half_lanes second) {
  return (vec)(__builtin_convertvector(first, wide_lanes) |
               __builtin_convertvector(second, wide_lanes) << 16);
}

// LANES numbers of a row, or its first `count`.
INLINE half_lanes row_of(const bf16* from, int count) {
  if (count >= LANES) return *(const loose_half_lanes*)from;
  half_lanes row{};
  for (int i = 0; i < count; i++) row[i] = from[i].bits;
  return row;
}

// to[word][width] = the columns n < count of B, K numbers deep, zeros beyond.
template <Contiguous C>
SHARED void pack_pairs(const bf16* B, i64 BK, i64 BN, float* to, int K, int width, int count) {
  if constexpr (C == ALONG_N) {
    for (int k = 0; k < K; k += 2, B += 2 * BK, to += width) {
      ROLLED for (int j = 0; j < width; j += LANES) {
        const int here = count - j;
        const half_lanes first = row_of(B + j, here);
        store(to + j, side_by_side(first, k + 1 < K ? row_of(B + BK + j, here) : half_lanes{}));
      }
    }
  } else if constexpr (C == ALONG_K) {
    for (int j = 0; j < width; j += LANES)
      for (int k = 0; k < K; k += 2 * LANES) {
        vec square[LANES];
        ROLLED for (int i = 0; i < LANES; i++)
          square[i] = j + i < count ? load_pairs(B + (j + i) * BN + k, K - k) : vec{};
        transpose(square);
        const int words = smaller(LANES, pieces(K - k, 2));
        float* out = to + i64(k / 2) * width + j;
        ROLLED for (int i = 0; i < words; i++) store(out + i64(i) * width, square[i]);
      }
  } else {
    for (int k = 0; k < K; k += 2, to += width)
      for (int j = 0; j < width; j++) {
        const bf16* from = B + k * BK + j * BN;
        ((u32*)to)[j] = j < count ? pair(from[0], k + 1 < K ? from[BK] : bf16{}) : 0;
      }
  }
}

// to[strip][word][ROWS] = the strips of `rows` rows of A, K numbers deep.
template <int ROWS>
SHARED void pack_pair_strips(const bf16* A, i64 AM, i64 AK, float* to, int rows, int K) {
  constexpr int FEW = 32;  // numbers at a time: the lines that strips share stay in L1
  const int words = pieces(K, 2);
  for (int k0 = 0; k0 < K; k0 += FEW)
    for (int s = 0; s * ROWS < rows; s++) {
      const int until = smaller(K, k0 + FEW), here = smaller(ROWS, rows - s * ROWS);
      u32* out = (u32*)to + (i64(s) * words + k0 / 2) * ROWS;
      const bf16* from = A + s * ROWS * AM + k0 * AK;
      ROLLED for (int k = k0; k < until; k += 2, from += 2 * AK, out += ROWS)
        for (int i = 0; i < here; i++)
          out[i] = pair(from[i * AM], k + 1 < K ? from[i * AM + AK] : bf16{});
    }
}

// to[row][words, and some] = `rows` rows of A, K contiguous numbers each.
SHARED void pack_pair_rows(const bf16* A, i64 AM, float* to, i64 step, int rows, int K) {
  ROLLED for (int i = 0; i < rows; i++, A += AM, to += step) {
    memcpy(to, A, 2 * K);
    if (K % 2) ((u16*)to)[K] = 0;
  }
}
