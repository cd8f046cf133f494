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
  static constexpr int PANELS = conv_ceil(C::OC, NR), REST = C::OC - (PANELS - 1) * NR;

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
  static constexpr bool COPIED = REST < NR || (!FEW && PANELS > 1 && ROWS >= 32);
  static constexpr i64 OUTPUTS = COPIED ? (i64)STRIP_IMAGES * STRIP_ROWS * C::OW * NR : 0;

  static constexpr i64 SUMS = (i64)ROWS * NR;
  static constexpr int KEPT = conv_min(PANELS, conv_max(1, (int)(CONV_SUMS_FLOATS / SUMS)));
  // Nothing to keep.
  static constexpr bool ALONE = !TURNED && STRIP_IMAGES == C::N && STRIP_ROWS == C::OH;
  static constexpr i64 SUMS_KEPT = ALONE ? MR * NR : SUMS * KEPT;
  static constexpr i64 SCRATCH = SUMS_KEPT + OUTPUTS + COPY;

  // Inputs that are turned at a time, with all their taps.
  static constexpr int AT_ONCE = conv_min(conv_max(1, CONV_TURNED / TAPS), C::IC);
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
        if constexpr (MR * NV > REGISTERS / 2) from = afresh(from);
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

// The same numbers for loops that serve all convolutions.
struct ConvWeightPlan {
  int N, IC, H, W, OH, OW, KW, SH, SW, PH, PW, DH, DW;
  int PANELS, REST, TAPS, ALIKE, PARTS, MR, LAST, GROUPS, TILES, STRIP_ROWS, STRIP_IMAGES;
  int HEIGHT, WIDTH, PIXEL, KEPT, AT_ONCE, TURNED_ROW;
  bool PADDED, PARTED, COPIED, ALONE;
  i64 XN, XH, XW, YN, YH, YW, ROW, IMAGE, PART, OUTPUTS, SUMS, SUMS_KEPT;
  // A tile of many inputs, the last of a tap; or, for few inputs, a tile by its number.
  void (*sum)(const float* x, i64 x_step, const float* dy, i64 dy_step, ConvStrip strip, float* sums,
              bool fresh);
  void (*sum_last)(const float* x, i64 x_step, const float* dy, i64 dy_step, ConvStrip strip,
                   float* sums, bool fresh);
  void (*taps_tile)(int at, const float* x, const float* dy, ConvStrip strip, float* sums, bool fresh);
};

// A tile of many taps of few inputs: all of them hit all pixels.
template <class C, class S, int PART = 0>
static void conv_taps_tile(int at, const float* x, const float* dy, ConvStrip strip, float* sums,
                           bool fresh) {
  using Rows = ConvTaps<C::IC, C::KW, C::DW * S::PIXEL, C::DH * S::ROW, PART * S::MR>;
  constexpr int DSTEP = S::COPIED ? S::NR : C::YW;
  if (PART == S::PARTS - 1 || at / S::GROUPS == PART) {
    x += (i64)(at % S::GROUPS) * C::DH * S::ROW;
    conv_sum<Rows, PART < S::PARTS - 1 ? S::MR : S::LAST, S::NV, C::SW * S::PIXEL, DSTEP>(
        x, 0, dy, 0, strip, sums, fresh);
  } else if constexpr (PART < S::PARTS - 1) {
    conv_taps_tile<C, S, PART + 1>(at, x, dy, strip, sums, fresh);
  }
}

template <class C, bool TURNED, class S = ConvWeightSizes<C, TURNED>>
constexpr ConvWeightPlan conv_weight_plan = [] {
  ConvWeightPlan s{
      C::N,      C::IC,     C::H,      C::W,       C::OH,      C::OW,     C::KW,
      C::SH,     C::SW,     C::PH,     C::PW,      C::DH,      C::DW,     S::PANELS,
      S::REST,   S::TAPS,   S::ALIKE,  S::PARTS,   S::MR,      S::LAST,   S::GROUPS,
      S::TILES,  S::STRIP_ROWS,        S::STRIP_IMAGES,        S::HEIGHT, S::WIDTH,
      S::PIXEL,  S::KEPT,   S::AT_ONCE, conv_turned_row(S::AT_ONCE * S::TAPS),
      S::PADDED, S::PARTED, S::COPIED, S::ALONE,   C::XN,      C::XH,     C::XW,
      C::YN,     C::YH,     C::YW,     S::ROW,     S::IMAGE,   S::PART,   S::OUTPUTS,
      S::SUMS,   S::SUMS_KEPT,         nullptr,    nullptr,    nullptr};
  if constexpr (S::FEW) {
    s.taps_tile = conv_taps_tile<C, S>;
  } else {
    s.sum = conv_sum<ConvInputs, S::MR, S::NV>;
    s.sum_last = conv_sum<ConvInputs, S::LAST, S::NV>;
  }
  return s;
}();

// Copies the rows of x from `top` on that a strip reads: with their padding, or by parts.
INLINE void conv_copy_inputs(const ConvWeightPlan& s, const float* x, int images, int top,
                             float* copy) {
  ROLLED for (int image = 0; image < images; image++)
    ROLLED for (int row = 0; row < s.HEIGHT; row++) {
      const float* from = x + image * s.XN + (top + row) * s.XH;
      float* to = copy + image * s.IMAGE + row * s.ROW;
      if (s.PADDED) {
        const int columns = conv_max(0, conv_min(s.W, s.WIDTH - s.PW));
        memset(to, 0, sizeof(float) * s.ROW);
        if (top + row >= 0 && top + row < s.H)
          conv_copy_parts(from, columns, s.XW, s.IC, s.IC, 0, to + s.PW * s.IC);
      } else {
        conv_copy_parts(from, s.W, s.XW, s.IC, s.MR, s.PART, to);
      }
    }
}

// A tile of a part of the inputs of one tap: of the strip, the rectangle that the tap hits.
// x points at row `x_top` of the strip's first image, dy at pixels `step` floats apart.
INLINE void conv_inputs_tile(const ConvWeightPlan& s, int at, const float* x, int x_top,
                             const float* dy, i64 step, ConvStrip strip, int top, float* sums,
                             bool fresh) {
  const int part = at / s.TAPS, kh = at % s.TAPS / s.KW, kw = at % s.KW;
  const int column = conv_max(0, conv_ceil(s.PW - kw * s.DW, s.SW));
  const int row = conv_max(top, conv_ceil(s.PH - kh * s.DH, s.SH));
  const int bottom = conv_min(top + strip.rows, conv_ceil(s.H + s.PH - kh * s.DH, s.SH));
  strip.columns = conv_min(s.OW, conv_ceil(s.W + s.PW - kw * s.DW, s.SW)) - column;
  strip.rows = bottom - row;
  x += (row * s.SH - s.PH + kh * s.DH - x_top) * s.ROW +
       (i64)(column * s.SW - s.PW + kw * s.DW) * s.PIXEL + part * s.PART;
  dy += (row - top) * strip.dy_row + column * step;
  const i64 x_step = (i64)s.SW * s.PIXEL;
  if (part < s.PARTS - 1) s.sum(x, x_step, dy, step, strip, sums, fresh);
  else s.sum_last(x, x_step, dy, step, strip, sums, fresh);
}

// Where a tile's rows lie in the sums of its panel.
INLINE int conv_first_row(const ConvWeightPlan& s, int tile) {
  return tile % s.GROUPS * s.ALIKE + tile / s.GROUPS * s.MR;
}

// One strip, for the tiles [start, end) of those of all panels; their sums start at panel `base`.
// done(panel, tile, sums) is called after each tile.
template <int NR, class Done>
INLINE void conv_weight_strip(const ConvWeightPlan& s, const float* x, const float* dy,
                              float* scratch, int base, int start, int end, int n, int top,
                              Done done) {
  const ConvStrip strip{conv_min(s.STRIP_IMAGES, s.N - n), conv_min(s.STRIP_ROWS, s.OH - top), s.OW,
                        s.IMAGE, s.SH * s.ROW, s.YN, s.YH};
  float *outputs = scratch + s.SUMS_KEPT, *inputs = outputs + s.OUTPUTS;
  x += n * s.XN, dy += n * s.YN + top * s.YH;
  int x_top = top * s.SH - s.PH;
  if (s.PARTED) x_top = conv_max(0, conv_min(x_top, s.H - s.HEIGHT));
  if (s.PADDED || s.PARTED) {
    conv_copy_inputs(s, x, strip.images, x_top, inputs);
    x = inputs;
  } else {
    x_top = conv_max(0, x_top), x += x_top * s.XH;
  }
  ConvStrip now = strip;
  if (s.COPIED) now.dy_row = s.OW * NR, now.dy_image = strip.rows * now.dy_row;
  const bool fresh = n == 0 && top == 0;
  ROLLED for (int at = start; at < end; at++) {
    const int panel = at / s.TILES, tile = at % s.TILES;
    const float* from = dy + panel * NR;
    if (s.COPIED && (at == start || tile == 0))
      conv_copy_outputs(from, strip, s.YW, panel < s.PANELS - 1 ? NR : s.REST, NR, outputs);
    float* sums = scratch + (panel - base) * s.SUMS + (i64)conv_first_row(s, tile) * NR;
    if (s.ALONE) sums = scratch;
    const float* by = s.COPIED ? outputs : from;
    if (s.taps_tile) s.taps_tile(tile, x, by, now, sums, fresh);
    else conv_inputs_tile(s, tile, x, x_top, by, s.COPIED ? NR : s.YW, now, top, sums, fresh);
    done(panel, tile, sums);
  }
}

// Sums that are done, of `count` outputs: `rows` rows of them from `first` on (a row is an input of a
// tap); or, turned, `rows` floats of each output, which lie TURNED_ROW apart.
struct ConvWeightPart {
  int first, rows, oc, count;
  const float* sums;
};

template <int NR, bool WHOLE, bool TURNED, class Ep>
INLINE void conv_weight_to(const ConvWeightPlan& s, const ConvWeightPart& part, const Ep& ep) {
  const float* sums = part.sums;
  if constexpr (TURNED) {
    ROLLED for (int i = 0; i < part.count; i++, sums += s.TURNED_ROW)
      ep(part.oc + i, part.first, part.rows, sums);
  } else {
    ROLLED for (int row = part.first; row < part.first + part.rows; row++, sums += NR) {
      const int tap = row / s.IC, kh = tap / s.KW, kw = tap % s.KW;
      if (WHOLE || part.count == NR) ep(kh, kw, row % s.IC, part.oc, NR, sums);
      else ep(kh, kw, row % s.IC, part.oc, part.count, sums);
    }
  }
}

// The same through a pointer, as in conv.h.
using ConvWeightTake = void (*)(const ConvWeightPlan& s, const void* ep, const ConvWeightPart& part);

template <int NR, bool WHOLE, bool TURNED, class Ep>
APART void conv_weight_take(const ConvWeightPlan& s, const void* with, const ConvWeightPart& given) {
  const Ep ep = *(const Ep*)with;  // copies, which nothing that is stored can change
  const ConvWeightPart part = given;
  conv_weight_to<NR, WHOLE, TURNED>(s, part, ep);
}

// The turned sums of the tiles [start, end), whole parts.
template <int NR, class Take>
INLINE void conv_give_turned(const ConvWeightPlan& s, const float* sums, int base, int start, int end,
                             Take take) {
  ROLLED for (int panel = start / s.TILES; panel * s.TILES < end; panel++) {
    const int first = conv_max(0, start - panel * s.TILES) / s.TAPS;
    const int last = conv_min(s.TILES, end - panel * s.TILES) / s.TAPS;
    const int until = conv_min(s.IC, last * s.MR);
    ROLLED for (int ic = first * s.MR; ic < until; ic += s.AT_ONCE) {
      alignas(64) float turned[NR * conv_turned_row(CONV_TURNED)];
      const int inputs = conv_min(s.AT_ONCE, until - ic);
      conv_turn(sums + (panel - base) * s.SUMS + (i64)ic * NR, (i64)s.IC * NR, NR, s.TAPS, inputs, NR,
                s.TURNED_ROW, turned);
      take({ic * s.TAPS, inputs * s.TAPS, panel * NR, panel < s.PANELS - 1 ? NR : s.REST, turned});
    }
  }
}

template <int NR, bool TURNED, class Take>
INLINE void conv_weight_run(const ConvWeightPlan& s, const float* x, const float* dy, float* scratch,
                            int t, int T, Take take) {
  const int together = TURNED ? s.TAPS : 1, shares = s.PANELS * s.TILES / together;
  int start = share(shares, t, T) * together;
  const int end = share(shares, t + 1, T) * together;
  ROLLED while (start < end) {
    const int base = start / s.TILES, until = conv_min(end, (base + s.KEPT) * s.TILES);
    ROLLED for (int n = 0; n < s.N; n += s.STRIP_IMAGES)
      ROLLED for (int top = 0; top < s.OH; top += s.STRIP_ROWS) {
        const bool last = n + s.STRIP_IMAGES >= s.N && top + s.STRIP_ROWS >= s.OH;
        auto done = [&](int panel, int tile, const float* sums) INLINE_CALL {
          if (TURNED || !last) return;
          const int rows = tile / s.GROUPS < s.PARTS - 1 ? s.MR : s.LAST;
          const int count = s.PANELS > 1 && panel < s.PANELS - 1 ? NR : s.REST;
          take({conv_first_row(s, tile), rows, panel * NR, count, sums});
        };
        conv_weight_strip<NR>(s, x, dy, scratch, base, start, until, n, top, done);
      }
    if constexpr (TURNED) conv_give_turned<NR>(s, scratch, base, start, until, take);
    start = until;
  }
}

template <int NR, bool TURNED>
APART_WHOLE void conv_weight_run_shared(const ConvWeightPlan& plan, const float* x, const float* dy,
                                        float* scratch, int t, int T, ConvWeightTake take,
                                        const void* ep) {
  conv_weight_run<NR, TURNED>(
      plan, x, dy, scratch, t, T,
      [&](const ConvWeightPart& part) INLINE_CALL { take(plan, ep, part); });
}

// dw from x and dy: ep(kh, kw, ic, oc0, count, channels) gets every row of every panel, with the
// last strip, while it is still in the nearest cache; or (TURNED) all are turned at the end, and
// ep(oc, first, count, row) counts inputs and taps. NV: vectors of a panel. WHOLE: the last is full.
template <int NV, bool WHOLE, bool TURNED = false, class Ep>
INLINE void conv_weight_by(const ConvWeightPlan& plan, const float* x, const float* dy, float* scratch,
                           int t, int T, Ep ep) {
  constexpr int NR = NV * LANES;
  conv_weight_run_shared<NR, TURNED>(plan, x, dy, scratch, t, T,
                                     conv_weight_take<NR, WHOLE, TURNED, Ep>, &ep);
}

// The same in a function of its own, epilogue and all.
template <class C, bool TURNED = false, class Ep>
INLINE void conv_weight(const float* x, const float* dy, float* scratch, int t, int T, Ep ep) {
  using S = ConvWeightSizes<C, TURNED>;
  constexpr const ConvWeightPlan& s = conv_weight_plan<C, TURNED>;
  conv_weight_run<S::NR, TURNED>(s, x, dy, scratch, t, T,
                                 [&](const ConvWeightPart& part) INLINE_CALL {
                                   conv_weight_to<S::NR, S::REST == S::NR, TURNED>(s, part, ep);
                                 });
}
