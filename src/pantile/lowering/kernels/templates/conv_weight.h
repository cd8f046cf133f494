// The gradient to the weight: tiles of rows (tap, input), times a panel of NR outputs.
//
//   sums [kh][kw][ic][NR]  +=  x[pixel + tap][ic] * dy[pixel][NR]      for the pixels the tap hits
//
//   for some panels, whose sums stay in the second cache:
//     for each strip of pixels:
//       every tile of every panel goes through the strip with its sums in registers.
//
// Many inputs: a tile is a part of the inputs of one tap; the pixels of a tap are a rectangle, so
// nothing is multiplied by padding. All taps of a part read the same copy of the strip, in which
// the part's inputs lie side by side, so it stays in the nearest cache, as the panel's copy of dy.
// Few inputs (a first layer): a tile is all inputs of many taps, which read a copy of the strip of
// x with the padding written out (it is small). Threads share the tiles.
//
// TURNED: sums are handed over as they lie in torch's weights, [oc][ic][kh][kw]. Rows of outputs
// would be stored IC * KH * KW floats apart: often in a few sets of the nearest cache.

#pragma once

// Pixels of a strip, and floats of sums kept at a time.
constexpr int CONV_STRIP_PIXELS = 128, CONV_SUMS_FLOATS = 80 * 1024;

// Floats that lie side by side when sums are turned: some inputs with all their taps, and room for
// the end of a vector.
constexpr int CONV_TURNED = 144;
constexpr int conv_turned_row(int floats) { return conv_ceil(floats, LANES) * LANES; }

// The sums of some inputs, a row of NR outputs for each tap (strides: of taps, of inputs), become
// turned[NR][ROW], input by input.
APART_WHOLE void conv_turn(const float* sums, i64 tap, i64 input, int taps, int inputs, int NR,
                           i64 ROW, float* turned) {
  const float* row = sums;
  int left = taps, rows = taps * inputs;
  ROLLED for (; rows > 0; rows -= LANES, turned += LANES) {
    const float* from[LANES];
    ROLLED for (int i = 0; i < LANES; i++) {
      from[i] = row;
      if (i >= rows - 1) continue;  // the last one again, behind the end
      row += tap;
      if (--left == 0) left = taps, row = sums += input;
    }
    ROLLED for (int v = 0; v < NR; v += LANES) {
      vec square[LANES];
      UNROLLED for (int i = 0; i < LANES; i++) square[i] = load(from[i] + v);
      transpose(square);
      UNROLLED for (int i = 0; i < LANES; i++) store(turned + (v + i) * ROW, square[i]);
    }
  }
}

template <class C, bool TURNED>
struct ConvWeightSizes {
  static constexpr int MOST = REGISTERS - 4;  // rows of a tile one vector wide
  static constexpr bool FEW = C::IC <= 4 && C::KW * C::IC <= MOST;
  static constexpr int NV = FEW && C::OC <= 2 * LANES ? 1 : conv_vectors(C::OC), NR = NV * LANES;
  static constexpr int PANELS = conv_ceil(C::OC, NR), REST = C::OC % NR;

  // Rows that lie alike in x: the inputs of a tap, or (FEW) those of all taps or of a row of taps.
  // They make PARTS tiles of MR rows, the last of LAST.
  static constexpr int TAPS = C::KH * C::KW, ROWS = TAPS * C::IC;
  static constexpr int ALIKE = !FEW ? C::IC : ROWS <= MOST ? ROWS : C::KW * C::IC;
  static constexpr int PARTS = conv_ceil(ALIKE, FEW && NV == 1 ? MOST : conv_pixels(NV));
  static constexpr int MR = conv_ceil(ALIKE, PARTS), LAST = ALIKE - (PARTS - 1) * MR;
  static constexpr int GROUPS = ROWS / ALIKE, TILES = GROUPS * PARTS;

  // A strip is some rows of one image, or some whole images; of x it reads HEIGHT rows at most.
  static constexpr int STRIP_ROWS = conv_min(C::OH, conv_max(1, CONV_STRIP_PIXELS / C::OW));
  static constexpr int STRIP_IMAGES =
      STRIP_ROWS < C::OH ? 1 : conv_min(C::N, conv_max(1, CONV_STRIP_PIXELS / (C::OH * C::OW)));
  static constexpr int REACH = (STRIP_ROWS - 1) * C::SH + (C::KH - 1) * C::DH + 1;

  // The copy of x: for few inputs with its padding, else by parts, where the taps are worth it.
  static constexpr bool PADDED = FEW && (C::PH || C::PW), PARTED = !FEW && TAPS >= 4;
  static constexpr int HEIGHT = PADDED ? REACH : conv_min(C::H, REACH);
  static constexpr int PIXEL = PADDED ? C::IC : PARTED ? MR : C::XW;
  static constexpr int WIDTH = PADDED ? (C::OW - 1) * C::SW + (C::KW - 1) * C::DW + 1 : C::W;
  static constexpr int ROW = PADDED || PARTED ? WIDTH * PIXEL : C::XH;
  static constexpr i64 IMAGE = PADDED || PARTED ? (i64)HEIGHT * ROW : C::XN;
  static constexpr i64 PART = PARTED ? STRIP_IMAGES * IMAGE + LANES : MR;
  static constexpr i64 COPY =
      PARTED ? PARTS * PART : PADDED ? STRIP_IMAGES * IMAGE : 0;

  // The copy of a panel's dy, where its outputs are not all there are (the last may be filled up).
  static constexpr bool COPIED = REST || (!FEW && PANELS > 1 && ROWS >= 32);
  static constexpr i64 OUTPUTS = COPIED ? (i64)STRIP_IMAGES * STRIP_ROWS * C::OW * NR : 0;

  static constexpr i64 SUMS = (i64)ROWS * NR;
  static constexpr int KEPT = conv_min(PANELS, conv_max(1, (int)(CONV_SUMS_FLOATS / SUMS)));
  // Nothing to keep.
  static constexpr bool ALONE = !TURNED && STRIP_IMAGES == C::N && STRIP_ROWS == C::OH;
  static constexpr i64 SUMS_KEPT = ALONE ? MR * NR : SUMS * KEPT;
  static constexpr i64 SCRATCH = SUMS_KEPT + OUTPUTS + COPY;
};

// Where the rows of a tile lie in x: inputs side by side, or (Taps) inputs of successive taps.
struct ConvInputs {
  static constexpr int at(int row) { return row; }
};
template <int IC, int KW, int COLUMN, int ROW, int FIRST>
struct ConvTaps {
  static constexpr int at(int row) {
    row += FIRST;
    return row / (IC * KW) * ROW + row / IC % KW * COLUMN + row % IC;
  }
};

// A rectangle of pixels in some images: `rows` x `columns` of each, and how far apart in x and dy.
struct ConvStrip {
  int images, rows, columns;
  i64 x_image, x_row, dy_image, dy_row;
};

// Steps from pixel to pixel need be no constants (0), so that convolutions of other sizes share it.
template <class Rows, int MR, int NV, int XSTEP = 0, int DSTEP = 0>
APART_WHOLE void conv_sum(const float* x, i64 x_step, const float* dy, i64 dy_step, ConvStrip strip,
                          float* sums, bool fresh) {
  vec kept[MR][NV];
  UNROLLED for (int r = 0; r < MR; r++)
    UNROLLED for (int v = 0; v < NV; v++) kept[r][v] = vec{};  // each strip its own: short chains
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
        from += XSTEP ? XSTEP : x_step, by += DSTEP ? DSTEP : dy_step;
        if constexpr (MR * NV > REGISTERS / 2) from = conv_afresh(from);
      }
    }
  UNROLLED for (int r = 0; r < MR; r++)
    UNROLLED for (int v = 0; v < NV; v++) {
      float* all = sums + (r * NV + v) * LANES;
      store(all, fresh ? kept[r][v] : load(all) + kept[r][v]);
    }
}

// Copies `count` outputs of each pixel of a strip of dy to rows of NR, zeros behind them.
APART_WHOLE void conv_copy_outputs(const float* dy, ConvStrip strip, int dy_column, int count,
                                   int NR, float* copy) {
  ROLLED for (int image = 0; image < strip.images; image++)
    ROLLED for (int row = 0; row < strip.rows; row++) {
      const float* from = dy + image * strip.dy_image + row * strip.dy_row;
      ROLLED for (int column = 0; column < strip.columns; column++, copy += NR, from += dy_column) {
        if (count == NR) ROLLED for (int i = 0; i < NR; i += LANES) store(copy + i, load(from + i));
        else ROLLED for (int i = 0; i < NR; i++) copy[i] = i < count ? from[i] : 0.0f;
      }
    }
}

// Copies a row of x of `columns` pixels by parts of MR inputs (strides: of pixels in x, of parts in
// the copy): whole vectors, each over the end of the one before.
APART_WHOLE void conv_copy_parts(const float* x, int columns, int x_column, int IC, int MR,
                                 i64 part_floats, float* copy) {
  ROLLED for (int ic = 0; ic < IC; ic += MR, copy += part_floats) {
    const float* from = x + ic;
    float* to = copy;
    bool inside = MR <= LANES && ic + LANES <= IC;
    int count = conv_min(MR, IC - ic);
    ROLLED for (int column = 0; column < columns; column++, from += x_column, to += MR) {
      if (inside) store(to, load(from));
      else ROLLED for (int i = 0; i < count; i++) to[i] = from[i];
    }
  }
}

template <class C, bool TURNED>
struct ConvWeight : ConvWeightSizes<C, TURNED> {
  using S = ConvWeightSizes<C, TURNED>;

  // Copies the rows of x from `top` on that a strip reads: with their padding, or by parts.
  INLINE void copy_inputs(const float* x, int images, int top, float* copy) {
    ROLLED for (int image = 0; image < images; image++)
      ROLLED for (int row = 0; row < S::HEIGHT; row++) {
        const float* from = x + (i64)image * C::XN + (i64)(top + row) * C::XH;
        float* to = copy + image * S::IMAGE + (i64)row * S::ROW;
        if constexpr (S::PADDED) {
          constexpr int COLUMNS = conv_max(0, conv_min(C::W, S::WIDTH - C::PW));
          memset(to, 0, sizeof(float) * S::ROW);
          if (top + row >= 0 && top + row < C::H)
            conv_copy_parts(from, COLUMNS, C::XW, C::IC, C::IC, 0, to + C::PW * C::IC);
        } else {
          conv_copy_parts(from, C::W, C::XW, C::IC, S::MR, S::PART, to);
        }
      }
  }

  // A tile of a part of the inputs of one tap: of the strip, the rectangle that the tap hits.
  // x points at row `x_top` of the strip's first image.
  template <int DSTEP>
  INLINE void inputs_tile(int at, const float* x, int x_top, const float* dy, ConvStrip strip,
                          int top, float* sums, bool fresh) {
    int part = at / S::TAPS, kh = at % S::TAPS / C::KW, kw = at % C::KW;
    int column = conv_max(0, conv_ceil(C::PW - kw * C::DW, C::SW));
    int row = conv_max(top, conv_ceil(C::PH - kh * C::DH, C::SH));
    int bottom = conv_min(top + strip.rows, conv_ceil(C::H + C::PH - kh * C::DH, C::SH));
    strip.columns = conv_min(C::OW, conv_ceil(C::W + C::PW - kw * C::DW, C::SW)) - column;
    strip.rows = bottom - row;
    x += (i64)(row * C::SH - C::PH + kh * C::DH - x_top) * S::ROW +
         (i64)(column * C::SW - C::PW + kw * C::DW) * S::PIXEL + part * S::PART;
    dy += (row - top) * strip.dy_row + (i64)column * DSTEP;
    if (part < S::PARTS - 1)
      conv_sum<ConvInputs, S::MR, S::NV>(x, C::SW * S::PIXEL, dy, DSTEP, strip, sums, fresh);
    else conv_sum<ConvInputs, S::LAST, S::NV>(x, C::SW * S::PIXEL, dy, DSTEP, strip, sums, fresh);
  }

  // A tile of many taps of few inputs: all of them hit all pixels.
  template <int DSTEP, int PART = 0>
  INLINE void taps_tile(int at, const float* x, const float* dy, ConvStrip strip, float* sums,
                        bool fresh) {
    using Rows = ConvTaps<C::IC, C::KW, C::DW * S::PIXEL, C::DH * S::ROW, PART * S::MR>;
    if (PART == S::PARTS - 1 || at / S::GROUPS == PART) {
      x += (i64)(at % S::GROUPS) * C::DH * S::ROW;
      conv_sum<Rows, PART < S::PARTS - 1 ? S::MR : S::LAST, S::NV, C::SW * S::PIXEL, DSTEP>(
          x, 0, dy, 0, strip, sums, fresh);
    } else if constexpr (PART < S::PARTS - 1) {
      taps_tile<DSTEP, PART + 1>(at, x, dy, strip, sums, fresh);
    }
  }

  // Where a tile's rows lie in the sums of its panel, and how many they are.
  INLINE int first_row(int tile) {
    return tile % S::GROUPS * S::ALIKE + tile / S::GROUPS * S::MR;
  }
  INLINE int rows_of(int tile) { return tile / S::GROUPS < S::PARTS - 1 ? S::MR : S::LAST; }

  // One strip, for the tiles [start, end) of those of all panels; their sums start at panel `base`.
  // done(panel, tile, sums) is called after each tile.
  template <class Done>
  INLINE void strip(const float* x, const float* dy, float* scratch, int base, int start, int end,
                    int n, int top, Done done) {
    ConvStrip strip{conv_min(S::STRIP_IMAGES, C::N - n), conv_min(S::STRIP_ROWS, C::OH - top),
                    C::OW, S::IMAGE, (i64)C::SH * S::ROW, C::YN, C::YH};
    float *outputs = scratch + S::SUMS_KEPT, *inputs = outputs + S::OUTPUTS;
    x += (i64)n * C::XN, dy += (i64)n * C::YN + (i64)top * C::YH;
    int x_top = top * C::SH - C::PH;
    if (S::PARTED) x_top = conv_max(0, conv_min(x_top, C::H - S::HEIGHT));
    if constexpr (S::PADDED || S::PARTED) {
      copy_inputs(x, strip.images, x_top, inputs);
      x = inputs;
    } else {
      x_top = conv_max(0, x_top), x += (i64)x_top * C::XH;
    }
    ConvStrip copied = strip;
    copied.dy_row = C::OW * S::NR, copied.dy_image = strip.rows * copied.dy_row;
    bool fresh = n == 0 && top == 0;
    ROLLED for (int at = start; at < end; at++) {
      int panel = at / S::TILES, tile = at % S::TILES;
      constexpr int DSTEP = S::COPIED ? S::NR : C::YW;
      const float* from = dy + panel * S::NR;
      if (S::COPIED && (at == start || tile == 0))
        conv_copy_outputs(from, strip, C::YW, conv_min(S::NR, C::OC - panel * S::NR), S::NR,
                          outputs);
      float* sums = scratch + (panel - base) * S::SUMS + (i64)first_row(tile) * S::NR;
      if (S::ALONE) sums = scratch;
      const float* by = S::COPIED ? outputs : from;
      ConvStrip now = S::COPIED ? copied : strip;
      if constexpr (S::FEW) taps_tile<DSTEP>(tile, x, by, now, sums, fresh);
      else inputs_tile<DSTEP>(tile, x, x_top, by, now, top, sums, fresh);
      done(panel, tile, sums);
    }
  }
};

// The turned sums of the tiles [start, end), whole parts: ep(oc, first, count, row), where `first`
// counts inputs and taps.
template <class S, class C, class Ep>
INLINE void conv_give_turned(const float* sums, int base, int start, int end, const Ep& ep) {
  constexpr int AT_ONCE = conv_min(conv_max(1, CONV_TURNED / S::TAPS), C::IC);
  constexpr int ROW = conv_turned_row(AT_ONCE * S::TAPS);
  ROLLED for (int panel = start / S::TILES; panel * S::TILES < end; panel++) {
    const int first = conv_max(0, start - panel * S::TILES) / S::TAPS;
    const int last = conv_min(S::TILES, end - panel * S::TILES) / S::TAPS;
    const int until = conv_min(C::IC, last * S::MR), oc = panel * S::NR;
    ROLLED for (int ic = first * S::MR; ic < until; ic += AT_ONCE) {
      alignas(64) float turned[S::NR * ROW];
      const int inputs = conv_min(AT_ONCE, until - ic);
      conv_turn(sums + (panel - base) * S::SUMS + (i64)ic * S::NR, (i64)C::IC * S::NR, S::NR, S::TAPS,
                inputs, S::NR, ROW, turned);
      ROLLED for (int i = 0; i < conv_min(S::NR, C::OC - oc); i++)
        ep(oc + i, ic * S::TAPS, inputs * S::TAPS, turned + i * ROW);
    }
  }
}

// dw from x and dy: ep(kh, kw, ic, oc0, count, channels) gets every row of every panel, with the
// last strip, while it is still in the nearest cache; or all of them are turned at the end.
template <class C, bool TURNED = false, class Ep>
INLINE void conv_weight(const float* x, const float* dy, float* scratch, int t, int T, Ep ep) {
  using S = ConvWeight<C, TURNED>;
  constexpr int TOGETHER = TURNED ? S::TAPS : 1, SHARES = S::PANELS * S::TILES / TOGETHER;
  int start = share(SHARES, t, T) * TOGETHER, end = share(SHARES, t + 1, T) * TOGETHER;
  ROLLED while (start < end) {
    int base = start / S::TILES, until = conv_min(end, (base + S::KEPT) * S::TILES);
    ROLLED for (int n = 0; n < C::N; n += S::STRIP_IMAGES)
      ROLLED for (int top = 0; top < C::OH; top += S::STRIP_ROWS) {
        bool last = !TURNED && n + S::STRIP_IMAGES >= C::N && top + S::STRIP_ROWS >= C::OH;
        auto done = [&](int panel, int tile, const float* sums) INLINE_CALL {
          if constexpr (TURNED) return;
          else {
            int row = S::first_row(tile), stop = last ? row + S::rows_of(tile) : row;
            ROLLED for (; row < stop; row++, sums += S::NR) {
              int tap = row / C::IC, kh = tap / C::KW, kw = tap % C::KW, oc = panel * S::NR;
              if (S::REST == 0 || panel < S::PANELS - 1) ep(kh, kw, row % C::IC, oc, S::NR, sums);
              else ep(kh, kw, row % C::IC, oc, S::REST, sums);
            }
          }
        };
        S::strip(x, dy, scratch, base, start, until, n, top, done);
      }
    if constexpr (TURNED) conv_give_turned<S, C>(scratch, base, start, until, ep);
    start = until;
  }
}
