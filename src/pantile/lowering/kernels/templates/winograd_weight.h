// The gradient to a weight of 3 x 3 taps by the same transformations (winograd.h), transposed:
//
//   for a block of tiles
//     x   4 x 4 pixels of each   ─ transformed ─►   inputs   [16][part][tile][MR]
//     dy  2 x 2 pixels of each   ─ transformed ─►   outputs  [panel][16][tile][NR]
//     sums[panel][part][16][MR][NR]  +=  inputs * outputs, over the tiles of the block
//   sums ─ transformed ─► 3 x 3 taps of MR inputs and NR outputs, for the epilogue
//
// Threads share the pairs of panels and parts.

#pragma once

template <class C>
struct WinogradWeight : WinogradForward<C> {
  static constexpr int MR = LANES < 8 ? LANES : 8, PARTS = C::IC / MR;
  using WinogradForward<C>::NV, WinogradForward<C>::NR, WinogradForward<C>::PANELS;
  // Terms of a sum before it is put aside: few, so that all fits the second cache; or all there are.
  static constexpr int TERMS = WinogradForward<C>::TILES, MOST = TERMS <= 128 ? TERMS : 48;
  static constexpr int BLOCKS = conv_ceil(TERMS, MOST), BLOCK = conv_ceil(TERMS, BLOCKS);
  // No multiples of a page: 16 of these are written side by side.
  static constexpr i64 PART = (i64)BLOCK * MR, INPUT = PARTS * PART + LANES;
  static constexpr i64 OUTPUT = (i64)BLOCK * NR + LANES;
  static constexpr i64 SUMS = 16 * MR * NR, KEPT = PARTS * (BLOCKS > 1 ? PANELS : 1);
  static constexpr i64 scratch = 16 * INPUT + PANELS * 16 * OUTPUT + KEPT * SUMS;
};

// A vector to parts that lie `part` floats apart.
INLINE void winograd_split(float* to, i64 part, vec value) {
#if defined(__AVX512F__)
  typedef float half __attribute__((vector_size(32), aligned(4), may_alias));
  *(half*)to = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7);
  *(half*)(to + part) = __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  store(to, value);
#endif
}

// All inputs of one tile.
template <int MR, bool WHOLE>
APART_WHOLE void winograd_x_tile(const float* from, i64 XH, i64 XW, WinogradPart in, int K,
                                 float* to, i64 step, i64 part) {
  ROLLED for (int k = 0; k < K; k += LANES, to += LANES / MR * part) {
    vec d[4][4];
    winograd_load<WHOLE>(from + k, XH, XW, in, d);
    winograd_source(d);
    UNROLLED for (int i = 0; i < 4; i++)
      UNROLLED for (int j = 0; j < 4; j++) winograd_split(to + (4 * i + j) * step, part, d[i][j]);
  }
}

template <class S>
INLINE void winograd_x(const float* x, int first, int count, float* inputs) {
  ROLLED for (int i = 0; i < count; i++) {
    const WinogradSquare square = winograd_square<S>(first + i);
    float* to = inputs + (i64)i * S::MR;
    if (square.part.whole)
      winograd_x_tile<S::MR, true>(x + square.from, S::XH, S::XW, square.part, S::K, to, S::INPUT,
                                   S::PART);
    else
      winograd_x_tile<S::MR, false>(x + square.from, S::XH, S::XW, square.part, S::K, to, S::INPUT,
                                    S::PART);
  }
}

// Two numbers become four.
INLINE void winograd_pair(vec a, vec b, vec (&to)[4]) {
  to[0] = a, to[1] = a + b, to[2] = a - b, to[3] = -b;
}

// The 2 x 2 pixels of a tile that exist: `rows` x `columns`; LANES outputs of them.
INLINE void winograd_dy_lanes(const float* from, i64 YH, i64 YW, int rows, int columns, float* to,
                              i64 step) {
  vec d[2][2], half[2][4];
  UNROLLED for (int i = 0; i < 2; i++)
    UNROLLED for (int j = 0; j < 2; j++)
      d[i][j] = i < rows && j < columns ? load(from + i * YH + j * YW) : vec{};
  UNROLLED for (int i = 0; i < 2; i++) winograd_pair(d[i][0], d[i][1], half[i]);
  UNROLLED for (int j = 0; j < 4; j++) {
    vec column[4];
    winograd_pair(half[0][j], half[1][j], column);
    UNROLLED for (int i = 0; i < 4; i++) store(to + (4 * i + j) * step, column[i]);
  }
}

// Some outputs of one tile, panel by panel.
APART_WHOLE void winograd_dy_tile(const float* from, i64 YH, i64 YW, int rows, int columns,
                                  int first, int end, int NR, float* to, i64 step) {
  ROLLED for (int oc = first; oc < end; oc += LANES)
    winograd_dy_lanes(from + oc, YH, YW, rows, columns,
                      to + (i64)(oc - first) / NR * 16 * step + (oc - first) % NR, step);
}

template <class C>
INLINE void winograd_dy(const float* dy, int first, int count, int panel, int panels,
                        float* outputs) {
  using S = WinogradWeight<C>;
  ROLLED for (int i = 0; i < count; i++) {
    const WinogradPlace at = winograd_place<S>(first + i);
    winograd_dy_tile(dy + at.n * (i64)C::YN + at.h * (i64)C::YH + at.w * (i64)C::YW, C::YH, C::YW,
                     C::OH - at.h, C::OW - at.w, panel * S::NR, conv_min(C::OC, panels * S::NR),
                     S::NR, outputs + (i64)i * S::NR, S::OUTPUT);
  }
}

// The sums of MR inputs and NV vectors of outputs over some tiles.
template <int MR, int NV>
APART_WHOLE void winograd_sum(const float* inputs, const float* outputs, int tiles, float* sums,
                              bool fresh) {
  vec kept[MR][NV];
  UNROLLED for (int r = 0; r < MR; r++)
    UNROLLED for (int v = 0; v < NV; v++) kept[r][v] = vec{};
  ROLLED for (int tile = 0; tile < tiles; tile++, inputs += MR, outputs += NV * LANES) {
    vec by[NV];
    UNROLLED for (int v = 0; v < NV; v++) by[v] = load(outputs + v * LANES);
    UNROLLED for (int r = 0; r < MR; r++) {
      const vec input = spread(inputs[r]);
      UNROLLED for (int v = 0; v < NV; v++) kept[r][v] += input * by[v];
    }
  }
  UNROLLED for (int r = 0; r < MR; r++)
    UNROLLED for (int v = 0; v < NV; v++) {
      float* all = sums + (r * NV + v) * LANES;
      store(all, fresh ? kept[r][v] : load(all) + kept[r][v]);
    }
}

// Four numbers become three.
INLINE void winograd_four(vec a, vec b, vec c, vec e, vec (&to)[3]) {
  const vec both = 0.5f * (b + c);
  to[0] = a + both, to[1] = 0.5f * (b - c), to[2] = both + e;
}

// 16 vectors, `step` floats apart, become 9, `next` floats apart.
INLINE void winograd_nine(const float* from, i64 step, float* to, i64 next) {
  vec half[4][3];
  UNROLLED for (int i = 0; i < 4; i++) {
    const float* row = from + 4 * i * step;
    winograd_four(load(row), load(row + step), load(row + 2 * step), load(row + 3 * step), half[i]);
  }
  UNROLLED for (int j = 0; j < 3; j++) {
    vec column[3];
    winograd_four(half[0][j], half[1][j], half[2][j], half[3][j], column);
    UNROLLED for (int i = 0; i < 3; i++) store(to + (3 * i + j) * next, column[i]);
  }
}

// dw from x and dy: ep(kh, kw, ic, oc0, count, channels) gets every row of every panel.
template <class C, class Ep>
INLINE void winograd_weight(const float* x, const float* dy, float* scratch, int t, int T,
                                     Ep ep) {
  using S = WinogradWeight<C>;
  constexpr int NR = S::NR;
  float *inputs = scratch, *outputs = inputs + 16 * S::INPUT;
  float* kept = outputs + S::PANELS * 16 * S::OUTPUT;
  const int start = share(S::PANELS * S::PARTS, t, T), end = share(S::PANELS * S::PARTS, t + 1, T);
  if (start == end) return;
  const int first_panel = start / S::PARTS, panels = (end - 1) / S::PARTS + 1;
  ROLLED for (int block = 0; block < S::BLOCKS; block++) {
    const int first = block * S::BLOCK, count = conv_min(S::BLOCK, S::TILES - first);
    winograd_x<S>(x, first, count, inputs);
    winograd_dy<C>(dy, first, count, first_panel, panels, outputs);
    ROLLED for (int panel = first_panel; panel < panels; panel++) {
      const int from = conv_max(start, panel * S::PARTS), to = conv_min(end, (panel + 1) * S::PARTS);
      float* sums = S::BLOCKS > 1 ? kept + (from - start) * S::SUMS : kept;
      const float* by = outputs + (i64)(panel - first_panel) * 16 * S::OUTPUT;
      ROLLED for (int i = 0; i < 16; i++)
        ROLLED for (int at = from; at < to; at++)
          winograd_sum<S::MR, S::NV>(inputs + i * S::INPUT + at % S::PARTS * S::PART,
                                     by + i * S::OUTPUT, count,
                                     sums + (at - from) * S::SUMS + i * S::MR * NR, block == 0);
      if (block < S::BLOCKS - 1) continue;
      ROLLED for (int row = 0; row < (to - from) * S::MR; row++) {
        const int r = row % S::MR, part = from % S::PARTS + row / S::MR;
        alignas(64) float taps[9][NR];
        ROLLED for (int v = 0; v < NR; v += LANES)
          winograd_nine(sums + row / S::MR * S::SUMS + r * NR + v, S::MR * NR, taps[0] + v, NR);
        const int ic = part * S::MR + r, oc = panel * NR;
        ROLLED for (int tap = 0; tap < 9; tap++) {
          if (S::LAST == NR || panel < S::PANELS - 1) ep(tap / 3, tap % 3, ic, oc, NR, taps[tap]);
          else ep(tap / 3, tap % 3, ic, oc, S::LAST, taps[tap]);
        }
      }
    }
  }
}
