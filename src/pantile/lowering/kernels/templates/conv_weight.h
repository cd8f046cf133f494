// The gradient to the weight: tiles of rows (tap, input), times a panel of NR outputs.
//
//   sums [kh][kw][ic][NR]  +=  x[pixel + tap][ic] * dy[pixel][NR]      for the pixels the tap hits
//
//   for some panels, whose sums stay in the second cache:
//     for each strip of pixels, whose x and dy stay in the nearest:
//       every tile of every panel goes through the strip with its sums in registers.
//
// Many inputs: a tile is some inputs of one tap; the pixels of a tap are a rectangle, so nothing is
// multiplied by padding. Few inputs (a first layer): a tile is all inputs of many taps, which read
// a copy of the strip of x with the padding written out (it is small). Threads share the tiles.

#pragma once

// Floats of x and dy that make a strip, and of sums kept at a time.
constexpr i64 CONV_NEAR_FLOATS = 8 * 1024, CONV_SUMS_FLOATS = 80 * 1024;

template <class C>
struct ConvWeightSizes {
  static constexpr int MOST = REGISTERS - 4;  // rows of a tile one vector wide
  static constexpr bool FEW = C::IC <= 4 && C::KW * C::IC <= MOST;
  static constexpr int NR = FEW ? LANES : LANES * conv_vectors(C::OC), NV = NR / LANES;
  static constexpr int PANELS = conv_ceil(C::OC, NR), REST = C::OC % NR;

  // Tiles of one panel, their rows, and the rows of the last: of each tap, or (FEW) of all.
  static constexpr int TAPS = C::KH * C::KW, ROWS = TAPS * C::IC;
  static constexpr int PARTS = FEW ? 1 : conv_ceil(C::IC, conv_pixels(NV));
  static constexpr int MR = !FEW ? conv_ceil(C::IC, PARTS) : ROWS <= MOST ? ROWS : C::KW * C::IC;
  static constexpr int LAST = FEW ? MR : C::IC - (PARTS - 1) * MR;
  static constexpr int TILES = FEW ? ROWS / MR : TAPS * PARTS;

  static constexpr i64 ROW_FLOATS = (i64)C::SH * C::W * C::IC + (i64)C::OW * NR * (FEW ? PANELS : 1);
  static constexpr int STRIP_ROWS =
      conv_min(C::OH, conv_max(conv_ceil(64, C::OW), (int)(CONV_NEAR_FLOATS / ROW_FLOATS)));
  static constexpr int STRIP_IMAGES =
      STRIP_ROWS < C::OH
          ? 1
          : conv_min(C::N, conv_max(1, (int)(CONV_NEAR_FLOATS / (ROW_FLOATS * C::OH))));

  // The copy of x for few inputs: rows and columns that the taps of a strip read.
  static constexpr bool PADDED = FEW && (C::PH || C::PW);
  static constexpr int COPY_WIDTH = ((C::OW - 1) * C::SW + (C::KW - 1) * C::DW + 1) * C::IC;
  static constexpr int COPY_HEIGHT = (STRIP_ROWS - 1) * C::SH + (C::KH - 1) * C::DH + 1;
  static constexpr i64 COPY = PADDED ? (i64)STRIP_IMAGES * COPY_HEIGHT * COPY_WIDTH : 0;
  // The copy of a strip of dy, where the last panel's outputs do not fill it.
  static constexpr i64 OUTPUTS = REST ? (i64)STRIP_IMAGES * STRIP_ROWS * C::OW * NR : 0;

  static constexpr i64 SUMS = (i64)ROWS * NR;
  static constexpr int KEPT = conv_min(PANELS, conv_max(1, (int)(CONV_SUMS_FLOATS / SUMS)));
  static constexpr i64 SCRATCH = SUMS * KEPT + OUTPUTS + COPY;
};

// Where the rows of a tile lie in x: inputs side by side, or (Taps) inputs of successive taps.
struct ConvInputs {
  static constexpr int at(int row) { return row; }
};
template <int IC, int KW, int COLUMN, int ROW>
struct ConvTaps {
  static constexpr int at(int row) {
    return row / (IC * KW) * ROW + row / IC % KW * COLUMN + row % IC;
  }
};

// A rectangle of pixels in some images: `rows` x `columns` of each, and how far apart in x and dy.
struct ConvStrip {
  int images, rows, columns;
  i64 x_image, x_row, dy_image, dy_row;
};

template <class Rows, int MR, int NV, int XSTEP, int DSTEP>
APART void conv_sum(const float* x, const float* dy, ConvStrip strip, float* sums, bool fresh) {
  vec kept[MR][NV];
  UNROLLED for (int r = 0; r < MR; r++)
    UNROLLED for (int v = 0; v < NV; v++)
      kept[r][v] = fresh ? vec{} : load(sums + (r * NV + v) * LANES);
  ROLLED for (int image = 0; image < strip.images; image++)
    ROLLED for (int row = 0; row < strip.rows; row++) {
      const float* from = x + image * strip.x_image + row * strip.x_row;
      const float* by = dy + image * strip.dy_image + row * strip.dy_row;
      ROLLED for (int column = 0; column < strip.columns; column++) {
        vec outputs[NV];
        UNROLLED for (int v = 0; v < NV; v++) outputs[v] = load(by + v * LANES);
        UNROLLED for (int r = 0; r < MR; r++) {
          vec input = spread(from[Rows::at(r)]);
          UNROLLED for (int v = 0; v < NV; v++) kept[r][v] += input * outputs[v];
        }
        from += XSTEP, by += DSTEP;
      }
    }
  UNROLLED for (int r = 0; r < MR; r++)
    UNROLLED for (int v = 0; v < NV; v++) store(sums + (r * NV + v) * LANES, kept[r][v]);
}

template <class C>
struct ConvWeight : ConvWeightSizes<C> {
  using S = ConvWeightSizes<C>;

  // Copies the last panel's outputs of each pixel of a strip to rows of NR, zeros behind them.
  APART void copy_outputs(const float* dy, int images, int rows, float* copy) {
    ROLLED for (int image = 0; image < images; image++)
      ROLLED for (int row = 0; row < rows; row++)
        ROLLED for (int column = 0; column < C::OW; column++, copy += S::NR) {
          const float* from = dy + (i64)image * C::YN + (i64)row * C::YH + (i64)column * C::YW;
          ROLLED for (int i = 0; i < S::NR; i++) copy[i] = i < S::REST ? from[i] : 0.0f;
        }
  }

  // Copies the rows of x from `top` on that a strip reads, with their padding.
  APART void copy_inputs(const float* x, int images, int top, float* copy) {
    constexpr int LEFT = C::PW, RIGHT = C::W + C::PW;  // columns of the copy x covers
    ROLLED for (int image = 0; image < images; image++)
      ROLLED for (int row = top; row < top + S::COPY_HEIGHT; row++, copy += S::COPY_WIDTH) {
        const float* from = x + (i64)image * C::XN + (i64)row * C::XH;
        bool outside = row < 0 || row >= C::H;
        ROLLED for (int i = 0; i < S::COPY_WIDTH; i++) {
          int column = i / C::IC;
          bool zero = outside || column < LEFT || column >= RIGHT;
          copy[i] = zero ? 0.0f : from[(column - LEFT) * C::XW + i % C::IC];
        }
      }
  }

  // A tile of some inputs of one tap: of the strip, the rectangle of pixels that the tap hits.
  template <int DSTEP>
  INLINE void inputs_tile(int at, const float* x, const float* dy, ConvStrip strip, int top,
                          float* sums, bool fresh) {
    int part = at % S::PARTS, kw = at / S::PARTS % C::KW, kh = at / S::PARTS / C::KW;
    int column = conv_max(0, conv_ceil(C::PW - kw * C::DW, C::SW));
    int row = conv_max(top, conv_ceil(C::PH - kh * C::DH, C::SH));
    int bottom = conv_min(top + strip.rows, conv_ceil(C::H + C::PH - kh * C::DH, C::SH));
    strip.columns = conv_min(C::OW, conv_ceil(C::W + C::PW - kw * C::DW, C::SW)) - column;
    strip.rows = bottom - row;
    x += (i64)(row * C::SH - C::PH + kh * C::DH) * C::XH +
         (i64)(column * C::SW - C::PW + kw * C::DW) * C::XW + part * S::MR;
    dy += (row - top) * strip.dy_row + (i64)column * DSTEP;
    sums += ((i64)(kh * C::KW + kw) * C::IC + part * S::MR) * S::NR;
    if (part < S::PARTS - 1)
      conv_sum<ConvInputs, S::MR, S::NV, C::SW * C::XW, DSTEP>(x, dy, strip, sums, fresh);
    else conv_sum<ConvInputs, S::LAST, S::NV, C::SW * C::XW, DSTEP>(x, dy, strip, sums, fresh);
  }

  // A tile of many taps of few inputs: all of them hit all pixels.
  template <int DSTEP>
  INLINE void taps_tile(int at, const float* x, const float* dy, ConvStrip strip, float* sums,
                        bool fresh) {
    constexpr int COLUMN = S::PADDED ? C::IC : C::XW, ROW = S::PADDED ? S::COPY_WIDTH : C::XH;
    using Rows = ConvTaps<C::IC, C::KW, C::DW * COLUMN, C::DH * ROW>;
    constexpr int PER_ROW = C::KW * C::IC;
    x += (i64)(at * S::MR / PER_ROW) * C::DH * ROW;
    conv_sum<Rows, S::MR, S::NV, C::SW * COLUMN, DSTEP>(x, dy, strip, sums + (i64)at * S::MR * S::NR,
                                                       fresh);
  }

  // The tiles [first, last) of a panel, whose strip of dy is `strip`.
  template <int DSTEP>
  INLINE void tiles(int first, int last, const float* x, const float* dy, ConvStrip strip, int top,
                    float* sums, bool fresh) {
    ROLLED for (int at = first; at < last; at++) {
      if constexpr (S::FEW) taps_tile<DSTEP>(at, x, dy, strip, sums, fresh);
      else inputs_tile<DSTEP>(at, x, dy, strip, top, sums, fresh);
    }
  }

  // One strip, for the tiles [start, end) of those of all panels; their sums start at panel `base`.
  APART void strip(const float* x, const float* dy, float* scratch, int base, int start, int end,
                   int n, int top) {
    int images = conv_min(S::STRIP_IMAGES, C::N - n), rows = conv_min(S::STRIP_ROWS, C::OH - top);
    ConvStrip strip{images, rows, C::OW, C::XN, (i64)C::SH * C::XH, C::YN, C::YH};
    float *outputs = scratch + S::SUMS * S::KEPT, *inputs = outputs + S::OUTPUTS;
    x += (i64)n * C::XN, dy += (i64)n * C::YN + (i64)top * C::YH;
    if constexpr (S::PADDED) {
      copy_inputs(x, images, top * C::SH - C::PH, inputs);
      x = inputs, strip.x_row = C::SH * S::COPY_WIDTH;
      strip.x_image = (i64)S::COPY_HEIGHT * S::COPY_WIDTH;
    } else if constexpr (S::FEW) {
      x += (i64)top * C::SH * C::XH;
    }
    bool fresh = n == 0 && top == 0;
    ROLLED for (int panel = start / S::TILES; panel * S::TILES < end; panel++) {
      int first = conv_max(0, start - panel * S::TILES);
      int last = conv_min(S::TILES, end - panel * S::TILES);
      float* sums = scratch + (panel - base) * S::SUMS;
      if (S::REST && panel == S::PANELS - 1) {
        copy_outputs(dy + panel * S::NR, images, rows, outputs);
        strip.dy_row = C::OW * S::NR, strip.dy_image = rows * strip.dy_row;
        tiles<S::NR>(first, last, x, outputs, strip, top, sums, fresh);
      } else {
        tiles<C::YW>(first, last, x, dy + panel * S::NR, strip, top, sums, fresh);
      }
    }
  }
};

// dw from x and dy: ep(kh, kw, ic, oc0, count, channels) gets every row of every panel.
template <class C, class Ep>
INLINE void conv_weight(const float* x, const float* dy, float* scratch, int t, int T, Ep ep) {
  using S = ConvWeight<C>;
  int start = share(S::PANELS * S::TILES, t, T), end = share(S::PANELS * S::TILES, t + 1, T);
  ROLLED while (start < end) {
    int base = start / S::TILES, until = conv_min(end, (base + S::KEPT) * S::TILES);
    ROLLED for (int n = 0; n < C::N; n += S::STRIP_IMAGES)
      ROLLED for (int top = 0; top < C::OH; top += S::STRIP_ROWS)
        S::strip(x, dy, scratch, base, start, until, n, top);
    ROLLED for (; start < until; start++) {
      int panel = start / S::TILES, tile = start % S::TILES;
      int row = S::FEW ? tile * S::MR : tile / S::PARTS * C::IC + tile % S::PARTS * S::MR;
      int rows = !S::FEW && tile % S::PARTS == S::PARTS - 1 ? S::LAST : S::MR;
      const float* channels = scratch + (panel - base) * S::SUMS + (i64)row * S::NR;
      ROLLED for (int stop = row + rows; row < stop; row++, channels += S::NR) {
        int tap = row / C::IC, kh = tap / C::KW, kw = tap % C::KW, oc = panel * S::NR;
        if (S::REST == 0 || panel < S::PANELS - 1) ep(kh, kw, row % C::IC, oc, S::NR, channels);
        else ep(kh, kw, row % C::IC, oc, S::REST, channels);
      }
    }
  }
}
