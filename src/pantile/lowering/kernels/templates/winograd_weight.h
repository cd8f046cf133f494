// The gradient to a weight of 3 x 3 taps by the same transformations (winograd.h), transposed:
//
//   for a block of tiles
//     x   4 x 4 pixels of each   ─ transformed ─►   inputs   [16][part][tile][MR]
//     dy  2 x 2 pixels of each   ─ transformed ─►   outputs  [panel][16][tile][NR]
//     sums[panel][part][16][MR][NR]  +=  inputs * outputs, over the tiles of the block
//   sums ─ transformed ─► 3 x 3 taps of MR inputs and NR outputs, for the epilogue
//
// Threads share the pairs of panels and parts. Epilogues get rows of outputs, or (TURNED) for each
// output all taps of the inputs of a part, which lie side by side in torch's weights.

#pragma once

constexpr int WINOGRAD_INPUT_ROWS = LANES < 8 ? LANES : 8;

template <class C>
struct WinogradWeight : WinogradForward<C> {
  static constexpr int MR = WINOGRAD_INPUT_ROWS, PARTS = C::IC / MR;
  using WinogradForward<C>::NV, WinogradForward<C>::NR, WinogradForward<C>::PANELS;
  // Terms of a sum before it is put aside: few, so that all fits the second cache; or all there are.
  static constexpr int TERMS = WinogradForward<C>::TILES, MOST = TERMS <= 128 ? TERMS : 48;
  static constexpr int BLOCKS = conv_ceil(TERMS, MOST), BLOCK = conv_ceil(TERMS, BLOCKS);
  // No multiples of a page: 16 of these are written side by side.
  static constexpr i64 PART = (i64)BLOCK * MR, INPUT = PARTS * PART + LANES;
  static constexpr i64 OUTPUT = (i64)BLOCK * NR + LANES;
  static constexpr i64 SUMS = 16 * MR * NR, KEPT = BLOCKS > 1 ? PARTS * PANELS : 1;
  static constexpr i64 scratch = 16 * INPUT + PANELS * 16 * OUTPUT + KEPT * SUMS;
};

// The same numbers for loops that serve all convolutions.
struct WinogradWeightPlan {
  WinogradImages images;
  int OC, TILES, PANELS, PARTS, BLOCKS, BLOCK;
  i64 YN, YH, YW, PART, INPUT, OUTPUT;
};
template <class C, class S = WinogradWeight<C>>
constexpr WinogradWeightPlan winograd_weight_plan = {
    winograd_images<S>, C::OC, S::TILES, S::PANELS, S::PARTS, S::BLOCKS, S::BLOCK,
    C::YN,              C::YH, C::YW,    S::PART,   S::INPUT, S::OUTPUT};

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

template <int MR>
INLINE void winograd_x(const WinogradImages& of, const float* x, int first, int count,
                       float* inputs, i64 step, i64 part) {
  WinogradPlace at = winograd_place(of, first);
  ROLLED for (int i = 0; i < count; i++, inputs += MR, winograd_next(of, at)) {
    const WinogradSquare square = winograd_square(of, at);
    const float* from = x + square.from;
    const WinogradPart in = square.part;
    if (in.whole) winograd_x_tile<MR, true>(from, of.XH, of.XW, in, of.K, inputs, step, part);
    else winograd_x_tile<MR, false>(from, of.XH, of.XW, in, of.K, inputs, step, part);
  }
}

INLINE void winograd_dy(const WinogradWeightPlan& s, const float* dy, int first, int count, int from,
                        int end, int NR, float* outputs) {
  WinogradPlace at = winograd_place(s.images, first);
  ROLLED for (int i = 0; i < count; i++, outputs += NR, winograd_next(s.images, at))
    winograd_dy_tile(dy + at.n * s.YN + at.h * s.YH + at.w * s.YW, s.YH, s.YW, s.images.OH - at.h,
                     s.images.OW - at.w, from, end, NR, outputs, s.OUTPUT);
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

// What epilogues are given of a part: MR inputs, from `ic` on, and `channels` outputs from `oc` on.
template <int NV, bool TURNED>
struct WinogradTaps {
  static constexpr int MR = WINOGRAD_INPUT_ROWS, NR = NV * LANES;
  static constexpr int ROW = conv_turned_row(9 * MR), FLOATS = TURNED ? NR * ROW : 9 * MR * NR;

  // From the sums of the 16 products.
  INLINE void make(const float* sums, float* taps) {
    alignas(64) float plain[TURNED ? 9 * MR * NR : 1];
    float* to = TURNED ? plain : taps;
    ROLLED for (int row = 0; row < MR; row++)
      ROLLED for (int v = 0; v < NR; v += LANES)
        winograd_nine(sums + row * NR + v, MR * NR, to + 9 * row * NR + v, NR);
    if constexpr (TURNED) conv_turn(plain, NR, 9 * NR, 9, MR, NR, ROW, taps);
  }

  template <bool WHOLE, class Ep>
  INLINE void give(const Ep& ep, int ic, int oc, int channels, const float* taps) {
    if constexpr (TURNED) {
      ROLLED for (int i = 0; i < channels; i++) ep(oc + i, 9 * ic, 9 * MR, taps + i * ROW);
    } else {
      ROLLED for (int row = 0; row < 9 * MR; row++, taps += NR) {
        const int tap = row % 9;
        if (WHOLE || channels == NR) ep(tap / 3, tap % 3, ic + row / 9, oc, NR, taps);
        else ep(tap / 3, tap % 3, ic + row / 9, oc, channels, taps);
      }
    }
  }
};

// The same through a pointer, as in conv.h.
using WinogradTake = void (*)(const void* ep, int ic, int oc, int channels, const float* taps);

template <int NV, bool WHOLE, bool TURNED, class Ep>
APART void winograd_take(const void* with, int ic, int oc, int channels, const float* taps) {
  const Ep ep = *(const Ep*)with;  // a copy, which nothing that is stored can change
  WinogradTaps<NV, TURNED>::template give<WHOLE>(ep, ic, oc, channels, taps);
}

template <int NV, bool TURNED, class Take>
INLINE void winograd_weight_run(const WinogradWeightPlan& s, const float* x, const float* dy,
                                float* scratch, int t, int T, Take take) {
  using Taps = WinogradTaps<NV, TURNED>;
  constexpr int MR = Taps::MR, NR = Taps::NR, SUMS = 16 * MR * NR;
  float *inputs = scratch, *outputs = inputs + 16 * s.INPUT;
  float* kept = outputs + s.PANELS * 16 * s.OUTPUT;
  const int pairs = s.PANELS * s.PARTS, start = share(pairs, t, T), end = share(pairs, t + 1, T);
  if (start == end) return;
  const int first_panel = start / s.PARTS, panels = (end - 1) / s.PARTS + 1;
  ROLLED for (int block = 0; block < s.BLOCKS; block++) {
    const int first = block * s.BLOCK, count = conv_min(s.BLOCK, s.TILES - first);
    winograd_x<MR>(s.images, x, first, count, inputs, s.INPUT, s.PART);
    winograd_dy(s, dy, first, count, first_panel * NR, conv_min(s.OC, panels * NR), NR, outputs);
    ROLLED for (int panel = first_panel; panel < panels; panel++) {
      const int from = conv_max(start, panel * s.PARTS), to = conv_min(end, (panel + 1) * s.PARTS);
      const float* by = outputs + (i64)(panel - first_panel) * 16 * s.OUTPUT;
      const float* parts = inputs + (from - panel * s.PARTS) * s.PART;
      auto sum = [&](int i, int at, float* sums) INLINE_CALL {
        winograd_sum<MR, NV>(parts + i * s.INPUT + at * s.PART, by + i * s.OUTPUT, count,
                             sums + i * MR * NR, block == 0);
      };
      auto finish = [&](int at, const float* sums) INLINE_CALL {
        alignas(64) float taps[Taps::FLOATS];
        Taps::make(sums, taps);
        const int oc = panel * NR;
        take((from + at - panel * s.PARTS) * MR, oc, conv_min(NR, s.OC - oc), taps);
      };
      if (s.BLOCKS == 1) {  // each part is done at once, while its sums are in the nearest cache
        ROLLED for (int at = 0; at < to - from; at++) {
          ROLLED for (int i = 0; i < 16; i++) sum(i, at, kept);
          finish(at, kept);
        }
      } else {
        float* sums = kept + (i64)(from - start) * SUMS;
        ROLLED for (int i = 0; i < 16; i++)
          ROLLED for (int at = 0; at < to - from; at++) sum(i, at, sums + (i64)at * SUMS);
        if (block == s.BLOCKS - 1)
          ROLLED for (int at = 0; at < to - from; at++) finish(at, sums + (i64)at * SUMS);
      }
    }
  }
}

template <int NV, bool TURNED>
APART_WHOLE void winograd_weight_run_shared(const WinogradWeightPlan& plan, const float* x,
                                            const float* dy, float* scratch, int t, int T,
                                            WinogradTake take, const void* ep) {
  winograd_weight_run<NV, TURNED>(
      plan, x, dy, scratch, t, T,
      [=](int ic, int oc, int channels, const float* taps) INLINE_CALL {
        take(ep, ic, oc, channels, taps);
      });
}

// dw from x and dy: ep(kh, kw, ic, oc0, count, channels) gets every row of every panel; TURNED:
// ep(oc, first, count, taps). NV: vectors of a panel. WHOLE: the last panel is full, too.
template <int NV, bool WHOLE, bool TURNED = false, class Ep>
INLINE void winograd_weight_by(const WinogradWeightPlan& plan, const float* x, const float* dy,
                               float* scratch, int t, int T, Ep ep) {
  winograd_weight_run_shared<NV, TURNED>(plan, x, dy, scratch, t, T,
                                         winograd_take<NV, WHOLE, TURNED, Ep>, &ep);
}

// The same in a function of its own, epilogue and all.
template <class C, bool TURNED = false, class Ep>
INLINE void winograd_weight(const float* x, const float* dy, float* scratch, int t, int T, Ep ep) {
  using S = WinogradWeight<C>;
  winograd_weight_run<S::NV, TURNED>(
      winograd_weight_plan<C>, x, dy, scratch, t, T,
      [&](int ic, int oc, int channels, const float* taps) INLINE_CALL {
        WinogradTaps<S::NV, TURNED>::template give<S::LAST == S::NR>(ep, ic, oc, channels, taps);
      });
}
