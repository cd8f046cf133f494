// The gradient to the input: every pixel of x gathers the pixels of y it went into.
//
//   x pixel (h, w) meets y pixel ((h + PH - kh * DH) / SH, (w + PW - kw * DW) / SW) where both
//   divide; pixels of x with the same remainder (a phase) meet the same taps, so each phase is a
//   convolution of stride one with the taps of its own. A phase no tap reaches yields zeros.

#pragma once

// The taps of the phase `phase` in one direction: FIRST, FIRST + EVERY, ... (COUNT of them).
template <int PHASE, int K, int S, int P, int D>
struct ConvPhase {
  static constexpr int EVERY = S / conv_gcd(S, D);
  static constexpr int FIRST = [] {
    int tap = 0;
    while (tap < EVERY && conv_modulo(PHASE + P - tap * D, S)) tap++;
    return tap < EVERY ? tap : K;
  }();
  static constexpr int COUNT = conv_max(0, conv_ceil(K - FIRST, EVERY));
  static constexpr int OFFSET = COUNT ? (PHASE + P - FIRST * D) / S : 0;  // divides: exact
  static constexpr int NEXT = -(D * EVERY) / S;
};

// PAIRS: dy and weight are words of two bfloat16.
template <class C, bool PAIRS = false>
struct ConvInput {
  static constexpr int N = C::N, HEIGHT = C::H, WIDTH = C::W, CHANNELS = C::IC, K = C::OC;
  static constexpr int NR = C::input_panel, NV = NR / LANES, PANELS = C::input_panels;
  static constexpr int CHUNK = C::input_chunk, ROWTAPS = C::KH, TAPS = C::KW;
  static constexpr int WTAP = CHUNK * NR, WROW = TAPS * WTAP, PHASES = conv_min(C::SW, C::W);
  static constexpr int STEP = C::SW;
  static constexpr int IMAGES = conv_images(conv_ceil(C::W, C::SW), NV, C::N);
  static constexpr i64 SOURCE_IMAGE = C::YN, SOURCE_ROW = conv_ceil(C::YH, C::SH);

  template <class Pixels>
  static constexpr int ahead() {
    return C::OC < 16 || IMAGES > 1 ? 0 : conv_ceil(Pixels::WAITING, C::SH) * C::YH;
  }

  INLINE ConvRows rows(int h) {
    ConvRows rows{0, 0, 0};
    ROLLED for (int kh = C::KH - 1; kh >= 0; kh--) {
      int at = h + C::PH - kh * C::DH;
      if (at < 0 || at % C::SH || at / C::SH >= C::OH) continue;
      rows = {(i64)(at / C::SH) * C::YH, kh, rows.count + 1};
    }
    return rows;
  }
  // Pixels of one phase lie side by side in the sums of a row: how many, and how many before them.
  static constexpr int width(int phase) { return conv_ceil(C::W - phase, C::SW); }
  static constexpr int before(int phase) {
    return phase * (C::W / C::SW) + conv_min(phase, C::W % C::SW);
  }
  template <int AHEAD, int PHASE = 0>
  INLINE void row(const float* dy, const float* panel, int rows, int count, bool whole, float* out,
                  bool fresh) {
    using Columns = ConvPhase<PHASE, C::KW, C::SW, C::PW, C::DW>;
    using Rows = ConvPhase<0, C::KH, C::SH, C::PH, C::DH>;  // its step is the same in all phases
    using G = ConvRow<width(PHASE), IMAGES, 1, C::OW, Columns::COUNT, Columns::OFFSET,
                      Columns::NEXT, C::OC, CHUNK, C::YW, C::YN, Rows::NEXT * C::YH,
                      WTAP * Columns::EVERY, WROW * Rows::EVERY, NR, PHASE ? 0 : AHEAD, NV,
                      PAIRS>;
    conv_row<G, C::N % IMAGES>(dy, panel + (i64)Columns::FIRST * WTAP, rows, count, whole,
                               out + before(PHASE) * IMAGES * NR, fresh);
    if constexpr (PHASE + 1 < PHASES)
      row<AHEAD, PHASE + 1>(dy, panel, rows, count, whole, out, fresh);
  }
};

// dx from dy and the weight: ep(n, h, w, ic0, count, channels) gets every pixel of every panel.
template <class C, class Ep>
INLINE void conv_input(const float* dy, const float* packed, int t, int T, Ep ep) {
  conv_alone<ConvInput<C>>(dy, packed, t, T, ep);
}
