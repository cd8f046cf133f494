// Means of windows of images with channels last, and their gradient.
//
//   x [n][h][w][c]   ->   y [n][oh][ow][c]        each y: the mean of a window of x
//
// Windows are KH x KW, SH x SW apart, or (adaptive) parts of the image that are as even as may be.
// A window that reaches over the border is divided by all its taps, or by those inside.

#pragma once

enum AvgPool { AVG_INSIDE, AVG_ALL, AVG_ADAPTIVE };

// The taps of window o in one direction: [first, last) of the image; `all` also counts the padding.
struct AvgWindow {
  int first, last, all;
};

template <AvgPool HOW, int SIZE, int OUT, int K, int S, int P>
INLINE AvgWindow avg_window(int o) {
  if constexpr (HOW == AVG_ADAPTIVE) {
    const int first = (i64)o * SIZE / OUT, last = ((i64)(o + 1) * SIZE + OUT - 1) / OUT;
    return {first, last, last - first};
  } else {
    const int first = o * S - P, end = first + K;
    const int padded = end < SIZE + P ? end : SIZE + P;
    return {first > 0 ? first : 0, padded < SIZE ? padded : SIZE, padded - first};
  }
}

// The windows [first, last) that a pixel is in.
template <AvgPool HOW, int SIZE, int OUT, int K, int S, int P>
INLINE AvgWindow avg_windows_of(int pixel) {
  if constexpr (HOW == AVG_ADAPTIVE) {
    return {(int)((i64)pixel * OUT / SIZE), (int)(((i64)(pixel + 1) * OUT + SIZE - 1) / SIZE), 0};
  } else {
    const int late = pixel + P - K + S, last = (pixel + P) / S + 1;
    return {late > 0 ? late / S : 0, last < OUT ? last : OUT, 0};
  }
}

// What the sum of a window is divided by; DIVISOR, if it is not 0.
template <AvgPool HOW, int DIVISOR>
INLINE float avg_divisor(AvgWindow down, AvgWindow across) {
  if (DIVISOR) return DIVISOR;
  if (HOW == AVG_ALL) return (float)(down.all * across.all);
  return (float)((down.last - down.first) * (across.last - across.first));
}

template <class P, AvgPool HOW, int DIVISOR, class Number, class Ep>
INLINE void avg_pool(const Number* x, int t, int T, Ep ep) {
  for (i64 row = share(P::N * P::OH, t, T); row < share(P::N * P::OH, t + 1, T); row++) {
    const int n = row / P::OH, oh = row % P::OH;
    const AvgWindow down = avg_window<HOW, P::H, P::OH, P::KH, P::SH, P::PH>(oh);
    for (int ow = 0; ow < P::OW; ow++) {
      const AvgWindow across = avg_window<HOW, P::W, P::OW, P::KW, P::SW, P::PW>(ow);
      const float divisor = avg_divisor<HOW, DIVISOR>(down, across);
      pool_blocks<P::C>([&]<int COUNT>(int c) INLINE_CALL {
        alignas(64) float sums[COUNT];
        for (int j = 0; j < COUNT; j++) sums[j] = 0.f;
        ROLLED for (int h = down.first; h < down.last; h++)
          ROLLED for (int w = across.first; w < across.last; w++) {
            const Number* from = x + (i64)n * P::XN + (i64)h * P::XH + (i64)w * P::XW + c;
            LANEWISE for (int j = 0; j < COUNT; j++) sums[j] += widened(from[j]);
          }
        LANEWISE for (int j = 0; j < COUNT; j++) sums[j] /= divisor;
        ep(n, oh, ow, c, COUNT, sums);
      });
    }
  }
}

// Every pixel of x gathers its share of the windows it is in.
template <class P, AvgPool HOW, int DIVISOR, class Number, class Ep>
INLINE void avg_pool_input(const Number* dy, int t, int T, Ep ep) {
  for (i64 row = share(P::N * P::H, t, T); row < share(P::N * P::H, t + 1, T); row++) {
    const int n = row / P::H, h = row % P::H;
    const AvgWindow rows = avg_windows_of<HOW, P::H, P::OH, P::KH, P::SH, P::PH>(h);
    for (int w = 0; w < P::W; w++) {
      const AvgWindow columns = avg_windows_of<HOW, P::W, P::OW, P::KW, P::SW, P::PW>(w);
      pool_blocks<P::C>([&]<int COUNT>(int c) INLINE_CALL {
        alignas(64) float sums[COUNT];
        for (int j = 0; j < COUNT; j++) sums[j] = 0.f;
        ROLLED for (int oh = rows.first; oh < rows.last; oh++) {
          const AvgWindow down = avg_window<HOW, P::H, P::OH, P::KH, P::SH, P::PH>(oh);
          ROLLED for (int ow = columns.first; ow < columns.last; ow++) {
            const AvgWindow across = avg_window<HOW, P::W, P::OW, P::KW, P::SW, P::PW>(ow);
            const float part = 1.f / avg_divisor<HOW, DIVISOR>(down, across);
            const Number* from = dy + (i64)n * P::YN + (i64)oh * P::YH + (i64)ow * P::YW + c;
            LANEWISE for (int j = 0; j < COUNT; j++) sums[j] += widened(from[j]) * part;
          }
        }
        ep(n, h, w, c, COUNT, sums);
      });
    }
  }
}
