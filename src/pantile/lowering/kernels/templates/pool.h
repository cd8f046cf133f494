// Max pooling of images with channels last, and its gradient.
//
//   x [n][h][w][c]   ->   y [n][oh][ow][c]        windows KH x KW, SH x SW apart
//
// The places of the maxima are not kept: the gradient finds them again from x, which it has anyway.
// As in torch a NaN is a maximum, and the first of equal values is. Images may be of 16 bits.

#pragma once

template <int N_, int C_, int H_, int W_, int OH_, int OW_, int KH_, int KW_, int SH_, int SW_,
          int PH_, int PW_, int DH_, int DW_, int XN_, int XH_, int XW_, int YN_ = 0, int YH_ = 0,
          int YW_ = 0>
struct Pool {
  static constexpr int N = N_, C = C_, H = H_, W = W_, OH = OH_, OW = OW_, KH = KH_, KW = KW_;
  static constexpr int SH = SH_, SW = SW_, PH = PH_, PW = PW_, DH = DH_, DW = DW_;
  static constexpr int XN = XN_, XH = XH_, XW = XW_, YN = YN_, YH = YH_, YW = YW_;
  // Windows that go over the border: by padding, or because the last ones are rounded up.
  static constexpr bool over = PH > 0 || PW > 0 || (OH - 1) * SH + (KH - 1) * DH >= H ||
                               (OW - 1) * SW + (KW - 1) * DW >= W;
  static constexpr bool apart = KH <= SH && KW <= SW && PH == 0 && PW == 0 && DH == 1 && DW == 1;
};

constexpr int POOL_BLOCK = 64;  // channels at a time: what fits into registers

// The largest values of a window in `best`, the numbers of their taps in `place`.
template <class P, int COUNT, class Number>
INLINE void pool_window(const Number* x, int oh, int ow, float* best, int* place) {
  for (int j = 0; j < COUNT; j++) best[j] = -__builtin_inff(), place[j] = -1;
  UNROLLED for (int kh = 0; kh < P::KH; kh++) UNROLLED for (int kw = 0; kw < P::KW; kw++) {
    const int h = oh * P::SH - P::PH + kh * P::DH, w = ow * P::SW - P::PW + kw * P::DW;
    if (P::over && ((unsigned)h >= (unsigned)P::H || (unsigned)w >= (unsigned)P::W))
      continue;
    const Number* from = x + (i64)h * P::XH + (i64)w * P::XW;
    const int tap = kh * P::KW + kw;
    LANEWISE for (int j = 0; j < COUNT; j++) {
      const float value = widened(from[j]), old = best[j];
      const bool larger = !(value <= old);  // also a NaN; one that is there stays
      const bool first = place[j] < 0;
      const bool taken = larger | first;
      const bool kept = (old != old) & (value == value);
      best[j] = (taken & !kept) ? value : old;
      place[j] = (taken & !kept) ? tap : place[j];
    }
  }
}

template <int C, class Body>
INLINE void pool_blocks(Body body) {
  constexpr int LAST = C % POOL_BLOCK;
  for (int c = 0; c + POOL_BLOCK <= C; c += POOL_BLOCK) body.template operator()<POOL_BLOCK>(c);
  if constexpr (LAST != 0) body.template operator()<LAST>(C - LAST);
}

template <class P, class Number, class Ep>
INLINE void max_pool(const Number* x, int t, int T, Ep ep) {
  for (i64 row = share(P::N * P::OH, t, T); row < share(P::N * P::OH, t + 1, T); row++) {
    const int n = row / P::OH, oh = row % P::OH;
    for (int ow = 0; ow < P::OW; ow++)
      pool_blocks<P::C>([&]<int COUNT>(int c) INLINE_CALL {
        alignas(64) float best[COUNT];
        int place[COUNT];
        pool_window<P, COUNT>(x + (i64)n * P::XN + c, oh, ow, best, place);
        ep(n, oh, ow, c, COUNT, best);
      });
  }
}

// Windows that do not overlap: each is looked at once, and gives all its pixels.
template <class P, class Given, class Number, class Ep>
INLINE void max_pool_input_apart(const Given* dy, const Number* x, int t, int T, Ep ep) {
  constexpr int ROWS = (P::H + P::SH - 1) / P::SH, COLUMNS = (P::W + P::SW - 1) / P::SW;
  for (i64 row = share(P::N * ROWS, t, T); row < share(P::N * ROWS, t + 1, T); row++) {
    const int n = row / ROWS, oh = row % ROWS;
    for (int ow = 0; ow < COLUMNS; ow++)
      pool_blocks<P::C>([&]<int COUNT>(int c) INLINE_CALL {
        alignas(64) float best[COUNT], given[COUNT];
        int place[COUNT];
        const bool inside = oh < P::OH && ow < P::OW;
        if (inside) {
          pool_window<P, COUNT>(x + (i64)n * P::XN + c, oh, ow, best, place);
          const Given* from = dy + (i64)n * P::YN + (i64)oh * P::YH + (i64)ow * P::YW + c;
          LANEWISE for (int j = 0; j < COUNT; j++) best[j] = widened(from[j]);
        }
        for (int kh = 0; kh < P::SH && oh * P::SH + kh < P::H; kh++)
          for (int kw = 0; kw < P::SW && ow * P::SW + kw < P::W; kw++) {
            const int tap = inside && kh < P::KH && kw < P::KW ? kh * P::KW + kw : -2;
            LANEWISE for (int j = 0; j < COUNT; j++) given[j] = place[j] == tap ? best[j] : 0.f;
            if (tap < 0) LANEWISE for (int j = 0; j < COUNT; j++) given[j] = 0.f;
            ep(n, oh * P::SH + kh, ow * P::SW + kw, c, COUNT, given);
          }
      });
  }
}

// Windows that overlap: each pixel asks all windows it is in.
template <class P, class Given, class Number, class Ep>
INLINE void max_pool_input_any(const Given* dy, const Number* x, int t, int T, Ep ep) {
  for (i64 row = share(P::N * P::H, t, T); row < share(P::N * P::H, t + 1, T); row++) {
    const int n = row / P::H, h = row % P::H;
    for (int w = 0; w < P::W; w++)
      pool_blocks<P::C>([&]<int COUNT>(int c) INLINE_CALL {
        alignas(64) float best[COUNT], sum[COUNT];
        int place[COUNT];
        LANEWISE for (int j = 0; j < COUNT; j++) sum[j] = 0.f;
        ROLLED for (int kh = 0; kh < P::KH; kh++) ROLLED for (int kw = 0; kw < P::KW; kw++) {
          const int down = h + P::PH - kh * P::DH, across = w + P::PW - kw * P::DW;
          if (down < 0 || across < 0 || down % P::SH || across % P::SW) continue;
          const int oh = down / P::SH, ow = across / P::SW;
          if (oh >= P::OH || ow >= P::OW) continue;
          pool_window<P, COUNT>(x + (i64)n * P::XN + c, oh, ow, best, place);
          const Given* from = dy + (i64)n * P::YN + (i64)oh * P::YH + (i64)ow * P::YW + c;
          const int tap = kh * P::KW + kw;
          LANEWISE for (int j = 0; j < COUNT; j++)
            sum[j] += place[j] == tap ? widened(from[j]) : 0.f;
        }
        ep(n, h, w, c, COUNT, sum);
      });
  }
}

template <class P, class Given, class Number, class Ep>
INLINE void max_pool_input(const Given* dy, const Number* x, int t, int T, Ep ep) {
  if constexpr (P::apart) max_pool_input_apart<P>(dy, x, t, T, ep);
  else max_pool_input_any<P>(dy, x, t, T, ep);
}
