// Max pooling of images with channels last, and its gradient.
//
//   x [n][h][w][c]   ->   y [n][oh][ow][c]        windows KH x KW, SH x SW apart
//
// The places of the maxima are not kept: the gradient finds them again from x, which it has anyway.
// It may be written over x where windows do not overlap.
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

constexpr int POOL_BLOCK = 64;  // channels at a time
typedef int loose_mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// The taps of a window that meet a pixel: body(tap, pixel).
template <class P, class Number, class Body>
INLINE void pool_taps(const Number* x, int oh, int ow, Body body) {
  UNROLLED for (int kh = 0; kh < P::KH; kh++) UNROLLED for (int kw = 0; kw < P::KW; kw++) {
    const int h = oh * P::SH - P::PH + kh * P::DH, w = ow * P::SW - P::PW + kw * P::DW;
    if (P::over && ((unsigned)h >= (unsigned)P::H || (unsigned)w >= (unsigned)P::W))
      continue;
    body(kh * P::KW + kw, x + (i64)h * P::XH + (i64)w * P::XW);
  }
}

// Both of a few channels.
template <class P, int COUNT, class Number>
INLINE void pool_rest(const Number* x, int oh, int ow, float* best, int* place) {
  for (int j = 0; j < COUNT; j++) best[j] = -__builtin_inff(), place[j] = -1;
  pool_taps<P>(x, oh, ow, [&](int tap, const Number* from) INLINE_CALL {
    LANEWISE for (int j = 0; j < COUNT; j++) {
      const float value = widened(from[j]), old = best[j];
      const bool taken = (value > old) | (value != value) | (place[j] < 0);
      best[j] = taken ? value : old;
      place[j] = taken ? tap : place[j];
    }
  });
}

// Images come from afar: what the next row of windows reads is fetched meanwhile.
template <class P, class Number>
INLINE vec pool_load(const Number* from) {
  __builtin_prefetch(from + (i64)P::SH * P::XH);
  return load(from);
}

// The largest values of a window: of whole vectors, in registers until all taps are done.
template <class P, int COUNT, class Number>
INLINE void pool_maxima(const Number* x, int oh, int ow, float* best) {
  constexpr int WHOLE = COUNT / LANES * LANES;
  ROLLED for (int j = 0; j < WHOLE; j += LANES) {
    vec most = vec{} - __builtin_inff();
    lane_mask none = {};  // lanes where a NaN is
    pool_taps<P>(x + j, oh, ow, [&](int, const Number* from) INLINE_CALL {
      const vec value = pool_load<P>(from);
      most = value > most ? value : most;
      none |= value != value;
    });
    store(best + j, none ? vec{} + __builtin_nanf("") : most);
  }
  if constexpr (WHOLE < COUNT) {
    int place[COUNT - WHOLE];
    pool_rest<P, COUNT - WHOLE>(x + WHOLE, oh, ow, best + WHOLE, place);
  }
}

// The numbers of the taps where they are.
template <class P, int COUNT, class Number>
INLINE void pool_places(const Number* x, int oh, int ow, int* place) {
  constexpr int WHOLE = COUNT / LANES * LANES;
  const vec largest = vec{} + __builtin_inff();
  ROLLED for (int j = 0; j < WHOLE; j += LANES) {
    vec most = -largest;
    lane_mask at = lane_mask{} - 1;
    pool_taps<P>(x + j, oh, ow, [&](int tap, const Number* from) INLINE_CALL {
      const vec value = pool_load<P>(from);
      // Not below the largest so far, or a NaN, which counts as infinity from then on.
      const lane_mask taken = ~(value <= most) | (at < 0);
      most = taken ? (value < largest ? value : largest) : most;
      at = taken ? lane_mask{} + tap : at;
    });
    *(loose_mask*)(place + j) = at;
  }
  if constexpr (WHOLE < COUNT) {
    float best[COUNT - WHOLE];
    pool_rest<P, COUNT - WHOLE>(x + WHOLE, oh, ow, best, place + WHOLE);
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
        pool_maxima<P, COUNT>(x + (i64)n * P::XN + c, oh, ow, best);
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
        alignas(64) float whole[COUNT], given[COUNT];
        alignas(64) int place[COUNT];
        const bool inside = oh < P::OH && ow < P::OW;
        if (inside) {
          pool_places<P, COUNT>(x + (i64)n * P::XN + c, oh, ow, place);
          const Given* from = dy + (i64)n * P::YN + (i64)oh * P::YH + (i64)ow * P::YW + c;
          LANEWISE for (int j = 0; j < COUNT; j++) whole[j] = widened(from[j]);
        }
        for (int kh = 0; kh < P::SH && oh * P::SH + kh < P::H; kh++)
          for (int kw = 0; kw < P::SW && ow * P::SW + kw < P::W; kw++) {
            const int tap = inside && kh < P::KH && kw < P::KW ? kh * P::KW + kw : -2;
            LANEWISE for (int j = 0; j < COUNT; j++) given[j] = place[j] == tap ? whole[j] : 0.f;
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
        alignas(64) float sum[COUNT];
        alignas(64) int place[COUNT];
        LANEWISE for (int j = 0; j < COUNT; j++) sum[j] = 0.f;
        ROLLED for (int kh = 0; kh < P::KH; kh++) ROLLED for (int kw = 0; kw < P::KW; kw++) {
          const int down = h + P::PH - kh * P::DH, across = w + P::PW - kw * P::DW;
          if (down < 0 || across < 0 || down % P::SH || across % P::SW) continue;
          const int oh = down / P::SH, ow = across / P::SW;
          if (oh >= P::OH || ow >= P::OW) continue;
          pool_places<P, COUNT>(x + (i64)n * P::XN + c, oh, ow, place);
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
