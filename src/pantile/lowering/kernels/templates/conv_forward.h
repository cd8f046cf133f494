// Tiles of pixels: the loop nest shared by the forward pass and the gradient to the input.
//
//            pixels of one row (and of a few images, where rows are short)
//            +-----------------------------+
//   tile     | NR channels of each, in     |   +=  source[pixel + tap][k] * panel[tap][k][NR]
//            | registers                   |       for every tap that hits the source, every k
//            +-----------------------------+
//
// The tiles of a strip of rows go through one chunk of the weights after the other, which then
// stays in the nearest cache; between chunks the tiles' sums wait in a buffer.
//
// Which pixels a column tap hits is known when the program is compiled: tiles at a border have code
// of their own, where a tap multiplies only the pixels it hits; all other tiles share theirs.
// Row taps are a run-time range of each row. So no zero of the padding is ever multiplied.

#pragma once

#define INLINED inline __attribute__((always_inline))  // for members

// Floats of a strip: of its source and its result, in the second cache, and of the sums that wait
// between chunks.
constexpr i64 CONV_SOURCE_FLOATS = 64 * 1024, CONV_RESULT_FLOATS = 16 * 1024;
constexpr int CONV_WAITING_FLOATS = 6 * 1024;

// How the pixels of a row meet the columns of its source: pixel i, tap j reads column
// i * STEP + OFFSET + j * NEXT of WIDTH, its K channels in chunks; columns are XW apart, images XN.
// XROW, WROW: from row tap to row tap; WSTEP: from channel to channel; AHEAD: to the source of the
// next strip; FETCH: to what is asked for of a weight that comes from memory (0: nothing is).
// PAIRS: all numbers are words of two bfloat16 (conv_pairs.h).
template <int COUNT_, int IMAGES_, int STEP_, int WIDTH_, int TAPS_, int OFFSET_, int NEXT_, int K_,
          int CHUNK_, int XW_, int XN_, int XROW_, int WTAP_, int WROW_, int WSTEP_, int AHEAD_,
          int NV_, bool PAIRS_ = false, int FETCH_ = 0>
struct ConvRow {
  static constexpr int COUNT = COUNT_, IMAGES = IMAGES_, STEP = STEP_, WIDTH = WIDTH_;
  static constexpr int TAPS = TAPS_, OFFSET = OFFSET_, NEXT = NEXT_, K = K_, CHUNK = CHUNK_;
  static constexpr int XW = XW_, XN = XN_, XROW = XROW_, WTAP = WTAP_, WROW = WROW_;
  static constexpr int WSTEP = WSTEP_, AHEAD = AHEAD_, NV = NV_, NR = NV * LANES, FETCH = FETCH_;
  static constexpr bool PAIRS = PAIRS_;
  static constexpr int TILES = conv_max(1, conv_ceil(COUNT, conv_pixels(NV)));
  static constexpr int WIDE = conv_ceil(COUNT, TILES);

  static constexpr int width(int tile) { return conv_min(WIDE, COUNT - tile * WIDE); }
  // The pixels [first, last) of a tile that tap j hits, counted from the tile's first.
  static constexpr int first(int tile, int j) {
    return conv_min(width(tile), conv_max(0, conv_ceil(-OFFSET - j * NEXT, STEP) - tile * WIDE));
  }
  static constexpr int last(int tile, int j) {
    int end = conv_ceil(WIDTH - OFFSET - j * NEXT, STEP) - tile * WIDE;
    return conv_max(first(tile, j), conv_min(width(tile), end));
  }
  static constexpr bool hit_all(int tile, int j) {
    return first(tile, j) == 0 && last(tile, j) == width(tile);
  }
  static constexpr bool inner(int tile) {
    for (int j = 0; j < TAPS; j++)
      if (!hit_all(tile, j)) return false;
    return width(tile) == WIDE;
  }
  // Inner tiles, [INNER, BORDER), share one code; they lie between those of the two borders.
  static constexpr int INNER = [] {
    int tile = 0;
    while (tile < TILES && !inner(tile)) tile++;
    return tile;
  }();
  static constexpr int BORDER = [] {
    int tile = INNER;
    while (tile < TILES && inner(tile)) tile++;
    return tile;
  }();
};

// Adds `count` channels (times the panel) to the pixels [FROM, TO) of each image of a tile.
template <class G, int IMAGES, int WIDE, int FROM, int TO>
INLINE void conv_add(const float* x, const float* panel, int count,
                     vec (&sums)[IMAGES][WIDE][G::NV]) {
  auto step = [&](int k) INLINE_CALL {
    vec weights[G::NV];
    UNROLLED for (int v = 0; v < G::NV; v++) weights[v] = load(panel + (i64)k * G::WSTEP + v * LANES);
    if constexpr (G::FETCH)
      UNROLLED for (int v = 0; v < G::NR; v += 16)
        __builtin_prefetch(panel + (i64)k * G::WSTEP + G::FETCH + v, 0, 2);
    UNROLLED for (int image = 0; image < IMAGES; image++)
      UNROLLED for (int i = FROM; i < TO; i++) {
        const float* from = x + (i64)image * G::XN + i * G::STEP * G::XW + k;
        const vec pixel = G::PAIRS ? spread_pair(from) : spread(*from);
        UNROLLED for (int v = 0; v < G::NV; v++) {
          vec& sum = sums[image][i][v];
          sum = G::PAIRS ? add_pairs(sum, pixel, weights[v]) : sum + pixel * weights[v];
        }
      }
  };
  x = afresh(x);
  if constexpr (G::K <= 4) {
    UNROLLED for (int k = 0; k < G::K; k++) step(k);
  } else {
    ROLLED for (int k = 0; k < count; k++) step(k);
  }
}

// The taps J, J + 1, ... of one row tap, each with the pixels it hits; full ones share a loop.
template <class G, int TILE, int IMAGES, int WIDE, int J = 0>
INLINE void conv_taps(const float* x, const float* panel, int count,
                      vec (&sums)[IMAGES][WIDE][G::NV]) {
  if constexpr (J < G::TAPS) {
    constexpr int FROM = G::first(TILE, J), TO = G::last(TILE, J);
    constexpr int RUN = [] {
      int run = 0;
      while (J + run < G::TAPS && G::hit_all(TILE, J + run)) run++;
      return run;
    }();
    const float* from = x + (G::OFFSET + J * G::NEXT) * G::XW;
    const float* weights = panel + (i64)J * G::WTAP;
    if constexpr (RUN > 1) {
      ROLLED for (int j = 0; j < RUN; j++)
        conv_add<G, IMAGES, WIDE, 0, WIDE>(from + j * G::NEXT * G::XW, weights + (i64)j * G::WTAP,
                                           count, sums);
    } else if constexpr (FROM < TO) {
      conv_add<G, IMAGES, WIDE, FROM, TO>(from, weights, count, sums);
    }
    conv_taps<G, TILE, IMAGES, WIDE, J + conv_max(1, RUN)>(x, panel, count, sums);
  }
}

// Asks for what the tile at the same place will read of its newest row when its turn comes.
template <class G, int WIDE>
INLINE void conv_fetch(const float* x) {
  ROLLED for (int i = 0; i < WIDE * G::STEP; i++)
    UNROLLED for (int k = 0; k < conv_min(G::CHUNK, 64); k += 16)
      __builtin_prefetch(x + i * G::XW + k, 0, 2);
}

// One tile: x points at the column under its first pixel in the first of `rows` source rows.
// `out` holds the sums of the chunks before, unless there were none (fresh), and gets the new ones.
// Each chunk has sums of its own: one long chain of additions would lose digits.
template <class G, int TILE, int IMAGES>
APART_WHOLE void conv_tile(const float* x, const float* panel, int rows, int count, float* out,
                     bool fresh) {
  constexpr int WIDE = G::width(TILE);
  vec sums[IMAGES][WIDE][G::NV];
  UNROLLED for (int image = 0; image < IMAGES; image++)
    UNROLLED for (int i = 0; i < WIDE; i++)
      UNROLLED for (int v = 0; v < G::NV; v++) sums[image][i][v] = vec{};
  if constexpr (G::AHEAD) conv_fetch<G, WIDE>(x + G::AHEAD);
  ROLLED for (int row = 0; row < rows; row++)
    conv_taps<G, TILE, IMAGES, WIDE>(x + (i64)row * G::XROW, panel + (i64)row * G::WROW, count,
                                     sums);
  UNROLLED for (int image = 0; image < IMAGES; image++)
    UNROLLED for (int i = 0; i < WIDE; i++)
      UNROLLED for (int v = 0; v < G::NV; v++) {
        vec* all = (vec*)(out + ((image * WIDE + i) * G::NV + v) * LANES);
        *all = G::CHUNK == G::K || fresh ? sums[image][i][v] : *all + sums[image][i][v];
      }
}

// Runs the code of a tile known only at run time.
template <class G, int IMAGES, int TILE = 0>
INLINE void conv_run(int tile, const float* x, const float* panel, int rows, int count, float* out,
                     bool fresh) {
  constexpr int END = TILE == G::INNER && TILE < G::BORDER ? G::BORDER : TILE + 1;
  if constexpr (END >= G::TILES) {
    conv_tile<G, TILE, IMAGES>(x, panel, rows, count, out, fresh);
  } else {
    if (tile < END) conv_tile<G, TILE, IMAGES>(x, panel, rows, count, out, fresh);
    else conv_run<G, IMAGES, END>(tile, x, panel, rows, count, out, fresh);
  }
}

// All tiles of one row of IMAGES images, or of LEFT at the end; x points at column 0.
template <class G, int LEFT>
INLINE void conv_row(const float* x, const float* panel, int rows, int count, bool whole,
                     float* out, bool fresh) {
  ROLLED for (int tile = 0; tile < G::TILES; tile++) {
    int at = tile * G::WIDE;
    const float* from = x + (i64)at * G::STEP * G::XW;
    float* to = out + at * G::NR;
    if (LEFT == 0 || whole) conv_run<G, G::IMAGES>(tile, from, panel, rows, count, to, fresh);
    else conv_run<G, LEFT ? LEFT : 1>(tile, from, panel, rows, count, to, fresh);
  }
}

// The source rows of a row of pixels: from `source` (floats into an image) and row tap `tap` on.
struct ConvRows {
  i64 source;
  int tap, count;
};

// The sizes of what both directions do with a description D of one.
template <class D>
struct ConvPixels {
  static constexpr int IMAGES = D::IMAGES, NR = D::NR, CHUNKS = conv_ceil(D::K, D::CHUNK);
  static constexpr int LAST = D::CHANNELS - (D::PANELS - 1) * NR;
  static constexpr int UNIT = D::WIDTH * IMAGES * NR;  // sums of one row of some images
  static constexpr int UNITS = conv_ceil(D::N, IMAGES) * D::HEIGHT;
  static constexpr i64 CHUNK = (i64)D::ROWTAPS * D::TAPS * D::CHUNK * NR, PANEL = CHUNK * CHUNKS;
  static constexpr i64 SOURCE = D::SOURCE_ROW * IMAGES;
  // With several chunks all rows of a strip wait for the next chunk, else each is done at once.
  static constexpr int STRIP = conv_max(
      1, CHUNKS > 1 ? CONV_WAITING_FLOATS / UNIT
                    : conv_min(CONV_SOURCE_FLOATS / SOURCE,
                               CONV_RESULT_FLOATS / (D::WIDTH * IMAGES * D::CHANNELS)));
  static constexpr int WAITING = CHUNKS > 1 ? STRIP : 1;

  // All tiles of row h of some images: the source rows and row taps that it meets.
  static void row(const float* image, const float* weights, int h, int count, bool whole,
                  float* sums, bool fresh) {
    const ConvRows rows = D::rows(h);
    D::template row<D::template ahead<ConvPixels>()>(image + rows.source,
                                                     weights + (i64)rows.tap * D::WROW, rows.count,
                                                     count, whole, sums, fresh);
  }
};

// The same for the loops around the tiles, where they are no constants: one function serves all
// convolutions, in both directions.
struct ConvPlan {
  int N, HEIGHT, WIDTH, STEP, PHASES, K, NR, LAST, PANELS, IMAGES, CHANNELS, CHUNKS, UNIT, UNITS;
  int STRIP, WAITING;
  i64 CHUNK, PANEL, SOURCE, IMAGE;
  void (*row)(const float* image, const float* weights, int h, int count, bool whole, float* sums,
              bool fresh);
};
template <class D, class S = ConvPixels<D>>
constexpr ConvPlan conv_plan = {
    D::N,      D::HEIGHT, D::WIDTH, D::STEP,  D::PHASES, D::K,     S::NR,    S::LAST,
    D::PANELS, S::IMAGES, D::CHUNK, S::CHUNKS, S::UNIT,  S::UNITS, S::STRIP, S::WAITING,
    S::CHUNK,  S::PANEL,  S::SOURCE, D::SOURCE_IMAGE,    S::row};

// One row of some images is done: its pixels are handed over, phase by phase.
template <class Take>
INLINE void conv_hand_over(const ConvPlan& d, int panel, int n, int h, const float* sums,
                           Take take) {
  const int images = conv_min(d.IMAGES, d.N - n), count = panel < d.PANELS - 1 ? d.NR : d.LAST;
  ROLLED for (int phase = 0; phase < d.PHASES; phase++) {
    const int width = conv_ceil(d.WIDTH - phase, d.STEP);
    const float* first = sums;
    ROLLED for (int image = 0; image < images; image++, first += (i64)width * d.NR)
      take({n + image, h, phase, d.STEP, 1, width, panel * d.NR, count, 0, first});
    sums += (i64)d.IMAGES * width * d.NR;
  }
}

// One chunk for the rows [unit, end) of a strip; after the last chunk each row is handed over at
// once, so that the next row's work hides the misses of its stores.
template <class Take>
INLINE void conv_add_chunk(const ConvPlan& d, const float* source, const float* weights, int panel,
                           int chunk, int unit, int end, float* sums, Take take) {
  const int count = d.CHUNKS > 1 ? conv_min(d.CHANNELS, d.K - chunk * d.CHANNELS) : d.K;
  int n = unit / d.HEIGHT * d.IMAGES, h = unit % d.HEIGHT;
  ROLLED for (; unit < end; unit++, sums += d.UNIT) {
    d.row(source + n * d.IMAGE + chunk * d.CHANNELS, weights, h, count, d.N - n >= d.IMAGES, sums,
          chunk == 0);
    if (chunk == d.CHUNKS - 1) conv_hand_over(d, panel, n, h, sums, take);
    if (++h == d.HEIGHT) h = 0, n += d.IMAGES;
  }
}

// The rows [unit, units) of the panels [first, panels).
template <class Take>
INLINE void conv_run_part(const ConvPlan& d, const float* source, const float* packed, int unit,
                          int units, int first, int panels, float* sums, Take take) {
  ROLLED for (; unit < units; unit += d.STRIP) {
    int end = conv_min(units, unit + d.STRIP);
    ROLLED for (int panel = first; panel < panels; panel++)
      ROLLED for (int at = unit; at < end; at += d.WAITING)
        ROLLED for (int chunk = 0; chunk < d.CHUNKS; chunk++)
          conv_add_chunk(d, source, packed + panel * d.PANEL + chunk * d.CHUNK, panel, chunk, at,
                         conv_min(end, at + d.WAITING), sums, take);
  }
}

// All pixels of all panels. Threads share the rows, or the panels if those are more.
template <class Take>
INLINE void conv_run(const ConvPlan& d, const float* source, const float* packed, int t, int T,
                     Take take) {
  const bool by_panels =
      d.UNITS < T || (d.PANELS % T == 0 && d.PANEL * d.PANELS > d.SOURCE * d.UNITS);
  const int unit = by_panels ? 0 : share(d.UNITS, t, T);
  const int units = by_panels ? d.UNITS : share(d.UNITS, t + 1, T);
  const int first = by_panels ? share(d.PANELS, t, T) : 0;
  const int panels = by_panels ? share(d.PANELS, t + 1, T) : d.PANELS;
  const u64 bytes = sizeof(float) * d.WAITING * d.UNIT;  // of the sums that wait between chunks
  float* sums = (float*)__builtin_alloca_with_align(bytes, 512);
  conv_run_part(d, source, packed, unit, units, first, panels, sums, take);
}

APART_WHOLE void conv_run_shared(const ConvPlan& plan, const float* source, const float* packed,
                                 int t, int T, ConvTake take, const void* ep) {
  conv_run(plan, source, packed, t, T, [=](const ConvPart& part) INLINE_CALL { take(ep, part); });
}

// NV: vectors of a panel. WHOLE: the last panel is full, too.
template <int NV, bool WHOLE, class Ep>
INLINE void conv_by(const ConvPlan& plan, const float* source, const float* packed, int t, int T,
                    Ep ep) {
  conv_run_shared(plan, source, packed, t, T, conv_take<NV * LANES, WHOLE, Ep>, &ep);
}

// The same in a function of its own, epilogue and all. Where a pixel takes a few multiplications only,
// this is faster: a first layer took 25 % longer in shared loops.
template <class D, class Ep>
INLINE void conv_alone(const float* source, const float* packed, int t, int T, Ep ep) {
  auto take = [&](const ConvPart& part) INLINE_CALL {
    conv_pixels_to<D::NR, D::CHANNELS % D::NR == 0>(part, ep);
  };
  conv_run(conv_plan<D>, source, packed, t, T, take);
}

// Images side by side in a tile: where one row alone leaves more than half of the registers idle.
constexpr int conv_images(int pixels, int vectors, int images) {
  return conv_min(images, conv_max(1, conv_pixels(vectors) / pixels));
}

// PLAIN: the weight is in the plain order. PAIRS: x and weight are words of two bfloat16.
template <class C, bool PLAIN = false, bool PAIRS = false>
struct ConvForward {
  static constexpr int N = C::N, HEIGHT = C::OH, WIDTH = C::OW, CHANNELS = C::OC, K = C::IC;
  static constexpr int NR = C::forward_panel, NV = NR / LANES, PANELS = C::forward_panels;
  static constexpr int CHUNK = C::forward_chunk, ROWTAPS = C::KH, TAPS = C::KW;
  static constexpr int WTAP = PLAIN ? NR : CHUNK * NR, WSTEP = PLAIN ? ROWTAPS * TAPS * NR : NR;
  static constexpr int WROW = C::KW * WTAP, IMAGES = conv_images(C::OW, NV, C::N);
  static constexpr int STEP = 1, PHASES = 1;  // pixels lie in the sums as in a row
  static constexpr i64 SOURCE_IMAGE = C::XN, SOURCE_ROW = (i64)C::SH * C::XH;
  // A large weight for a few pixels is not in any cache.
  static constexpr bool FAR =
      (i64)C::OC * C::IC * TAPS * ROWTAPS > 1 << 18 && N * HEIGHT * WIDTH <= 64;

  template <class Pixels>
  static constexpr int ahead() {
    int rows = Pixels::WAITING * C::SH + (C::KH - 1) * C::DH;
    return C::IC < 16 || IMAGES > 1 ? 0 : rows * C::XH;
  }

  INLINE ConvRows rows(int oh) {
    int top = oh * C::SH - C::PH;
    int first = conv_max(0, conv_ceil(-top, C::DH));
    int last = conv_min(C::KH, conv_ceil(C::H - top, C::DH));
    return {(i64)(top + first * C::DH) * C::XH, first, last - first};
  }
  template <int AHEAD>
  INLINE void row(const float* x, const float* panel, int rows, int count, bool whole, float* out,
                  bool fresh) {
    using G = ConvRow<C::OW, IMAGES, C::SW, C::W, C::KW, -C::PW, C::DW, C::IC, CHUNK, C::XW, C::XN,
                      C::DH * C::XH, WTAP, WROW, WSTEP, AHEAD, NV, PAIRS, FAR ? 8192 : 0>;
    conv_row<G, C::N % IMAGES>(x, panel, rows, count, whole, out, fresh);
  }
};

// y = x * weight: ep(n, oh, ow, oc0, count, channels) gets every pixel of every panel.
template <class C, class Ep>
INLINE void conv_forward(const float* x, const float* packed, int t, int T, Ep ep) {
  conv_alone<ConvForward<C>>(x, packed, t, T, ep);
}

// The same from the weight as it lies: each panel is packed just before its pixels, into `scratch`
// (forward_floats). Better where the weight is most of the data, as for a single image: it is read
// once from memory, and neither written nor read again. If the sums of all pixels can wait, each
// chunk is packed just before it is multiplied, and stays in the nearest cache.
template <class C, class Number, class Ep>
INLINE void conv_forward_packing(const float* x, const Number* weight, float* scratch, int t, int T,
                                 Ep ep) {
  using D = ConvForward<C, true>;
  constexpr const ConvPlan& d = conv_plan<D>;
  constexpr const ConvPack& pack = conv_pack_forward<C>;
  constexpr bool BY_CHUNKS = d.CHUNKS > 1 && d.UNITS <= d.WAITING;
  auto take = [&](const ConvPart& part) INLINE_CALL {
    conv_pixels_to<D::NR, D::CHANNELS % D::NR == 0>(part, ep);
  };
  alignas(64) float sums[d.WAITING * d.UNIT];
  ROLLED for (int panel = share(d.PANELS, t, T); panel < share(d.PANELS, t + 1, T); panel++) {
    if constexpr (BY_CHUNKS) {
      ROLLED for (int chunk = 0; chunk < d.CHUNKS; chunk++) {
        const int first = chunk * C::forward_chunk;
        pack_plain<D::NR>(pack, weight, scratch, panel, first, conv_min(C::IC, first + pack.CHUNK));
        conv_add_chunk(d, x, scratch, panel, chunk, 0, d.UNITS, sums, take);
      }
    } else {
      pack_plain<D::NR>(pack, weight, scratch, panel, 0, C::IC);
      conv_run_part(d, x, scratch - d.PANEL * panel, 0, d.UNITS, panel, panel + 1, sums, take);
    }
  }
}
