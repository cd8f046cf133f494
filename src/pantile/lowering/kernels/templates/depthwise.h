// Depthwise convolution: each channel by itself, vectors of channels side by side.
//
//   y[pixel][c] = sum over taps of x[pixel + tap][c] * weight[tap][c]       C::IC == C::OC channels
//
// The weight is packed [channels / LANES][kh][kw][LANES]. A tile is some pixels of a row and one
// vector of channels: a tap's weights are loaded once for all of them. Pixels whose taps partly
// hit the padding (or, for the input with a stride, nothing) go one by one over the taps that hit.

#pragma once

constexpr int DEPTHWISE_PIXELS = REGISTERS / 4;

template <class C>
constexpr i64 depthwise_packed = (i64)conv_ceil(C::IC, LANES) * C::KH * C::KW * LANES;

template <class C, class Number>
INLINE void pack_depthwise(const Number* weight, float* packed, int t, int T) {
  constexpr int TAPS = C::KH * C::KW, BLOCKS = conv_ceil(C::IC, LANES);
  ROLLED for (int block = share(BLOCKS, t, T); block < share(BLOCKS, t + 1, T); block++)
    ROLLED for (int tap = 0; tap < TAPS; tap++)
      ROLLED for (int lane = 0; lane < LANES; lane++) {
        int channel = block * LANES + lane;
        float value = channel < C::IC ? widened(weight[channel * TAPS + tap]) : 0.0f;
        packed[((i64)block * TAPS + tap) * LANES + lane] = value;
      }
}

// The first COUNT lanes of memory that ends there; the rest zeros.
template <int COUNT>
INLINE vec depthwise_load(const float* from) {
  if constexpr (COUNT == LANES) return load(from);
  vec value{};
  memcpy(&value, from, sizeof(float) * COUNT);
  return value;
}

// Taps first, first + EVERY, ... (count of them) hit source places at, at + NEXT, ...
struct DepthwiseTaps {
  int first, count, at;
};

// Which taps of one direction read the source of a pixel: forward, or for the gradient to x.
template <bool FORWARD, int K, int S, int P, int D, int SIZE>
struct DepthwiseLine {
  static constexpr int EVERY = FORWARD ? 1 : S / conv_gcd(S, D);
  static constexpr int NEXT = FORWARD ? D : -(D * EVERY) / S;
  INLINE DepthwiseTaps taps(int pixel) {
    DepthwiseTaps taps{0, 0, 0};
    ROLLED for (int k = K - 1; k >= 0; k--) {
      int at = FORWARD ? pixel * S - P + k * D : pixel + P - k * D;
      if (!FORWARD && (at < 0 || at % S)) continue;
      at = FORWARD ? at : at / S;
      if (at >= 0 && at < SIZE) taps = {k, taps.count + 1, at};
    }
    return taps;
  }
};

// Both directions: source (of SN, SH, SW strides) to ep, for pixels HEIGHT x WIDTH.
template <class C, bool FORWARD>
struct Depthwise {
  static constexpr int HEIGHT = FORWARD ? C::OH : C::H, WIDTH = FORWARD ? C::OW : C::W;
  static constexpr i64 SN = FORWARD ? C::XN : C::YN, SH = FORWARD ? C::XH : C::YH;
  static constexpr int SW = FORWARD ? C::XW : C::YW, STEP = FORWARD ? C::SW * SW : SW;
  static constexpr int BLOCKS = conv_ceil(C::IC, LANES), LAST = C::IC - (BLOCKS - 1) * LANES;
  using Rows = DepthwiseLine<FORWARD, C::KH, C::SH, C::PH, C::DH, FORWARD ? C::H : C::OH>;
  using Columns = DepthwiseLine<FORWARD, C::KW, C::SW, C::PW, C::DW, FORWARD ? C::W : C::OW>;

  // PIXELS pixels that the same taps hit, STEP apart in the source.
  template <int PIXELS, int COUNT>
  INLINE void tile(const float* source, const float* weight, DepthwiseTaps rows,
                   DepthwiseTaps columns, float* out) {
    vec sums[PIXELS];
    UNROLLED for (int i = 0; i < PIXELS; i++) sums[i] = vec{};
    ROLLED for (int row = 0; row < rows.count; row++) {
      const float* from = source + (rows.at + row * Rows::NEXT) * SH + (i64)columns.at * SW;
      int tap = (rows.first + row * Rows::EVERY) * C::KW + columns.first;
      ROLLED for (int column = 0; column < columns.count; column++) {
        vec weights = load(weight + (i64)(tap + column * Columns::EVERY) * LANES);
        const float* at = afresh(from + column * Columns::NEXT * SW);
        UNROLLED for (int i = 0; i < PIXELS; i++)
          sums[i] += depthwise_load<COUNT>(at + i * STEP) * weights;
      }
    }
    UNROLLED for (int i = 0; i < PIXELS; i++) *(vec*)(out + i * LANES) = sums[i];
  }

  // One row of pixels of one vector of channels: ep(w, channels).
  template <int COUNT, class Ep>
  INLINE void row(const float* source, const float* weight, DepthwiseTaps rows, Ep ep) {
    alignas(64) float out[DEPTHWISE_PIXELS * LANES];
    int w = 0;
    ROLLED while (w < WIDTH) {
      DepthwiseTaps columns = Columns::taps(w);
      bool whole = (FORWARD || C::SW == 1) && w + DEPTHWISE_PIXELS <= WIDTH &&
                   columns.count == C::KW &&
                   Columns::taps(w + DEPTHWISE_PIXELS - 1).count == C::KW;
      int pixels = whole ? DEPTHWISE_PIXELS : 1;
      if (whole) tile<DEPTHWISE_PIXELS, COUNT>(source, weight, rows, columns, out);
      else tile<1, COUNT>(source, weight, rows, columns, out);
      ROLLED for (int i = 0; i < pixels; i++) ep(w + i, out + i * LANES);
      w += pixels;
    }
  }

  template <class Ep>
  INLINE void run(const float* source, const float* packed, int t, int T, Ep ep) {
    constexpr int UNITS = C::N * HEIGHT;
    ROLLED for (int unit = share(UNITS, t, T); unit < share(UNITS, t + 1, T); unit++) {
      int n = unit / HEIGHT, h = unit % HEIGHT;
      DepthwiseTaps rows = Rows::taps(h);
      ROLLED for (int block = 0; block < BLOCKS; block++) {
        const float* from = source + n * SN + block * LANES;
        const float* weight = packed + (i64)block * C::KH * C::KW * LANES;
        auto whole = [&](int w, const float* channels) INLINE_CALL {
          ep(n, h, w, block * LANES, LANES, channels);
        };
        auto rest = [&](int w, const float* channels) INLINE_CALL {
          ep(n, h, w, block * LANES, LAST, channels);
        };
        if (LAST == LANES || block < BLOCKS - 1) row<LANES>(from, weight, rows, whole);
        else if constexpr (LAST < LANES) row<LAST>(from, weight, rows, rest);
      }
    }
  }
};

// ep(n, oh, ow, c0, count, channels) gets every pixel of y.
template <class C, class Ep>
INLINE void depthwise_forward(const float* x, const float* packed, int t, int T, Ep ep) {
  Depthwise<C, true>::run(x, packed, t, T, ep);
}

// ep(n, h, w, c0, count, channels) gets every pixel of the gradient to x.
template <class C, class Ep>
INLINE void depthwise_input(const float* dy, const float* packed, int t, int T, Ep ep) {
  Depthwise<C, false>::run(dy, packed, t, T, ep);
}

// The sums of one row of taps over all pixels, for COUNT channels. Columns [from, until) of y are
// hit by every tap of the row; the others are taken tap by tap. Sums are put aside every 64 pixels or
// so: one long sum was twice as far from float64 as oneDNN's.
template <class C, int COUNT>
APART void depthwise_sum(const float* x, const float* dy, int kh, float* out) {
  constexpr int FROM = conv_min(C::OW, conv_ceil(C::PW, C::SW));
  constexpr int UNTIL =
      conv_max(FROM, conv_min(C::OW, conv_ceil(C::W + C::PW - (C::KW - 1) * C::DW, C::SW)));
  constexpr int EVERY = conv_max(1, 64 / C::OW);
  vec sums[C::KW];
  UNROLLED for (int kw = 0; kw < C::KW; kw++) *(vec*)(out + kw * LANES) = sums[kw] = vec{};
  int rows = 0;
  const auto put_aside = [&]() INLINE_CALL {
    UNROLLED for (int kw = 0; kw < C::KW; kw++) {
      *(vec*)(out + kw * LANES) += sums[kw];
      sums[kw] = vec{};
    }
    rows = 0;
  };
  ROLLED for (int n = 0; n < C::N; n++)
    ROLLED for (int oh = 0; oh < C::OH; oh++) {
      int h = oh * C::SH - C::PH + kh * C::DH;
      if (h < 0 || h >= C::H) continue;
      const float* from = x + (i64)n * C::XN + (i64)h * C::XH - C::PW * C::XW;
      const float* by = dy + (i64)n * C::YN + (i64)oh * C::YH;
      ROLLED for (int ow = FROM; ow < UNTIL; ow++) {
        vec outputs = depthwise_load<COUNT>(by + (i64)ow * C::YW);
        UNROLLED for (int kw = 0; kw < C::KW; kw++)
          sums[kw] +=
              outputs * depthwise_load<COUNT>(from + (i64)(ow * C::SW + kw * C::DW) * C::XW);
      }
      ROLLED for (int ow = FROM > 0 ? 0 : UNTIL; ow < C::OW; ow = ow + 1 == FROM ? UNTIL : ow + 1) {
        vec outputs = depthwise_load<COUNT>(by + (i64)ow * C::YW);
        UNROLLED for (int kw = 0; kw < C::KW; kw++) {
          int column = ow * C::SW + kw * C::DW;
          if (column >= C::PW && column < C::W + C::PW)
            sums[kw] += outputs * depthwise_load<COUNT>(from + (i64)column * C::XW);
        }
      }
      if (++rows == EVERY) put_aside();
    }
  put_aside();
}

// ep(kh, kw, c0, count, channels) gets every tap of every vector of channels. Threads share those.
template <class C, class Ep>
INLINE void depthwise_weight(const float* x, const float* dy, int t, int T, Ep ep) {
  constexpr int BLOCKS = conv_ceil(C::IC, LANES), LAST = C::IC - (BLOCKS - 1) * LANES;
  constexpr int UNITS = BLOCKS * C::KH;
  alignas(64) float out[C::KW * LANES];
  ROLLED for (int unit = share(UNITS, t, T); unit < share(UNITS, t + 1, T); unit++) {
    int kh = unit % C::KH, c = unit / C::KH * LANES;
    if (LAST == LANES || c + LANES <= C::IC) {
      depthwise_sum<C, LANES>(x + c, dy + c, kh, out);
      ROLLED for (int kw = 0; kw < C::KW; kw++) ep(kh, kw, c, LANES, out + kw * LANES);
    } else {
      depthwise_sum<C, LAST>(x + c, dy + c, kh, out);
      ROLLED for (int kw = 0; kw < C::KW; kw++) ep(kh, kw, c, LAST, out + kw * LANES);
    }
  }
}
