// Convolutions of 3 x 3 taps and stride one with 16 multiplications for 4 pixels instead of 36
// (Winograd; Lavin and Gray, 2015).
//
//   for a block of tiles of 2 x 2 pixels of the result
//     source   4 x 4 pixels of each   ─ transformed ─►   inputs  [16][tile][K]
//     for a panel of NR channels
//       products[strip][16][tile][NR]  =  inputs[16][tile][K]  *  weights [panel][16][K][NR]
//       products ─ transformed ─► 2 x 2 pixels of each tile, for the epilogue
//
// The transformations only add and subtract (those of the weight also halve), so nothing is lost
// beyond what a sum in another order loses. Threads share blocks and panels; no sum depends on them.

#pragma once

// Floats of inputs that stay in the second cache, and of the weight beyond which a block must have
// more tiles, since all of the weight comes from afar for each.
constexpr i64 WINOGRAD_INPUTS = 48 * 1024, WINOGRAD_NEAR = 128 * 1024;
constexpr int WINOGRAD_TILES = 64;
constexpr int WINOGRAD_LONGEST = 64;  // additions in a row: a longer chain would lose digits

// From one of the 16 products of a strip of tiles to the next: a constant for all strips.
constexpr int winograd_product(int vectors) { return conv_pixels(vectors) * vectors * LANES; }

// Results of OH x OW pixels with M channels, from a source of H x W pixels with K channels.
template <int N_, int K_, int H_, int W_, int M_, int OH_, int OW_, int PH_, int PW_, i64 XN_,
          i64 XH_, i64 XW_>
struct Winograd {
  static constexpr int N = N_, K = K_, H = H_, W = W_, M = M_, OH = OH_, OW = OW_;
  static constexpr int PH = PH_, PW = PW_;
  static constexpr i64 XN = XN_, XH = XH_, XW = XW_;
  static constexpr int DOWN = conv_ceil(OH, 2), ACROSS = conv_ceil(OW, 2), TILES = N * DOWN * ACROSS;
  static constexpr int NV = conv_vectors(M), NR = NV * LANES, PANELS = conv_ceil(M, NR);
  static constexpr int LAST = M - (PANELS - 1) * NR;
  static constexpr int FEW = (i64)16 * K * M > WINOGRAD_NEAR ? WINOGRAD_TILES : 1;
  static constexpr int FITTING = conv_max(FEW, (int)(WINOGRAD_INPUTS / (16 * K)));
  static constexpr int BLOCKS = conv_ceil(TILES, FITTING), BLOCK = conv_ceil(TILES, BLOCKS);
  static constexpr int STRIPS = conv_ceil(BLOCK, conv_pixels(NV)), MR = conv_ceil(BLOCK, STRIPS);
  static constexpr int ROWS = STRIPS * MR, STEP = K + LANES;  // no multiples of a page
  static constexpr i64 INPUT = (i64)ROWS * STEP + LANES;
  static constexpr i64 packed = (i64)PANELS * 16 * K * NR;
  static constexpr i64 scratch = 16 * (INPUT + (i64)STRIPS * winograd_product(NV));
};

template <class C>
using WinogradForward = Winograd<C::N, C::IC, C::H, C::W, C::OC, C::OH, C::OW, C::PH, C::PW, C::XN,
                                 C::XH, C::XW>;
template <class C>
using WinogradInput = Winograd<C::N, C::OC, C::OH, C::OW, C::IC, C::H, C::W, 2 - C::PH, 2 - C::PW,
                               C::YN, C::YH, C::YW>;

// ---- Transformations ----------------------------------------------------------------------------

// Rows, then columns, of a square of 4 x 4.
INLINE void winograd_source(vec (&d)[4][4]) {
  UNROLLED for (int i = 0; i < 4; i++) {
    const vec a = d[0][i], b = d[1][i], c = d[2][i], e = d[3][i];
    d[0][i] = a - c, d[1][i] = b + c, d[2][i] = c - b, d[3][i] = b - e;
  }
  UNROLLED for (int i = 0; i < 4; i++) {
    const vec a = d[i][0], b = d[i][1], c = d[i][2], e = d[i][3];
    d[i][0] = a - c, d[i][1] = b + c, d[i][2] = c - b, d[i][3] = b - e;
  }
}

// The images of a convolution. These and all numbers below are no constants for the loops around the
// tiles, so that one function serves all convolutions.
struct WinogradImages {
  int K, H, W, OH, OW, PH, PW;
  i64 XN, XH, XW;
};
template <class S>
constexpr WinogradImages winograd_images = {S::K,  S::H,  S::W,  S::OH, S::OW,
                                            S::PH, S::PW, S::XN, S::XH, S::XW};

// Where a tile is: image, and the first of its pixels in the result.
struct WinogradPlace {
  int n, h, w;
};
INLINE WinogradPlace winograd_place(const WinogradImages& of, int tile) {
  const int across = conv_ceil(of.OW, 2), down = conv_ceil(of.OH, 2);
  return {tile / (down * across), tile / across % down * 2, tile % across * 2};
}
INLINE void winograd_next(const WinogradImages& of, WinogradPlace& at) {
  at.w += 2;
  if (at.w >= of.OW) at.w = 0, at.h += 2;
  if (at.h >= of.OH) at.h = 0, at.n++;
}

// The part of a 4 x 4 square that lies in the source: rows [top, bottom), columns [left, right).
struct WinogradPart {
  int top, bottom, left, right;
  bool whole;
};

// The square of the source under a tile: its first pixel, which may lie outside, and what is there.
struct WinogradSquare {
  i64 from;
  WinogradPart part;
};
INLINE WinogradSquare winograd_square(const WinogradImages& of, WinogradPlace at) {
  const int h = at.h - of.PH, w = at.w - of.PW;
  const bool whole = h >= 0 && w >= 0 && h + 4 <= of.H && w + 4 <= of.W;
  return {at.n * of.XN + h * of.XH + w * of.XW,
          {conv_max(0, -h), conv_min(4, of.H - h), conv_max(0, -w), conv_min(4, of.W - w), whole}};
}

// A vector of a pixel, zeros if it is not there. Without branches: 16 of them in a row made the code
// of a tile at the border eight times as long as that of others.
INLINE vec winograd_pixel(const float* from, bool there) {
#if defined(__AVX512F__)
  return __builtin_ia32_loadups512_mask(from, vec{}, (unsigned short)-there);
#else
  return there ? load(from) : vec{};
#endif
}

template <bool WHOLE>
INLINE void winograd_load(const float* from, i64 XH, i64 XW, WinogradPart in, vec (&d)[4][4]) {
  UNROLLED for (int i = 0; i < 4; i++)
    UNROLLED for (int j = 0; j < 4; j++) {
      const bool there = i >= in.top && i < in.bottom && j >= in.left && j < in.right;
      const float* pixel = from + i * XH + j * XW;
      d[i][j] = WHOLE ? load(pixel) : winograd_pixel(pixel, there);
    }
}

// All channels of one tile.
template <bool WHOLE>
APART_WHOLE void winograd_tile(const float* from, i64 XH, i64 XW, WinogradPart in, int K, float* to,
                               i64 step) {
  ROLLED for (int k = 0; k < K; k += LANES) {
    vec d[4][4];
    winograd_load<WHOLE>(from + k, XH, XW, in, d);
    winograd_source(d);
    UNROLLED for (int i = 0; i < 4; i++)
      UNROLLED for (int j = 0; j < 4; j++) store(to + (4 * i + j) * step + k, d[i][j]);
  }
}

// inputs[16][tile][K] of the tiles [first, first + count), `row` floats apart.
INLINE void winograd_inputs(const WinogradImages& of, const float* source, int first, int count,
                            float* inputs, i64 row, i64 step) {
  WinogradPlace at = winograd_place(of, first);
  ROLLED for (int i = 0; i < count; i++, inputs += row, winograd_next(of, at)) {
    const WinogradSquare square = winograd_square(of, at);
    const float* from = source + square.from;
    if (square.part.whole) winograd_tile<true>(from, of.XH, of.XW, square.part, of.K, inputs, step);
    else winograd_tile<false>(from, of.XH, of.XW, square.part, of.K, inputs, step);
  }
}

// The 2 x 2 pixels of a tile, NR floats each, from its 16 products, STEP floats apart; the second
// row is ROW floats behind the first.
template <int NR, int STEP, int ROW>
INLINE void winograd_pixels(const float* products, float* pixels) {
  ROLLED for (int v = 0; v < NR; v += LANES, products += LANES, pixels += LANES) {
    vec rows[2][4];
    UNROLLED for (int j = 0; j < 4; j++) {
      const vec a = load(products + (0 + j) * STEP), b = load(products + (4 + j) * STEP);
      const vec c = load(products + (8 + j) * STEP), e = load(products + (12 + j) * STEP);
      rows[0][j] = a + b + c, rows[1][j] = b - c - e;
    }
    UNROLLED for (int r = 0; r < 2; r++) {
      store(pixels + r * ROW, rows[r][0] + rows[r][1] + rows[r][2]);
      store(pixels + r * ROW + NR, rows[r][1] - rows[r][2] - rows[r][3]);
    }
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

// ---- Weights ------------------------------------------------------------------------------------

// Three taps become four numbers.
INLINE void winograd_taps(vec a, vec b, vec c, vec (&to)[4]) {
  const vec ends = 0.5f * (a + c), middle = 0.5f * b;
  to[0] = a, to[1] = ends + middle, to[2] = ends - middle, to[3] = c;
}

// 9 vectors, tap by tap `tap` floats apart, become 16, `step` floats apart.
INLINE void winograd_nine_taps(const float* from, i64 tap, float* to, i64 step) {
  vec rows[3][4];
  UNROLLED for (int i = 0; i < 3; i++) {
    const float* row = from + 3 * i * tap;
    winograd_taps(load(row), load(row + tap), load(row + 2 * tap), rows[i]);
  }
  UNROLLED for (int j = 0; j < 4; j++) {
    vec column[4];
    winograd_taps(rows[0][j], rows[1][j], rows[2][j], column);
    UNROLLED for (int i = 0; i < 4; i++) store(to + (4 * i + j) * step, column[i]);
  }
}

// `count` times NR channels: from[count][taps] or from[taps][count], as the strides say.
APART_WHOLE void winograd_weights(const float* from, i64 tap, i64 next, int count, int NR, float* to,
                                  i64 step) {
  ROLLED for (int k = 0; k < count; k++)
    ROLLED for (int v = 0; v < NR; v += LANES)
      winograd_nine_taps(from + k * next + v, tap, to + (i64)k * NR + v, step);
}

constexpr int WINOGRAD_CHUNK = 16;  // channels that are packed at a time

template <class C, class S>
constexpr ConvPack winograd_pack_of = {
    C::OC, C::IC, 9, S::PANELS, WINOGRAD_CHUNK, conv_ceil(S::K, WINOGRAD_CHUNK), S::packed};
template <class C>
constexpr ConvPack winograd_pack_forward = winograd_pack_of<C, WinogradForward<C>>;
template <class C>
constexpr ConvPack winograd_pack_input = winograd_pack_of<C, WinogradInput<C>>;

// What all directions do with K channels: fill(panel, k, count, buffer) packs some of a panel.
template <int NR, class Fill>
INLINE void winograd_pack(const ConvPack& pack, int K, float* packed, i64 tap, i64 next, int t, int T,
                          Fill fill) {
  const int end = share(pack.PANELS * pack.CHUNKS, t + 1, T);
  ROLLED for (int at = share(pack.PANELS * pack.CHUNKS, t, T); at < end; at++) {
    alignas(64) float buffer[9 * WINOGRAD_CHUNK * NR];
    const int panel = at / pack.CHUNKS, k = at % pack.CHUNKS * WINOGRAD_CHUNK;
    const int count = conv_min(WINOGRAD_CHUNK, K - k);
    fill(panel, k, count, buffer);
    const float* first = tap < 0 ? buffer - 8 * tap : buffer;
    winograd_weights(first, tap, next, count, NR, packed + ((i64)panel * 16 * K + k) * NR, (i64)K * NR);
  }
}

// NV: vectors of a panel.
template <int NV, class Number>
INLINE void pack_winograd_forward(const ConvPack& pack, const Number* weight, float* packed, int t,
                                  int T) {
  constexpr int NR = NV * LANES;
  winograd_pack<NR>(pack, pack.IC, packed, NR, 9 * NR, t, T,
                    [&](int panel, int k, int count, float* buffer) INLINE_CALL {
                      pack_plain<NR>(pack, weight, buffer, panel, k, k + count);
                    });
}

// The taps `tap` apart.
template <int NR, class Number>
INLINE void winograd_pack_inputs(const ConvPack& pack, const Number* weight, float* packed, i64 tap,
                                 int t, int T) {
  winograd_pack<NR>(pack, pack.OC, packed, tap, NR, t, T,
                    [&](int panel, int k, int count, float* buffer) INLINE_CALL {
                      pack_input_part<9, NR>(pack, weight, buffer, panel, k, count);
                    });
}

// In reverse order: the gradient turns the weight by half a circle.
template <int NV, class Number>
INLINE void pack_winograd_input(const ConvPack& pack, const Number* weight, float* packed, int t,
                                int T) {
  winograd_pack_inputs<NV * LANES>(pack, weight, packed, -(i64)WINOGRAD_CHUNK * NV * LANES, t, T);
}

// ---- Products -----------------------------------------------------------------------------------

// MR rows of inputs, STEP floats apart, times a panel: K numbers of each.
template <int MR, int NV, int STEP>
APART_WHOLE void winograd_products(const float* inputs, const float* panel, int K, float* to) {
  ROLLED for (int k = 0; k < K;) {
    const int end = conv_min(K, k + WINOGRAD_LONGEST);
    const bool fresh = k == 0;
    vec sums[MR][NV];
    UNROLLED for (int i = 0; i < MR; i++)
      UNROLLED for (int v = 0; v < NV; v++) sums[i][v] = vec{};
    ROLLED for (; k < end; k++, panel += NV * LANES) {
      vec weights[NV];
      UNROLLED for (int v = 0; v < NV; v++) weights[v] = load(panel + v * LANES);
      UNROLLED for (int i = 0; i < MR; i++) {
        const vec input = spread(inputs[i * STEP + k]);
        UNROLLED for (int v = 0; v < NV; v++) sums[i][v] += input * weights[v];
      }
    }
    UNROLLED for (int i = 0; i < MR; i++)
      UNROLLED for (int v = 0; v < NV; v++) {
        float* all = to + (i * NV + v) * LANES;
        store(all, fresh ? sums[i][v] : load(all) + sums[i][v]);
      }
  }
}

struct WinogradPlan {
  WinogradImages images;
  int TILES, PANELS, LAST, BLOCKS, BLOCK, MR, STEP;
  i64 INPUT;
  void (*products)(const float* inputs, const float* panel, int K, float* to);
};
template <class S>
constexpr WinogradPlan winograd_plan = {
    winograd_images<S>, S::TILES, S::PANELS, S::LAST,  S::BLOCKS,
    S::BLOCK,           S::MR,    S::STEP,   S::INPUT, winograd_products<S::MR, S::NV, S::STEP>};

constexpr int WINOGRAD_RUN = 4;  // tiles side by side whose pixels are handed over at once

// The pixels of the tiles [first, first + count), of one panel.
template <int NV, class Take>
INLINE void winograd_outputs(const WinogradPlan& s, const float* products, int first, int count,
                             int panel, Take take) {
  constexpr int NR = NV * LANES, ROW = 2 * WINOGRAD_RUN * NR, PRODUCT = winograd_product(NV);
  const int OH = s.images.OH, OW = s.images.OW, channels = panel < s.PANELS - 1 ? NR : s.LAST;
  WinogradPlace at = winograd_place(s.images, first);
  int left = s.MR;  // tiles of a strip
  ROLLED while (count > 0) {
    alignas(64) float pixels[2 * ROW];
    const int tiles = conv_min(conv_min(count, WINOGRAD_RUN), conv_ceil(OW - at.w, 2));
    ROLLED for (int i = 0; i < tiles; i++, products += NR) {
      if (left == 0) products += 16 * PRODUCT - s.MR * NR, left = s.MR;
      left--;
      winograd_pixels<NR, PRODUCT, ROW>(products, pixels + 2 * i * NR);
    }
    take({at.n, at.h, at.w, 1, conv_min(2, OH - at.h), conv_min(2 * tiles, OW - at.w), panel * NR,
          channels, ROW, pixels});
    count -= tiles, at.w += 2 * tiles - 2;
    winograd_next(s.images, at);
  }
}

template <int NV, class Take>
INLINE void winograd_run(const WinogradPlan& s, const float* source, const float* packed,
                         float* scratch, int t, int T, Take take) {
  constexpr int NR = NV * LANES, PRODUCT = winograd_product(NV);
  float *inputs = scratch, *products = scratch + 16 * s.INPUT;
  const i64 K = s.images.K;
  int known = -1;
  const int end = share((i64)s.BLOCKS * s.PANELS, t + 1, T);
  ROLLED for (int at = share((i64)s.BLOCKS * s.PANELS, t, T); at < end; at++) {
    const int block = at / s.PANELS, panel = at % s.PANELS, first = block * s.BLOCK;
    const int count = conv_min(s.BLOCK, s.TILES - first);
    if (block != known) winograd_inputs(s.images, source, first, count, inputs, s.STEP, s.INPUT);
    known = block;
    const float* weights = packed + panel * 16 * K * NR;
    ROLLED for (int x = 0; x < 16; x++, weights += K * NR)
      ROLLED for (int strip = 0; strip * s.MR < count; strip++)  // may go beyond the tiles
        s.products(inputs + x * s.INPUT + (i64)strip * s.MR * s.STEP, weights, K,
                   products + (16 * strip + x) * PRODUCT);
    winograd_outputs<NV>(s, products, first, count, panel, take);
  }
}

template <int NV>
APART_WHOLE void winograd_run_shared(const WinogradPlan& plan, const float* source,
                                     const float* packed, float* scratch, int t, int T,
                                     ConvTake take, const void* ep) {
  winograd_run<NV>(plan, source, packed, scratch, t, T,
                   [=](const ConvPart& part) INLINE_CALL { take(ep, part); });
}

// NV: vectors of a panel. WHOLE: the last panel is full, too.
template <int NV, bool WHOLE, class Ep>
INLINE void winograd_by(const WinogradPlan& plan, const float* source, const float* packed,
                        float* scratch, int t, int T, Ep ep) {
  winograd_run_shared<NV>(plan, source, packed, scratch, t, T,
                          conv_take<NV * LANES, WHOLE, Ep>, &ep);
}

// The same in a function of its own, epilogue and all.
template <class S, class Ep>
INLINE void winograd(const float* source, const float* packed, float* scratch, int t, int T, Ep ep) {
  auto take = [&](const ConvPart& part) INLINE_CALL {
    conv_pixels_to<S::NR, S::LAST == S::NR>(part, ep);
  };
  winograd_run<S::NV>(winograd_plan<S>, source, packed, scratch, t, T, take);
}
