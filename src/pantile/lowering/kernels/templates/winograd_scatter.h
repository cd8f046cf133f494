// The gradient to the input of a convolution of 3 x 3 taps, by winograd.h's transformations transposed:
//
//   for a block of tiles of 2 x 2 pixels of dy
//     dy   2 x 2 pixels of each   ─ transformed ─►   inputs  [16][tile][K]
//     for a panel of NR channels
//       products[strip][16][tile][NR]  =  inputs[16][tile][K]  *  weights [panel][16][K][NR]
//       products ─ transformed ─► 4 x 4 pixels of each tile, which overlap those of its neighbours:
//
//           done   ▓▓▓▓▓▓▓▓   the first two rows of a row of tiles, added to what is there
//           next   ░░░░░░░░   the last two: the next row of tiles adds to them
//
// Without padding dy is smaller than dx, and so there are fewer tiles than winograd.h's way has for the
// same gradient: 36 instead of 49 where dx has 13 x 13 pixels. Blocks are whole images, or whole rows of
// tiles of one. Threads share images and panels; no sum depends on them.

#pragma once

template <class C>
struct WinogradScatter {
  static constexpr int K = C::OC, M = C::IC, DOWN = conv_ceil(C::OH, 2), ACROSS = conv_ceil(C::OW, 2);
  static constexpr int NV = conv_vectors(M), NR = NV * LANES, PANELS = conv_ceil(M, NR);
  static constexpr int LAST = M - (PANELS - 1) * NR;
  static constexpr int FEW = (i64)16 * K * M > WINOGRAD_NEAR ? WINOGRAD_TILES : 1;
  static constexpr int FITTING = conv_max(FEW, (int)(WINOGRAD_INPUTS / (16 * K)));
  // Images of a group, no more than fill the strips: threads share groups. Larger images have several
  // bands of rows of tiles.
  static constexpr int IMAGES = conv_min(FITTING, WINOGRAD_TILES) / (DOWN * ACROSS);
  static constexpr int GROUPS = conv_ceil(C::N, conv_max(1, IMAGES));
  static constexpr int GROUP = conv_ceil(C::N, GROUPS);
  static constexpr int BANDS = GROUP > 1 ? 1 : conv_ceil(DOWN, conv_max(1, FITTING / ACROSS));
  static constexpr int BAND = conv_ceil(DOWN, BANDS), BLOCK = GROUP * BAND * ACROSS;
  static constexpr int STRIPS = conv_ceil(BLOCK, conv_pixels(NV)), MR = conv_ceil(BLOCK, STRIPS);
  static constexpr int ROWS = STRIPS * MR, STEP = K + LANES;  // no multiples of a page
  static constexpr i64 INPUT = (i64)ROWS * STEP + LANES;
  static constexpr i64 LINE = (i64)(2 * ACROSS + 2) * NR, LINES = 4 * LINE;
  static constexpr i64 packed = (i64)PANELS * 16 * K * NR;
  static constexpr i64 scratch = 16 * (INPUT + (i64)STRIPS * winograd_product(NV)) +
                                 LINES * (BANDS > 1 ? PANELS : 1);
};

// The same numbers for loops that serve all convolutions.
struct WinogradScatterPlan {
  WinogradImages dy;  // where tiles are
  int N, H, W, PH, PW, PANELS, LAST, GROUPS, GROUP, BANDS, BAND, STRIPS, MR, STEP;
  i64 INPUT, LINE;
  void (*products)(const float* inputs, const float* panel, int K, float* to);
};
template <class C, class S = WinogradScatter<C>>
constexpr WinogradScatterPlan winograd_scatter_plan = {
    {C::OC, C::OH, C::OW, C::OH, C::OW, 0, 0, C::YN, C::YH, C::YW},
    C::N, C::H, C::W, C::PH, C::PW, S::PANELS, S::LAST, S::GROUPS, S::GROUP, S::BANDS, S::BAND,
    S::STRIPS, S::MR, S::STEP, S::INPUT, S::LINE, winograd_products<S::MR, S::NV, S::STEP>};

// The taps in their order, as forward; panels of inputs.
template <class C>
constexpr ConvPack winograd_pack_scatter = winograd_pack_of<C, WinogradScatter<C>>;
template <int NV, class Number>
INLINE void pack_winograd_scatter(const ConvPack& pack, const Number* weight, float* packed, int t,
                                  int T) {
  winograd_pack_inputs<NV * LANES>(pack, weight, packed, (i64)WINOGRAD_CHUNK * NV * LANES, t, T);
}

// inputs[16][tile][K] of the tiles [first, first + count), `row` floats apart.
INLINE void winograd_scatter_inputs(const WinogradImages& dy, const float* from, int first, int count,
                                    float* inputs, i64 row, i64 step) {
  WinogradPlace at = winograd_place(dy, first);
  ROLLED for (int i = 0; i < count; i++, inputs += row, winograd_next(dy, at))
    winograd_dy_tile(from + at.n * dy.XN + at.h * dy.XH + at.w * dy.XW, dy.XH, dy.XW, dy.OH - at.h,
                     dy.OW - at.w, 0, dy.K, dy.K, inputs, step);
}

// The transpose of winograd_source.
INLINE void winograd_spread(vec (&d)[4][4]) {
  UNROLLED for (int i = 0; i < 4; i++) {
    const vec a = d[0][i], b = d[1][i], c = d[2][i], e = d[3][i];
    d[1][i] = b - c + e, d[2][i] = b + c - a, d[3][i] = -e;
  }
  UNROLLED for (int i = 0; i < 4; i++) {
    const vec a = d[i][0], b = d[i][1], c = d[i][2], e = d[i][3];
    d[i][1] = b - c + e, d[i][2] = b + c - a, d[i][3] = -e;
  }
}

// The pixels of a row of tiles. `products` are those of the first tile, which has `left` more tiles of
// its strip of MR behind it.
template <int NV>
APART_WHOLE void winograd_scatter_row(const float* products, int left, int MR, int across, float* done,
                                      float* next, i64 line) {
  constexpr int NR = NV * LANES, PRODUCT = winograd_product(NV);
  ROLLED for (int v = 0; v < NR; v += LANES) {
    const float* from = products + v;
    float *above = done + v, *below = next + v;
    vec edge[4][2] = {};  // what the tile before has in this one's first columns
    auto put = [&](const vec(&d)[4][2]) INLINE_CALL {
      UNROLLED for (int i = 0; i < 2; i++)
        UNROLLED for (int j = 0; j < 2; j++) {
          float* to = above + i * line + j * NR;
          store(to, load(to) + d[i][j]);
          store(below + i * line + j * NR, d[2 + i][j]);
        }
      above += 2 * NR, below += 2 * NR;
    };
    int rest = left;
    ROLLED for (int tile = 0; tile < across; tile++, from += NR, rest--) {
      if (rest == 0) from += 16 * PRODUCT - MR * NR, rest = MR;
      vec d[4][4], first[4][2];
      UNROLLED for (int i = 0; i < 4; i++)
        UNROLLED for (int j = 0; j < 4; j++) d[i][j] = load(from + (4 * i + j) * PRODUCT);
      winograd_spread(d);
      UNROLLED for (int i = 0; i < 4; i++)
        UNROLLED for (int j = 0; j < 2; j++) first[i][j] = d[i][j] + edge[i][j], edge[i][j] = d[i][2 + j];
      put(first);
    }
    put(edge);
  }
}

// Two rows of pixels from row h on, as far as they are in the image.
template <int NV, class Take>
INLINE void winograd_scatter_take(const WinogradScatterPlan& s, int n, int h, int panel,
                                  const float* lines, Take take) {
  constexpr int NR = NV * LANES;
  const int top = conv_max(0, -h), bottom = conv_min(2, s.H - h);
  if (top >= bottom) return;
  take({n, h + top, 0, 1, bottom - top, s.W, panel * NR, panel < s.PANELS - 1 ? NR : s.LAST,
        (int)s.LINE, lines + top * s.LINE + s.PW * NR});
}

// The pixels of some rows of tiles, the first of which is tile `first`, of one panel.
template <int NV, class Take>
INLINE void winograd_scatter_outputs(const WinogradScatterPlan& s, const float* products, int first,
                                     int rows, int panel, float* lines, Take take) {
  constexpr int NR = NV * LANES, PRODUCT = winograd_product(NV);
  const int down = conv_ceil(s.dy.OH, 2), across = conv_ceil(s.dy.OW, 2);
  const WinogradPlace start = winograd_place(s.dy, first);
  int n = start.n, row = start.h / 2;
  ROLLED for (int i = 0; i < rows; i++) {
    const int tile = i * across, strip = tile / s.MR, within = tile % s.MR;
    float *done = lines + (row & 1) * 2 * s.LINE, *next = lines + (~row & 1) * 2 * s.LINE;
    if (row == 0) memset(done, 0, 8 * s.LINE);
    winograd_scatter_row<NV>(products + (i64)strip * 16 * PRODUCT + within * NR, s.MR - within, s.MR,
                             across, done, next, s.LINE);
    winograd_scatter_take<NV>(s, n, 2 * row - s.PH, panel, done, take);
    if (++row < down) continue;
    winograd_scatter_take<NV>(s, n, 2 * row - s.PH, panel, next, take);
    row = 0, n++;
  }
}

template <int NV, class Take>
INLINE void winograd_scatter_run(const WinogradScatterPlan& s, const float* dy, const float* packed,
                                 float* scratch, int t, int T, Take take) {
  constexpr int NR = NV * LANES, PRODUCT = winograd_product(NV);
  const i64 K = s.dy.K;
  const int down = conv_ceil(s.dy.OH, 2), across = conv_ceil(s.dy.OW, 2);
  float *inputs = scratch, *products = inputs + 16 * s.INPUT;
  float* lines = products + (i64)16 * s.STRIPS * PRODUCT;
  const i64 end = share((i64)s.GROUPS * s.PANELS, t + 1, T);
  ROLLED for (i64 at = share((i64)s.GROUPS * s.PANELS, t, T); at < end;) {
    const int group = at / s.PANELS, from = at % s.PANELS;
    const int panels = conv_min(s.PANELS, from + (int)(end - at)), n = group * s.GROUP;
    at += panels - from;
    ROLLED for (int band = 0; band < s.BANDS; band++) {
      const int row = band * s.BAND, first = (n * down + row) * across;
      const int rows = conv_min(s.GROUP, s.N - n) * conv_min(s.BAND, down - row);
      const int count = rows * across;
      winograd_scatter_inputs(s.dy, dy, first, count, inputs, s.STEP, s.INPUT);
      ROLLED for (int panel = from; panel < panels; panel++) {
        const float* weights = packed + panel * 16 * K * NR;
        ROLLED for (int x = 0; x < 16; x++, weights += K * NR)
          ROLLED for (int strip = 0; strip * s.MR < count; strip++)  // may go beyond the tiles
            s.products(inputs + x * s.INPUT + (i64)strip * s.MR * s.STEP, weights, K,
                       products + (16 * strip + x) * PRODUCT);
        float* own = lines + (s.BANDS > 1 ? (i64)panel * 4 * s.LINE : 0);
        winograd_scatter_outputs<NV>(s, products, first, rows, panel, own, take);
      }
    }
  }
}

template <int NV>
APART_WHOLE void winograd_scatter_shared(const WinogradScatterPlan& plan, const float* dy,
                                         const float* packed, float* scratch, int t, int T,
                                         ConvTake take, const void* ep) {
  winograd_scatter_run<NV>(plan, dy, packed, scratch, t, T,
                           [=](const ConvPart& part) INLINE_CALL { take(ep, part); });
}

// dx from dy and the packed weight: ep(n, h, w, ic0, count, channels) gets every pixel of every panel.
// NV: vectors of a panel. WHOLE: the last panel is full, too.
template <int NV, bool WHOLE, class Ep>
INLINE void winograd_scatter_by(const WinogradScatterPlan& plan, const float* dy, const float* packed,
                                float* scratch, int t, int T, Ep ep) {
  winograd_scatter_shared<NV>(plan, dy, packed, scratch, t, T,
                              conv_take<NV * LANES, WHOLE, Ep>, &ep);
}

// The same in a function of its own, epilogue and all.
template <class C, class Ep>
INLINE void winograd_scatter(const float* dy, const float* packed, float* scratch, int t, int T,
                             Ep ep) {
  using S = WinogradScatter<C>;
  auto take = [&](const ConvPart& part) INLINE_CALL {
    conv_pixels_to<S::NR, S::LAST == S::NR>(part, ep);
  };
  winograd_scatter_run<S::NV>(winograd_scatter_plan<C>, dy, packed, scratch, t, T, take);
}
