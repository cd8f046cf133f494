// A 2-D convolution as compile-time numbers, and its weight in the two orders its kernels read.
//
//   x [n][h][w][ic]  *  weight [oc][ic][kh][kw]  ->  y [n][oh][ow][oc]        (channels last)
//
//   forward order   [oc / NR][ic / CHUNK][kh][kw][CHUNK][NR]    panels of NR outputs
//   plain order     [oc / NR][ic][kh][kw][NR]                   the same, chunk by chunk in between
//   input order     [ic / NR][oc / CHUNK][kh][kw][CHUNK][NR]    panels of NR inputs
//
// x and y may have strides of their own: one group of a grouped convolution is a Conv of its
// channels with the strides of all channels, and pointers to its first.
//
// One chunk of one panel fits the nearest cache, with all its taps, beside the pixels it meets.
// The last panel is filled up with zeros, so the kernels always multiply whole vectors. A packed
// weight is of floats; where it comes from it may be of 16 bits.

#pragma once

#define APART_WHOLE APART __attribute__((noclone))  // and compiled once, not for each caller

constexpr int conv_min(int a, int b) { return a < b ? a : b; }
constexpr int conv_max(int a, int b) { return a > b ? a : b; }
constexpr int conv_ceil(int a, int b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }  // b > 0
constexpr int conv_modulo(int a, int b) { return (a % b + b) % b; }
constexpr int conv_gcd(int a, int b) { return b ? conv_gcd(b, a % b) : a; }

// The same address, but the compiler cannot tell: neighbouring pixels read the same numbers, and
// it would keep those in registers from one step of a loop to the next and spill the sums.
INLINE const float* conv_afresh(const float* from) {
  asm("" : "+r"(from));
  return from;
}

// Vectors side by side in one panel: two give each broadcast two multiplications to feed.
constexpr int conv_vectors(int channels) { return channels > LANES ? 2 : 1; }

// Pixels a tile can hold in registers: one vector stays free for the broadcast, NV for the panel.
constexpr int conv_pixels(int vectors) { return (REGISTERS - vectors - 2) / vectors; }

// Floats of weights that stay in the nearest cache: a whole panel if it goes, else a chunk of one.
constexpr int CONV_PANEL_FLOATS = 10 * 1024, CONV_CHUNK_FLOATS = 5 * 1024;

// Channels of a chunk: all of them where a whole panel fits.
constexpr int conv_chunk(int channels, int taps, int panel) {
  if ((i64)channels * taps * panel <= CONV_PANEL_FLOATS) return channels;
  int fitting = conv_max(8, CONV_CHUNK_FLOATS / (taps * panel));
  return conv_ceil(channels, conv_ceil(channels, fitting));
}

// Pixels that are done: `rows` x `columns` of them, `step` columns of the image apart, `count`
// channels of each from `first` on. Rows of the sums are `row` floats apart, pixels NR.
struct ConvPart {
  int n, h, w, step, rows, columns, first, count, row;
  const float* sums;
};

// Hands every pixel to ep(n, h, w, channel, count, channels). WHOLE: there are always NR channels.
template <int NR, bool WHOLE, class Ep>
INLINE void conv_pixels_to(const ConvPart& part, const Ep& ep) {
  ROLLED for (int r = 0; r < part.rows; r++)
    ROLLED for (int i = 0; i < part.columns; i++) {
      const float* sums = part.sums + (i64)r * part.row + (i64)i * NR;
      const int w = part.w + i * part.step;
      if (WHOLE || part.count == NR) ep(part.n, part.h + r, w, part.first, NR, sums);
      else ep(part.n, part.h + r, w, part.first, part.count, sums);
    }
}

// The same through a pointer: the loops around it are then compiled once, and not for every kernel.
using ConvTake = void (*)(const void* ep, const ConvPart& part);

template <int NR, bool WHOLE, class Ep>
APART void conv_take(const void* with, const ConvPart& given) {
  const Ep ep = *(const Ep*)with;  // copies, which nothing that is stored can change
  const ConvPart part = given;
  conv_pixels_to<NR, WHOLE>(part, ep);
}

template <class C, bool TURNED>
struct ConvWeightSizes;

template <int N_, int IC_, int H_, int W_, int OC_, int OH_, int OW_, int KH_, int KW_, int SH_,
          int SW_, int PH_, int PW_, int DH_, int DW_, int XN_ = H_ * W_ * IC_, int XH_ = W_ * IC_,
          int XW_ = IC_, int YN_ = OH_ * OW_ * OC_, int YH_ = OW_ * OC_, int YW_ = OC_>
struct Conv {
  static constexpr int N = N_, IC = IC_, H = H_, W = W_, OC = OC_, OH = OH_, OW = OW_;
  static constexpr int KH = KH_, KW = KW_, SH = SH_, SW = SW_, PH = PH_, PW = PW_;
  static constexpr int DH = DH_, DW = DW_;
  static constexpr int XN = XN_, XH = XH_, XW = XW_, YN = YN_, YH = YH_, YW = YW_;

  static constexpr int forward_panel = LANES * conv_vectors(OC);
  static constexpr int input_panel = LANES * conv_vectors(IC);
  static constexpr int forward_panels = conv_ceil(OC, forward_panel);
  static constexpr int input_panels = conv_ceil(IC, input_panel);
  static constexpr int forward_chunk = conv_chunk(IC, KH * KW, forward_panel);
  static constexpr int input_chunk = conv_chunk(OC, KH * KW, input_panel);
  static constexpr int forward_chunks = conv_ceil(IC, forward_chunk);
  static constexpr int input_chunks = conv_ceil(OC, input_chunk);
  static constexpr i64 forward_floats =  // of one panel
      (i64)forward_chunks * forward_chunk * KH * KW * forward_panel;
  static constexpr i64 packed_forward = forward_panels * forward_floats;
  static constexpr i64 packed_input =
      (i64)input_panels * input_chunks * input_chunk * KH * KW * input_panel;

  // The gradient to the weight keeps its sums, and copies of what does not fit its loops.
  static constexpr i64 weight_scratch = ConvWeightSizes<Conv, false>::SCRATCH;
  static constexpr i64 turned_scratch = ConvWeightSizes<Conv, true>::SCRATCH;
};

// A square of LANES rows in registers, mirrored at its diagonal: swap blocks of 1, 2, 4, ... lanes.
typedef int conv_lanes __attribute__((vector_size(4 * LANES)));

template <int BLOCK>
INLINE void conv_swap_blocks(vec (&rows)[LANES]) {
  conv_lanes low, high;
  UNROLLED for (int lane = 0; lane < LANES; lane++) {
    low[lane] = lane & BLOCK ? LANES + lane - BLOCK : lane;
    high[lane] = lane & BLOCK ? LANES + lane : lane + BLOCK;
  }
  UNROLLED for (int i = 0; i < LANES; i++) {
    if (i & BLOCK) continue;
    vec a = rows[i], b = rows[i + BLOCK];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + BLOCK] = __builtin_shuffle(a, b, high);
  }
}

INLINE void conv_mirror(vec (&rows)[LANES]) {
  conv_swap_blocks<1>(rows);
  conv_swap_blocks<2>(rows);
  if constexpr (LANES > 4) conv_swap_blocks<4>(rows);
  if constexpr (LANES > 8) conv_swap_blocks<8>(rows);
}

// LANES outputs (rows of IC * TAPS) to the forward order: columns become vectors, NR apart in their
// chunk. Sizes are no constants here, so that one function serves every convolution.
template <class Number>
APART_WHOLE void pack_forward_lanes(const Number* weight, float* panel, int outputs, int IC,
                                    int TAPS, int CHUNK, int NR) {
  i64 length = (i64)IC * TAPS, column = 0;
  int tap = 0, channel = 0;  // of the chunk that starts at `panel`
  auto next = [&]() INLINE_CALL {
    float* to = panel + ((i64)tap * CHUNK + channel) * NR;
    if (++tap == TAPS) tap = 0, channel++;
    if (channel == CHUNK) channel = 0, panel += (i64)TAPS * CHUNK * NR;
    return to;
  };
  if (outputs == LANES) {
    ROLLED for (; column + LANES <= length; column += LANES) {
      vec rows[LANES];
      UNROLLED for (int i = 0; i < LANES; i++) rows[i] = load(weight + i * length + column);
      conv_mirror(rows);
      alignas(64) float columns[LANES * LANES];
      UNROLLED for (int i = 0; i < LANES; i++) store(columns + i * LANES, rows[i]);
      ROLLED for (int i = 0; i < LANES; i++) store(next(), load(columns + i * LANES));
    }
  }
  ROLLED for (; column < length; column++) {
    float* to = next();
    ROLLED for (int i = 0; i < LANES; i++) to[i] = i < outputs ? widened(weight[i * length + column]) : 0.0f;
  }
}

// Some vectors of outputs, the first of which goes to `packed`.
template <class C, class Number>
INLINE void pack_forward_vectors(const Number* weight, float* packed, int from, int end) {
  constexpr int NR = C::forward_panel, TAPS = C::KH * C::KW;
  ROLLED for (int vector = from; vector < end; vector++) {
    int first = vector * LANES;
    float* panel = packed + C::forward_floats * (first / NR) + first % NR;
    pack_forward_lanes(weight + (i64)first * C::IC * TAPS, panel,
                       conv_max(0, conv_min(C::OC - first, LANES)), C::IC, TAPS,
                       C::forward_chunk, NR);
  }
}

template <class C, class Number>
INLINE void pack_forward(const Number* weight, float* packed, int t, int T) {
  constexpr int VECTORS = C::forward_panels * C::forward_panel / LANES;
  pack_forward_vectors<C>(weight, packed, share(VECTORS, t, T), share(VECTORS, t + 1, T));
}

// Columns of LANES outputs (rows of the weight, `length` apart) to the plain order: each becomes a
// vector, NR after the one before.
template <class Number>
APART_WHOLE void pack_columns(const Number* weight, float* to, int outputs, i64 length, int columns,
                              int NR) {
  if (outputs == LANES && columns >= LANES) {
    ROLLED for (int column = 0; column < columns; column += LANES) {
      // The last square begins earlier: it stores some columns again.
      const int from = conv_min(column, columns - LANES);
      vec rows[LANES];
      UNROLLED for (int i = 0; i < LANES; i++) rows[i] = load(weight + i * length + from);
      conv_mirror(rows);
      UNROLLED for (int i = 0; i < LANES; i++) store(to + (i64)(from + i) * NR, rows[i]);
    }
    return;
  }
  ROLLED for (int column = 0; column < columns; column++, to += NR)
    ROLLED for (int i = 0; i < LANES; i++)
      to[i] = i < outputs ? widened(weight[i * length + column]) : 0.0f;
}

// The channels [first, end) of a panel, to `packed`.
template <class C, class Number>
INLINE void pack_plain(const Number* weight, float* packed, int panel, int first, int end) {
  constexpr int NR = C::forward_panel, TAPS = C::KH * C::KW;
  ROLLED for (int oc = panel * NR; oc < (panel + 1) * NR; oc += LANES)
    pack_columns(weight + ((i64)oc * C::IC + first) * TAPS, packed + oc % NR,
                 conv_max(0, conv_min(C::OC - oc, LANES)), (i64)C::IC * TAPS,
                 (end - first) * TAPS, NR);
}

// One chunk of the input order: NR inputs of `outputs` outputs. It is written in order, the reads
// of each tap are strided, but lie in the nearest cache after the first.
template <int TAPS, int NR, class Number>
APART_WHOLE void pack_input_chunk(const Number* weight, float* to, int outputs, int inputs, int IC,
                                  int CHUNK) {
  ROLLED for (int tap = 0; tap < TAPS; tap++, to += CHUNK * NR)
    ROLLED for (int oc = 0; oc < outputs; oc++) {
      const Number* from = weight + (i64)oc * IC * TAPS + tap;
      __builtin_prefetch(from + (TAPS + tap) * LANES);  // of the next panel, a bit with every tap
      if (inputs == NR)
        UNROLLED for (int i = 0; i < NR; i++) to[oc * NR + i] = widened(from[i * TAPS]);
      else
        ROLLED for (int i = 0; i < NR; i++) to[oc * NR + i] = i < inputs ? widened(from[i * TAPS]) : 0.0f;
    }
}

// Chunk by chunk for all panels, so that the rows of the weight are read in order.
template <class C, class Number>
INLINE void pack_input(const Number* weight, float* packed, int t, int T) {
  constexpr int NR = C::input_panel, TAPS = C::KH * C::KW, PANELS = C::input_panels;
  constexpr int CHUNK = C::input_chunk, CHUNKS = C::input_chunks;
  ROLLED for (i64 at = share(PANELS * CHUNKS, t, T); at < share(PANELS * CHUNKS, t + 1, T); at++) {
    int chunk = at / PANELS, panel = at % PANELS, ic = panel * NR, oc = chunk * CHUNK;
    const Number* from = weight + ((i64)oc * C::IC + ic) * TAPS;
    float* to = packed + ((i64)panel * CHUNKS + chunk) * TAPS * CHUNK * NR;
    pack_input_chunk<TAPS, NR>(from, to, conv_min(CHUNK, C::OC - oc), conv_min(NR, C::IC - ic),
                               C::IC, CHUNK);
  }
}
